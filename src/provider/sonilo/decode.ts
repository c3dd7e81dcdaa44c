import type { ResultFile, TaskReading } from '../../core/provider.ts';
import { isJsonObject, type JsonObject } from './body.ts';
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
export function decodeTask(body: unknown, taskId: string): TaskReading {
  if (!isJsonObject(body)) return unreadableTask('body', null);
  // Another task's song must not become this request's.
  if (typeof body['task_id'] === 'string' && body['task_id'] !== taskId) {
    return unreadableTask('body', 'task_id_mismatch');
  }
  if (typeof body['status'] !== 'string') return unreadableTask('body', null);
  const status = body['status'].trim().toLowerCase();
  switch (status) {
    case 'processing':
      return { kind: 'processing' };
    case 'succeeded':
    case 'completed':
      return decodeSucceeded(body);
    case 'failed':
      return { kind: 'failed', errorCode: errorCodeOf(body['error']), refunded: refundedOf(body) };
    case 'canceled':
    case 'cancelled':
      return { kind: 'failed', errorCode: 'canceled', refunded: refundedOf(body) };
    default:
      return unreadableTask('unknown_status', plainCode(status));
  }
}

function unreadableTask(reason: 'body' | 'unknown_status', errorCode: string | null): TaskReading {
  return { kind: 'unreadable', reason, httpStatus: 200, errorCode, retryAfterMs: null };
}

/** Only the literal says so: the string "false" has been seen, and it is not a refund. */
function refundedOf(body: JsonObject): boolean | null {
  return typeof body['refunded'] === 'boolean' ? body['refunded'] : null;
}

function errorCodeOf(error: unknown): string | null {
  return plainCode(isJsonObject(error) ? error['code'] : error);
}

function decodeSucceeded(body: JsonObject): TaskReading {
  const warnings = new Set<string>();
  const files = decodeAudio(body['audio'], warnings);
  const ordered = body['variants_num'];
  if (Number.isSafeInteger(ordered) && files.length > 0 && files.length < (ordered as number)) {
    warnings.add('fewer_variants');
  }
  const stemsError = body['stems_error'];
  if (stemsError !== undefined && stemsError !== null && stemsError !== '' && stemsError !== false) {
    warnings.add('stems_error');
  }
  return { kind: 'succeeded', files, warnings: [...warnings] };
}

/** An array for music, an object for effects; both shapes have been documented for both. */
function decodeAudio(audio: unknown, warnings: Set<string>): ResultFile[] {
  const entries = (Array.isArray(audio) ? audio : [audio]).filter(isJsonObject).filter(hasUsableUrl);
  const files = new Map<number, ResultFile>();
  const withoutIndex: (JsonObject & { url: string })[] = [];
  for (const entry of entries) {
    const index = wholeNumber(entry['stream_index']);
    if (index === null) withoutIndex.push(entry);
    else if (files.has(index)) warnings.add('duplicate_stream_index');
    else files.set(index, resultFile(index, entry));
  }
  // Paid for, so not dropped: a lone one is stream 0, several say that nobody knows which is which.
  if (withoutIndex.length > 0 && entries.length > 1) warnings.add('missing_stream_index');
  let free = 0;
  for (const entry of withoutIndex) {
    while (files.has(free)) free += 1;
    files.set(free, resultFile(free, entry));
  }
  return [...files.values()].sort((a, b) => a.index - b.index);
}

function hasUsableUrl(entry: JsonObject): entry is JsonObject & { url: string } {
  return typeof entry['url'] === 'string' && URL.canParse(entry['url']);
}

function resultFile(index: number, entry: JsonObject & { url: string }): ResultFile {
  const contentType = entry['content_type'];
  const bytes = wholeNumber(entry['file_size']);
  return {
    index,
    kind: 'audio',
    url: entry.url,
    contentType: typeof contentType === 'string' && MEDIA_TYPE.test(contentType) ? contentType : null,
    bytes: bytes === 0 ? null : bytes,
  };
}

const MEDIA_TYPE = /^[\w.+-]{1,64}\/[\w.+-]{1,64}$/;

function wholeNumber(value: unknown): number | null {
  return Number.isSafeInteger(value) && (value as number) >= 0 ? (value as number) : null;
}
