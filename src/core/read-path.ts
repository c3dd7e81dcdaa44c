import type { PollSettings } from './poll-schedule.ts';
import type { TaskReading } from './provider.ts';

// Whether the tasks of an account can be read at all, which is not the fault of any one of them.

/** Reads in a row, of whichever tasks of an account, after which the others aren't tried too. */
export const READ_FAILURES = 5;

type Unreadable = Extract<TaskReading, { kind: 'unreadable' }>;

/** False: the next task would fare no better. What is wrong with one task says nothing of the others. */
export function readPathWorks(reading: TaskReading): boolean {
  if (reading.kind !== 'unreadable') return true;
  switch (reading.reason) {
    case 'transport':
      return false;
    // A page of somebody in between, or half an answer.
    case 'body':
      return reading.errorCode === 'task_id_mismatch';
    case 'unknown_status':
      return true;
    case 'http_status':
      return !isOfPath(reading.httpStatus);
  }
}

function isOfPath(status: number | null): boolean {
  return status === null || status >= 500 || [401, 402, 403, 407, 408, 429].includes(status);
}

/** Whether one answer is enough: a 429 is about the account, and about now. */
export function pausesAtOnce(reading: TaskReading): boolean {
  return reading.kind === 'unreadable' && reading.httpStatus === 429;
}

/** At most so many of our longest waits, whatever `Retry-After` asks for. */
const RETRY_AFTER_FACTOR = 10;

/** Until the next read of any task of the account, in ms; `failures` counts the pauses. `random` as in a poll's delay. */
export function nextReadPauseMs(
  settings: PollSettings,
  failures: number,
  retryAfterMs: number | null,
  random: number,
): number {
  const { intervalMs, maxIntervalMs } = settings;
  const doubled = Math.min(maxIntervalMs, intervalMs * 2 ** Math.min(failures, 20));
  const asked = Math.min(retryAfterMs ?? 0, maxIntervalMs * RETRY_AFTER_FACTOR);
  return Math.max(asked, Math.min(maxIntervalMs, Math.round(doubled * (0.9 + 0.2 * random))));
}

/** What a read that told nothing was, as a code: no word of a customer or of the provider's prose. */
export function troubleOf({ reason, httpStatus, errorCode }: Unreadable): string {
  switch (reason) {
    case 'http_status':
      return `http_${httpStatus}`;
    case 'unknown_status':
      return errorCode === null ? reason : `${reason}_${errorCode}`;
    case 'body':
      return errorCode ?? 'body_unusable';
    case 'transport':
      return errorCode ?? reason;
  }
}
