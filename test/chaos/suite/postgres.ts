import { setTimeout as delay } from 'node:timers/promises';
import {
  type EmbeddedPostgres,
  startEmbeddedPostgres,
} from '../../../src/embedded/start-embedded-postgres.ts';
import { processIsAlive } from '../../support/children.ts';

export type Crash = 'kill' | 'immediate' | 'fast';

const SIGNALS = { kill: 'SIGKILL', immediate: 'SIGQUIT', fast: 'SIGINT' } as const;
const START_TRIES = 40;

/** An embedded PostgreSQL that is ended in every manner and started again by its supervisor, on its old port. */
export class ChaosPostgres {
  readonly port: number;
  readonly connectionString: string;
  readonly #directory: string;
  #server: EmbeddedPostgres | undefined;
  #changing: Promise<unknown> = Promise.resolve();

  private constructor(server: EmbeddedPostgres, directory: string) {
    this.#server = server;
    this.port = server.port;
    this.connectionString = server.connectionString;
    this.#directory = directory;
  }

  static async start(directory: string): Promise<ChaosPostgres> {
    return new ChaosPostgres(await startEmbeddedPostgres({ mode: 'persistent', directory }), directory);
  }

  /** Ends it, leaves it down for so long, and starts it again. */
  restart(how: Crash, downMs: number): Promise<void> {
    return this.#inTurn(async () => {
      const server = this.#server;
      if (server === undefined) return;
      process.kill(server.postmasterPid, SIGNALS[how]);
      while (processIsAlive(server.postmasterPid)) await delay(20);
      // Its supervisor sees that, and puts away what is its own.
      await server.stop();
      this.#server = undefined;
      await delay(downMs);
      this.#server = await this.#startAgain();
    });
  }

  stop(): Promise<void> {
    return this.#inTurn(async () => {
      await this.#server?.stop();
      this.#server = undefined;
    });
  }

  /** After a kill -9 its children may outlive it for a moment, and a new server waits for none of them. */
  async #startAgain(): Promise<EmbeddedPostgres> {
    for (let tried = 1; ; tried++) {
      try {
        return await startEmbeddedPostgres({
          mode: 'persistent',
          directory: this.#directory,
          port: this.port,
        });
      } catch (error) {
        if (tried === START_TRIES) throw error;
        await delay(250);
      }
    }
  }

  #inTurn<T>(work: () => Promise<T>): Promise<T> {
    const done = this.#changing.then(work);
    this.#changing = done.catch(() => undefined);
    return done;
  }
}
