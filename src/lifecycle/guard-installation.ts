import type { Clock } from '../core/clock.ts';
import type { Emit } from '../core/events.ts';
import {
  type InstallationMark,
  type InstallationReading,
  type InstallationTrouble,
  markAfter,
} from '../core/installation.ts';
import type { Database } from '../postgres/database.ts';
import { checkInstallation, doubtInstallation } from '../postgres/installation.ts';
import type { MarkFile } from '../storage/mark-file.ts';

/** Between two looks on the dispatch path; transaction A looks each time. */
const LOOK_EVERY_MS = 1_000;
/** A mark without a new attempt is written to the file no more often. */
const KEEP_EVERY_MS = 10_000;

export interface InstallationGuardOptions {
  readonly database: Database;
  readonly emit: Emit;
  readonly clock: Clock;
  /** Names this process. */
  readonly worker: string;
  /** Tells the database what this process knows; called at each look while there is trouble. */
  readonly reassert?: () => Promise<void>;
  /** Where the mark outlives the process. Default: nowhere. */
  readonly file?: MarkFile;
}

/**
 * Keeps a worker from submitting on a database that is not, or not any more, the one that was confirmed: a restore, a
 * clone, a standby that took over. Such a database holds requests as `queued` that have been paid for.
 */
export class InstallationGuard {
  readonly #options: InstallationGuardOptions;
  #mark: InstallationMark | null = null;
  #trouble: InstallationTrouble | null = null;
  #nextLookAt = Number.NEGATIVE_INFINITY;
  #hasLooked = false;
  #kept: { readonly mark: InstallationMark; readonly at: number } | undefined;

  constructor(options: InstallationGuardOptions) {
    this.#options = options;
  }

  /** Nothing may be admitted while there is any. Null before the first look, too: A asks for itself. */
  get trouble(): InstallationTrouble | null {
    return this.#trouble;
  }

  /** What to compare a database with; take it before the statement that compares is sent. */
  get mark(): InstallationMark | null {
    return this.#mark;
  }

  /** The session may lead to another server now: the next look is due at once. */
  reconnected(): void {
    this.#nextLookAt = Number.NEGATIVE_INFINITY;
  }

  /** Transaction A of this attempt is committed: from now on, a database without it has lost it. */
  committed(attemptId: string): void {
    if (this.#mark !== null) this.#mark = { ...this.#mark, attemptId };
  }

  /** Looks when a look is due; false while nothing may be admitted. One event per change. */
  async recognises(): Promise<boolean> {
    const { database, clock, worker, reassert } = this.#options;
    if (clock.monotonic() < this.#nextLookAt) return this.#trouble === null;
    const reading = await this.#look();
    this.note(reading);
    if (reading.trouble !== null) {
      if (reading.loss !== null) await doubtInstallation(database, reading.loss, worker);
      await reassert?.();
    }
    this.#nextLookAt = clock.monotonic() + LOOK_EVERY_MS;
    void this.keep();
    return reading.trouble === null;
  }

  /** At the first look, what the last run on this directory remembered of the very same installation counts. */
  async #look(): Promise<InstallationReading> {
    const { database, file } = this.#options;
    const reading = await checkInstallation(database, this.#mark);
    if (this.#hasLooked) return reading;
    const marks = (await file?.load()) ?? [];
    const mark = marks.find(({ installation }) => installation === reading.installation);
    this.#hasLooked = true;
    if (mark === undefined || this.#mark !== null) return reading;
    this.#mark = mark;
    return checkInstallation(database, mark);
  }

  /** Writes the mark down, unless the file has as good as the same. */
  async keep(): Promise<void> {
    const { clock, file } = this.#options;
    const mark = this.#mark;
    if (file === undefined || mark === null) return;
    const at = clock.monotonic();
    const kept = this.#kept;
    const isOld = kept?.mark.attemptId === mark.attemptId && kept.mark.revision === mark.revision;
    if (isOld && at - kept.at < KEEP_EVERY_MS) return;
    this.#kept = { mark, at };
    await file.keep(mark);
  }

  /** Takes in what a statement showed. */
  note(reading: InstallationReading): void {
    const { emit, worker } = this.#options;
    this.#mark = markAfter(this.#mark, reading);
    if (reading.trouble === this.#trouble) return;
    const before = this.#trouble;
    this.#trouble = reading.trouble;
    if (reading.trouble !== null) emit('installation:unrecognised', { worker, trouble: reading.trouble });
    else if (before !== null) emit('installation:recognised', { worker });
    this.reconnected();
  }
}
