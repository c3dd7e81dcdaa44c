import { isUsableTaskId } from '../../core/outcome.ts';
import type { ResultDocument } from '../../core/provider.ts';
import {
  isContentCode,
  type StreamEnd,
  type StreamReading,
  type StreamTerms,
  type SubmissionStream,
} from '../../core/stream.ts';
import type { Reply } from './exchange.ts';
import type { BodyOver, OpenBody } from './open-body.ts';
import { MAX_ANSWER_BYTES } from './post.ts';
import { decodeEvent, type StreamEvent } from './stream-events.ts';
import { StreamLines } from './stream-lines.ts';

/** On the wire. */
export const MAX_STREAM_BYTES = 512 * 1024 * 1024;
/** How long after `complete` the end is waited for, and what may not come then is looked for. */
const AFTER_COMPLETE_MS = 1_000;

/** A code of the provider's as it may be stored; null for what may not. */
type CodeOf = (code: unknown) => string | null;

export type Opening =
  | { readonly kind: 'started'; readonly stream: SubmissionStream }
  | { readonly kind: 'failed'; readonly errorCode: string | null }
  /** No event came: an answer like any other, as far as it came. */
  | ({ readonly kind: 'whole' } & Pick<Reply, 'body' | 'bodyEnd' | 'deadline'>);

/** Reads an answer up to its first event. What comes before is kept: it may be the answer of a task, on several lines. */
export async function readOpening(body: OpenBody, terms: StreamTerms, codeOf: CodeOf): Promise<Opening> {
  const answer = new KeptAnswer(body);
  const lines = new StreamLines(answer);
  for (;;) {
    const line = await lines.next();
    if (line === 'line_too_long') body.cancel();
    if (typeof line === 'string') return answer.whole();
    const event = decodeEvent(line.text);
    switch (event.kind) {
      case 'unparsable':
        await answer.readOn();
        return answer.whole();
      case 'untyped':
        // A line that was cut may be the beginning of another.
        if (!isUsableTaskId(event.object['task_id']) || (line.isOpen && body.how !== 'complete')) break;
        body.cancel();
        return { kind: 'whole', body: Buffer.from(line.text), bodyEnd: 'complete', deadline: null };
      case 'nothing':
        break;
      case 'error':
        body.cancel();
        return { kind: 'failed', errorCode: codeOf(event.code) };
      default:
        answer.forget();
        body.allow({ idleMs: terms.idleMs, wholeMs: terms.totalMs });
        return { kind: 'started', stream: new SoniloStream(body, lines, event, terms, codeOf) };
    }
  }
}

/** Keeps what was taken of a body, as far as an answer that is no stream may go. */
class KeptAnswer {
  readonly #body: OpenBody;
  #pieces: Buffer[] = [];
  #bytes = 0;
  #keeps = true;

  constructor(body: OpenBody) {
    this.#body = body;
  }

  async next(): Promise<Buffer | null> {
    const piece = await this.#body.next();
    if (piece !== null && this.#keeps && this.#bytes <= MAX_ANSWER_BYTES) {
      this.#pieces.push(piece);
      this.#bytes += piece.length;
    }
    return piece;
  }

  async readOn(): Promise<void> {
    while (this.#bytes <= MAX_ANSWER_BYTES && (await this.next()) !== null);
    this.#body.cancel();
  }

  forget(): void {
    this.#keeps = false;
    this.#pieces = [];
  }

  whole(): Opening {
    const { how } = this.#body;
    const bodyEnd = this.#bytes > MAX_ANSWER_BYTES ? 'too_large' : how === 'complete' ? how : 'cut';
    const body = Buffer.concat(this.#pieces);
    return {
      kind: 'whole',
      body,
      bodyEnd,
      deadline: how === 'deadline' || how === 'unread' ? 'whole' : null,
    };
  }
}

const CODE_OF: Readonly<Record<BodyOver, string>> = {
  // However its bytes ended: a stream ends by its `complete`.
  complete: 'stream_cut',
  cut: 'stream_cut',
  idle: 'stream_idle',
  deadline: 'stream_deadline',
  unread: 'stream_unread',
  too_large: 'stream_too_large',
  cancelled: 'cancelled',
};
const CANCELLED: StreamEnd = { kind: 'interrupted', errorCode: 'cancelled', isOurs: true };

class SoniloStream implements SubmissionStream {
  readonly #body: OpenBody;
  readonly #lines: StreamLines;
  readonly #terms: StreamTerms;
  readonly #codeOf: CodeOf;
  #first: StreamEvent | undefined;
  #end: StreamEnd | undefined;
  #hasAudio = false;
  #streams: number | null = null;
  #document: ResultDocument | null = null;

  constructor(body: OpenBody, lines: StreamLines, first: StreamEvent, terms: StreamTerms, codeOf: CodeOf) {
    this.#body = body;
    this.#lines = lines;
    this.#first = first;
    this.#terms = terms;
    this.#codeOf = codeOf;
  }

  async read(): Promise<StreamReading> {
    for (;;) {
      if (this.#end !== undefined) return this.#end;
      const event = await this.#next();
      // It was cancelled meanwhile.
      if (this.#end !== undefined) return this.#end;
      if ('over' in event) return this.#interrupted(event.over);
      switch (event.kind) {
        case 'audio':
          this.#streams = Math.max(this.#streams ?? 1, event.streams ?? 1);
          if (event.bytes.length === 0) break;
          this.#hasAudio = true;
          return { kind: 'audio', index: event.index, bytes: event.bytes };
        case 'title':
          this.#document = event.document;
          break;
        case 'error':
          return this.#failed(event.code);
        case 'complete':
          return this.#completed();
        case 'damaged':
        case 'unparsable':
          return this.#interrupted('stream_damaged');
        case 'other':
        case 'untyped':
        case 'nothing':
          break;
      }
    }
  }

  cancel(): void {
    this.#end ??= CANCELLED;
    this.#body.cancel();
  }

  async #next(): Promise<StreamEvent | { readonly over: string }> {
    const first = this.#first;
    this.#first = undefined;
    if (first !== undefined) return first;
    const line = await this.#lines.next();
    if (line === 'line_too_long') return { over: 'line_too_large' };
    if (line === 'body') return { over: CODE_OF[this.#body.how ?? 'cut'] };
    const event = decodeEvent(line.text);
    // Not damaged but cut, and by what is known.
    const isCut = line.isOpen && (event.kind === 'unparsable' || event.kind === 'damaged');
    return isCut ? { over: CODE_OF[this.#body.how ?? 'cut'] } : event;
  }

  /** Exactly one `complete`, and nothing after it that would have belonged before it. The end itself may stay away. */
  async #completed(): Promise<StreamEnd> {
    if (!this.#hasAudio) return this.#interrupted('stream_without_audio');
    this.#body.endWithin(AFTER_COMPLETE_MS);
    for (;;) {
      const line = await this.#lines.next();
      if (this.#end !== undefined) return this.#end;
      if (line === 'body') break;
      const kind = line === 'line_too_long' ? 'audio' : decodeEvent(line.text).kind;
      if (['complete', 'audio', 'damaged', 'error'].includes(kind)) {
        return this.#interrupted('stream_after_complete');
      }
    }
    return this.#ended({ kind: 'complete', streams: this.#streams, document: this.#document });
  }

  #failed(code: unknown): StreamEnd {
    const errorCode = this.#codeOf(code);
    const isContent = isContentCode(errorCode, this.#terms.contentCodes);
    return this.#ended({ kind: 'failed', errorCode, isContent });
  }

  #interrupted(errorCode: string): StreamEnd {
    const isOurs = errorCode === CODE_OF.unread;
    return this.#ended({ kind: 'interrupted', errorCode, ...(isOurs ? { isOurs } : {}) });
  }

  #ended(end: StreamEnd): StreamEnd {
    this.#end = end;
    this.#body.cancel();
    return end;
  }
}
