import { createHmac, randomBytes, timingSafeEqual } from 'node:crypto';
import type { IncomingMessage, ServerResponse } from 'node:http';
import { type Answer, xml } from './answers.ts';
import { type AudioFile, CHUNK_BYTES } from './audio/audio-file.ts';
import { deliver, departureOf, write } from './deliver.ts';
import type { Surroundings } from './post-handler.ts';
import { ALWAYS_WAV, type Task, type TaskFile } from './tasks.ts';

/** Presigned result URLs, as an object store gives them out: whoever has one may read, until it expires. */
export class SignedUrls {
  readonly #secret = randomBytes(32);
  #issued = 0;

  /** Path and query of a URL that no earlier call has given. */
  issue(path: string, expiresAt: number): string {
    this.#issued += 1;
    const query = `X-Expires=${Math.floor(expiresAt)}&X-Issue=${this.#issued}`;
    return `${path}?${query}&X-Signature=${this.#sign(path, query)}`;
  }

  check(url: URL, now: number): 'valid' | 'forged' | 'expired' {
    const expires = url.searchParams.get('X-Expires') ?? '';
    const query = `X-Expires=${expires}&X-Issue=${url.searchParams.get('X-Issue') ?? ''}`;
    const given = Buffer.from(url.searchParams.get('X-Signature') ?? '');
    const expected = Buffer.from(this.#sign(url.pathname, query));
    if (given.length !== expected.length || !timingSafeEqual(given, expected)) return 'forged';
    return now < Number(expires) ? 'valid' : 'expired';
  }

  #sign(path: string, query: string): string {
    return createHmac('sha256', this.#secret).update(`${path}\n${query}`).digest('hex');
  }
}

export function filePath(task: Task, file: TaskFile): string {
  return `/results/${task.id}/${file.name}`;
}

export async function handleFile(
  { settings, world }: Surroundings,
  urls: SignedUrls,
  request: IncomingMessage,
  response: ServerResponse,
  url: URL,
): Promise<void> {
  const [, taskId = '', name = ''] = /^\/results\/([^/]+)\/([^/]+)$/.exec(url.pathname) ?? [];
  const audio = world()
    .findTask(taskId)
    ?.files.find((file) => file.name === name)?.audio;
  const refused = refuse(urls, request, url, settings.clock.now(), audio !== undefined);
  const range = audio === undefined ? undefined : readRange(request.headers.range, audio.byteLength);
  const answer = refused ?? (range === 'unsatisfiable' ? unsatisfiable(audio?.byteLength ?? 0) : undefined);
  const report = (httpStatus: number) =>
    settings.onEvent?.({
      type: 'download',
      at: settings.clock.now(),
      taskId: taskId.slice(0, 64),
      httpStatus,
    });
  request.resume();
  if (answer !== undefined || audio === undefined || range === 'unsatisfiable') {
    report(answer?.status ?? 404);
    await deliver(response, answer ?? xml(404, 'NoSuchKey', 'No such key.'), undefined);
    return;
  }
  report(range === undefined ? 200 : 206);
  await sendFile(response, audio, range, request.method === 'HEAD');
}

function refuse(
  urls: SignedUrls,
  request: IncomingMessage,
  url: URL,
  now: number,
  found: boolean,
): Answer | undefined {
  if (request.method !== 'GET' && request.method !== 'HEAD')
    return xml(405, 'MethodNotAllowed', 'Only GET and HEAD.');
  if (request.headers.authorization !== undefined) {
    const message = 'Only one auth mechanism allowed: a signed query or the Authorization header.';
    return xml(400, 'InvalidArgument', message);
  }
  const verdict = urls.check(url, now);
  if (verdict === 'forged') return xml(403, 'SignatureDoesNotMatch', 'The signature does not match.');
  if (verdict === 'expired') return xml(403, 'AccessDenied', 'Request has expired.');
  return found ? undefined : xml(404, 'NoSuchKey', 'No such key.');
}

interface ByteRange {
  readonly start: number;
  /** Exclusive. */
  readonly end: number;
}

/** One range, as RFC 9110 has it; anything else is ignored, which the RFC allows. */
function readRange(header: string | undefined, length: number): ByteRange | 'unsatisfiable' | undefined {
  const [, first = '', last = ''] = /^bytes=(\d*)-(\d*)$/.exec(header ?? '') ?? [];
  if (first === '' && last === '') return undefined;
  if (first === '') {
    const suffix = Number(last);
    return suffix === 0 ? 'unsatisfiable' : { start: Math.max(0, length - suffix), end: length };
  }
  if (last !== '' && Number(last) < Number(first)) return undefined;
  if (Number(first) >= length) return 'unsatisfiable';
  return { start: Number(first), end: last === '' ? length : Math.min(length, Number(last) + 1) };
}

function unsatisfiable(length: number): Answer {
  const answer = xml(416, 'InvalidRange', 'The requested range is not satisfiable.');
  return { ...answer, headers: { ...answer.headers, 'content-range': `bytes */${length}` } };
}

/** Rendered while it is read, a second of sound at a time, so that a download never holds up the API. */
async function sendFile(
  response: ServerResponse,
  audio: AudioFile,
  range: ByteRange | undefined,
  headOnly: boolean,
): Promise<void> {
  const { start, end } = range ?? { start: 0, end: audio.byteLength };
  const leave = departureOf(response);
  response.writeHead(range === undefined ? 200 : 206, {
    'content-type': audio.contentType,
    'content-length': end - start,
    'accept-ranges': 'bytes',
    'x-simulator-note': ALWAYS_WAV,
    ...(range === undefined ? {} : { 'content-range': `bytes ${start}-${end - 1}/${audio.byteLength}` }),
  });
  try {
    for (let at = start; at < end && !headOnly; at += CHUNK_BYTES) {
      await write(response, audio.read(at, Math.min(end, at + CHUNK_BYTES)), leave);
    }
    response.end();
  } catch {
    response.destroy();
  }
}
