import { setTimeout as delay } from 'node:timers/promises';
import pg from 'pg';
import { type Client, createClient, OnetakeError } from '../../../src/index.ts';
import { randomOf } from './random.ts';
import { ACCOUNTS, OPERATIONS, type Operation, promptOf, requestKeyOf, sourceOf } from './settings.ts';

/** What the app knows of one order: what the database must agree with. */
export interface Order {
  readonly marker: number;
  readonly requestKey: string;
  readonly account: string;
  readonly operation: Operation;
  /** `unknown`: the connection ended at the commit; there may be a row or none. */
  outcome: 'pending' | 'committed' | 'rolled_back' | 'unknown';
  /** Every id that it was ever told; more than one is a fault. */
  readonly ids: Set<string>;
}

type Manner =
  | 'alone'
  | 'in_transaction'
  | 'rolled_back'
  | 'twice_at_once'
  | 'many'
  | 'short_lived'
  | 'mistaken';

const MANNERS: Readonly<Record<Manner, number>> = {
  alone: 30,
  in_transaction: 25,
  rolled_back: 12,
  twice_at_once: 20,
  many: 6,
  short_lived: 7,
  mistaken: 3,
};
const PAUSE_MS = 10_000;
const GIVE_UP_AFTER = 40;

export interface AppOptions {
  readonly seed: string;
  readonly connectionString: string;
  /** Mean time between two orders, in ms. */
  readonly everyMs: number;
  /** The files that it has. */
  readonly uploads: readonly string[];
  /** How many requests of an account wait at this moment. */
  readonly queued: (account: string) => number;
  readonly onFault: (what: string) => void;
}

/** An app that orders songs, alone and with rows of its own, and is sometimes cut off while it does. */
export class App {
  readonly orders = new Map<number, Order>();
  readonly #options: AppOptions;
  readonly #clients: readonly [Client, Client];
  readonly #pool: pg.Pool;
  readonly #ending = new AbortController();
  readonly #open = new Set<Promise<void>>();
  #markers = 0;

  constructor(options: AppOptions) {
    this.#options = options;
    const { connectionString } = options;
    this.#clients = [createClient({ connectionString }), createClient({ connectionString })];
    this.#pool = new pg.Pool({
      connectionString,
      max: 6,
      connectionTimeoutMillis: PAUSE_MS,
      application_name: 'the app',
    });
    this.#pool.on('error', () => undefined);
    this.#pool.on('connect', (client) => client.on('error', () => undefined));
  }

  /** Orders until `stop()`. */
  async run(): Promise<void> {
    const random = randomOf(this.#options.seed, 'app');
    while (!this.#ending.signal.aborted) {
      const account = random.weighted(
        Object.fromEntries(Object.entries(ACCOUNTS).map(([name, { weight }]) => [name, weight])),
      );
      const operation = random.chance(0.7) ? OPERATIONS[0] : OPERATIONS[1];
      const manner = random.weighted(MANNERS);
      const many = random.integer(3, 8);
      const waiting = this.#options.queued(account);
      // A database that is away must not gather an endless crowd of orders.
      if (waiting < (ACCOUNTS[account]?.backlog ?? 0) && this.#open.size < GIVE_UP_AFTER) {
        const done = this.#order(manner, account, operation, many)
          .catch((error: unknown) => this.#options.onFault(`the app got an error: ${describe(error)}`))
          .finally(() => this.#open.delete(done));
        this.#open.add(done);
      }
      await delay(random.gap(this.#options.everyMs), undefined, { signal: this.#ending.signal }).catch(
        () => undefined,
      );
    }
  }

  /** No more orders; those under way come to an end. */
  async stop(): Promise<void> {
    this.#ending.abort();
    await Promise.all(this.#open);
    await Promise.all(this.#clients.map((client) => client.stop()));
    await this.#pool.end();
  }

  #next(account: string, operation: Operation): Order {
    const marker = ++this.#markers;
    const order: Order = {
      marker,
      requestKey: requestKeyOf(marker),
      account,
      operation,
      outcome: 'pending',
      ids: new Set(),
    };
    this.orders.set(marker, order);
    return order;
  }

  async #order(manner: Manner, account: string, operation: Operation, many: number): Promise<void> {
    const order = this.#next(account, operation);
    switch (manner) {
      case 'alone':
        return this.#alone(order, this.#clients[0]);
      case 'short_lived':
        return this.#alone(order, this.#clients[0], 4_000);
      case 'mistaken':
        await this.#alone(order, this.#clients[0]);
        return this.#otherIntent(order);
      case 'twice_at_once':
        // Two clicks, two connections, one key.
        await Promise.all(this.#clients.map((client) => this.#alone(order, client)));
        return;
      case 'in_transaction':
        return this.#inTransaction([order], 'commit');
      case 'rolled_back':
        return this.#inTransaction([order], 'rollback');
      case 'many': {
        const orders = [order, ...Array.from({ length: many }, () => this.#next(account, operation))];
        return this.#inTransaction(orders, 'commit');
      }
    }
  }

  /** Until it is told an id, as an app that must not lose an order does; the key makes that harmless. */
  async #alone(order: Order, client: Client, submitWithinMs?: number): Promise<void> {
    const submitBefore =
      submitWithinMs === undefined ? {} : { submitBefore: new Date(Date.now() + submitWithinMs) };
    for (let tried = 1; ; tried++) {
      try {
        const result = await client.enqueue({ ...this.#inputOf(order), ...submitBefore });
        this.#told(order, result);
        order.outcome = 'committed';
        return;
      } catch (error) {
        if (!isTrouble(error)) throw error;
        if (order.outcome === 'pending') order.outcome = 'unknown';
        if (tried === GIVE_UP_AFTER) return;
        await delay(250);
      }
    }
  }

  /** Its key names another intent already: that must be refused, not answered with somebody's song. */
  async #otherIntent(order: Order): Promise<void> {
    if (order.outcome !== 'committed') return;
    const other = this.#inputOf({ ...order, marker: -order.marker });
    try {
      await this.#clients[1].enqueue(other);
    } catch (error) {
      if (error instanceof OnetakeError && error.code === 'intent_mismatch') return;
      if (isTrouble(error)) return;
      throw error;
    }
    this.#options.onFault(`order ${order.marker}: another intent was taken under its key`);
  }

  /** With a row of the app's own; either both are there afterwards or neither. */
  async #inTransaction(orders: readonly Order[], end: 'commit' | 'rollback'): Promise<void> {
    const set = (outcome: Order['outcome']) => {
      for (const order of orders) order.outcome = outcome;
    };
    let connection: pg.PoolClient | undefined;
    let isCommitting = false;
    try {
      connection = await this.#pool.connect();
      await connection.query('begin');
      for (const order of orders) {
        await connection.query('insert into the_app.orders (marker) values ($1)', [order.marker]);
        this.#told(order, await this.#clients[0].enqueue(this.#inputOf(order), { tx: connection }));
      }
      isCommitting = end === 'commit';
      const answer = await connection.query(end);
      set(answer.command === 'COMMIT' ? 'committed' : 'rolled_back');
      connection.release();
    } catch (error) {
      connection?.release(true);
      // Without a COMMIT that was sent, nothing can have been committed.
      set(isCommitting ? 'unknown' : 'rolled_back');
      if (!isTrouble(error)) throw error;
    }
  }

  /** The same for the same marker, whatever its sign: every other video is a file of the app's own. */
  #inputOf({ marker, requestKey, account, operation }: Order) {
    const prompt = promptOf(marker);
    const common = { requestKey, account, fairGroup: `tenant ${marker % 3}` };
    if (operation === 'text-to-music') return { ...common, operation, fields: { prompt, duration: 5 } };
    const { uploads } = this.#options;
    const number = Math.abs(marker);
    const file = number % 2 === 0 ? uploads[(number / 2) % uploads.length] : undefined;
    return file === undefined
      ? { ...common, operation, fields: { prompt, video_url: sourceOf(marker) } }
      : { ...common, operation, fields: { prompt, video: { file } } };
  }

  #told(order: Order, result: object): void {
    if (!('id' in result)) return;
    order.ids.add(String(result.id));
    if (order.ids.size > 1) this.#options.onFault(`one key, two requests: ${[...order.ids].join(' and ')}`);
  }
}

/** The database is away or busy, which an app has to live with; anything else is a fault. */
function isTrouble(error: unknown): boolean {
  if (error instanceof OnetakeError) return TROUBLE_CODES.has(error.code);
  const { code, message } = error as { code?: string; message?: string };
  if (typeof code === 'string') return /^(08|57|53|40|55|25P0)|^E[A-Z]+$|^25006$/.test(code);
  return /terminated|timeout|closed|connection error|not queryable/i.test(message ?? '');
}

const TROUBLE_CODES: ReadonlySet<string> = new Set([
  'commit_unknown',
  'database_busy',
  'database_unreachable',
  'serialization_failure',
]);

function describe(error: unknown): string {
  const { code, message } = error as { code?: string; message?: string };
  return `${code ?? 'no code'}: ${message ?? String(error)}`.slice(0, 300);
}
