import { once } from 'node:events';
import { readFileSync } from 'node:fs';
import { type AddressInfo, createServer, type Socket } from 'node:net';
import { describe, expect, it, onTestFinished } from 'vitest';
import type { OperationConfig } from '../../src/runtime/define-config.ts';
import type { Child } from '../support/children.ts';
import { databaseProxy } from '../support/database-proxy.ts';
import { databaseClock, databaseTimePasses } from '../support/fleet.ts';
import { hold, type ProviderCall } from '../support/raw-provider.ts';
import { waitFor } from '../support/wait-for.ts';
import type { WorkerChildOrder } from '../support/worker-child.ts';
import { LEASE_MS, openWorld, type World } from '../support/world.ts';

// Workers that stop and go on: what they send, and what they may still say. The ledger is the provider's.

const OPERATOR = { actor: 'an operator', reason: 'nothing in the ledger' };
const QUARANTINE_MS = 120_000;

/** A send budget of just over a second, so that it is over before the key's own time is. */
const NARROW = {
  deadlines: { connectMs: 4_000, firstResponseMs: 8_000, submissionMs: 9_000 },
  leaseMs: 11_100,
} as const;
const BUDGET_MS = 1_100;

const hasState = (world: World, id: string, state: string) =>
  waitFor(async () => (await world.request(id))['state'] === state, { what: `${id} to be ${state}` });

const obey = async (child: Child, order: WorkerChildOrder): Promise<void> => {
  child.send(order);
  await child.message<{ obeyed?: unknown }>(
    ({ obeyed }) => JSON.stringify(obeyed) === JSON.stringify(order),
    'it obeyed',
  );
};

/** Other workers and rescue do what they can. */
async function letEverybodyTry(world: World): Promise<void> {
  const others = [world.worker(), world.worker()];
  for (const other of [...others, ...others]) await other.runOnce();
}

describe('a worker that is stopped after its commit and before its POST', () => {
  it('beyond its lease, with others and rescue at work: lets no byte out when it goes on', async () => {
    const world = await openWorld({ provider: 'raw', operation: NARROW });
    const id = await world.song('one');
    const child = await world.child('worker', { obeys: true });
    await hasState(world, id, 'submitting');
    const startedAt = Number((await world.attempt(id))['started_at']);
    child.process.kill('SIGSTOP');
    await databaseTimePasses(world, BUDGET_MS + 100, startedAt);
    await world.passTime(NARROW.leaseMs);
    await letEverybodyTry(world);
    expect(await world.request(id)).toMatchObject({ state: 'ambiguous', state_reason: 'worker_lost' });
    child.send({ giveKey: true } satisfies WorkerChildOrder);
    child.process.kill('SIGCONT');
    await waitFor(async () => (await evidence(world)).length > 0, { what: 'its late word' });
    // Past its lease it proves nothing, to anybody: somebody looks it up.
    expect(await evidence(world)).toMatchObject([{ source: 'late_answer', certainty: 'unknown' }]);
    await letEverybodyTry(world);
    expect(await world.request(id)).toMatchObject({ state: 'ambiguous', submissions: 1, attention: null });
    expect(world.posts()).toBe(0);
  });

  it('beyond its budget and within its lease: sends nothing, says so, and another sends it', async () => {
    const world = await openWorld({ provider: 'raw', operation: NARROW });
    const id = await world.song('one');
    const child = await world.child('worker', { obeys: true });
    await hasState(world, id, 'submitting');
    const startedAt = Number((await world.attempt(id))['started_at']);
    child.process.kill('SIGSTOP');
    await databaseTimePasses(world, BUDGET_MS + 100, startedAt);
    child.send({ giveKey: true } satisfies WorkerChildOrder);
    child.process.kill('SIGCONT');
    await hasState(world, id, 'queued');
    expect(await world.attempts(id)).toMatchObject([{ certainty: 'unsent', phase: 'unsent' }]);
    expect(world.posts()).toBe(0);
    await child.kill('SIGKILL');
    await world.passTime(2_000);
    await world.worker().runOnce();
    expect(await world.request(id)).toMatchObject({ state: 'accepted', submissions: 2, charge: 'charged' });
    expect(world.posts()).toBe(1);
  });

  it.each([
    ['suspended with its machine: its monotonic clock stood still, and its wall clock is ahead', 60_000],
    ['whose wall clock is set back, for as long as the other one says', -3_600_000],
  ])('%s', async (_how, setClockByMs) => {
    const world = await openWorld({ provider: 'raw', operation: NARROW });
    const id = await world.song('one');
    const child = await world.child('worker', { obeys: true });
    await hasState(world, id, 'submitting');
    const startedAt = Number((await world.attempt(id))['started_at']);
    await obey(child, { setClockByMs });
    if (setClockByMs < 0) await databaseTimePasses(world, BUDGET_MS + 100, startedAt);
    await obey(child, { giveKey: true });
    await hasState(world, id, 'queued');
    expect(world.posts()).toBe(0);
    expect(await world.attempts(id)).toMatchObject([{ certainty: 'unsent', error_code: 'gate_closed' }]);
  });

  it('whose wall clock is set back sends in time what it may', async () => {
    const world = await openWorld({ provider: 'raw' });
    const id = await world.song('one');
    const child = await world.child('worker', { obeys: true });
    await hasState(world, id, 'submitting');
    await obey(child, { setClockByMs: -3_600_000 });
    await obey(child, { giveKey: true });
    await hasState(world, id, 'accepted');
    expect(world.posts()).toBe(1);
  });
});

describe('a worker whose commit is answered after its budget', () => {
  it('sends nothing of it, and it goes back', async () => {
    const world = await openWorld({ provider: 'raw', operation: NARROW });
    const proxy = await databaseProxy(world.database.connectionString);
    onTestFinished(() => proxy.stop());
    const id = await world.song('one');
    const committing = proxy.holdAt('commit', 'insert into onetake.submission_attempts');
    const worker = world.worker({ connectionString: proxy.connectionString });
    const ran = worker.runOnce();
    const commit = await committing;
    await databaseTimePasses(world, BUDGET_MS + 100, await databaseClock(world));
    await commit.release();
    await ran;
    expect(await world.request(id)).toMatchObject({ state: 'queued', state_reason: 'unsent_own_doing' });
    expect(world.posts()).toBe(0);
  });
});

describe('a worker that is stopped while it waits for the answer', () => {
  /** Its POST is on the wire, its lease is over, and rescue has frozen the request. */
  async function stopped(
    operation: OperationConfig = {},
  ): Promise<{ world: World; id: string; child: Child; call: ProviderCall }> {
    const world = await openWorld({ provider: 'raw', operation });
    world.raw.onPost = hold;
    const id = await world.song('one');
    const child = await world.child('worker');
    const call = await world.raw.post(1);
    child.process.kill('SIGSTOP');
    await world.passTime(LEASE_MS + 1);
    await letEverybodyTry(world);
    expect(await world.request(id)).toMatchObject({ state: 'ambiguous', state_reason: 'worker_lost' });
    return { world, id, child, call };
  }

  it('completes what rescue has frozen, by the acceptance that came meanwhile: in time, and read too late', async () => {
    const deadlines = { connectMs: 1_000, firstResponseMs: 1_500, submissionMs: 2_000 };
    const { world, id, child, call } = await stopped({ deadlines, leaseMs: LEASE_MS });
    call.accept('first');
    // It goes on when every deadline of its own is over, too.
    await databaseTimePasses(world, deadlines.submissionMs + 2_000);
    child.process.kill('SIGCONT');
    await hasState(world, id, 'accepted');
    expect(await world.request(id)).toMatchObject({ provider_task_id: 'first', charge: 'charged' });
    // Written once, by rescue; what came later stands beside it, and counts for no breaker.
    expect(await world.attempts(id)).toMatchObject([{ settled_by: 'rescue', phase: 'lease_over' }]);
    expect(await evidence(world)).toMatchObject([{ certainty: 'accepted', provider_task_id: 'first' }]);
    expect(await world.breaker()).toMatchObject({ state: 'closed', consecutive_failures: 0 });
    await letEverybodyTry(world);
    expect(world.posts()).toBe(1);
  });

  it('withdraws a re-arm before it is paid', async () => {
    const { world, id, child, call } = await stopped();
    await world.client.resolve({ id, as: 'not_accepted', ...OPERATOR });
    await letEverybodyTry(world);
    expect(await world.request(id)).toMatchObject({ state: 'queued' });
    call.accept('first');
    child.process.kill('SIGCONT');
    await hasState(world, id, 'accepted');
    await child.kill('SIGKILL');
    await world.passTime(QUARANTINE_MS);
    await letEverybodyTry(world);
    expect(await world.request(id)).toMatchObject({ state: 'accepted', submissions: 1, attention: null });
    expect(world.posts()).toBe(1);
  });

  it('says that it was perhaps paid twice when the re-armed POST is out; the first is followed home', async () => {
    const { world, id, child, call } = await stopped();
    await world.client.resolve({ id, as: 'not_accepted', ...OPERATOR });
    await world.passTime(QUARANTINE_MS);
    world.raw.onPost = (second) => second.accept('second');
    await letEverybodyTry(world);
    expect(world.posts()).toBe(2);
    expect(await world.request(id)).toMatchObject({ state: 'accepted', provider_task_id: 'second' });
    call.accept('first');
    child.process.kill('SIGCONT');
    await waitFor(async () => (await world.request(id))['attention'] === 'possibly_paid_twice', {
      what: 'the alarm',
    });
    expect(await world.request(id)).toMatchObject({ state: 'accepted', provider_task_id: 'second' });
    world.raw.onGet = (get) => {
      const taskId = get.path.split('/').at(-1);
      const isFirst = taskId === 'first';
      get.answer(200, {
        task_id: taskId,
        status: isFirst ? 'failed' : 'processing',
        ...(isFirst ? { error: { code: 'canceled' }, refunded: true } : {}),
      });
    };
    const poller = await world.child('poller');
    await waitFor(async () => (await world.request(id))['attention'] === null, { what: 'the alarm to end' });
    await poller.kill('SIGTERM');
    expect(await world.client.get(id)).toMatchObject({
      state: 'accepted',
      providerTaskId: 'second',
      charge: 'charged',
      otherTasks: [{ providerTaskId: 'first', status: 'failed', refunded: true }],
    });
    expect(world.posts()).toBe(2);
  });

  it('moves nothing by a 502 that came meanwhile', async () => {
    const { world, id, child, call } = await stopped();
    call.answer(502);
    child.process.kill('SIGCONT');
    await waitFor(async () => (await evidence(world)).length > 0, { what: 'its late word' });
    expect(await world.request(id)).toMatchObject({ state: 'ambiguous', state_reason: 'worker_lost' });
    expect(await world.breaker()).toMatchObject({ consecutive_failures: 0 });
    await letEverybodyTry(world);
    expect(world.posts()).toBe(1);
  });
});

describe('the bytes of a worker that was killed', () => {
  it('arrive when the provider reads on: a re-armed POST waits until they can’t any more', async () => {
    const provider = await unreadProvider();
    const world = await openWorld({ provider: new URL(provider.url) });
    const id = await world.song('one');
    const child = await world.child('worker');
    await waitFor(() => provider.sockets.length === 1, { what: 'its connection' });
    await hasState(world, id, 'submitting');
    // Written, and lying in the kernels: nobody has read it.
    await waitFor(() => unreadBytes(provider.sockets[0] as Socket) > 0, {
      what: 'the request to be on its way',
    });
    await child.kill('SIGKILL');
    await world.passTime(LEASE_MS + 1);
    await letEverybodyTry(world);
    const { notBefore } = await world.client.resolve({ id, as: 'not_accepted', ...OPERATOR });
    const lease = Number((await world.attempt(id))['lease_expires_at']);
    expect(Number(notBefore) - lease).toBe(QUARANTINE_MS);
    await letEverybodyTry(world);
    await world.passTime(QUARANTINE_MS - 10_000);
    await letEverybodyTry(world);
    expect(provider.sockets).toHaveLength(1);

    // Long after its death: all that it had written.
    const late = await provider.read(0);
    expect(late).toMatch(/^POST \/v1\/text-to-music HTTP\/1\.1\r\n/);
    expect(late).toContain('one');

    await world.passTime(20_000);
    const second = world.worker().runOnce();
    await waitFor(() => provider.sockets.length === 2, { what: 'the second POST' });
    expect(await provider.read(1)).toMatch(/^POST /);
    provider.sockets[1]?.end(
      'HTTP/1.1 202 Accepted\r\ncontent-type: application/json\r\ncontent-length: 20\r\n\r\n{"task_id":"second"}',
    );
    await second;
    expect(await world.request(id)).toMatchObject({ state: 'accepted', submissions: 2 });
    expect(provider.sockets).toHaveLength(2);
  });

  it('can’t arrive any more when a live worker has seen the connection end: the re-arm goes at once', async () => {
    const world = await openWorld({ provider: 'raw' });
    world.raw.onPost = (call) => call.socket.resetAndDestroy();
    const id = await world.song('one');
    const worker = world.worker();
    await worker.runOnce();
    expect(await world.request(id)).toMatchObject({ state: 'ambiguous', state_reason: 'transport' });
    expect((await world.attempt(id))['closed_at']).not.toBeNull();
    world.raw.onPost = (call) => call.accept();
    const { notBefore } = await world.client.resolve({ id, as: 'not_accepted', ...OPERATOR });
    expect(Number(notBefore)).toBeLessThanOrEqual(await databaseClock(world));
    await worker.runOnce();
    await worker.runOnce();
    expect(await world.request(id)).toMatchObject({ state: 'accepted', submissions: 2 });
    expect(world.posts()).toBe(2);
  });

  it('were read, when a 2xx has come: a re-arm needs force, and then goes at once', async () => {
    const world = await openWorld({ provider: 'raw' });
    world.raw.onPost = (call) => call.answer(200, {});
    const id = await world.song('one');
    const worker = world.worker();
    await worker.runOnce();
    expect(await world.request(id)).toMatchObject({ state_reason: 'accepted_without_task_id' });
    const rearm = { id, as: 'not_accepted', ...OPERATOR } as const;
    await expect(world.client.resolve(rearm)).rejects.toMatchObject({ code: 'request_not_in_state' });
    await worker.runOnce();
    expect(world.posts()).toBe(1);
    world.raw.onPost = (call) => call.accept();
    await world.client.resolve({ ...rearm, force: true });
    await worker.runOnce();
    await worker.runOnce();
    expect(await world.request(id)).toMatchObject({ state: 'accepted' });
    expect(world.posts()).toBe(2);
  });
});

function evidence(world: World): Promise<Record<string, unknown>[]> {
  return world.database.query('select * from onetake.attempt_evidence order by id');
}

interface UnreadProvider {
  readonly url: string;
  readonly sockets: readonly Socket[];
  /** Everything that has come on the nth connection, once the request is whole. */
  read(n: number): Promise<string>;
}

/** Takes connections and reads nothing, until it is told to. */
async function unreadProvider(): Promise<UnreadProvider> {
  const sockets: Socket[] = [];
  const server = createServer({ pauseOnConnect: true }, (socket) => {
    socket.on('error', () => undefined);
    sockets.push(socket);
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  onTestFinished(() => {
    for (const socket of sockets) socket.destroy();
    server.close();
  });
  return {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    sockets,
    async read(n) {
      let text = '';
      sockets[n]?.on('data', (chunk: Buffer) => {
        text += chunk.toString('latin1');
      });
      sockets[n]?.resume();
      await waitFor(() => isWhole(text), { what: `connection ${n + 1} to be read` });
      return text;
    },
  };
}

/** What lies in the kernel's buffer of a connection that nobody reads. */
function unreadBytes(socket: Socket): number {
  const port = (n = 0) => n.toString(16).toUpperCase().padStart(4, '0');
  const [local, remote] = [port(socket.localPort), port(socket.remotePort)];
  const row = readFileSync('/proc/net/tcp', 'utf8')
    .split('\n')
    .map((line) => line.trim().split(/\s+/))
    .find(([, from = '', to = '']) => from.endsWith(`:${local}`) && to.endsWith(`:${remote}`));
  return Number.parseInt(row?.[4]?.split(':')[1] ?? '0', 16);
}

function isWhole(request: string): boolean {
  const [head = '', body] = request.split('\r\n\r\n');
  const [, length] = /^content-length: (\d+)$/im.exec(head) ?? [];
  return body !== undefined && body.length === Number(length);
}
