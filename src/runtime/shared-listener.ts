import type { Database } from '../postgres/database.ts';
import { Listener } from './listener.ts';

/** What one who waits wants to hear. */
export interface Ear {
  readonly onNotice: (what: string) => void;
  /** From now on notices arrive; what came before did not. */
  readonly onListening?: () => void;
}

/**
 * One LISTEN connection for all who wait, taken when the first begins and given up when the last has ended, so
 * that nothing of it keeps a script alive.
 */
export class SharedListener {
  readonly #database: Database;
  readonly #ears = new Set<Ear>();
  #listener: Listener | undefined;
  #isListening = false;

  constructor(database: Database) {
    this.#database = database;
  }

  /** False: through a pooler, without a connection to spare, or not yet. Then whoever waits has to look. */
  get isListening(): boolean {
    return this.#isListening;
  }

  /** Call what it returns once. */
  subscribe(ear: Ear): () => void {
    this.#ears.add(ear);
    if (this.#ears.size === 1) this.#start();
    else if (this.#isListening) ear.onListening?.();
    return () => {
      this.#ears.delete(ear);
      if (this.#ears.size === 0) this.#stop();
    };
  }

  #start(): void {
    if (!this.#database.canSpareOne) return;
    const listener = new Listener(this.#database, {
      onNotice: (what) => {
        for (const ear of this.#ears) ear.onNotice(what);
      },
      onListening: () => {
        if (this.#listener !== listener) return;
        this.#isListening = true;
        for (const ear of this.#ears) ear.onListening?.();
      },
      onLost: () => {
        this.#isListening = false;
      },
      onPolling: () => {},
    });
    this.#listener = listener;
    listener.start();
  }

  #stop(): void {
    this.#listener?.stop();
    this.#listener = undefined;
    this.#isListening = false;
  }
}
