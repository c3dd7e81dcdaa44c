import type { Dispatcher } from 'undici';
import type { TaskRead, TaskReading } from '../../core/provider.ts';
import type { BaseUrl } from './base-url.ts';
import { isJsonObject, jsonOf, retryAfterOf } from './body.ts';
import { decodeTask } from './decode.ts';
import { exchange, type Reply } from './exchange.ts';
import { headersFor } from './headers.ts';
import { providerCode } from './provider-code.ts';
import { transportErrorCode } from './transport-errors.ts';

const MAX_TASK_BYTES = 4_194_304;

/** One free GET. Never rejects: what can't be read says nothing of the task. */
export async function readTaskOnce(
  base: BaseUrl,
  dispatcher: Dispatcher,
  read: TaskRead,
): Promise<TaskReading> {
  try {
    const reply = await exchange(
      dispatcher,
      {
        origin: base.origin,
        path: `${base.pathPrefix}/v1/tasks/${pathSegment(read.taskId)}`,
        method: 'GET',
        headers: headersFor(read.apiKey),
        headersTimeout: read.timeoutMs,
        bodyTimeout: read.timeoutMs,
      },
      { firstResponseMs: read.timeoutMs, wholeMs: read.timeoutMs, maxBodyBytes: MAX_TASK_BYTES },
    );
    return readingOf(reply, read);
  } catch (error) {
    return unreadable('transport', null, transportErrorCode(error));
  }
}

function readingOf(reply: Reply, read: TaskRead): TaskReading {
  if (reply.status === null) {
    return unreadable(
      'transport',
      null,
      reply.deadline === null ? transportErrorCode(reply.error) : 'read_deadline',
    );
  }
  const body = jsonOf(reply, MAX_TASK_BYTES);
  if (reply.status !== 200) {
    const code = isJsonObject(body) ? providerCode(body['code'], read) : null;
    return { ...unreadable('http_status', reply.status, code), retryAfterMs: retryAfterOf(reply) };
  }
  if (body !== undefined) return decodeTask(body, read);
  if (reply.bodyEnd === 'too_large') return unreadable('body', 200, 'answer_too_large');
  if (reply.deadline !== null) return unreadable('body', 200, 'read_deadline');
  return unreadable('body', 200, transportErrorCode(reply.error));
}

type Unreadable = Extract<TaskReading, { kind: 'unreadable' }>;

function unreadable(
  reason: Unreadable['reason'],
  httpStatus: number | null,
  errorCode: string | null,
): Unreadable {
  return { kind: 'unreadable', reason, httpStatus, errorCode, retryAfterMs: null };
}

/** Ids are the provider's: one of only dots would be read as another path. */
function pathSegment(taskId: string): string {
  const encoded = encodeURIComponent(taskId);
  return /^\.+$/.test(encoded) ? encoded.replaceAll('.', '%2E') : encoded;
}
