import type { TaskRead, TaskReading } from '../../core/provider.ts';
import { isJsonObject, type JsonObject } from './body.ts';
import { decodeResult } from './decode-result.ts';
import { providerCode } from './provider-code.ts';
import { plainCode } from './transport-errors.ts';

/** The part of a submission's answer that means anything to us. */
export interface SubmissionAnswer {
  /** Of any type: whether it is usable is decided by core. */
  readonly taskId: unknown;
  readonly code: string | null;
  readonly capacity: 'rate' | 'concurrency';
}

const CONCURRENCY_REFUSAL = 'Too many concurrent generations';

/** `body` is undefined when it could not be read. */
export function decodeSubmissionAnswer(body: unknown): SubmissionAnswer {
  if (!isJsonObject(body)) return { taskId: undefined, code: null, capacity: 'rate' };
  // Both kinds of 429 carry the same code; only the text differs, and it may grow at its end.
  const message = typeof body['message'] === 'string' ? body['message'] : body['detail'];
  const concurrent = typeof message === 'string' && message.trimStart().startsWith(CONCURRENCY_REFUSAL);
  return {
    taskId: body['task_id'],
    code: plainCode(body['code']),
    capacity: concurrent ? 'concurrency' : 'rate',
  };
}

/** A 200 of `GET /v1/tasks/{id}`. `body` is undefined when it could not be read. */
export function decodeTask(body: unknown, read: Omit<TaskRead, 'timeoutMs'>): TaskReading {
  if (!isJsonObject(body)) return unreadableTask('body', null);
  // Another task's song must not become this request's.
  if (typeof body['task_id'] === 'string' && body['task_id'] !== read.taskId) {
    return unreadableTask('body', 'task_id_mismatch');
  }
  if (typeof body['status'] !== 'string') return unreadableTask('body', null);
  const status = body['status'].trim();
  switch (status.toLowerCase()) {
    case 'processing':
      return { kind: 'processing' };
    case 'succeeded':
    case 'completed':
      return decodeResult(body, read);
    case 'failed':
      return { kind: 'failed', errorCode: errorCodeOf(body['error'], read), refunded: refundedOf(body) };
    case 'canceled':
    case 'cancelled':
      return { kind: 'failed', errorCode: 'canceled', refunded: refundedOf(body) };
    default:
      return unreadableTask('unknown_status', providerCode(status, read)?.toLowerCase() ?? null);
  }
}

function unreadableTask(reason: 'body' | 'unknown_status', errorCode: string | null): TaskReading {
  return { kind: 'unreadable', reason, httpStatus: 200, errorCode, retryAfterMs: null };
}

/** Only the literal says so: the string "false" has been seen, and it is not a refund. */
function refundedOf(body: JsonObject): boolean | null {
  return typeof body['refunded'] === 'boolean' ? body['refunded'] : null;
}

function errorCodeOf(error: unknown, read: Omit<TaskRead, 'timeoutMs'>): string | null {
  return providerCode(isJsonObject(error) ? error['code'] : error, read);
}
