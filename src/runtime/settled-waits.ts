import type { Database } from '../postgres/database.ts';
import { listSettled } from '../postgres/settled-notices.ts';
import type { SharedListener } from './shared-listener.ts';
import { throughBlips } from './through-blips.ts';

/** Where notices arrive, they only make sure. */
const LOOK_WHILE_LISTENING_MS = 2_000;
const FIRST_LOOKS_MS = 250;
const LOOK_MS = 1_000;
/** After which nobody is in a hurry any more. */
const FIRST_LOOKS = 40;
/** How long a wait outlasts a database that is away. */
const OUTAGE_MS = 300_000;

interface Wait {
  readonly resolve: () => void;
  readonly reject: (error: unknown) => void;
  /** When the database last told that it goes on. */
  seenAt: number;
}

export interface SettledWaitsOptions {
  readonly database: Database;
  readonly listener: SharedListener;
  /** The database is away: such an error is waited out. */
  readonly isAway: (error: unknown) => boolean;
}

/**
 * Waits for requests to end, or to want an operator. However many they are, they share one connection that
 * listens and one statement that looks; when the last has ended, no timer and no connection is left.
 */
export class SettledWaits {
  readonly #options: SettledWaitsOptions;
  readonly #waits = new Map<string, Set<Wait>>();
  #unsubscribe: (() => void) | undefined;
  #timer: NodeJS.Timeout | undefined;
  #looks = 0;
  #looking = false;
  #again = false;

  constructor(options: SettledWaitsOptions) {
    this.#options = options;
  }

  /** Resolves when it may have ended, the signal is aborted, or `atMostMs` have passed: look which. */
  async settled(id: string, signal: AbortSignal | undefined, atMostMs: number | undefined): Promise<void> {
    if (signal?.aborted === true) return;
    let wait: Wait | undefined;
    let leave = () => {};
    let timer: NodeJS.Timeout | undefined;
    try {
      await new Promise<void>((resolve, reject) => {
        wait = { resolve, reject, seenAt: performance.now() };
        leave = resolve;
        signal?.addEventListener('abort', leave, { once: true });
        if (atMostMs !== undefined) timer = setTimeout(leave, atMostMs);
        this.#add(id, wait);
      });
    } finally {
      clearTimeout(timer);
      signal?.removeEventListener('abort', leave);
      if (wait !== undefined) this.#remove(id, wait);
    }
  }

  /** Ends every wait with `error`. */
  stop(error: unknown): void {
    for (const wait of this.#all()) wait.reject(error);
  }

  #add(id: string, wait: Wait): void {
    this.#waits.set(id, (this.#waits.get(id) ?? new Set()).add(wait));
    this.#looks = 0;
    this.#unsubscribe ??= this.#options.listener.subscribe({
      // It was committed, so nobody has to look.
      onNotice: (what) => this.#settle(what.replace('settled ', '')),
      onListening: () => this.#look(),
    });
    this.#look();
  }

  #remove(id: string, wait: Wait): void {
    const others = this.#waits.get(id);
    others?.delete(wait);
    if (others?.size === 0) this.#waits.delete(id);
    if (this.#waits.size > 0) return;
    clearTimeout(this.#timer);
    this.#timer = undefined;
    this.#unsubscribe?.();
    this.#unsubscribe = undefined;
  }

  #look(): void {
    if (this.#looking) {
      this.#again = true;
      return;
    }
    clearTimeout(this.#timer);
    this.#looking = true;
    this.#again = false;
    void this.#lookOnce().finally(() => {
      this.#looking = false;
      if (this.#waits.size === 0) return;
      this.#timer = setTimeout(() => this.#look(), this.#again ? 0 : this.#pauseMs());
    });
  }

  #pauseMs(): number {
    if (this.#options.listener.isListening) return LOOK_WHILE_LISTENING_MS;
    return this.#looks++ < FIRST_LOOKS ? FIRST_LOOKS_MS : LOOK_MS;
  }

  async #lookOnce(): Promise<void> {
    const asked = [...this.#waits.keys()];
    try {
      const settled = await throughBlips(() => listSettled(this.#options.database, asked));
      for (const id of settled) this.#settle(id);
      const now = performance.now();
      for (const wait of this.#all()) wait.seenAt = now;
    } catch (error) {
      const away = this.#options.isAway(error);
      for (const wait of this.#all()) {
        // The request goes on without its database being looked at, so an outage is waited for as well.
        if (!away || performance.now() - wait.seenAt > OUTAGE_MS) wait.reject(error);
      }
    }
  }

  #settle(id: string): void {
    for (const wait of this.#waits.get(id) ?? []) wait.resolve();
  }

  #all(): Wait[] {
    return [...this.#waits.values()].flatMap((waits) => [...waits]);
  }
}
