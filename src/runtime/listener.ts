import type { Database } from '../postgres/database.ts';
import { listen } from '../postgres/notifications.ts';

const RELISTEN_MS = 2_000;

/**
 * Keeps one LISTEN connection while it can. A hint only: a pooler that can't listen, or a connection that
 * died unnoticed, costs latency (the loops poll each second) and nothing else.
 */
export class Listener {
  readonly #database: Database;
  readonly #onNotice: (what: string) => void;
  #end: (() => void) | undefined;
  #again: NodeJS.Timeout | undefined;
  #stopped = true;

  constructor(database: Database, onNotice: (what: string) => void) {
    this.#database = database;
    this.#onNotice = onNotice;
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
      const end = await listen(this.#database.pool, this.#onNotice, () => this.#listenLater());
      if (this.#stopped) end();
      else this.#end = end;
    } catch {
      this.#listenLater();
    }
  }

  #listenLater(): void {
    this.#end = undefined;
    if (this.#stopped) return;
    this.#again = setTimeout(() => void this.#listen(), RELISTEN_MS);
  }
}
