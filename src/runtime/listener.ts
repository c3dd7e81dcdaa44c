import type { Database } from '../postgres/database.ts';
import { listen } from '../postgres/notifications.ts';

const FIRST_WAIT_MS = 1_000;
const MAX_WAIT_MS = 15_000;

export interface ListenerOptions {
  readonly onNotice: (what: string) => void;
  /** What came before was not heard. Called again after each loss. */
  readonly onListening?: () => void;
  /** The connection is gone; another one is tried for. */
  readonly onLost?: () => void;
  /** Nothing can be heard through this pooler, and it isn't tried again. */
  readonly onPolling: () => void;
  /** How often the connection is proven. Default 15 s. */
  readonly beatEveryMs?: number;
}

/**
 * Keeps one LISTEN connection while it can. A hint only: a pooler that can't listen, or a connection that
 * died unnoticed, costs latency (the loops poll each second) and nothing else.
 */
export class Listener {
  readonly #database: Database;
  readonly #options: ListenerOptions;
  #end: (() => void) | undefined;
  #again: NodeJS.Timeout | undefined;
  #waitMs = FIRST_WAIT_MS;
  #stopped = true;

  constructor(database: Database, options: ListenerOptions) {
    this.#database = database;
    this.#options = options;
  }

  start(): void {
    if (!this.#stopped) return;
    this.#stopped = false;
    void this.#listen();
  }

  stop(): void {
    this.#stopped = true;
    clearTimeout(this.#again);
    this.#end?.();
    this.#end = undefined;
  }

  async #listen(): Promise<void> {
    try {
      const { onNotice, onPolling, beatEveryMs } = this.#options;
      const end = await listen(this.#database, {
        onNotice,
        onLost: () => this.#listenLater(),
        ...(beatEveryMs === undefined ? {} : { beatEveryMs }),
      });
      if (end === undefined) onPolling();
      else if (this.#stopped) end();
      else {
        this.#end = end;
        this.#waitMs = FIRST_WAIT_MS;
        this.#options.onListening?.();
      }
    } catch {
      this.#listenLater();
    }
  }

  #listenLater(): void {
    this.#end = undefined;
    this.#options.onLost?.();
    if (this.#stopped) return;
    clearTimeout(this.#again);
    this.#again = setTimeout(() => void this.#listen(), this.#waitMs);
    this.#waitMs = Math.min(MAX_WAIT_MS, this.#waitMs * 2);
  }
}
