import { setTimeout as wait } from 'node:timers/promises';
import { isPoolExhausted } from './errors.ts';

const FIRST_WAIT_MS = 100;
const MAX_WAIT_MS = 1_000;

interface Knock {
  /** Settles as the knock does. */
  readonly outcome: Promise<void>;
  readonly answered: () => void;
  readonly unanswered: (error: unknown) => void;
  taken: boolean;
}

/**
 * While the server can't be reached, one caller at a time tries to, after a pause that grows, and all others
 * share what it learns: however many wait for the database, it is knocked at once a second.
 */
export class Reconnect {
  #waitMs = 0;
  #knock: Knock | undefined;

  get isAway(): boolean {
    return this.#knock !== undefined;
  }

  async connect<Connection>(open: () => Promise<Connection>): Promise<Connection> {
    const knock = this.#knock;
    if (knock === undefined) return this.#try(open);
    if (knock.taken) {
      await knock.outcome;
      return open();
    }
    knock.taken = true;
    // Jitter, so that the processes of a fleet don't come back in one instant.
    await wait(this.#waitMs * (0.75 + Math.random() / 2));
    return this.#try(open);
  }

  async #try<Connection>(open: () => Promise<Connection>): Promise<Connection> {
    const knock = this.#knock;
    try {
      const connection = await open();
      this.#knock?.answered();
      this.#knock = undefined;
      this.#waitMs = 0;
      return connection;
    } catch (error) {
      // Of all who were under way when the server went, the first to fail says so. A pool whose connections
      // are all busy says nothing about the server.
      if (this.#knock === knock && (knock !== undefined || !isPoolExhausted(error))) {
        if (!isPoolExhausted(error)) {
          this.#waitMs = Math.min(MAX_WAIT_MS, Math.max(FIRST_WAIT_MS, this.#waitMs * 2));
        }
        this.#knock = newKnock();
      }
      knock?.unanswered(error);
      throw error;
    }
  }
}

function newKnock(): Knock {
  const { promise, resolve, reject } = Promise.withResolvers<void>();
  // Perhaps nobody else waits.
  promise.catch(() => {});
  return { outcome: promise, answered: resolve, unanswered: reject, taken: false };
}
