/** One round of a loop: resolves to how long to wait before the next, in ms. */
export type Round = () => Promise<number>;

export interface LoopOptions {
  readonly round: Round;
  /** A round threw. The loop goes on, and waits longer from failure to failure. */
  readonly onTrouble: (error: unknown) => void;
  /** A round went well after at least one that threw. */
  readonly onRecovered?: () => void;
}

const FIRST_TROUBLE_WAIT_MS = 250;
const MAX_TROUBLE_WAIT_MS = 5_000;

/**
 * Runs rounds one after another until stopped. `start` and `stop` may be called in any order and any number
 * of times; `stop` resolves when the round under way has ended.
 */
export class Loop {
  readonly #options: LoopOptions;
  #running: Promise<void> | undefined;
  #stopping = false;
  #woken = false;
  #wake: (() => void) | undefined;

  constructor(options: LoopOptions) {
    this.#options = options;
  }

  start(): void {
    if (this.#running !== undefined) return;
    this.#stopping = false;
    this.#running = this.#run();
  }

  /** Ends the wait between two rounds; during a round, the next one follows at once. */
  wake(): void {
    this.#woken = true;
    this.#wake?.();
  }

  async stop(): Promise<void> {
    this.#stopping = true;
    this.#wake?.();
    await this.#running;
    this.#running = undefined;
  }

  async #run(): Promise<void> {
    let troubles = 0;
    while (!this.#stopping) {
      this.#woken = false;
      let waitMs: number;
      try {
        waitMs = await this.#options.round();
        if (troubles > 0) this.#options.onRecovered?.();
        troubles = 0;
      } catch (error) {
        this.#options.onTrouble(error);
        waitMs = Math.min(MAX_TROUBLE_WAIT_MS, FIRST_TROUBLE_WAIT_MS * 2 ** troubles++);
        // Trouble is not answered by wake-ups: a database that is away would be asked without pause.
        this.#woken = false;
        await this.#sleep(waitMs, false);
        continue;
      }
      await this.#sleep(waitMs, true);
    }
  }

  async #sleep(ms: number, wakeable: boolean): Promise<void> {
    if (this.#stopping || (wakeable && this.#woken)) return;
    await new Promise<void>((resolve) => {
      const timer = setTimeout(resolve, Math.max(0, ms));
      this.#wake = () => {
        if (!wakeable && !this.#stopping) return;
        clearTimeout(timer);
        resolve();
      };
    });
    this.#wake = undefined;
  }
}
