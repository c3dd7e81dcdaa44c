// One queue per lane, one job per request; the job's only payload is the request's id. The queue wakes
// workers and decides nothing.

/** The schema of pg-boss: its own, so that an app's pg-boss, of any version, is never touched. */
export const QUEUE_SCHEMA = 'onetake_queue';

export function queueName(account: string, operation: string): string {
  return `submit/${account}/${operation}`;
}

export interface JobData {
  readonly requestId: string;
}

/** What is sent a job for. */
export interface RequestToSend {
  readonly id: string;
  readonly account: string;
  readonly operation: string;
  /** The higher goes first. The same every time that it is sent, so that it keeps its place. */
  readonly jobPriority: number;
}

const NINETY_DAYS_S = 90 * 86_400;

/**
 * Jobs are completed in the transaction that fetches them, so none is ever active outside one: expiry and
 * retries can't happen, and the values only matter if somebody meddles by hand. Retention deletes waiting
 * jobs silently, hence long.
 */
export const QUEUE_OPTIONS = {
  policy: 'exclusive',
  retryLimit: 1_000,
  retentionSeconds: NINETY_DAYS_S,
  deleteAfterSeconds: 3_600,
} as const;
