import { once } from 'node:events';
import { mkdtemp, readdir, rm } from 'node:fs/promises';
import type { AddressInfo } from 'node:net';
import { createServer, type Socket } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { describe, expect, it, onTestFinished } from 'vitest';
import { COMMIT, type DatabaseProxy, databaseProxy } from '../support/database-proxy.ts';
import { type FleetWorker, startFleetWorker } from '../support/fleet.ts';
import { hold, type ProviderCall } from '../support/raw-provider.ts';
import { waitFor } from '../support/wait-for.ts';
import {
  LEASE_MS,
  openWorld,
  type SeenEvent,
  type World,
  type WorldOptions,
  waitForBlocked,
} from '../support/world.ts';

// SIGKILL of a real worker at each point of a submission, held there by its network and not by the product. Then
// another worker, with the same spool and with one of its own; POSTs are counted by the provider.

const INTENT = 'insert into onetake.submission_attempts';
const OUTCOME = 'set settled_at = s.now, settled_by = $2';
const SAME = 'the same spool';
const OTHER = 'another spool';

interface Stage {
  readonly world: World;
  readonly proxy: DatabaseProxy;
  readonly spool: string;
  /** Whose database is behind the proxy. */
  readonly victim: FleetWorker;
  /** Killed: from now on there are only the others. */
  kill(): Promise<void>;
  /** Starts another worker and has it look at everything, until the lease is over and long after. */
  restart(which: typeof SAME | typeof OTHER): Promise<void>;
  files(): Promise<string[]>;
  events<Name extends SeenEvent['name']>(name: Name): unknown[];
}

async function temporaryDirectory(): Promise<string> {
  const directory = await mkdtemp(join(tmpdir(), 'onetake-spool-'));
  onTestFinished(() => rm(directory, { recursive: true, force: true }));
  return directory;
}

/** `act` sees the proxy before the victim runs. */
async function openStage(
  options: WorldOptions,
  before: (proxy: DatabaseProxy, world: World) => Promise<void> | void = () => undefined,
): Promise<Stage> {
  const world = await openWorld({ provider: 'raw', ...options });
  const proxy = await databaseProxy(world.database.connectionString);
  onTestFinished(() => proxy.stop());
  const spool = await temporaryDirectory();
  await before(proxy, world);
  const victim = await startFleetWorker(world, {
    name: 'victim',
    connectionString: proxy.connectionString,
    config: { worker: { ...world.config.worker, spoolDirectory: spool } },
  });
  const told: SeenEvent[] = [];
  return {
    world,
    proxy,
    spool,
    victim,
    kill: async () => void (await victim.child.kill('SIGKILL')),
    async restart(which) {
      const spoolDirectory = which === SAME ? spool : await temporaryDirectory();
      const worker = world.worker({
        config: { ...world.config, worker: { ...world.config.worker, spoolDirectory } },
        onEvent: (name, event) => told.push({ name, event } as SeenEvent),
      });
      for (let round = 0; round < 4; round++) {
        await worker.runOnce();
        await world.passTime(LEASE_MS + 1);
      }
    },
    // Beside the outcomes lies the note of which databases were seen.
    files: async () => (await readdir(spool)).filter((name) => name !== 'installations.json'),
    events: (name) => told.filter((one) => one.name === name).map(({ event }) => event),
  };
}

const spooled = (files: Stage['files']) =>
  waitFor(async () => (await files()).some((name) => name.endsWith('.json')), {
    what: 'the outcome on disk',
  });

const WAS_LOST = { state: 'ambiguous', state_reason: 'worker_lost', charge: 'possible', submissions: 1 };

describe('killed before its intent is committed', () => {
  const opened = async () => {
    let held: ReturnType<DatabaseProxy['holdAt']> | undefined;
    const stage = await openStage({}, (proxy) => {
      held = proxy.holdAt(COMMIT, INTENT);
    });
    const id = await stage.world.song('one');
    const commit = await (held as ReturnType<DatabaseProxy['holdAt']>);
    await stage.kill();
    return { ...stage, id, commit };
  };

  it('nothing was sent and nothing is known: the next worker submits it, once', async () => {
    const { world, id, commit, restart } = await opened();
    commit.drop();
    await restart(OTHER);
    expect(world.posts()).toBe(1);
    expect(await world.request(id)).toMatchObject({ state: 'accepted', submissions: 1 });
  });

  it('and the COMMIT arrives after its death: the intent stands, and freezes the request unsent', async () => {
    const { world, id, commit, restart } = await opened();
    await commit.release();
    expect(await world.request(id)).toMatchObject({ state: 'submitting' });
    await restart(OTHER);
    expect(world.posts()).toBe(0);
    expect(await world.request(id)).toMatchObject(WAS_LOST);
  });
});

describe('the COMMIT of an intent whose answer is lost', () => {
  const opened = async () => {
    let held: ReturnType<DatabaseProxy['holdAt']> | undefined;
    const stage = await openStage({}, (proxy) => {
      held = proxy.holdAt(COMMIT, INTENT);
    });
    const id = await stage.world.song('one');
    const commit = await (held as ReturnType<DatabaseProxy['holdAt']>);
    commit.cutClient();
    return { ...stage, id, commit };
  };
  const isAccepted = async (world: World, id: string) => (await world.request(id))['state'] === 'accepted';

  it('and which is still under way is waited for under the lock, then sent, once', async () => {
    const { world, id, commit } = await opened();
    await waitForBlocked(world.database, 1);
    expect(world.posts()).toBe(0);
    await commit.release();
    await waitFor(() => isAccepted(world, id), { what: 'the POST' });
    expect(world.posts()).toBe(1);
    expect(await world.request(id)).toMatchObject({ submissions: 1 });
  });

  it.each([
    ['never happened', false, { state: 'accepted', submissions: 1 }, 1],
    ['happened', true, WAS_LOST, 0],
  ] as const)(
    'while the database stays away, and %s: nothing is sent, and the next worker draws the right conclusion',
    async (_how, arrives, request, posts) => {
      const { world, id, commit, proxy, victim, kill, files, restart } = await opened();
      await proxy.down();
      // Past the send budget its worker knows that it sent nothing, and can tell nobody.
      await spooled(files);
      expect(victim.child.messages).not.toContainEqual(
        expect.objectContaining({ name: 'submission:admitted' }),
      );
      await kill();
      if (arrives) await commit.release();
      else commit.drop();
      await restart(SAME);
      expect(world.posts()).toBe(posts);
      expect(await world.request(id)).toMatchObject(request);
      expect(await files()).toEqual([]);
      expect(await world.database.query('select doubt from onetake.installation')).toEqual([{ doubt: null }]);
    },
  );
});

describe.each([SAME, OTHER] as const)('restarted with %s', (which) => {
  it('killed between its intent and the first byte: frozen, and nothing was sent', async () => {
    // Takes connections and never says hello: no byte of the request can go before it does.
    const sockets = new Set<Socket>();
    const silent = createServer((socket) => {
      sockets.add(socket.on('error', () => undefined));
    }).listen(0, '127.0.0.1');
    await once(silent, 'listening');
    onTestFinished(() => {
      for (const socket of sockets) socket.destroy();
      silent.close();
    });
    const provider = new URL(`https://127.0.0.1:${(silent.address() as AddressInfo).port}`);
    const { world, kill, restart, files } = await openStage({ provider });
    const id = await world.song('one');
    await waitFor(() => sockets.size > 0, { what: 'the connection' });
    await kill();
    silent.close();
    await restart(which);
    expect(await world.request(id)).toMatchObject(WAS_LOST);
    expect(await world.attempts(id)).toMatchObject([
      { phase: 'lease_over', settled_by: 'rescue', slot_freed_at: null, closed_at: null },
    ]);
    expect(await files()).toEqual([]);
  });

  it('killed during the POST: frozen, one POST, and its slot stays taken', async () => {
    const { world, kill, restart, files } = await openStage({ limits: { maxConcurrentGenerations: 1 } });
    world.raw.onPost = hold;
    const id = await world.song('one');
    const waiting = await world.song('two');
    await world.raw.post(1);
    await kill();
    await restart(which);
    expect(world.posts()).toBe(1);
    expect(await world.request(id)).toMatchObject(WAS_LOST);
    expect(await world.request(waiting)).toMatchObject({ state: 'queued', submissions: 0 });
    expect(await world.breaker()).toMatchObject({ state: 'closed', consecutive_failures: 0 });
    expect(await files()).toEqual([]);
  });

  const ANSWERS: [string, (call: ProviderCall) => void, object, object][] = [
    [
      'a 202',
      (call) => call.accept('a-task'),
      { state: 'accepted', provider_task_id: 'a-task' },
      { charge: 'charged' },
    ],
    ['a 422', (call) => call.answer(422), { state: 'rejected' }, { charge: 'none' }],
    [
      'a 502',
      (call) => call.answer(502),
      { state: 'ambiguous', state_reason: 'server_error' },
      { charge: 'possible' },
    ],
  ];

  it.each(ANSWERS)(
    'killed after the answer and before its commit, the database away: %s',
    async (_what, answer, state, charge) => {
      const { world, proxy, kill, restart, files, events } = await openStage({});
      world.raw.onPost = hold;
      const id = await world.song('one');
      const call = await world.raw.post(1);
      await proxy.down();
      answer(call);
      await spooled(files);
      await kill();
      world.raw.onPost = (again) => again.accept();
      await restart(which);
      expect(world.posts()).toBe(1);
      const request = await world.request(id);
      if (which === SAME) {
        expect(request).toMatchObject({ ...state, ...charge });
        expect(await files()).toEqual([]);
        expect(events('submission:settled')).toMatchObject([{ requestId: id, from: 'submitting' }]);
        return;
      }
      expect(request).toMatchObject(WAS_LOST);
      // The disk turns up again: what it knows completes the request, or is kept beside it.
      await restart(SAME);
      expect(world.posts()).toBe(1);
      expect(await files()).toEqual([]);
      const proves = ['accepted', 'rejected'].includes((state as { state: string }).state);
      expect(await world.request(id)).toMatchObject(proves ? { ...state, ...charge } : WAS_LOST);
    },
  );

  it.each([
    ['the COMMIT is lost with it', false],
    ['the COMMIT arrives after its death', true],
  ])('killed during the commit of an outcome, and %s', async (_how, arrives) => {
    const { world, proxy, kill, restart, files, events } = await openStage({});
    world.raw.onPost = hold;
    const id = await world.song('one');
    const call = await world.raw.post(1);
    const held = proxy.holdAt(COMMIT, OUTCOME);
    call.answer(502);
    const commit = await held;
    await spooled(files);
    await kill();
    if (arrives) await commit.release();
    else commit.drop();
    await restart(which);
    expect(world.posts()).toBe(1);
    const isKnown = arrives || which === SAME;
    expect(await world.request(id)).toMatchObject(
      isKnown ? { state: 'ambiguous', state_reason: 'server_error', charge: 'possible' } : WAS_LOST,
    );
    expect(await world.attempts(id)).toMatchObject([
      isKnown
        ? { settled_by: 'worker', health: 'dependency_failure', health_effect: 'counted' }
        : { settled_by: 'rescue', health: 'none' },
    ]);
    expect(await world.breaker()).toMatchObject({ consecutive_failures: isKnown ? 1 : 0 });
    expect(await files()).toHaveLength(which === SAME ? 0 : 1);
    if (which === SAME) expect(events('submission:settled')).toHaveLength(arrives ? 0 : 1);
  });

  it('killed after the commit and before the health: nothing is sent again, and the failure counts once', async () => {
    const { world, proxy, kill, restart, files } = await openStage({});
    world.raw.onPost = hold;
    const id = await world.song('one');
    const call = await world.raw.post(1);
    const cut = proxy.cutAt(COMMIT, 'after', OUTCOME);
    call.answer(502);
    await cut;
    await proxy.down();
    await kill();
    expect(await world.request(id)).toMatchObject({ state: 'ambiguous', state_reason: 'server_error' });
    await restart(which);
    expect(world.posts()).toBe(1);
    expect(await world.breaker()).toMatchObject({ consecutive_failures: 1 });
    expect(await world.request(id)).toMatchObject({ state: 'ambiguous', state_reason: 'server_error' });
    if (which === SAME) expect(await files()).toEqual([]);
  });
});

describe('killed with a request that went back to the queue', () => {
  it('by a 429 that nobody had committed: sent again only after the replay, and P is one more', async () => {
    const { world, proxy, kill, restart, files } = await openStage({});
    world.raw.onPost = hold;
    const id = await world.song('one');
    const call = await world.raw.post(1);
    await proxy.down();
    call.answer(429, {}, { 'retry-after': '1' });
    await spooled(files);
    await kill();
    world.raw.onPost = (again) => again.accept('the-second');
    await restart(SAME);
    await world.passTime(60_000);
    await restart(SAME);
    expect(world.posts()).toBe(2);
    expect(await world.request(id)).toMatchObject({
      state: 'accepted',
      provider_task_id: 'the-second',
      submissions: 2,
    });
  });
});

describe('an outcome that two workers have', () => {
  it('in memory and on a shared disk is recorded once, whoever comes first', async () => {
    const { world, proxy, spool, victim, files } = await openStage({});
    world.raw.onPost = hold;
    const id = await world.song('one');
    const call = await world.raw.post(1);
    await proxy.down();
    call.answer(502);
    await spooled(files);
    const others = await Promise.all(
      ['second', 'third'].map((name) =>
        startFleetWorker(world, {
          name,
          config: { worker: { ...world.config.worker, spoolDirectory: spool } },
        }),
      ),
    );
    await waitFor(async () => (await files()).length === 0, { what: 'the replay' });
    await proxy.up();
    const isDone = async () => (await world.attempt(id))['health_applied_at'] !== null;
    await waitFor(isDone, { what: 'the health' });
    victim.child.process.kill('SIGTERM');
    expect(await victim.child.exited).toEqual({ code: 0, signal: null });
    const settled = [victim, ...others].flatMap(({ child }) =>
      child.messages.filter((message) => (message as { name?: string }).name === 'submission:settled'),
    );
    expect(settled).toHaveLength(1);
    expect(await world.request(id)).toMatchObject({ state: 'ambiguous', state_reason: 'server_error' });
    expect(await world.breaker()).toMatchObject({ consecutive_failures: 1 });
    expect(await world.database.query('select * from onetake.attempt_evidence')).toEqual([]);
    expect(world.posts()).toBe(1);
  });
});

describe('SIGTERM while the database is away', () => {
  it('and an outcome can’t be committed: it ends by itself, exits 0, and the next worker has the outcome', async () => {
    const { world, proxy, victim, restart, files } = await openStage({});
    world.raw.onPost = hold;
    const id = await world.song('one');
    const call = await world.raw.post(1);
    await proxy.down();
    victim.child.process.kill('SIGTERM');
    await victim.child.message<{ name?: string }>((line) => line.name === 'process:stopping', 'it stops');
    call.accept('a-task');
    await spooled(files);
    const answeredAt = performance.now();
    expect(await victim.child.exited).toEqual({ code: 0, signal: null });
    expect(performance.now() - answeredAt).toBeLessThan(40_000);
    expect(await files()).toHaveLength(1);
    await restart(SAME);
    expect(await world.request(id)).toMatchObject({ state: 'accepted', provider_task_id: 'a-task' });
    expect(world.posts()).toBe(1);
  });
});
