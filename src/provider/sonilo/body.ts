import { brotliDecompressSync, gunzipSync, inflateRawSync, inflateSync } from 'node:zlib';
import { readHttpDate, retryAfterMs } from '../../core/admission.ts';
import type { Reply } from './exchange.ts';

export type JsonObject = Readonly<Record<string, unknown>>;

/** More than any proxy chain adds; each layer costs a decompression. */
const MAX_ENCODINGS = 2;

/**
 * The body as JSON, or undefined for every way in which it can't be read: cut, too large before or after
 * decompression, an unknown encoding, not UTF-8, not JSON. Never throws.
 */
export function jsonOf(reply: Reply, maxBytes: number): unknown {
  if (reply.bodyEnd !== 'complete') return undefined;
  try {
    const bytes = decompress(reply.body, reply.headers['content-encoding'], maxBytes);
    // Fatal: a replaced byte would make another task id out of a broken one. A BOM is dropped.
    return JSON.parse(new TextDecoder('utf-8', { fatal: true }).decode(bytes)) as unknown;
  } catch {
    return undefined;
  }
}

export function isJsonObject(value: unknown): value is JsonObject {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}

/** We ask for `identity`; proxies compress anyway. */
function decompress(bytes: Buffer, header: string | string[] | undefined, maxBytes: number): Buffer {
  const encodings = [header ?? []]
    .flat()
    .flatMap((value) => value.split(','))
    .map((value) => value.trim().toLowerCase())
    .filter((value) => value !== '' && value !== 'identity');
  if (encodings.length > MAX_ENCODINGS) throw new Error('too many encodings');
  return encodings.reduceRight((input, encoding) => decompressOne(input, encoding, maxBytes), bytes);
}

function decompressOne(bytes: Buffer, encoding: string, maxBytes: number): Buffer {
  const bounded = { maxOutputLength: maxBytes };
  switch (encoding) {
    case 'gzip':
    case 'x-gzip':
      return gunzipSync(bytes, bounded);
    case 'br':
      return brotliDecompressSync(bytes, bounded);
    case 'deflate':
      // By the letter a zlib stream; some servers send the bare one.
      return ((bytes[0] ?? 0) & 0x0f) === 8 ? inflateSync(bytes, bounded) : inflateRawSync(bytes, bounded);
    default:
      throw new Error('unknown encoding');
  }
}

/**
 * Ms that the reply asks us to wait; of several headers the first that makes sense. A date is meant by the clock of
 * whoever wrote it, which `Date` tells, and this machine's may be off.
 */
export function retryAfterOf(reply: Reply): number | null {
  const here = new Date();
  const [date = ''] = [reply.headers['date'] ?? []].flat();
  const now = readHttpDate(date, here) ?? here;
  for (const value of [reply.headers['retry-after'] ?? []].flat()) {
    const ms = retryAfterMs(value, now);
    if (ms !== null) return ms;
  }
  return null;
}
