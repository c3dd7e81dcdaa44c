import { randomUUID } from 'node:crypto';
import { type Account, Accounts } from './accounts.ts';
import { AudioRenderer } from './audio/audio-file.ts';
import { randomFrom } from './audio/random.ts';
import type { Order } from './form-rules.ts';
import { Books, type Ledger } from './ledger.ts';
import type { MagicPrompt } from './magic-prompt.ts';
import type { SimulatedOperation } from './operations.ts';
import type { SimulatorSettings } from './options.ts';
import { type Fault, Script, type ScriptRule } from './script.ts';
import { costOf, filesOf, type Task } from './tasks.ts';

/** Scores and chunks depend on their seed alone, so they outlive a reset. */
const renderer = new AudioRenderer();

/** Everything between two resets. A POST keeps the world it came into. */
export class World {
  readonly books = new Books();
  readonly accounts: Accounts;
  readonly #settings: SimulatorSettings;
  readonly #startedAt: number;
  #script: Script;
  readonly #tasks = new Map<string, Task>();
  readonly #postsByOperation = new Map<string, number>();
  #running: { endsAt: number }[] = [];

  constructor(settings: SimulatorSettings) {
    this.#settings = settings;
    this.#startedAt = settings.clock.now();
    this.#script = new Script(settings.script);
    this.accounts = new Accounts(settings.keys, settings);
  }

  /** Counts a POST as its headers arrive, and takes the script's word on it. */
  arrive(operation: string): { number: number; fault: Fault | undefined } {
    this.books.posts += 1;
    const operationNumber = (this.#postsByOperation.get(operation) ?? 0) + 1;
    this.#postsByOperation.set(operation, operationNumber);
    const number = this.books.posts;
    const elapsedMs = this.#settings.clock.now() - this.#startedAt;
    return { number, fault: this.#script.take({ operation, number, operationNumber, elapsedMs }) };
  }

  /** Counts of POSTs go on; those of the new rules begin at nothing. */
  setScript(rules: readonly ScriptRule[]): void {
    this.#script = new Script(rules);
  }

  /** Takes the money and begins. A stream is no task: nothing is found under its id. */
  begin(
    operation: SimulatedOperation,
    account: Account,
    order: Order,
    form: string,
    magic?: MagicPrompt,
  ): Begun {
    const now = this.#settings.clock.now();
    const runTimeMs = magic?.runTimeMs ?? this.#runTime(form);
    const cost = costOf(order);
    const seed = [operation.name, order.prompt, order.source];
    const task: Task = {
      id: randomUUID(),
      operation,
      account,
      order,
      cost,
      endsAt: now + runTimeMs,
      files: filesOf(operation, order, (part, container) =>
        renderer.open([...seed, part].join('\n'), order.durationSeconds, container),
      ),
      ...(magic?.failure === undefined ? {} : { failure: magic.failure }),
      ...(magic?.failure === undefined || order.stream
        ? {}
        : { refundsAt: now + runTimeMs + this.#settings.refundDelayMs }),
    };
    if (!order.stream) this.#tasks.set(task.id, task);
    account.usage.push({ at: now, seconds: order.durationSeconds * order.variants, cost });
    account.begin(task, now);
    this.#running = this.#running.filter(({ endsAt }) => endsAt > now);
    this.#running.push(task);
    this.books.maxConcurrency = Math.max(this.books.maxConcurrency, this.#running.length);
    return { task, runTimeMs };
  }

  findTask(id: string): Task | undefined {
    return this.#tasks.get(id);
  }

  ledger(): Ledger {
    return this.books.read(this.#settings.clock.now(), this.accounts.all());
  }

  #runTime(form: string): number {
    const { runTimeMs, runTimeJitter } = this.#settings;
    return Math.round(runTimeMs * (1 + runTimeJitter * randomFrom(form).between(-1, 1)));
  }
}

export interface Begun {
  readonly task: Task;
  readonly runTimeMs: number;
}
