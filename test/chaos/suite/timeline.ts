import { appendFileSync } from 'node:fs';

export type EntryKind = 'phase' | 'incident' | 'fact' | 'operator' | 'violation';

export interface TimelineEntry {
  readonly atMs: number;
  readonly kind: EntryKind;
  readonly text: string;
}

/** What happened, as it happened, in memory and in a file that survives the run. */
export class Timeline {
  readonly entries: TimelineEntry[] = [];
  readonly file: string;
  readonly #startedAt = Date.now();

  constructor(file: string) {
    this.file = file;
  }

  add(kind: EntryKind, text: string): void {
    const entry = { atMs: Date.now() - this.#startedAt, kind, text };
    this.entries.push(entry);
    appendFileSync(this.file, `${lineOf(entry)}\n`);
  }

  /** What belongs to the end of a run, such as the rows around a violation: for the file only. */
  attach(text: string): void {
    appendFileSync(this.file, `${text}\n`);
  }

  /** The last so many seconds. */
  tail(ms: number): string[] {
    const since = (this.entries.at(-1)?.atMs ?? 0) - ms;
    return this.entries.filter(({ atMs }) => atMs >= since).map(lineOf);
  }
}

function lineOf({ atMs, kind, text }: TimelineEntry): string {
  return `${(atMs / 1_000).toFixed(1).padStart(7)} s  ${kind.padEnd(9)}  ${text}`;
}
