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

/** Between two looks on the dispatch path; transaction A looks each time. */
const LOOK_EVERY_MS = 1_000;

export interface InstallationGuardOptions {
  readonly database: Database;
  readonly emit: Emit;
  readonly clock: Clock;
  /** Names this process. */
  readonly worker: string;
  /** Tells the database what this process knows; called at each look while there is trouble. */
  readonly reassert?: () => Promise<void>;
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
    const reading = await checkInstallation(database, this.#mark);
    this.note(reading);
    if (reading.trouble !== null) {
      if (reading.loss !== null) await doubtInstallation(database, reading.loss, worker);
      await reassert?.();
    }
    this.#nextLookAt = clock.monotonic() + LOOK_EVERY_MS;
    return reading.trouble === null;
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
