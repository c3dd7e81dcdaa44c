import { describe, expect, it } from 'vitest';
import type { ProviderCall } from '../support/raw-provider.ts';
import { MUSIC, openWorld, type World, type WorldOptions } from '../support/world.ts';

const POLLER = { intervalMs: 1_000, maxIntervalMs: 8_000, concurrency: 16 };
/** `ONETAKE_POLL_TASKS=500` for the whole number. */
const TASKS = Number(process.env['ONETAKE_POLL_TASKS'] ?? 40);

const task = (call: ProviderCall, body: object): void =>
  call.answer(200, { task_id: call.path.split('/').at(-1), ...body });
const succeeded = (call: ProviderCall): void =>
  task(call, { status: 'succeeded', audio: { url: 'https://files.example.com/a.wav' } });

/** So many accepted tasks of each account, all of them due. */
async function acceptedWorld(
  counts: Readonly<Record<string, number>>,
  config: WorldOptions['config'] = {},
): Promise<World> {
  const accounts = Object.fromEntries(
    Object.keys(counts).map((name) => [
      name,
      { apiKeyEnv: `KEY_${name.toUpperCase()}`, requestsPerMinute: 10_000, maxConcurrentGenerations: 10_000 },
    ]),
  );
  const world = await openWorld({ provider: 'raw', config: { accounts, poller: POLLER, ...config } });
  // Ids of one account are told apart from those of the other.
  world.raw.onPost = (call) => call.accept(`${call.body.match(/prompt=([a-z]+)/)?.[1]}-${call.number}`);
  const inputs = Object.entries(counts).flatMap(([account, count]) =>
    Array.from({ length: count }, (_, n) => ({
      operation: 'text-to-music' as const,
      fields: { prompt: account, duration: 5 },
      requestKey: `${account} ${n}`,
      account,
    })),
  );
  await world.client.enqueue(inputs);
  await submitAll(world);
  await world.passTime(POLLER.intervalMs);
  return world;
}

async function submitAll(world: World): Promise<void> {
  const worker = world.worker({ config: { ...world.config, worker: { concurrency: 200 } } });
  while ((await statesOf(world))['queued'] !== undefined) await worker.runOnce();
}

async function statesOf(world: World): Promise<Record<string, number>> {
  const rows = await world.database.query<{ state: string; count: number }>(
    'select state, count(*)::int as count from onetake.generation_requests group by 1',
  );
  return Object.fromEntries(rows.map(({ state, count }) => [state, count]));
}

const readsOf = (world: World, account: string): number =>
  world.raw.gets.filter(({ path }) => path.startsWith(`/v1/tasks/${account}-`)).length;

it(`${TASKS} accepted tasks end while the breaker is forced open from the first to the last`, async () => {
  const world = await acceptedWorld({ default: TASKS });
  const note = { actor: 'an operator', reason: 'a drill' };
  await world.client.overrideBreaker({ name: MUSIC, mode: 'forced_open', ...note });
  const late = await world.song('too late');
  const seen = new Set<string>();
  world.raw.onGet = (call) => {
    // Each is still running when it is looked at first.
    if (seen.has(call.path)) return succeeded(call);
    seen.add(call.path);
    task(call, { status: 'processing' });
  };
  const [poller, worker] = [world.poller(), world.worker()];
  while ((await statesOf(world))['accepted'] !== undefined) {
    if ((await poller.runOnce()) === 0) await world.passTime(POLLER.intervalMs);
    await worker.runOnce();
  }
  expect(await statesOf(world)).toEqual({ succeeded: TASKS, queued: 1 });
  expect(await world.request(late)).toMatchObject({ state: 'queued', submissions: 0 });
  expect(world.posts()).toBe(TASKS);
  expect(await world.breaker()).toMatchObject({ override: 'forced_open' });
});

it('GETs that answer 500 for a minute fail nothing and hold up no submission, and all tasks end', async () => {
  const world = await acceptedWorld({ default: 20 });
  const [poller, worker] = [world.poller(), world.worker()];
  world.raw.onGet = (call) => call.answer(500, '<h1>Internal error</h1>');
  for (let second = 0; second < 60; second += 5) {
    await world.song(`meanwhile ${second}`);
    await worker.runOnce();
    expect(world.posts()).toBe(20 + second / 5 + 1);
    await poller.runOnce();
    await world.passTime(5_000);
  }
  expect(await statesOf(world)).toEqual({ accepted: 32 });
  // One page of tasks before it is known, and one task after each pause.
  expect(world.raw.gets.length).toBeGreaterThan(POLLER.concurrency + 4);
  expect(world.raw.gets.length).toBeLessThanOrEqual(POLLER.concurrency + 12);
  const pause = await world.database.query('select account, reason from onetake.read_pauses');
  expect(pause).toEqual([{ account: 'default', reason: 'http_500' }]);
  expect(await world.breaker()).toMatchObject({ state: 'closed', consecutive_failures: 0 });
  const [account] = await world.client.listAccounts();
  expect(account).toMatchObject({ pausedUntil: null, holds: [] });

  world.raw.onGet = succeeded;
  for (let second = 0; (await statesOf(world))['accepted'] !== undefined && second < 60; second += 2) {
    await world.passTime(2_000);
    while ((await poller.runOnce()) > 0);
  }
  expect(await statesOf(world)).toEqual({ succeeded: 32 });
  expect(await world.database.query('select * from onetake.read_pauses where since is not null')).toEqual([]);
  const told = world.events.filter(({ name }) => name.startsWith('reads:')).map(({ name }) => name);
  expect(told).toEqual(['reads:paused', 'reads:resumed']);
});

describe('an account whose tasks can’t be read', () => {
  it('waits as a whole, moves its tasks out of the way of others, and is tried by one task after each pause', async () => {
    const world = await acceptedWorld({ ill: 30, well: 3 });
    const [poller, other] = [world.poller(), world.poller()];
    world.raw.onGet = (call) =>
      call.path.includes('/ill-') ? call.socket.resetAndDestroy() : task(call, { status: 'processing' });
    await poller.runOnce();
    const before = readsOf(world, 'ill');
    expect(before).toBeGreaterThanOrEqual(5);
    // Whoever looks, in whichever process, reads none of them; each is moved once.
    let moved = 0;
    for (let claimed = 1; claimed > 0; moved += claimed) claimed = await other.runOnce();
    expect(moved).toBeLessThanOrEqual(33);
    expect(readsOf(world, 'ill')).toBe(before);
    expect(readsOf(world, 'well')).toBe(3);
    const early = await world.database.query(
      `select from onetake.generation_requests r join onetake.read_pauses p using (account)
where r.poll_errors = 0 and r.next_poll_at < p.paused_until`,
    );
    expect(early).toEqual([]);

    await world.passTime(30_000);
    await Promise.all([poller.runOnce(), other.runOnce()]);
    expect(readsOf(world, 'ill')).toBe(before + 1);
    const [pause] = await world.database.query('select * from onetake.read_pauses');
    expect(pause).toMatchObject({ account: 'ill', failures: 2, probe_until: null });
    // The row that admission locks was not touched.
    const paused = 'select from onetake.accounts where paused_until is not null';
    expect(await world.database.query(paused)).toEqual([]);
  });

  it('is tried by the next task when the poller that tried it died', async () => {
    const world = await acceptedWorld({ ill: 3 });
    const [dying, other] = [world.poller(), world.poller()];
    world.raw.onGet = (call) => call.answer(429, {}, { 'retry-after': '20' });
    await dying.runOnce();
    world.raw.onGet = () => undefined;
    await world.passTime(60_000);
    void dying.runOnce().catch(() => undefined);
    while (readsOf(world, 'ill') < 4) await other.runOnce();
    await world.passTime(10_000);
    await other.runOnce();
    expect(readsOf(world, 'ill')).toBe(4);
    world.raw.onGet = succeeded;
    await world.passTime(60_000);
    await other.runOnce();
    expect(readsOf(world, 'ill')).toBe(5);
    expect(await world.database.query('select * from onetake.read_pauses where since is not null')).toEqual(
      [],
    );
  });

  it.each([
    ['20', 20],
    ['86400', 80],
  ])('a 429 that asks for %s s pauses it at once, for %i s at most', async (retryAfter, seconds) => {
    const world = await acceptedWorld({ ill: 1 });
    world.raw.onGet = (call) => call.answer(429, {}, { 'retry-after': retryAfter });
    await world.poller().runOnce();
    const [pause] = await world.database.query<{ seconds: number }>(
      'select round(extract(epoch from paused_until - clock_timestamp()))::int as seconds from onetake.read_pauses',
    );
    expect(pause?.seconds).toBeGreaterThan(seconds - 10);
    expect(pause?.seconds).toBeLessThanOrEqual(seconds);
  });

  it('a task that is not found, or says what nobody knows, is its own trouble', async () => {
    const world = await acceptedWorld({ well: 8 });
    world.raw.onGet = (call) =>
      call.number % 2 === 0 ? call.answer(404, {}) : task(call, { status: 'exploded' });
    await world.poller().runOnce();
    expect(world.raw.gets).toHaveLength(8);
    expect(await world.database.query('select * from onetake.read_pauses where since is not null')).toEqual(
      [],
    );
    const troubles = await world.database.query(
      'select poll_trouble, count(*)::int from onetake.generation_requests group by 1 order by 1',
    );
    expect(troubles).toEqual([
      { poll_trouble: 'http_404', count: 4 },
      { poll_trouble: 'unknown_status_exploded', count: 4 },
    ]);
  });
});
