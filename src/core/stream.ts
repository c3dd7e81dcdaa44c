import type { Health } from './outcome.ts';

/** What bounds a stream, and what its errors mean. */
export interface StreamTerms {
  /** So long without a byte ends it, ms. */
  readonly idleMs: number;
  /** From the call to its end, ms. */
  readonly totalMs: number;
  /** Codes of its `error` event that judge what was asked for, and say nothing of the provider; in any case. */
  readonly contentCodes: readonly string[];
}

/** A stream that nobody has renewed the lease of for so long misses its reader. */
export const READER_LEASE_MS = 120_000;

/**
 * So much longer, from when somebody missed it who could reach the database, and it is lost: the database may have been
 * away for everybody, and what the reader has is paid for. More than a renewal and a reconnect take.
 */
export const READER_GRACE_MS = 60_000;

/** Never empty. */
export interface StreamPiece {
  readonly kind: 'audio';
  /** Of the stream within the answer, 0 to 9. */
  readonly index: number;
  readonly bytes: Uint8Array;
}

export type StreamEnd =
  | {
      readonly kind: 'complete';
      /** How many streams were announced; null where nothing was said. */
      readonly streams: number | null;
      /** What it said besides, as JSON that a database can hold; null where there is none. */
      readonly document: Readonly<Record<string, unknown>> | null;
    }
  /** By the provider's own word. */
  | {
      readonly kind: 'failed';
      /** At most 64 plain characters. */
      readonly errorCode: string | null;
      readonly isContent: boolean;
    }
  | {
      readonly kind: 'interrupted';
      readonly errorCode: string;
      /** Our own doing: no word about the provider. */
      readonly isOurs?: boolean;
    };

export type StreamReading = StreamPiece | StreamEnd;

/** The rest of an answer after its first event. Whoever gets one reads it to its end or cancels it. */
export interface SubmissionStream {
  /** The next piece, or how it ended: then the same for ever. One call at a time; never rejects. */
  read(): Promise<StreamReading>;
  /** Nobody wants the rest: a `read` under way ends. Any number of times; never throws. */
  cancel(): void;
}

/** What becomes of a request whose stream ended, and what that says of the provider. */
export interface StreamVerdict {
  readonly to: 'succeeded' | 'failed';
  readonly failureReason: 'provider' | 'stream_interrupted' | null;
  /** `complete`, or why it was not. */
  readonly code: string;
  /** Its first event was the success, so a whole stream has nothing to add. */
  readonly health: Extract<Health, 'dependency_failure' | 'none'>;
}

export function judgeStreamEnd(end: StreamEnd): StreamVerdict {
  switch (end.kind) {
    case 'complete':
      return { to: 'succeeded', failureReason: null, code: 'complete', health: 'none' };
    case 'failed':
      return {
        to: 'failed',
        failureReason: 'provider',
        code: end.errorCode ?? 'stream_error',
        health: end.isContent ? 'none' : 'dependency_failure',
      };
    case 'interrupted':
      return {
        to: 'failed',
        failureReason: 'stream_interrupted',
        code: end.errorCode,
        health: end.isOurs === true ? 'none' : 'dependency_failure',
      };
  }
}

/** Its reader died or was away for too long: says nothing of the provider. */
export const READER_LOST: StreamEnd = { kind: 'interrupted', errorCode: 'reader_lost', isOurs: true };

export function isContentCode(code: string | null, contentCodes: readonly string[]): boolean {
  return code !== null && contentCodes.some((one) => one.toLowerCase() === code.toLowerCase());
}
