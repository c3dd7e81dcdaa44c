import type { Clock } from '../core/clock.ts';
import type { Emit } from '../core/events.ts';
import type { Certainty } from '../core/outcome.ts';
import type { Provider } from '../core/provider.ts';
import { withDeadline } from '../lifecycle/pause.ts';

/** So many attempts in a row, all unsent, say that it is this machine which can't reach the provider. */
const SICK_AFTER = 5;
const CHECK_EVERY_MS = 15_000;
const CHECK_TIMEOUT_MS = 5_000;
/** A provider that can't be asked for free is tried again after this. */
const BLIND_PAUSE_MS = 60_000;

interface Sickness {
  readonly since: number;
  nextCheckAt: number;
  asking: boolean;
}

export interface ReachOptions {
  readonly worker: string;
  readonly clock: Clock;
  readonly emit: Emit;
  readonly providerNamed: (name: string) => Provider | undefined;
}

/**
 * Whether this worker still reaches its providers. One with no DNS or a wrong address fails every attempt
 * unsent; left alone, it would keep a breaker open for a fleet that is well, and probe for it in vain. So
 * after five such attempts it stops dispatching, says so, and goes on when a free request gets through.
 */
export class Reach {
  readonly #options: ReachOptions;
  readonly #unsentInARow = new Map<string, number>();
  readonly #sick = new Map<string, Sickness>();

  constructor(options: ReachOptions) {
    this.#options = options;
  }

  note(provider: string, certainty: Certainty): void {
    const { worker, clock, emit } = this.#options;
    const row = certainty === 'unsent' ? (this.#unsentInARow.get(provider) ?? 0) + 1 : 0;
    this.#unsentInARow.set(provider, row);
    if (row < SICK_AFTER || this.#sick.has(provider)) return;
    const since = clock.monotonic();
    this.#sick.set(provider, { since, nextCheckAt: since + CHECK_EVERY_MS, asking: false });
    emit('worker:sick', { worker, provider });
  }

  reaches(provider: string): boolean {
    return !this.#sick.has(provider);
  }

  /**
   * Asks again whom it could not reach, when it is time; true when one of them answered. Call it in each
   * round and don't wait for it: a provider that keeps silent would hold up the others. Never rejects.
   */
  async check(): Promise<boolean> {
    const answers = await Promise.all(
      [...this.#sick].map(([name, sickness]) => this.#checkOne(name, sickness)),
    );
    return answers.includes(true);
  }

  async #checkOne(name: string, sickness: Sickness): Promise<boolean> {
    const { worker, clock, emit } = this.#options;
    const now = clock.monotonic();
    // One question at a time, also to a provider that is slower than its timeout.
    if (sickness.asking || now < sickness.nextCheckAt) return false;
    sickness.nextCheckAt = now + CHECK_EVERY_MS;
    sickness.asking = true;
    const well = await this.#isWell(name, now - sickness.since);
    sickness.asking = false;
    if (!well) return false;
    this.#sick.delete(name);
    this.#unsentInARow.delete(name);
    emit('worker:recovered', { worker, provider: name });
    return true;
  }

  async #isWell(name: string, sickForMs: number): Promise<boolean> {
    try {
      const provider = this.#options.providerNamed(name);
      if (provider?.isReachable === undefined) return sickForMs >= BLIND_PAUSE_MS;
      // The port promises an answer in time; an app's own provider may not keep it.
      return await withDeadline(provider.isReachable(CHECK_TIMEOUT_MS), CHECK_TIMEOUT_MS * 2, false);
    } catch {
      return false;
    }
  }
}
