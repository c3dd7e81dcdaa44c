import type { ResultDocument } from '../../core/provider.ts';
import { isJsonObject, type JsonObject } from './body.ts';
import { titleDocument } from './title.ts';

/** One line of a stream, by what it means here. */
export type StreamEvent =
  | {
      readonly kind: 'audio';
      /** 0 to 9. */
      readonly index: number;
      /** How many there are to be, where it says so. */
      readonly streams: number | null;
      readonly bytes: Buffer;
    }
  | { readonly kind: 'title'; readonly document: ResultDocument | null }
  | { readonly kind: 'complete' }
  | { readonly kind: 'error'; readonly code: unknown }
  /** Of a type that is of no use here. */
  | { readonly kind: 'other' }
  /** An object without a type: no event, and perhaps the answer of a task. */
  | { readonly kind: 'untyped'; readonly object: JsonObject }
  /** JSON, and no object. */
  | { readonly kind: 'nothing' }
  /** Not JSON: nobody can say what was in it. */
  | { readonly kind: 'unparsable' }
  /** Sound that is not whole. */
  | { readonly kind: 'damaged' };

const MAX_INDEX = 9;

export function decodeEvent(line: string): StreamEvent {
  let value: unknown;
  try {
    // A proxy may have put a mark before the first one.
    value = JSON.parse(line.startsWith('\ufeff') ? line.slice(1) : line);
  } catch {
    return { kind: 'unparsable' };
  }
  if (!isJsonObject(value)) return { kind: 'nothing' };
  switch (value['type']) {
    case 'audio_chunk':
      return decodeAudio(value);
    case 'title':
      return { kind: 'title', document: titleDocument(value) };
    case 'complete':
      return { kind: 'complete' };
    case 'error':
      return { kind: 'error', code: value['code'] };
    default:
      return typeof value['type'] === 'string' ? { kind: 'other' } : { kind: 'untyped', object: value };
  }
}

/** Nothing in a stream would tell that a piece of it is missing, so what can't be read is never passed over. */
function decodeAudio(event: JsonObject): StreamEvent {
  const { data, num_streams: streams } = event;
  const index = event['stream_index'] ?? 0;
  if (typeof data !== 'string' || !isIndex(index)) return { kind: 'damaged' };
  const bytes = Buffer.from(data, 'base64');
  // Node takes much for base64 that is none; only canonical text comes out as it went in.
  if (bytes.toString('base64') !== data) return { kind: 'damaged' };
  return { kind: 'audio', index, streams: Number.isSafeInteger(streams) ? (streams as number) : null, bytes };
}

function isIndex(value: unknown): value is number {
  return Number.isInteger(value) && (value as number) >= 0 && (value as number) <= MAX_INDEX;
}
