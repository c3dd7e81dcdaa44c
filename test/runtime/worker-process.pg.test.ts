import { describe, expect, it, onTestFinished, vi } from 'vitest';
import { createClient } from '../../src/index.ts';
import { createWorker } from '../../src/worker.ts';
import { COMMIT, databaseProxy } from '../support/database-proxy.ts';
import { hold } from '../support/raw-provider.ts';
import { waitFor } from '../support/wait-for.ts';
import { API_KEY, endSessions, openWorld, type World } from '../support/world.ts';

const isAccepted = (world: World, id: string) =>
  waitFor(async () => (await world.request(id))['state'] === 'accepted', { what: `${id} to be accepted` });

/** Of every session of this database that begins after it. */
async function setDefault(world: World, name: string, value: string): Promise<void> {
  const admin = world.database.pool({ max: 1, options: '-c default_transaction_read_only=off' });
  await admin.query(
    `do $$ begin execute format('alter database %I set ${name} = %L', current_database(), '${value}'); end $$`,
  );
}

async function proxiedWorld() {
  const world = await openWorld({ provider: 'raw' });
  const proxy = await databaseProxy(world.database.connectionString);
  onTestFinished(() => proxy.stop());
  return { world, proxy, connectionString: proxy.connectionString };
}

describe('stop()', () => {
  it('admits nothing more, and settles every POST in flight first', async () => {
    const world = await openWorld({ provider: 'raw' });
    world.raw.onPost = hold;
    const [first, second] = (await world.songs(2)) as [string, string];
    const worker = world.worker();
    await worker.start();
    await world.raw.post(2);
    expect(worker.inFlight).toBe(2);

    const stopped = worker.stop();
    const later = await world.song('later');
    world.raw.posts[0]?.accept();
    world.raw.posts[1]?.answer(502);
    await stopped;

    expect(worker.inFlight).toBe(0);
    expect(await world.request(first)).toMatchObject({ state: 'accepted' });
    expect(await world.request(second)).toMatchObject({ state: 'ambiguous', state_reason: 'server_error' });
    expect(await world.request(later)).toMatchObject({ state: 'queued' });
    expect(await world.breaker()).toMatchObject({ consecutive_failures: 1 });
    expect(world.posts()).toBe(2);
    const left = `select from pg_stat_activity where datname = current_database() and application_name like 'onetake worker%'`;
    await waitFor(async () => (await world.database.query(left)).length === 0, {
      what: 'its sessions to end',
    });
  });

  it('and start() may be called any number of times, in any order', async () => {
    const world = await openWorld({ provider: 'raw' });
    const worker = world.worker();
    await Promise.all([worker.start(), worker.start()]);
    const id = await world.song('one');
    await isAccepted(world, id);
    await Promise.all([worker.stop(), worker.stop()]);
    await worker.stop();
    expect(world.posts()).toBe(1);
    expect(world.events.filter(({ name }) => name === 'process:started')).toHaveLength(1);
    expect(world.events.filter(({ name }) => name === 'process:stopped')).toHaveLength(1);

    const never = world.worker();
    await never.stop();
    await using disposed = world.worker();
    await disposed.start();
  });

  it('closes the gate: what was admitted as it came is known to be unsent, and goes back', async () => {
    const account = { apiKeyEnv: 'KEY', requestsPerMinute: 100, maxConcurrentGenerations: 100 };
    const accounts = { anna: account, ben: { ...account, apiKeyEnv: 'OTHER_KEY' } };
    const world = await openWorld({ provider: 'raw', config: { accounts } });
    const id = await world.song('one', { account: 'anna' });
    const other = await world.song('other', { account: 'ben' });
    let stopped: Promise<void> | undefined;
    const worker = world.worker({
      onEvent: (name) => {
        if (name === 'submission:admitted') stopped ??= worker.stop();
      },
    });
    await worker.start();
    await waitFor(() => stopped !== undefined, { what: 'the worker to be told to stop' });
    await stopped;
    expect(world.posts()).toBe(0);
    expect(await world.request(id)).toMatchObject({
      state: 'queued',
      state_reason: 'unsent_own_doing',
      charge: 'none',
    });
    expect(await world.attempt(id)).toMatchObject({ certainty: 'unsent', error_code: 'gate_closed' });
    expect(await world.request(other)).toMatchObject({ state: 'queued', submissions: 0 });
  });

  it('is not kept waiting by a key that never comes: after 5 s that attempt is unsent', async () => {
    const world = await openWorld({ provider: 'raw' });
    const id = await world.song('one');
    const worker = world.worker({ credentials: () => new Promise<string>(() => undefined) });
    await worker.start();
    await waitFor(async () => (await world.request(id))['state'] === 'submitting', { what: 'the intent' });
    await worker.stop();
    expect(await world.request(id)).toMatchObject({
      state: 'queued',
      state_reason: 'unsent_own_doing',
      charge: 'none',
    });
    expect(await world.attempt(id)).toMatchObject({ error_code: 'missing_api_key', health: 'none' });
    expect(world.posts()).toBe(0);
  });

  it('works while start() is still under way', async () => {
    const world = await openWorld({ provider: 'raw' });
    const worker = world.worker();
    const starting = worker.start();
    await worker.stop();
    await starting;
    await world.song('one');
    expect(world.posts()).toBe(0);
  });
});

describe('start()', () => {
  it('refuses a database that is not migrated, and says the remedy', async () => {
    const world = await openWorld({ provider: 'raw' });
    await world.database.query('drop schema onetake cascade');
    await expect(world.worker().start()).rejects.toMatchObject({
      code: 'schema_not_migrated',
      hint: expect.stringContaining('onetake migrate'),
    });
    await expect(world.poller().start()).rejects.toMatchObject({ code: 'schema_not_migrated' });
  });

  it('may be tried again once the database is migrated', async () => {
    const { world, proxy, connectionString } = await proxiedWorld();
    await proxy.down();
    const worker = world.worker({ connectionString });
    await expect(worker.start()).rejects.toThrow();
    await proxy.up();
    await worker.start();
    await isAccepted(world, await world.song('one'));
  });
});

describe.each([
  ['default_transaction_isolation', 'serializable'],
  ['datestyle', 'German'],
])('under %s = %s', (name, value) => {
  it('workers, pollers and rescue do all that they do', async () => {
    const world = await openWorld();
    const expiring = await world.song('expiring', { submitBefore: new Date(Date.now() + 60_000) });
    await world.passTime(60_001);
    const [due] = (await world.songs(1, 'due')) as [string];
    await world.database.query('delete from onetake_queue.job where singleton_key = $1', [due]);
    await world.database.query('update onetake.generation_requests set job_due = true where id = $1', [due]);
    await setDefault(world, name, value);
    const client = createClient({ connectionString: world.database.connectionString });
    onTestFinished(() => client.stop());
    for (let n = 0; n < 4; n++) {
      const fields = { prompt: `song ${n}`, duration: 5 };
      await client.enqueue({ operation: 'text-to-music', fields, requestKey: `song ${n}` });
    }
    const workers = [world.worker(), world.worker()];
    const pollers = [world.poller(), world.poller()];
    await Promise.all([...workers, ...pollers].map((one) => one.start()));
    await waitFor(
      async () => {
        const { expiring: expired, ...states } = await world.states();
        return expired === 'expired' && Object.values(states).every((state) => state === 'succeeded');
      },
      { what: 'everything to end' },
    );
    expect((await world.request(expiring))['charge']).toBe('none');
    expect(world.posts()).toBe(5);
    // What one session found in another's way is tried again. The queue's own upkeep runs as pg-boss does it.
    const refused = world.events.filter(
      ({ name, event }) =>
        name === 'process:trouble' && event.loop !== 'queue' && !['40001', '40P01'].includes(event.errorCode),
    );
    expect(refused).toEqual([]);
  });
});

describe('an account that this worker has no key for', () => {
  it.each(['closed', 'open, its probe due'])('is left to others, with the breaker %s', async (breaker) => {
    const world = await openWorld({ provider: 'raw' });
    await world.client.upsertAccount({
      name: 'a-foreign',
      provider: 'sonilo',
      requestsPerMinute: 60,
      maxConcurrentGenerations: 4,
    });
    const foreign = await world.song('foreign', { account: 'a-foreign' });
    const mine = await world.song('mine');
    if (breaker !== 'closed') {
      await world.database.query(
        `update onetake.circuit_breakers set state = 'open', opened_at = now(), retry_at = now()`,
      );
    }
    vi.stubEnv('SONILO_API_KEY', API_KEY);
    onTestFinished(() => void vi.unstubAllEnvs());
    const { config, database } = world;
    const worker = createWorker({ config, connectionString: database.connectionString });
    onTestFinished(() => worker.stop());
    for (let n = 0; n < 3; n++) await worker.runOnce();
    expect(await world.request(mine)).toMatchObject({ state: 'accepted', submissions: 1 });
    expect(await world.breaker()).toMatchObject({ state: 'closed' });
    expect(await world.request(foreign)).toMatchObject({ state: 'queued', submissions: 0 });
    // Whoever has `credentials` has every key.
    await world.worker().runOnce();
    expect(await world.request(foreign)).toMatchObject({ state: 'accepted', submissions: 1 });
  });
});

describe('without its LISTEN connection', () => {
  it('a worker still finds its work, and listens again', async () => {
    const world = await openWorld({ provider: 'raw' });
    await world.worker().start();
    const listeners = `select pid from pg_stat_activity where datname = current_database() and application_name = 'onetake worker listener'`;
    await waitFor(async () => (await world.database.query(listeners)).length === 1, { what: 'a listener' });
    await world.database.query(`select pg_terminate_backend(pid) from (${listeners}) l`);
    await isAccepted(world, await world.song('one'));
    await waitFor(async () => (await world.database.query(listeners)).length === 1, {
      what: 'a new listener',
    });
    await isAccepted(world, await world.song('two'));
  });
});

describe('a database that goes away', () => {
  it('while a POST is in flight: the outcome is stored as soon as it is back', async () => {
    const { world, proxy, connectionString } = await proxiedWorld();
    world.raw.onPost = hold;
    const id = await world.song('one');
    const worker = world.worker({ connectionString });
    await worker.start();
    const call = await world.raw.post(1);
    await proxy.down();
    call.accept('paid-for');
    await waitFor(() => world.events.some(({ name }) => name === 'submission:unsettled'), {
      what: 'the first try to fail',
    });
    expect(await world.request(id)).toMatchObject({ state: 'submitting' });
    await proxy.up();
    await isAccepted(world, id);
    expect(await world.request(id)).toMatchObject({ provider_task_id: 'paid-for', submissions: 1 });
    expect(await world.attempts(id)).toMatchObject([{ settled_by: 'worker', certainty: 'accepted' }]);
    // And it goes on with its work.
    world.raw.onPost = (next) => next.accept();
    await isAccepted(world, await world.song('two'));
    expect(world.posts()).toBe(2);
  });

  it('by ending every session at once, again and again: nothing is sent twice and nothing lost', async () => {
    const world = await openWorld();
    const workers = [world.worker(), world.worker()];
    for (const worker of workers) await worker.start();
    for (let n = 0; n < 6; n++) {
      for (let song = 0; song < 4; song++) {
        await waitFor(() => world.song(`song ${n} ${song}`).catch(() => false as const), {
          what: 'the song to be enqueued',
        });
      }
      await endSessions(world.database);
    }
    await waitFor(
      async () => {
        const states = Object.values(await world.states().catch(() => ({ not: 'yet' })));
        return states.length === 24 && states.every((state) => ['accepted', 'ambiguous'].includes(state));
      },
      { what: 'all songs to be accepted' },
    );
    const { forms } = world.simulator.ledger();
    expect(forms).toHaveLength(24);
    expect(forms.every(({ posts, charges }) => posts === 1 && charges === 1)).toBe(true);
    expect(new Set(Object.values(await world.states()))).toEqual(new Set(['accepted']));
  });

  it.each([
    ['in the middle of a settle', 'window_until = case'],
    ['at its COMMIT', COMMIT],
  ])('%s: the outcome is stored, one POST', async (_where, text) => {
    const { world, proxy, connectionString } = await proxiedWorld();
    world.raw.onPost = hold;
    const id = await world.song('one');
    const worker = world.worker({ connectionString });
    const ran = worker.runOnce();
    const call = await world.raw.post(1);
    for (const when of ['before', 'after'] as const) void proxy.cutAt(text, when);
    call.answer(502);
    await ran;
    expect(await world.request(id)).toMatchObject({
      state: 'ambiguous',
      state_reason: 'server_error',
      submissions: 1,
    });
    expect(await world.attempts(id)).toMatchObject([{ settled_by: 'worker', http_status: 502 }]);
    expect(await world.database.query('select * from onetake.attempt_evidence')).toEqual([]);
    await worker.runOnce().catch(() => undefined);
    await worker.runOnce();
    expect(await world.breaker()).toMatchObject({ consecutive_failures: 1 });
    expect(world.posts()).toBe(1);
  });
});
