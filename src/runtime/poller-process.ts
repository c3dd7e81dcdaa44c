import { setMaxListeners } from 'node:events';
import type { RescueContext } from '../lifecycle/context.ts';
import { claimLooks, followTask } from '../lifecycle/follow-refund.ts';
import { unlessGivenUp, withDeadline } from '../lifecycle/pause.ts';
import { claimTasks, type PollContext, pollTask } from '../lifecycle/poll.ts';
import { nextDueInMs } from '../postgres/accepted-tasks.ts';
import { Database } from '../postgres/database.ts';
import { databaseErrorCode } from '../postgres/errors.ts';
import { requireSchema } from '../postgres/schema-version.ts';
import { JobQueue } from '../queue/boss.ts';
import { explainDatabaseError, inOurWords } from './database-errors.ts';
import { eventBus } from './event-bus.ts';
import { Listener } from './listener.ts';
import { Loop } from './loop.ts';
import { type ProcessOptions, setUp } from './process-options.ts';
import { rescueLoop } from './rescue-loop.ts';
import { resultStorage } from './result-storage.ts';

const IDLE_MS = 1_000;
const LOCKED_WAIT_MS = 50;
const POOL_MAX = 8;
const RESCUE_POOL_MAX = 3;
const READ_TIMEOUT_MS = 15_000;
/** A file may be large and a line slow; one that stalls ends much sooner. */
const DOWNLOAD_TIMEOUT_MS = 3_600_000;
/** From the call of `stop`: how long downloads under way may go on before they are left to another poller. */
const DOWNLOAD_GRACE_MS = 10_000;
/** From there: how long a stop waits for the rest, none of which costs anything when it is left undone. */
const UPKEEP_GRACE_MS = 10_000;
/** Connections that are busy even then are cut off. */
const CUT_OFF_MS = 1_000;

export interface Poller {
  /** Resolves when the process is ready. Throws `schema_not_migrated`, `schema_too_old`. */
  start(): Promise<void>;
  /** Claims nothing more and lets reads and downloads under way end. Any number of times. */
  stop(): Promise<void>;
  /** Claims what is due once, reads and applies it; says how many tasks that were. */
  runOnce(): Promise<number>;
  [Symbol.asyncDispose](): Promise<void>;
}

/**
 * A poller: follows accepted tasks to their end and brings their files in. It never looks at a breaker; the
 * rescue that it also runs has a loop and a pool of its own, so that nothing there can hold polling up.
 */
export function createPoller(options: ProcessOptions = {}): Poller {
  const setup = setUp(options);
  const { config, name } = setup;
  const emit = eventBus(setup.listeners);
  const trouble = (loop: string) => (error: unknown) =>
    emit('process:trouble', { role: 'poller', loop, errorCode: databaseErrorCode(error) });
  const reportsOf = (loop: string) => ({
    onTrouble: trouble(loop),
    onRecovered: () => emit('process:recovered', { role: 'poller', loop }),
  });
  const database = Database.connect(setup.connectionString, {
    max: POOL_MAX,
    applicationName: 'onetake poller',
  });
  const rescueDatabase = Database.connect(setup.connectionString, {
    max: RESCUE_POOL_MAX,
    applicationName: 'onetake poller rescue',
  });
  const queue = new JobQueue({ executor: rescueDatabase.upkeep, role: 'client', onError: trouble('queue') });
  const storage = resultStorage(config.storage);
  const giveUp = new AbortController();
  // As many downloads may wait for it as there are tasks in flight.
  setMaxListeners(0, giveUp.signal);
  const ctx: PollContext = {
    database,
    emit,
    storage,
    providerNamed: setup.providerNamed,
    apiKeyOf: setup.apiKeyOf,
    maxRunMsOf: (operation) => setup.settingsOf(operation).maxRunMs,
    schedule: config.poller,
    readTimeoutMs: READ_TIMEOUT_MS,
    downloadTimeoutMs: DOWNLOAD_TIMEOUT_MS,
    random: Math.random,
    readFailures: new Map(),
    giveUp: giveUp.signal,
  };
  const rescueCtx: RescueContext = { database: rescueDatabase, queue, emit, settingsOf: setup.settingsOf };

  const inFlight = new Set<Promise<void>>();
  const looking = new Set<Promise<void>>();
  const start = (work: Promise<void>, sets: readonly Set<Promise<void>>[]): void => {
    const done = work.catch(trouble('poll')).finally(() => {
      for (const set of sets) set.delete(done);
      polling.wake();
    });
    for (const set of sets) set.add(done);
  };
  /** Tasks without a request come first, since they are few; and are held to a share, since they may be many. */
  const claim = async (): Promise<number> => {
    const { concurrency } = config.poller;
    const share = Math.max(1, Math.floor(concurrency / 4));
    const lookRoom = Math.min(concurrency - inFlight.size, share - looking.size);
    const looks = lookRoom > 0 ? await claimLooks(ctx, lookRoom) : { tasks: [], deferred: 0 };
    for (const task of looks.tasks) start(followTask(ctx, task), [inFlight, looking]);
    const room = concurrency - inFlight.size;
    const { tasks, deferred } = room > 0 ? await claimTasks(ctx, room) : { tasks: [], deferred: 0 };
    for (const task of tasks) start(pollTask(ctx, task), [inFlight]);
    return looks.tasks.length + looks.deferred + tasks.length + deferred;
  };
  const polling = new Loop({
    round: async () => {
      const claimed = await claim();
      if (inFlight.size >= config.poller.concurrency) return IDLE_MS;
      const dueInMs = await nextDueInMs(database);
      // What is due and could not be claimed is locked by somebody: asking without pause would not help.
      const soonestMs = claimed === 0 ? LOCKED_WAIT_MS : 1;
      return Math.min(IDLE_MS, Math.max(soonestMs, dueInMs ?? IDLE_MS));
    },
    ...reportsOf('poll'),
  });
  const rescuing = rescueLoop(rescueCtx, config.worker.rescueIntervalMs, reportsOf('rescue'));
  const listener = new Listener(database, {
    onNotice: (what) => {
      if (what === 'poll') polling.wake();
    },
    onPolling: () => emit('process:polling', { role: 'poller' }),
  });

  let prepared: Promise<void> | undefined;
  let stopping: Promise<void> | undefined;
  let started = false;
  let isPrepared = false;
  const stopRequest = new AbortController();

  /** Once; after a failure, a database that was away or not migrated, the next call tries again. */
  const prepare = (): Promise<void> => {
    prepared ??= Promise.all([requireSchema(database), storage?.prepare()]).then(
      () => {
        isPrepared = true;
      },
      (error: unknown) => {
        prepared = undefined;
        throw explainDatabaseError(error);
      },
    );
    return prepared;
  };

  const self: Poller = {
    async start() {
      // A database that keeps silent must not keep a stop waiting.
      await unlessGivenUp(stopRequest.signal, prepare);
      if (started || stopping !== undefined) return;
      started = true;
      emit('process:started', { role: 'poller', worker: name });
      listener.start();
      polling.start();
      rescuing.loop.start();
    },
    runOnce: () =>
      inOurWords(async () => {
        await prepare();
        const claimed = await claim();
        await Promise.all(inFlight);
        return claimed;
      }),
    stop() {
      stopping ??= (async () => {
        emit('process:stopping', { role: 'poller', worker: name, inFlight: inFlight.size });
        stopRequest.abort();
        listener.stop();
        const patience = setTimeout(() => giveUp.abort(), DOWNLOAD_GRACE_MS);
        const rest = async () => {
          await Promise.allSettled([prepared, polling.stop(), rescuing.loop.stop(), queue.stop()]);
          while (inFlight.size > 0) await Promise.all(inFlight);
          await Promise.all([storage?.close(), setup.closeProviders()]);
        };
        const graceMs = isPrepared ? DOWNLOAD_GRACE_MS + UPKEEP_GRACE_MS : 0;
        await withDeadline(rest(), graceMs, undefined);
        clearTimeout(patience);
        await Promise.all([database.close(CUT_OFF_MS), rescueDatabase.close(CUT_OFF_MS)]);
        emit('process:stopped', { role: 'poller', worker: name });
      })();
      return stopping;
    },
    [Symbol.asyncDispose]: () => self.stop(),
  };
  return self;
}
