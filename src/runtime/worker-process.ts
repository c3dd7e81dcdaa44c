import { setMaxListeners } from 'node:events';
import { resolve } from 'node:path';
import type { AdmittedBatch } from '../lifecycle/admit.ts';
import { checkKeys } from '../lifecycle/check-keys.ts';
import type { SubmissionContext } from '../lifecycle/context.ts';
import { dispatch, type LaneCursor } from '../lifecycle/dispatch.ts';
import { InstallationGuard } from '../lifecycle/guard-installation.ts';
import { KnownAttempts } from '../lifecycle/known-attempts.ts';
import { unlessGivenUp, withDeadline } from '../lifecycle/pause.ts';
import type { Reaches } from '../lifecycle/probe.ts';
import { readStream } from '../lifecycle/read-stream.ts';
import { createReplay } from '../lifecycle/replay.ts';
import { settle } from '../lifecycle/settle.ts';
import { type Ending, settleStream } from '../lifecycle/settle-stream.ts';
import { submit } from '../lifecycle/submit.ts';
import { Database } from '../postgres/database.ts';
import { databaseErrorCode } from '../postgres/errors.ts';
import type { Lane } from '../postgres/lanes.ts';
import { requireSchema } from '../postgres/schema-version.ts';
import type { AdmittedAttempt } from '../postgres/submission-attempts.ts';
import { JobQueue } from '../queue/boss.ts';
import { keepQueues } from '../queue/upkeep.ts';
import { createMarkFile } from '../storage/mark-file.ts';
import { createSpool } from '../storage/spool.ts';
import { reportDifferences } from './configuration-rows.ts';
import { explainDatabaseError, inOurWords } from './database-errors.ts';
import { eventBus } from './event-bus.ts';
import { Listener } from './listener.ts';
import { Loop } from './loop.ts';
import { type ProcessOptions, setUp } from './process-options.ts';
import { Reach } from './reach.ts';
import { rescueLoop } from './rescue-loop.ts';
import { resultStorage } from './result-storage.ts';
import { systemClock } from './system-clock.ts';
import { wireReport } from './wire-report.ts';

/** How long dispatch sleeps when nothing wakes it. */
const IDLE_MS = 1_000;
const POOL_MAX = 10;
const KEY_CHECKS_EVERY_MS = 10_000;
const REPLAY_EVERY_MS = 60_000;
const [KEEP_QUEUES_FIRST_MS, KEEP_QUEUES_EVERY_MS] = [60_000, 300_000] as const;
/** From the end of the last POST or stream: how long a stop waits for outcomes that can't be committed. */
const SETTLE_GRACE_MS = 10_000;
/** And then for the spool itself, and for what a slow database makes of the last commits. */
const SPOOL_GRACE_MS = 10_000;
/** How long a stop waits for what costs nothing to leave undone: upkeep, free questions, idle connections. */
const UPKEEP_GRACE_MS = 5_000;
/** Connections that are busy even then are cut off. */
const CUT_OFF_MS = 1_000;

export interface Worker {
  /** Resolves when the process is ready. Throws `schema_not_migrated`, `schema_too_old`. */
  start(): Promise<void>;
  /** Admits nothing more, lets every POST in flight end, and every stream, and settles it. Any number of times. */
  stop(): Promise<void>;
  /** One round of dispatch, its submissions awaited, and one of rescue; says how many were submitted. */
  runOnce(): Promise<number>;
  /** Submissions in flight. */
  readonly inFlight: number;
  [Symbol.asyncDispose](): Promise<void>;
}

/** A worker: submits queued requests and records what becomes of each. Throws for options that are wrong. */
export function createWorker(options: ProcessOptions = {}): Worker {
  const setup = setUp(options);
  const { config, name: worker } = setup;
  const emit = eventBus(setup.listeners);
  const database = Database.connect(setup.connectionString, {
    max: POOL_MAX,
    applicationName: 'onetake worker',
  });
  const trouble = (loop: string) => (error: unknown) =>
    emit('process:trouble', { role: 'worker', loop, errorCode: databaseErrorCode(error) });
  const reportsOf = (loop: string) => ({
    onTrouble: trouble(loop),
    onRecovered: () => emit('process:recovered', { role: 'worker', loop }),
  });
  const queue = new JobQueue({ executor: database.upkeep, role: 'worker', onError: trouble('queue') });
  const known = new KnownAttempts(systemClock);
  const guard = new InstallationGuard({
    database,
    emit,
    clock: systemClock,
    worker,
    reassert: () => known.reassert(ctx),
    file: createMarkFile(resolve(config.worker.spoolDirectory)),
  });
  database.pool.on('connect', () => guard.reconnected());
  const spool = createSpool({
    directory: resolve(config.worker.spoolDirectory),
    onTrouble: (told) => emit('spool:trouble', { settings: 'worker.spoolDirectory', ...told }),
  });
  const storage = resultStorage(config.storage);
  const ctx: SubmissionContext = {
    database,
    queue,
    emit,
    worker,
    clock: systemClock,
    guard,
    providerNamed: setup.providerNamed,
    apiKeyOf: setup.apiKeyOf,
    settingsOf: setup.settingsOf,
    storage,
    spool,
    firstPollMs: config.poller.intervalMs,
  };

  const reportWire = wireReport({ worker, emit, providerNamed: setup.providerNamed });
  const reach = new Reach({ worker, emit, clock: systemClock, providerNamed: setup.providerNamed });
  // Without `credentials` the keys are those of the configuration's accounts; others belong to other workers.
  const reaches: Reaches = ({ provider, account, operation }) =>
    setup.serves(provider, operation) && reach.reaches(provider) && setup.hasKey(account);
  let stopping: Promise<void> | undefined;
  const inFlight = new Set<Promise<void>>();
  /** POSTs and the streams that they were answered with: what must not be cut. */
  const onTheWire = new Set<Promise<unknown>>();
  const uncut = <T>(work: Promise<T>): Promise<T> => {
    const tracked = work.finally(() => onTheWire.delete(tracked));
    onTheWire.add(tracked);
    beganOnTheWire();
    return tracked;
  };
  let beganOnTheWire = () => {};
  const giveUp = new AbortController();
  // As many settles may wait for it as there are submissions in flight.
  setMaxListeners(0, giveUp.signal);
  // None once it stops, or on a database that isn't the one: the round under way then ends at the next lane.
  const maySubmit = () => stopping === undefined && guard.trouble === null;
  const freeSlots = () => (maySubmit() ? config.worker.concurrency - inFlight.size : 0);
  let cursor: LaneCursor = null;

  const perform = async (attempt: AdmittedAttempt, lane: Lane, batch: AdmittedBatch): Promise<void> => {
    // What was admitted while the stop came is known to be unsent, and goes back to the queue.
    const maySend = () => stopping === undefined && batch.maySend(attempt);
    const { stream, ...outcome } = await uncut(submit(ctx, attempt, lane.provider, maySend));
    // What it kept back itself (no key for that account, too late) tells nothing about the way there.
    if (outcome.reason !== 'unsent_own_doing') reach.note(lane.provider, outcome.certainty);
    void reportWire(lane.provider);
    let ending: Ending | undefined;
    try {
      const isCommitted = await settle(ctx, attempt, outcome, giveUp.signal);
      if (isCommitted) known.ended(attempt.attemptId, outcome, stream !== undefined);
      if (!isCommitted || stream === undefined) return;
      const reader = { attempt, outcome };
      const read = await uncut(readStream(ctx, reader, stream));
      ending = read && (await settleStream(ctx, reader, read, giveUp.signal, uncut));
    } finally {
      stream?.cancel();
      if (stream !== undefined) known.streamEnded(attempt.attemptId, ending);
    }
  };
  const startBatch = (lane: Lane, batch: AdmittedBatch): void => {
    for (const attempt of batch.attempts) {
      const { fields, mode, submitBefore, ...intent } = attempt;
      if (intent.isUnconfirmed !== true) known.admitted(intent);
      const performed = perform(attempt, lane, batch)
        .catch(trouble('submission'))
        .finally(() => {
          inFlight.delete(performed);
          known.ended(attempt.attemptId, undefined);
          dispatching.wake();
        });
      inFlight.add(performed);
    }
  };
  const checks = new Set<Promise<void>>();
  const check = (): void => {
    const checked = reach.check().then((recovered) => {
      checks.delete(checked);
      if (recovered) dispatching.wake();
    });
    checks.add(checked);
  };
  const round = async () => {
    // Beside the round: a provider that keeps silent must not hold up what goes to the others.
    check();
    await guard.recognises();
    const result = await dispatch(ctx, cursor, { freeSlots, reaches }, startBatch);
    cursor = result.cursor;
    return result;
  };
  const dispatching = new Loop({
    round: async () => {
      const { admitted, wakeInMs } = await round();
      if (admitted > 0 && freeSlots() > 0) return 0;
      return Math.min(IDLE_MS, wakeInMs ?? IDLE_MS);
    },
    ...reportsOf('dispatch'),
  });
  const rescuing = rescueLoop(ctx, config.worker.rescueIntervalMs, reportsOf('rescue'));
  const replay = createReplay(ctx, () => stopping === undefined);
  const replaying = new Loop({
    round: async () => {
      await replay();
      return REPLAY_EVERY_MS;
    },
    ...reportsOf('replay'),
  });
  const tryKeys = () => checkKeys({ ...ctx, hasKey: setup.hasKey, goesOn: () => stopping === undefined });
  let keepsQueues = false;
  const keeping = new Loop({
    round: async () => {
      if (!keepsQueues) {
        keepsQueues = true;
        return KEEP_QUEUES_FIRST_MS;
      }
      await keepQueues(queue, () => stopping === undefined);
      return KEEP_QUEUES_EVERY_MS;
    },
    ...reportsOf('queue'),
  });
  const checking = new Loop({
    round: async () => {
      await tryKeys();
      return KEY_CHECKS_EVERY_MS;
    },
    ...reportsOf('key check'),
  });
  const listener = new Listener(database, {
    onNotice: (what) => {
      if (what === 'job_due' || what === 'breaker') rescuing.loop.wake();
      // Others end, and are told of, without anything to dispatch.
      if (!/^(job_due|notice|poll|settled .*)$/.test(what)) dispatching.wake();
    },
    onPolling: () => emit('process:polling', { role: 'worker' }),
  });

  let prepared: Promise<void> | undefined;
  let started = false;
  let isPrepared = false;
  const stopRequest = new AbortController();

  /** Once; after a failure, a database that was away or not migrated, the next call tries again. */
  const prepare = (): Promise<void> => {
    prepared ??= (async () => {
      await requireSchema(database);
      await queue.start();
      await Promise.all(setup.providerNames.map(reportWire));
      await reportDifferences(database, config, emit);
      await spool.check();
      // Before anything is dispatched: what the last run of this process learned, it knows again.
      await replay().catch(trouble('replay'));
      isPrepared = true;
    })().catch((error: unknown) => {
      prepared = undefined;
      throw explainDatabaseError(error);
    });
    return prepared;
  };

  const runOnce = async (): Promise<number> => {
    await prepare();
    const { admitted } = await round();
    await Promise.all([...inFlight, ...checks]);
    await replay();
    await tryKeys();
    await rescuing.once();
    return admitted;
  };

  const self: Worker = {
    get inFlight() {
      return inFlight.size;
    },
    async start() {
      // A database that keeps silent must not keep a stop waiting.
      await unlessGivenUp(stopRequest.signal, prepare);
      if (started || stopping !== undefined) return;
      started = true;
      emit('process:started', { role: 'worker', worker });
      listener.start();
      dispatching.start();
      replaying.start();
      checking.start();
      keeping.start();
      rescuing.loop.start();
    },
    runOnce: () => inOurWords(runOnce),
    stop() {
      stopping ??= (async () => {
        emit('process:stopping', { role: 'worker', worker, inFlight: inFlight.size });
        stopRequest.abort();
        listener.stop();
        // What the round under way admits is kept from being sent, and goes back.
        const lastRound = dispatching.stop();
        const settled = async () => {
          await unlessGivenUp(giveUp.signal, () => lastRound);
          while (inFlight.size > 0) await Promise.all(inFlight);
          await guard.keep();
          return 'settled' as const;
        };
        for (let isOver = false; !isOver; ) {
          // Never abort a paid POST, or its stream, because a process wants to stop: each ends within its own deadline.
          while (onTheWire.size > 0) await Promise.allSettled(onTheWire);
          // Their outcomes are in the spool, so a database that is away keeps nobody waiting. What was accepted as a
          // stream begins to be read now.
          const patience = setTimeout(() => giveUp.abort(), SETTLE_GRACE_MS);
          const began = new Promise<'began'>((resolve) => {
            beganOnTheWire = () => resolve('began');
          });
          const next = await withDeadline(
            Promise.race([settled(), began]),
            SETTLE_GRACE_MS + SPOOL_GRACE_MS,
            'settled',
          );
          clearTimeout(patience);
          isOver = next === 'settled';
        }
        const upkeep = [
          prepared,
          ...checks,
          replaying.stop(),
          checking.stop(),
          keeping.stop(),
          rescuing.loop.stop(),
          queue.stop(),
          setup.closeProviders(),
          storage?.close(),
        ];
        await withDeadline(Promise.allSettled(upkeep), isPrepared ? UPKEEP_GRACE_MS : 0, undefined);
        await database.close(CUT_OFF_MS);
        emit('process:stopped', { role: 'worker', worker });
      })();
      return stopping;
    },
    [Symbol.asyncDispose]: () => self.stop(),
  };
  return self;
}
