import type { Job } from 'pg-boss';
import type { JobQueue } from './boss.ts';
import type { Executor } from './executor.ts';
import { type JobData, QUEUE_SCHEMA } from './jobs.ts';

// Notices of requests that have ended, one job each, for the app's own handler. Unlike the jobs of submissions these
// are active while a handler is at work, and are pg-boss's to retry: what they do a second time costs nothing here.

const NAME = 'settled';
/** Where a notice goes that no handler took. */
const UNDELIVERED = 'settled/undelivered';
export const NOTICE_QUEUES = [NAME, UNDELIVERED] as const;

const LOST_AFTER_S = 60;
const FOURTEEN_DAYS_S = 14 * 86_400;
const NOTICE_OPTIONS = {
  policy: 'exclusive',
  retentionSeconds: FOURTEEN_DAYS_S,
  deleteAfterSeconds: 3_600,
} as const;
const RETRIES = {
  retryLimit: 20,
  retryDelay: 5,
  retryBackoff: true,
  retryDelayMax: 3_600,
  // A handler may take its time as long as its process shows that it lives.
  heartbeatSeconds: LOST_AFTER_S,
  expireInSeconds: 86_400,
} as const;

export type Notice = Job<JobData>;

/** The two queues behind the few calls that we need; they share the connections of `queue`. */
export class NoticeQueue {
  readonly #queue: JobQueue;

  constructor(queue: JobQueue) {
    this.#queue = queue;
  }

  /** Harmless when they are there. */
  async ensure(via?: Executor): Promise<void> {
    await this.#queue.use(via, async (boss) => {
      await boss.createQueue(UNDELIVERED, { ...NOTICE_OPTIONS });
      await boss.createQueue(NAME, { ...NOTICE_OPTIONS, ...RETRIES, deadLetter: UNDELIVERED });
    });
  }

  /** Inside the caller's transaction; those that have a job already keep it. */
  async send(via: Executor, requestIds: readonly string[]): Promise<void> {
    const jobs = requestIds.map((requestId) => ({ data: { requestId }, singletonKey: requestId }));
    await this.#queue.use(via, (boss) => boss.insert(NAME, jobs, { db: via }));
  }

  async fetch(limit: number): Promise<Notice[]> {
    return this.#queue.use(undefined, (boss) => boss.fetch<JobData>(NAME, { batchSize: limit }));
  }

  async complete(notice: Notice): Promise<void> {
    await this.#queue.use(undefined, (boss) => boss.complete(NAME, notice));
  }

  /** Again later, until the retries are used up. What the handler threw may hold anything, so it isn't stored. */
  async fail(notice: Notice): Promise<void> {
    const output = { message: 'the handler failed' };
    await this.#queue.use(undefined, (boss) => boss.fail(NAME, notice, output));
  }

  /** Their process lives. */
  async touch(notices: readonly Notice[]): Promise<void> {
    if (notices.length === 0) return;
    await this.#queue.use(undefined, (boss) => boss.touch(NAME, [...notices]));
  }

  /** Gives back what processes had that show no life any more. pg-boss does so too, every ten minutes. */
  async failLost(): Promise<void> {
    await this.#queue.use(undefined, async (boss, executor) => {
      const { rows } = await executor.executeSql(
        `select id, retry_count as "retryCount" from ${QUEUE_SCHEMA}.job
where name = $1 and state = 'active' and heartbeat_on + heartbeat_seconds * interval '1 s' < now()
limit 100`,
        [NAME],
      );
      const lost = rows as { id: string; retryCount: number }[];
      if (lost.length > 0) await boss.fail(NAME, lost, { message: 'its process is gone' });
    });
  }

  /** Takes at most `limit` notices that nobody took, for good, in the caller's transaction. */
  async takeUndelivered(via: Executor, limit: number): Promise<string[]> {
    return this.#queue.use(via, async (boss) => {
      const notices = await boss.fetch<JobData>(UNDELIVERED, { batchSize: limit, db: via });
      if (notices.length > 0) await boss.complete(UNDELIVERED, notices, null, { db: via });
      return notices.map(({ data }) => data.requestId);
    });
  }
}
