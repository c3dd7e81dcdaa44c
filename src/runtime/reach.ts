import type { Clock } from '../core/clock.ts';
import type { Emit } from '../core/events.ts';
import type { Certainty } from '../core/outcome.ts';
import type { Provider } from '../core/provider.ts';

/** So many attempts in a row, all unsent, say that it is this machine which can't reach the provider. */
const SICK_AFTER = 5;
const CHECK_EVERY_MS = 15_000;
const CHECK_TIMEOUT_MS = 5_000;
/** A provider that can't be asked for free is tried again after this. */
const BLIND_PAUSE_MS = 60_000;

interface Sickness {
  readonly since: number;
  nextCheckAt: number;
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
    this.#sick.set(provider, { since, nextCheckAt: since + CHECK_EVERY_MS });
    emit('worker:sick', { worker, provider });
  }

  reaches(provider: string): boolean {
    return !this.#sick.has(provider);
  }

  /** Asks again whom it could not reach, when it is time; call it in each round. */
  async check(): Promise<void> {
    for (const [name, sickness] of this.#sick) {
      const now = this.#options.clock.monotonic();
      if (now < sickness.nextCheckAt) continue;
      sickness.nextCheckAt = now + CHECK_EVERY_MS;
      const provider = this.#options.providerNamed(name);
      const well =
        provider?.isReachable === undefined
          ? now - sickness.since >= BLIND_PAUSE_MS
          : await provider.isReachable(CHECK_TIMEOUT_MS).catch(() => false);
      if (!well) continue;
      this.#sick.delete(name);
      this.#unsentInARow.delete(name);
      this.#options.emit('worker:recovered', { worker: this.#options.worker, provider: name });
    }
  }
}
