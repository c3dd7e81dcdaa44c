import { AsyncLocalStorage } from 'node:async_hooks';
import { type Clock as BossClock, type ClockTimer, type Job, PgBoss } from 'pg-boss';
import bossPackage from 'pg-boss/package.json' with { type: 'json' };
import { OnetakeError } from '../core/errors.ts';
import type { Executor } from './executor.ts';
import { type JobData, QUEUE_OPTIONS, QUEUE_SCHEMA, queueName, type RequestToSend } from './jobs.ts';

/** Whose connection pg-boss's own look-ups use while one of our calls runs. */
interface Route {
  readonly executor: Executor;
  open: boolean;
}

export type WaitingJob = Job<JobData>;

export interface JobQueueOptions {
  /** For everything that runs in no transaction of a caller. */
  readonly executor: Executor;
  /** `client`: no timer of it keeps a process alive. */
  readonly role: 'client' | 'worker';
  /** Trouble in pg-boss's background work; it goes on by itself. */
  readonly onError: (error: unknown) => void;
}

const MONITOR_INTERVAL_S = 600;
/** Of the installed pg-boss. */
export const QUEUE_SCHEMA_VERSION: number = bossPackage.pgboss.schema;

/**
 * pg-boss behind the few calls that we need. `send` looks its queue up through pg-boss's own connection on
 * a cache miss, and with a pool of one, held by the caller's transaction, that would hang for ever: so
 * while a call of ours runs, every statement of pg-boss goes to the caller's connection.
 */
export class JobQueue {
  readonly #boss: PgBoss;
  readonly #routes = new AsyncLocalStorage<Route>();
  readonly #options: JobQueueOptions;
  #starting: Promise<void> | undefined;
  #version: PgBoss | undefined;

  constructor(options: JobQueueOptions) {
    this.#options = options;
    this.#boss = this.#build(false);
  }

  #build(migrate: boolean): PgBoss {
    const { executor, role, onError } = this.#options;
    const boss = new PgBoss({
      db: {
        executeSql: (text: string, values?: unknown[]) => {
          const route = this.#routes.getStore();
          return (route?.open ? route.executor : executor).executeSql(text, values);
        },
      },
      schema: QUEUE_SCHEMA,
      migrate,
      createSchema: migrate,
      schedule: false,
      registerInstance: false,
      // Each worker does, queue by queue where it has to: see `keepQueues`.
      supervise: false,
      monitorIntervalSeconds: MONITOR_INTERVAL_S,
      queueCacheIntervalSeconds: MONITOR_INTERVAL_S,
      ...(role === 'client' ? { clock: unheldClock } : {}),
    });
    // Without a listener, an error event ends the process when the database goes away.
    boss.on('error', onError);
    return boss;
  }

  get #started(): PgBoss {
    return this.#version ?? this.#boss;
  }

  /**
   * Refuses a queue schema that is missing or older than this build, accepts a newer one. pg-boss itself
   * refuses a newer one unless it may migrate, and then runs no DDL on it.
   */
  async start(via: Executor = this.#options.executor): Promise<void> {
    this.#starting ??= this.#routed(via, () => this.#start()).catch((error: unknown) => {
      this.#starting = undefined;
      throw error;
    });
    return this.#starting;
  }

  async #start(): Promise<void> {
    const installed = (await this.#boss.isInstalled()) ? await this.#boss.schemaVersion() : null;
    if (installed === null) {
      throw new OnetakeError('schema_not_migrated', 'The database has no onetake queue schema yet.', {
        hint: 'Run `onetake migrate` once, with a role that may create schemas.',
      });
    }
    if (installed < QUEUE_SCHEMA_VERSION) {
      throw new OnetakeError('schema_too_old', 'The queue schema in the database is older than this build.', {
        hint: 'Run `onetake migrate` from the new release before its workers start.',
      });
    }
    if (installed > QUEUE_SCHEMA_VERSION) this.#version = this.#build(true);
    await this.#started.start();
  }

  /** Creates or upgrades pg-boss's schema. For `migrate` alone, under its lock. */
  async migrate(): Promise<void> {
    this.#version = this.#build(true);
    await this.#routed(this.#options.executor, () => this.#started.start());
    this.#starting = Promise.resolve();
  }

  async ensureQueue(
    account: string,
    operation: string,
    via: Executor = this.#options.executor,
  ): Promise<void> {
    await this.#routed(via, () =>
      this.#started.createQueue(queueName(account, operation), { ...QUEUE_OPTIONS }),
    );
  }

  /** A queue for each operation of each account; what is there already costs nothing but one look at all. */
  async ensureQueues(
    accounts: readonly string[],
    operations: readonly string[],
    via: Executor = this.#options.executor,
  ): Promise<void> {
    const { rows } = await via.executeSql(`select name from ${QUEUE_SCHEMA}.queue`);
    const known = new Set((rows as { name: string }[]).map(({ name }) => name));
    for (const account of accounts) {
      for (const operation of operations) {
        if (!known.has(queueName(account, operation))) await this.ensureQueue(account, operation, via);
      }
    }
  }

  /**
   * Sends the request's job inside the caller's transaction. False: a job for it is there already, which is
   * as good. Throws when the queue is missing, with the transaction still usable.
   */
  async send(via: Executor, request: RequestToSend, notBefore: Date | null): Promise<boolean> {
    await this.start(via);
    const data: JobData = { requestId: request.id };
    const jobId = await this.#routed(via, () =>
      this.#started.send(queueName(request.account, request.operation), data, {
        singletonKey: request.id,
        priority: request.jobPriority,
        db: via,
        // A Date that the database computed; a number would be counted from the transaction's start.
        ...(notBefore === null ? {} : { startAfter: notBefore }),
      }),
    );
    return jobId !== null;
  }

  /** Fetches at most `limit` jobs of one lane inside the caller's transaction; rolled back, nothing happened. */
  async fetch(via: Executor, account: string, operation: string, limit: number): Promise<WaitingJob[]> {
    return this.#routed(via, () =>
      this.#started.fetch<JobData>(queueName(account, operation), { batchSize: limit, db: via }),
    );
  }

  /** Completes fetched jobs in the transaction that fetched them: a job lives until its permit. */
  async complete(
    via: Executor,
    account: string,
    operation: string,
    jobs: readonly WaitingJob[],
  ): Promise<void> {
    if (jobs.length === 0) return;
    await this.#routed(via, () =>
      this.#started.complete(queueName(account, operation), jobs as WaitingJob[], null, { db: via }),
    );
  }

  /** Completes the request's waiting job, if it has one, without fetching any other. */
  async completeWaiting(via: Executor, account: string, operation: string, requestId: string): Promise<void> {
    const name = queueName(account, operation);
    const { rows } = await via.executeSql(
      `select id from ${QUEUE_SCHEMA}.job
where name = $1 and coalesce(singleton_key, '') = $2 and state <= 'active' and policy = 'exclusive'`,
      [name, requestId],
    );
    const [job] = rows as { id: string }[];
    if (job === undefined) return;
    await this.#routed(via, () =>
      this.#started.complete(name, job.id, null, { db: via, includeQueued: true }),
    );
  }

  /**
   * Ends jobs of these requests that somebody has fetched: ours are never active outside the transaction that
   * completes them, so such a one waits for nobody, and keeps the request's next job out.
   */
  async endStray(
    via: Executor,
    account: string,
    operation: string,
    requestIds: readonly string[],
  ): Promise<void> {
    const name = queueName(account, operation);
    const { rows } = await via.executeSql(
      `select id from ${QUEUE_SCHEMA}.job
where name = $1 and coalesce(singleton_key, '') = any($2::text[]) and state = 'active' and policy = 'exclusive'`,
      [name, requestIds],
    );
    const ids = (rows as { id: string }[]).map(({ id }) => id);
    if (ids.length > 0) await this.#routed(via, () => this.#started.complete(name, ids, null, { db: via }));
  }

  /** Which of these requests of one lane have a job that waits; by the unique index of the queue's policy. */
  async listJobs(
    via: Executor,
    account: string,
    operation: string,
    requestIds: readonly string[],
  ): Promise<Set<string>> {
    const { rows } = await via.executeSql(
      `select singleton_key as id from ${QUEUE_SCHEMA}.job
where name = $1 and coalesce(singleton_key, '') = any($2::text[]) and state < 'active' and policy = 'exclusive'`,
      [queueName(account, operation), requestIds],
    );
    return new Set(rows.map((row: { id: string }) => row.id));
  }

  /** For queues of another kind: `call` has pg-boss, started, and every statement of it goes to `via`. */
  async use<Result>(
    via: Executor = this.#options.executor,
    call: (boss: PgBoss, executor: Executor) => Promise<Result>,
  ): Promise<Result> {
    await this.start(via);
    return this.#routed(via, () => call(this.#started, via));
  }

  async stop(): Promise<void> {
    if (this.#starting === undefined) return;
    await this.#starting.catch(() => {});
    this.#starting = undefined;
    await this.#started.stop({ graceful: false, close: false });
  }

  // The route closes when our call ends, so that timers which pg-boss started inside it (they inherit the
  // async context) fall back to our pool instead of a transaction that is over.
  async #routed<Result>(executor: Executor, call: () => Promise<Result>): Promise<Result> {
    const route: Route = { executor, open: true };
    try {
      return await this.#routes.run(route, call);
    } finally {
      route.open = false;
    }
  }
}

/** The machine's clock, with timers that don't keep the process alive. */
const unheldClock: BossClock = {
  now: () => Date.now(),
  setTimeout: (run, ms) => setTimeout(run, ms).unref() as unknown as ClockTimer,
  clearTimeout: (timer) => clearTimeout(timer as unknown as NodeJS.Timeout),
  setInterval: (run, ms) => setInterval(run, ms).unref() as unknown as ClockTimer,
  clearInterval: (timer) => clearInterval(timer as unknown as NodeJS.Timeout),
};
