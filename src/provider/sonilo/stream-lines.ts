import split from 'split2';
import type { OpenBody } from './open-body.ts';

/** The longest that we take: some twelve megabytes of sound in one event. */
export const MAX_LINE_BYTES = 16 * 1024 * 1024;
const NEWLINE = 0x0a;
const FIRST_BYTES = 4_096;

/** Why there are no more lines: the body is over (`how` says it), or one is too long. */
export type LinesOver = 'body' | 'line_too_long';

export interface Line {
  readonly text: string;
  /** It is the last one, and its end has not come. */
  readonly isOpen: boolean;
}

/**
 * The lines of a body as it comes, without their ends and without blank ones. split2 searches what it holds of an
 * unfinished line anew with each piece, so it gets whole lines only, which wait for their end here: time and memory
 * are those of the line, in however many pieces it comes.
 */
export class StreamLines {
  readonly #body: Pick<OpenBody, 'next'>;
  readonly #splitter = split((text) => {
    if (text.trim() !== '') this.#lines.push({ text, isOpen: this.#isOpen });
  });
  #lines: Line[] = [];
  /** Of those, how many were taken. */
  #taken = 0;
  #unfinished = Buffer.allocUnsafe(FIRST_BYTES);
  #length = 0;
  #isOpen = false;
  #over: LinesOver | undefined;

  constructor(body: Pick<OpenBody, 'next'>) {
    this.#body = body;
  }

  /** The next one; from its end on always why there is none. One call at a time. */
  async next(): Promise<Line | LinesOver> {
    for (;;) {
      const line = this.#lines[this.#taken++];
      if (line !== undefined) return line;
      this.#lines = [];
      this.#taken = 0;
      if (this.#over !== undefined) return this.#over;
      const piece = await this.#body.next();
      if (piece === null) await this.#finish();
      else await this.#take(piece);
    }
  }

  async #take(piece: Buffer): Promise<void> {
    const end = piece.lastIndexOf(NEWLINE) + 1;
    const first = piece.indexOf(NEWLINE) + 1;
    // Of a piece that ends no line, all of it; else no line in its middle is longer than the piece.
    const grown = this.#length + (first === 0 ? piece.length : first);
    if (grown > MAX_LINE_BYTES) {
      this.#over = 'line_too_long';
      return;
    }
    if (end > 0) {
      const whole = piece.subarray(0, end);
      await this.#split(this.#length === 0 ? whole : Buffer.concat([this.#held(), whole]));
      this.#length = 0;
    }
    this.#hold(piece.subarray(end));
  }

  async #finish(): Promise<void> {
    this.#over = 'body';
    if (this.#length === 0) return;
    this.#isOpen = true;
    await this.#split(Buffer.concat([this.#held(), Buffer.of(NEWLINE)]));
  }

  #split(lines: Buffer): Promise<void> {
    return new Promise((resolve) => this.#splitter.write(lines, () => resolve()));
  }

  #held(): Buffer {
    return this.#unfinished.subarray(0, this.#length);
  }

  /** Twice the room whenever it is full: each byte is copied twice at most, however small the pieces are. */
  #hold(piece: Buffer): void {
    const needed = this.#length + piece.length;
    if (needed > this.#unfinished.length) {
      const larger = Buffer.allocUnsafe(Math.max(needed, 2 * this.#unfinished.length));
      this.#held().copy(larger);
      this.#unfinished = larger;
    }
    piece.copy(this.#unfinished, this.#length);
    this.#length = needed;
  }
}
