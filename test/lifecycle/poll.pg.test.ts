import { describe, expect, it, onTestFinished } from 'vitest';
import type { Provider, TaskReading } from '../../src/core/provider.ts';
import { claimTasks, type PollContext, pollTask } from '../../src/lifecycle/poll.ts';
import { Database } from '../../src/postgres/database.ts';
import { insertRequest } from '../support/fixtures.ts';
import type { ProviderCall } from '../support/raw-provider.ts';
import { waitFor } from '../support/wait-for.ts';
import { API_KEY, lockRows, openWorld, type Row, type World, type WorldOptions } from '../support/world.ts';

const OPERATOR = { actor: 'an operator', reason: 'gave it up' };

interface Accepted extends World {
  readonly id: string;
  readonly taskId: string;
}

/** A world with one accepted task; its provider answers reads as the test says. */
async function acceptedWorld(options: WorldOptions = {}): Promise<Accepted> {
  const world = await openWorld({ provider: 'raw', ...options });
  const id = await world.song('one');
  await world.worker().runOnce();
  const { state, provider_task_id: taskId } = await world.request(id);
  expect(state).toBe('accepted');
  // The first read is due.
  await world.passTime(1_000);
  return Object.assign(world, { id, taskId: taskId as string });
}

const task = (call: ProviderCall, body: object): void =>
  call.answer(200, { task_id: call.path.split('/').at(-1), ...body });
const processing = (call: ProviderCall): void => task(call, { status: 'processing' });
const failed = (refunded?: boolean) => (call: ProviderCall) =>
  task(call, {
    status: 'failed',
    error: { code: 'generation_failed' },
    ...(refunded === undefined ? {} : { refunded }),
  });
const succeeded = (call: ProviderCall): void =>
  task(call, {
    status: 'succeeded',
    audio: [
      { stream_index: 0, url: 'https://files.example.com/a.wav', content_type: 'audio/wav', file_size: 5 },
    ],
  });

describe('a read that tells nothing', () => {
  // What is answered, and what a person is told of it.
  const KINDS: Readonly<Record<string, readonly [string, (call: ProviderCall) => void]>> = {
    'an error': ['http_500', (call) => call.answer(500, {})],
    'a bad gateway': ['http_502', (call) => call.answer(502, '<h1>Bad gateway</h1>')],
    'no service': ['http_503', (call) => call.answer(503, {}, { 'retry-after': '1' })],
    'a gateway that gave up': ['http_524', (call) => call.answer(524)],
    'no such task, for ever': ['http_404', (call) => call.answer(404, { code: 'not_found' })],
    gone: ['http_410', (call) => call.answer(410, {})],
    'a refused key': ['http_401', (call) => call.answer(401, { code: 'auth_invalid' })],
    'no money': ['http_402', (call) => call.answer(402, { code: 'insufficient_balance' })],
    'no access': ['http_403', (call) => call.answer(403, {})],
    'too many': ['http_429', (call) => call.answer(429, {}, { 'retry-after': '1' })],
    'another place': ['http_302', (call) => call.answer(302, '', { location: '/v1/elsewhere' })],
    'a page': ['body_unusable', (call) => call.answer(200, '<h1>Welcome</h1>')],
    nothing: ['body_unusable', (call) => call.answer(200)],
    junk: ['body_unusable', (call) => call.answer(200, '{"status": "failed"')],
    'a list': ['body_unusable', (call) => call.answer(200, [{ status: 'failed' }])],
    'no status': ['body_unusable', (call) => task(call, { error: { code: 'x' }, refunded: true })],
    'a status of no text': ['body_unusable', (call) => task(call, { status: 0 })],
    'a status that nobody knows': ['unknown_status_exploded', (call) => task(call, { status: 'EXPLODED' })],
    'another task': [
      'task_id_mismatch',
      (call) => call.answer(200, { task_id: 'another', status: 'failed', refunded: true }),
    ],
    'a reset': ['ECONNRESET', (call) => call.socket.resetAndDestroy()],
    'a cut body': [
      'UND_ERR_SOCKET',
      (call) => call.socket.end('HTTP/1.1 200 OK\r\ncontent-length: 90\r\n\r\n{"status": "failed"'),
    ],
  };

  it('of whatever kind is never the failure of the task, and is told when it lasts', {
    timeout: 120_000,
  }, async () => {
    const kinds = Object.entries(KINDS);
    // An account each: what one meets says nothing of the others.
    const accounts = kinds.map((_, n) => `account-${n}`);
    const world = await openWorld({
      provider: 'raw',
      config: {
        accounts: Object.fromEntries(accounts.map((name, n) => [name, { apiKeyEnv: `KEY_${n}` }])),
        poller: { intervalMs: 60_000, maxIntervalMs: 60_000, concurrency: 32 },
      },
    });
    world.raw.onPost = (call) => call.accept(`task-${/prompt=account-(\d+)/.exec(call.body)?.[1]}`);
    for (const account of accounts) await world.song(account, { account });
    await world.worker({ config: { ...world.config, worker: { concurrency: 100 } } }).runOnce();
    const poller = world.poller();
    const readAll = async () => {
      await world.passTime(3_600_000);
      const before = world.raw.gets.length;
      await poller.runOnce();
      expect(world.raw.gets).toHaveLength(before + kinds.length);
    };
    const rows = () =>
      world.database.query(
        'select account, state, charge, poll_errors, poll_trouble, attention from onetake.generation_requests order by created_at',
      );
    world.raw.onGet = (call) => kinds[Number(call.path.split('-').at(-1))]?.[1][1](call);
    for (const n of [1, 2, 9, 10]) {
      // Those between are like the second.
      if (n === 9) await world.database.query('update onetake.generation_requests set poll_errors = 8');
      await readAll();
      expect(await rows()).toEqual(
        kinds.map(([, [poll_trouble]], number) => ({
          account: `account-${number}`,
          state: 'accepted',
          charge: 'charged',
          poll_errors: n,
          poll_trouble,
          attention: n < 10 ? null : 'poll_failing',
        })),
      );
    }
    // Nothing is held or counted on account of it.
    expect(await world.database.query('select * from onetake.account_holds')).toEqual([]);
    expect(await world.breaker()).toMatchObject({ state: 'closed', consecutive_failures: 0 });

    world.raw.onGet = succeeded;
    await readAll();
    expect(await rows()).toEqual(
      accounts.map((account) => ({
        account,
        state: 'succeeded',
        charge: 'charged',
        poll_errors: 0,
        poll_trouble: null,
        attention: null,
      })),
    );
    expect(world.posts()).toBe(kinds.length);
  });

  it('waits longer from error to error, longest when the account is in trouble', async () => {
    const world = await acceptedWorld({ config: { poller: { intervalMs: 1_000, maxIntervalMs: 4_000 } } });
    const poller = world.poller();
    const waits: number[] = [];
    for (const answer of [500, 500, 500, 500, 401, 401]) {
      world.raw.onGet = (call) => call.answer(answer);
      await world.passTime(60_000);
      await world.database.query('update onetake.generation_requests set accepted_at = clock_timestamp()');
      const before = Date.now();
      await poller.runOnce();
      const next = (await world.request(world.id))['next_poll_at'] as Date;
      waits.push(Math.round((Number(next) - before) / 1_000));
    }
    expect(waits.slice(0, 4)).toEqual([2, 4, 4, 4]);
    expect(waits[4]).toBeGreaterThan(25);
    expect(waits[5]).toBeGreaterThan(35);
    expect(waits[5]).toBeLessThanOrEqual(41);
  });
});

describe('a task', () => {
  it('that runs is read again and again, and given attention when it is overdue, never ended', async () => {
    const world = await acceptedWorld();
    world.raw.onGet = processing;
    const poller = world.poller();
    await poller.runOnce();
    expect(await world.request(world.id)).toMatchObject({ state: 'accepted', attention: null });
    await world.passTime(601_000);
    await poller.runOnce();
    expect(await world.request(world.id)).toMatchObject({ state: 'accepted', attention: 'overdue' });
    world.raw.onGet = succeeded;
    await world.passTime(60_000);
    await poller.runOnce();
    expect(await world.request(world.id)).toMatchObject({ state: 'succeeded', attention: null });
  });

  it('that is finished is linked when no storage is configured', async () => {
    const world = await acceptedWorld();
    world.raw.onGet = succeeded;
    await world.poller().runOnce();
    expect(await world.request(world.id)).toMatchObject({
      state: 'succeeded',
      result_status: 'linked',
      charge: 'charged',
      next_poll_at: null,
    });
    expect(await world.database.query('select * from onetake.assets')).toMatchObject([
      { index: 0, kind: 'audio', location: 'https://files.example.com/a.wav', stored_at: null },
    ]);
    expect((await world.attempt(world.id))['slot_freed_at']).not.toBeNull();
  });

  it('that finished without files is asked again before that is taken for the truth', async () => {
    const world = await acceptedWorld();
    const poller = world.poller();
    world.raw.onGet = (call) => task(call, { status: 'succeeded', audio: [] });
    await poller.runOnce();
    await world.passTime(60_000);
    await poller.runOnce();
    expect(await world.request(world.id)).toMatchObject({ state: 'accepted' });
    await world.passTime(60_000);
    await poller.runOnce();
    expect(await world.request(world.id)).toMatchObject({
      state: 'succeeded',
      result_status: 'empty',
      attention: 'result_empty',
    });
  });

  it('that finished without files is asked again as often, whatever could not be read before', async () => {
    const world = await acceptedWorld();
    const poller = world.poller();
    const empty = (call: ProviderCall): void => task(call, { status: 'succeeded', audio: [] });
    const unreadable = (call: ProviderCall): void => call.answer(500);
    const readsOf = async (answer: (call: ProviderCall) => void): Promise<Row> => {
      world.raw.onGet = answer;
      await world.passTime(3_600_000);
      await poller.runOnce();
      return world.request(world.id);
    };
    await readsOf(unreadable);
    expect(await readsOf(unreadable)).toMatchObject({ poll_errors: 2, empty_reads: 0 });
    expect(await readsOf(empty)).toMatchObject({ state: 'accepted', empty_reads: 1 });
    expect(await readsOf(unreadable)).toMatchObject({ state: 'accepted', empty_reads: 1 });
    expect(await readsOf(empty)).toMatchObject({ state: 'accepted', empty_reads: 2 });
    // It was only slow to say which files: what it names now is the result.
    expect(await readsOf(succeeded)).toMatchObject({ state: 'succeeded', result_status: 'linked' });
  });

  it('that failed frees its slot, and its refund is watched for until it is there', async () => {
    const world = await acceptedWorld();
    const poller = world.poller();
    world.raw.onGet = failed(false);
    await poller.runOnce();
    expect(await world.request(world.id)).toMatchObject({
      state: 'failed',
      failure_reason: 'provider',
      failure_code: 'generation_failed',
      charge: 'charged',
      refunded: false,
    });
    expect(await world.client.get(world.id)).toMatchObject({ failureCode: 'generation_failed' });
    expect(world.events.filter(({ name }) => name === 'task:finished').map(({ event }) => event)).toEqual([
      { requestId: world.id, to: 'failed', failureCode: 'generation_failed', files: 0 },
    ]);
    expect((await world.attempt(world.id))['slot_freed_at']).not.toBeNull();
    for (const answer of [failed(false), (call: ProviderCall) => call.answer(500), processing]) {
      world.raw.onGet = answer;
      await world.passTime(60_000);
      expect(await poller.runOnce()).toBe(1);
      expect(await world.request(world.id)).toMatchObject({
        state: 'failed',
        charge: 'charged',
        refunded: false,
      });
    }
    world.raw.onGet = (call) => task(call, { status: 'failed', refunded: 'true' });
    await world.passTime(60_000);
    await poller.runOnce();
    expect(await world.request(world.id)).toMatchObject({ charge: 'charged' });
    world.raw.onGet = failed(true);
    await world.passTime(60_000);
    await poller.runOnce();
    expect(await world.request(world.id)).toMatchObject({
      state: 'failed',
      charge: 'refunded',
      refunded: true,
      next_poll_at: null,
    });
    expect(world.events.filter(({ name }) => name === 'task:refunded')).toHaveLength(1);
  });

  it('whose refund never comes is watched for an hour', async () => {
    const world = await acceptedWorld();
    const poller = world.poller();
    world.raw.onGet = failed();
    await poller.runOnce();
    expect(await world.request(world.id)).toMatchObject({ refunded: null });
    await world.passTime(3_599_000);
    expect(await poller.runOnce()).toBe(1);
    const gets = world.raw.gets.length;
    await world.passTime(61_000);
    expect(await poller.runOnce()).toBe(1);
    expect(world.raw.gets).toHaveLength(gets);
    expect(await world.request(world.id)).toMatchObject({
      state: 'failed',
      charge: 'charged',
      next_poll_at: null,
      attention: 'not_refunded',
    });
    expect(
      await world.database.query(
        'select request_id, refunded, watched_until from onetake.money_not_returned',
      ),
    ).toEqual([{ request_id: world.id, refunded: null, watched_until: null }]);
    await world.client.acknowledge(world.id, OPERATOR);
    await world.passTime(3_600_000);
    expect(await poller.runOnce()).toBe(0);
  });

  it('goes on while the breaker is open and the account is held or paused', async () => {
    const world = await acceptedWorld();
    await world.database.query(
      `update onetake.circuit_breakers set state = 'open', opened_at = now(), retry_at = now() + interval '1 h'`,
    );
    await world.database.query(
      `insert into onetake.account_holds (account, kind, since, epoch) values ('default', 'key_refused', now(), 0)`,
    );
    await world.database.query(
      `update onetake.accounts set paused_until = now() + interval '1 h', pause_kind = 'rate'`,
    );
    const unlock = await lockRows(world.database, 'select from onetake.circuit_breakers');
    world.raw.onGet = succeeded;
    await world.poller().runOnce();
    expect(await world.request(world.id)).toMatchObject({ state: 'succeeded' });
    await unlock();
  });

  it('that ends lets a concurrency pause end too, and not a rate pause', async () => {
    for (const kind of ['concurrency', 'rate']) {
      const world = await acceptedWorld();
      await world.database.query(
        `update onetake.accounts set paused_until = now() + interval '1 h', pause_kind = $1`,
        [kind],
      );
      world.raw.onGet = succeeded;
      await world.poller().runOnce();
      const [account] = await world.database.query('select paused_until from onetake.accounts');
      expect(account?.['paused_until'] === null).toBe(kind === 'concurrency');
    }
  });
});

describe('claims', () => {
  it('two pollers read each task once, and never more at a time than they may', async () => {
    const world = await openWorld({
      provider: 'raw',
      config: { poller: { intervalMs: 50, maxIntervalMs: 50, concurrency: 4 } },
    });
    await world.songs(20);
    const worker = world.worker();
    for (let n = 0; n < 3; n++) await worker.runOnce();
    let [running, most] = [0, 0];
    const reads = new Map<string, number>();
    world.raw.onGet = (call) => {
      most = Math.max(most, ++running);
      reads.set(call.path, (reads.get(call.path) ?? 0) + 1);
      setImmediate(() => {
        running--;
        succeeded(call);
      });
    };
    const pollers = [world.poller(), world.poller()];
    await world.passTime(1_000);
    for (let n = 0; n < 4; n++) await Promise.all(pollers.map((poller) => poller.runOnce()));
    expect(reads.size).toBe(20);
    expect(Math.max(...reads.values())).toBe(1);
    expect(most).toBeLessThanOrEqual(8);
    expect(new Set(Object.values(await world.states()))).toEqual(new Set(['succeeded']));
  });

  it('a poller that dies with a claim leaves nothing to repair', async () => {
    const world = await acceptedWorld();
    world.raw.onGet = () => undefined;
    const dying = world.poller();
    void dying.runOnce().catch(() => undefined);
    await waitFor(() => world.raw.gets.length === 1, { what: 'the task to be read' });
    const other = world.poller();
    expect(await other.runOnce()).toBe(0);
    await world.passTime(31_000);
    world.raw.onGet = succeeded;
    expect(await other.runOnce()).toBe(1);
    expect(await world.request(world.id)).toMatchObject({ state: 'succeeded' });
    // The dead one comes back and finds that it is over.
    failed(true)(world.raw.gets[0] as ProviderCall);
    await waitFor(async () => (await other.runOnce()) === 0, { what: 'quiet' });
    expect(await world.request(world.id)).toMatchObject({ state: 'succeeded', charge: 'charged' });
  });
});

describe('what an app brought along and never comes back', () => {
  const hanging = new Promise<never>(() => undefined);
  const provider = (readTask: () => Promise<TaskReading>): Provider => ({
    name: 'mine',
    readTask,
    submit: () => hanging,
    close: async () => undefined,
  });

  it.each<[string, Partial<PollContext>]>([
    ['a key', { apiKeyOf: (account) => (account === 'other' ? API_KEY : hanging) }],
    [
      'a provider',
      {
        providerNamed: (name) =>
          provider(
            name === 'mine'
              ? () => hanging
              : async () => ({ kind: 'failed', errorCode: null, refunded: true }),
          ),
      },
    ],
  ])('%s: its task is read again later, and the others go on meanwhile', async (_what, changes) => {
    const world = await openWorld({
      provider: 'raw',
      config: {
        accounts: {
          default: { provider: 'mine', apiKeyEnv: 'KEY' },
          other: { provider: 'sonilo', apiKeyEnv: 'KEY' },
        },
        providers: { mine: { baseUrl: 'http://127.0.0.1:9' }, sonilo: { baseUrl: 'http://127.0.0.1:9' } },
      },
    });
    const hung = await insertRequest(world.database, { state: 'accepted' });
    const other = await insertRequest(world.database, { state: 'accepted', account: 'other' });
    const database = Database.connect(world.database.connectionString, {
      max: 4,
      applicationName: 'onetake context',
    });
    onTestFinished(() => database.close());
    const unreadable: object[] = [];
    const ctx: PollContext = {
      database,
      emit: (name, event) => void (name === 'task:unreadable' && unreadable.push(event)),
      providerNamed: () => provider(async () => ({ kind: 'failed', errorCode: null, refunded: true })),
      apiKeyOf: () => API_KEY,
      maxRunMsOf: () => 600_000,
      schedule: { intervalMs: 50, maxIntervalMs: 50 },
      storage: null,
      readTimeoutMs: 50,
      downloadTimeoutMs: 1_000,
      random: Math.random,
      readFailures: new Map(),
      ...changes,
    };
    const { tasks: claimed } = await claimTasks(ctx, 10);
    expect(claimed).toHaveLength(2);
    const polled = Promise.all(claimed.map((one) => pollTask(ctx, one)));
    await waitFor(async () => (await world.request(other))['state'] === 'failed', {
      what: 'the other to end',
    });
    expect(unreadable).toEqual([]);
    await polled;
    expect(unreadable).toMatchObject([{ requestId: hung, errorCode: 'provider_silent' }]);
    expect(await world.request(hung)).toMatchObject({ state: 'accepted', poll_errors: 1 });
  });
});

describe('the first terminal state wins', () => {
  it.each<[string, (call: ProviderCall) => void]>([
    ['succeeded', succeeded],
    ['failed', failed(true)],
  ])('an operator gave it up while the answer %s was on its way', async (_status, answer) => {
    const world = await acceptedWorld();
    world.raw.onGet = () => undefined;
    await world.passTime(700_000);
    const polled = world.poller().runOnce();
    await waitFor(() => world.raw.gets.length === 1, { what: 'the task to be read' });
    await world.client.resolve({ id: world.id, as: 'abandoned', ...OPERATOR });
    answer(world.raw.gets[0] as ProviderCall);
    await polled;
    expect(await world.request(world.id)).toMatchObject({ state: 'failed', failure_reason: 'abandoned' });
    expect(await world.database.query('select * from onetake.assets')).toEqual([]);
    expect(world.events.filter(({ name }) => name === 'task:finished')).toEqual([]);
  });

  it('an operator took back which task it is while the answer about the old one was on its way', async () => {
    const world = await openWorld({ provider: 'raw' });
    world.raw.onPost = (call) => call.answer(502);
    const id = await world.song('one');
    await world.worker().runOnce();
    await world.client.resolve({ id, as: 'accepted', providerTaskId: 'mistaken', ...OPERATOR });
    world.raw.onGet = () => undefined;
    const polled = world.poller().runOnce();
    await waitFor(() => world.raw.gets.length === 1, { what: 'the task to be read' });
    expect(await world.client.reopen(id, OPERATOR)).toMatchObject({ from: 'accepted', to: 'ambiguous' });
    await world.client.resolve({ id, as: 'accepted', providerTaskId: 'right', ...OPERATOR });
    failed(true)(world.raw.gets[0] as ProviderCall);
    await polled;
    expect(await world.request(id)).toMatchObject({
      state: 'accepted',
      provider_task_id: 'right',
      charge: 'charged',
    });
    world.raw.onGet = succeeded;
    await world.passTime(60_000);
    await world.poller().runOnce();
    expect(world.raw.gets.map(({ path }) => path)).toEqual(['/v1/tasks/mistaken', '/v1/tasks/right']);
    expect(await world.request(id)).toMatchObject({ state: 'succeeded' });
    // Its task has finished: the word stands.
    await expect(world.client.reopen(id, OPERATOR)).rejects.toMatchObject({ code: 'request_not_in_state' });
  });

  it('it was taken for finished while an operator waits for its row', async () => {
    const world = await acceptedWorld();
    world.raw.onGet = succeeded;
    await world.passTime(700_000);
    await world.poller().runOnce();
    await expect(world.client.resolve({ id: world.id, as: 'abandoned', ...OPERATOR })).rejects.toMatchObject({
      code: 'request_not_in_state',
    });
  });
});

describe('an accepted answer of an operator', () => {
  it('is followed like any other', async () => {
    const world = await openWorld({ provider: 'raw' });
    world.raw.onPost = (call) => call.answer(502);
    const id = await world.song('one');
    await world.worker().runOnce();
    await world.client.resolve({ id, as: 'accepted', providerTaskId: 'found-in-the-ledger', ...OPERATOR });
    world.raw.onGet = succeeded;
    await world.poller().runOnce();
    expect(world.raw.gets[0]?.path).toBe('/v1/tasks/found-in-the-ledger');
    expect(await world.request(id)).toMatchObject({ state: 'succeeded', charge: 'charged' });
    expect(world.posts()).toBe(1);
  });
});
