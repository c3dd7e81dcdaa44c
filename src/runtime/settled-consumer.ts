import type { Database } from '../postgres/database.ts';
import { noteConsumer } from '../postgres/settled-notices.ts';
import type { Notice, NoticeQueue } from '../queue/notices.ts';
import { Loop } from './loop.ts';
import type { SharedListener } from './shared-listener.ts';
import { throughBlips } from './through-blips.ts';

/** How long it sleeps when nothing wakes it. */
const IDLE_MS = 1_000;
/** Well within the time after which a notice counts as lost. */
const UPKEEP_MS = 20_000;

export interface SettledConsumerOptions {
  readonly database: Database;
  readonly notices: NoticeQueue;
  readonly listener: SharedListener;
  readonly concurrency: number;
  /** Rejects for what has to be tried again. */
  readonly handle: (requestId: string) => Promise<void>;
}

/** Takes the notices of requests that have ended and gives each to the app's handler, at least once. */
export class SettledConsumer {
  readonly #options: SettledConsumerOptions;
  readonly #underWay = new Map<Notice, Promise<void>>();
  readonly #loop: Loop;
  #unsubscribe = () => {};
  #upkeepAt = 0;
  #stopping: Promise<void> | undefined;

  constructor(options: SettledConsumerOptions) {
    this.#options = options;
    this.#loop = new Loop({
      round: () => this.#round(),
      // A database that is away comes back; the rounds wait for it.
      onTrouble: () => {},
    });
  }

  /** What ends from when this resolves on is told. */
  async start(): Promise<void> {
    await noteConsumer(this.#options.database);
    const wake = () => this.#loop.wake();
    this.#unsubscribe = this.#options.listener.subscribe({
      onNotice: (what) => {
        if (what === 'notice') wake();
      },
      onListening: wake,
    });
    this.#loop.start();
  }

  /** Takes nothing more and waits for the handlers under way, however long they take. */
  stop(): Promise<void> {
    this.#stopping ??= (async () => {
      this.#unsubscribe();
      await this.#loop.stop();
      // The upkeep of theirs ends with the loop, so it goes on beside.
      const alive = setInterval(() => void this.#showLife().catch(() => {}), UPKEEP_MS);
      await Promise.all(this.#underWay.values());
      clearInterval(alive);
    })();
    return this.#stopping;
  }

  async #round(): Promise<number> {
    if (performance.now() >= this.#upkeepAt) await this.#upkeep();
    const room = this.#options.concurrency - this.#underWay.size;
    if (room <= 0) return IDLE_MS;
    const fetched = await this.#options.notices.fetch(room);
    for (const notice of fetched) {
      const done = this.#handle(notice).finally(() => {
        this.#underWay.delete(notice);
        this.#loop.wake();
      });
      this.#underWay.set(notice, done);
    }
    return fetched.length === room ? 0 : IDLE_MS;
  }

  async #upkeep(): Promise<void> {
    await this.#showLife();
    await noteConsumer(this.#options.database);
    await this.#options.notices.failLost();
    this.#upkeepAt = performance.now() + UPKEEP_MS;
  }

  #showLife(): Promise<void> {
    return this.#options.notices.touch([...this.#underWay.keys()]);
  }

  async #handle(notice: Notice): Promise<void> {
    const { notices, handle } = this.#options;
    const taken = await handle(notice.data.requestId).then(
      () => true,
      () => false,
    );
    // Left unsaid, for want of a database, it is lost and comes again.
    await throughBlips(() => (taken ? notices.complete(notice) : notices.fail(notice))).catch(() => {});
  }
}
