import type { Dispatcher } from 'undici';
import { afterArrivals } from './after-arrivals.ts';

/** How a body that was read piece by piece came to its end. */
export type BodyOver =
  /** By its own framing. */
  | 'complete'
  | 'cut'
  /** No byte came for as long as is waited for one. */
  | 'idle'
  | 'deadline'
  /** As the deadline, while nobody took what was there: not the peer's doing. */
  | 'unread'
  | 'too_large'
  | 'cancelled';

export interface OpenBodyTerms {
  /** `performance.now()` at the call. */
  readonly calledAt: number;
  /** Until the end, ms from the call; `endBy` says otherwise. */
  readonly wholeMs: number;
  readonly maxBytes: number;
  readonly endConnection: () => void;
  /** Whether something of the request has still to leave this process. */
  readonly isSending: () => boolean;
}

/** Bytes that wait here before the socket is no longer read from. */
const HIGH_WATER_BYTES = 1_048_576;

/**
 * The body of an answer, read while it comes: its socket is paused while nobody takes what is there. What has
 * arrived is kept, however the body ends. Nothing here throws or rejects.
 */
export class OpenBody {
  /** Resolves when nothing more can come from the wire. */
  readonly over: Promise<BodyOver>;
  readonly #terms: OpenBodyTerms;
  readonly #controller: Dispatcher.DispatchController;
  readonly #tell: (how: BodyOver) => void;
  #chunks: Buffer[] = [];
  #waitingBytes = 0;
  #received = 0;
  #how: BodyOver | undefined;
  #deadline: NodeJS.Timeout;
  #idleMs: number | null = null;
  #take: (() => void) | undefined;

  constructor(controller: Dispatcher.DispatchController, terms: OpenBodyTerms) {
    this.#controller = controller;
    this.#terms = terms;
    const { promise, resolve } = Promise.withResolvers<BodyOver>();
    this.over = promise;
    this.#tell = resolve;
    this.#deadline = this.#timer(terms.wholeMs);
  }

  /** Of the wire. */
  get received(): number {
    return this.#received;
  }

  /** Undefined while more may come. */
  get how(): BodyOver | undefined {
    return this.#how;
  }

  /** All that is here, as soon as there is some; null once all was taken and no more comes. One call at a time. */
  async next(): Promise<Buffer | null> {
    if (this.#chunks.length > 0) {
      // Copied together: a piece of one byte keeps the whole of what the socket read alive.
      const here = Buffer.concat(this.#chunks);
      this.#chunks = [];
      this.#waitingBytes = 0;
      this.#resume();
      return here;
    }
    if (this.#how !== undefined) return null;
    const { promise, resolve } = Promise.withResolvers<void>();
    this.#take = resolve;
    // Only while somebody waits for a byte: the time that is taken to write the last one away is not silence.
    const giveUpIdle = () => {
      if (this.#take === resolve) this.#giveUp('idle');
    };
    const idle =
      this.#idleMs === null ? undefined : afterArrivals(this.#idleMs, this.#terms.isSending, giveUpIdle);
    await promise;
    clearTimeout(idle);
    return this.next();
  }

  /** From now on so much silence, and so much time from the call, end the body. */
  allow(terms: { readonly idleMs: number; readonly wholeMs: number }): void {
    this.#idleMs = terms.idleMs;
    this.endBy(terms.wholeMs);
  }

  /** In place of every other deadline; ms from the call. */
  endBy(ms: number): void {
    clearTimeout(this.#deadline);
    if (this.#how === undefined) this.#deadline = this.#timer(ms);
  }

  /** In place of every other deadline; ms from now. */
  endWithin(ms: number): void {
    this.endBy(performance.now() - this.#terms.calledAt + ms);
  }

  /** Gives the rest up, and what is here. */
  cancel(): void {
    this.#chunks = [];
    this.#giveUp('cancelled');
  }

  /** By undici, whose parser is in the middle of it. */
  push(chunk: Buffer): void {
    if (this.#how !== undefined) return;
    this.#received += chunk.length;
    if (this.#received > this.#terms.maxBytes) {
      this.#giveUp('too_large');
      return;
    }
    this.#chunks.push(chunk);
    this.#waitingBytes += chunk.length;
    if (this.#waitingBytes >= HIGH_WATER_BYTES) this.#controller.pause();
    this.#wake();
  }

  /** By undici. */
  end(how: 'complete' | 'cut'): void {
    if (this.#how !== undefined) return;
    this.#how = how;
    clearTimeout(this.#deadline);
    this.#tell(how);
    this.#wake();
  }

  #giveUp(how: BodyOver): void {
    if (this.#how !== undefined) return;
    this.#how = how;
    clearTimeout(this.#deadline);
    this.#wake();
    // Not from inside undici's parser, which may be in the middle of a chunk.
    queueMicrotask(() => {
      try {
        this.#terms.endConnection();
      } catch {
        // It is over for us; a teardown that fails must not take the process with it.
      }
      this.#tell(how);
    });
  }

  #timer(msFromCall: number): NodeJS.Timeout {
    const leftMs = Math.max(0, msFromCall - (performance.now() - this.#terms.calledAt));
    const timer = afterArrivals(leftMs, this.#terms.isSending, () => {
      // What arrived just now may have put another in its place.
      if (timer === this.#deadline) this.#giveUp(this.#take === undefined ? 'unread' : 'deadline');
    });
    return timer;
  }

  #wake(): void {
    this.#take?.();
    this.#take = undefined;
  }

  #resume(): void {
    // A connection that has ended has nothing to go on with.
    if (this.#how !== undefined || !this.#controller.paused) return;
    try {
      this.#controller.resume();
    } catch {
      this.#giveUp('cut');
    }
  }
}
