import { Socket } from 'node:net';
import { setTimeout as wait } from 'node:timers/promises';
import pg from 'pg';
import { OnetakeError } from '../core/errors.ts';
import { isAnswered, isLostConnection, isRetryable, isStatementPooling } from './errors.ts';
import { Reconnect } from './reconnect.ts';
import {
  beginStatement,
  hasTerms,
  readsAsExpected,
  setTerms,
  type TransactionTerms,
  timed,
  timedUpkeep,
} from './session.ts';

/** Anything that runs one statement: our pool, one of our transactions, or a caller's. */
export interface Sql {
  executeSql(text: string, values?: unknown[]): Promise<{ rows: unknown[] }>;
}

/** The rows of one statement. `Row` is the shape that the statement's select list promises. */
export async function rows<Row>(sql: Sql, text: string, values: unknown[] = []): Promise<Row[]> {
  return (await sql.executeSql(text, values)).rows as Row[];
}

export async function firstRow<Row>(
  sql: Sql,
  text: string,
  values: unknown[] = [],
): Promise<Row | undefined> {
  return (await rows<Row>(sql, text, values))[0];
}

/** How long to wait for a row lock (default 5,000), and for a statement (default 15,000). */
export type TransactionOptions = TransactionTerms;

const CONNECT_TIMEOUT_MS = 10_000;
/** Of an app, below which each connection counts. */
const LARGE_POOL = 5;

/**
 * COMMIT was sent and its answer never came: the transaction may have happened, or may still be about to.
 * Only a read under a lock that it would hold can tell.
 */
export class CommitUnknownError extends Error {
  constructor(cause: unknown) {
    super('the outcome of a commit is unknown', { cause });
    this.name = 'CommitUnknownError';
  }
}

export class Database implements Sql {
  readonly pool: pg.Pool;
  /**
   * Long statements, and texts that begin and end transactions of their own: pg-boss's upkeep. As they are,
   * bounded by the session alone.
   */
  readonly upkeep: Sql;
  readonly #ownsPool: boolean;
  readonly #reconnect: Reconnect | undefined;
  readonly #sockets: ReadonlySet<Socket>;
  #readsAsExpected: boolean | undefined;
  #closing: Promise<void> | undefined;

  constructor(
    pool: pg.Pool,
    ownsPool: boolean,
    reconnect?: Reconnect,
    sockets: ReadonlySet<Socket> = new Set(),
  ) {
    this.pool = pool;
    this.#sockets = sockets;
    this.#ownsPool = ownsPool;
    this.#reconnect = reconnect;
    this.upkeep = {
      executeSql: (text, values = []) => this.withClient((client) => client.query(timedUpkeep(text, values))),
    };
    // An idle connection that dies must not take the process with it; the next checkout makes a new one.
    if (!ownsPool) return;
    pool.on('error', () => {});
    // The server may end a session in the very packet that says it is ready, before anybody who checked it out
    // could listen; an error without a listener ends the process.
    pool.on('connect', (client) => client.on('error', () => {}));
  }

  /** `mayExit`: for an app that calls us at its own pace; its connections keep no script alive. */
  static connect(
    connectionString: string,
    options: { max: number; applicationName: string; mayExit?: boolean },
  ): Database {
    const sockets = new Set<Socket>();
    const pool = new pg.Pool({
      connectionString,
      // The driver's own kind, kept so that `close` can cut off what hangs.
      stream: () => {
        const socket = new Socket();
        sockets.add(socket);
        return socket.once('close', () => sockets.delete(socket));
      },
      max: options.max,
      application_name: options.applicationName,
      connectionTimeoutMillis: CONNECT_TIMEOUT_MS,
      idleTimeoutMillis: 30_000,
      keepAlive: true,
      keepAliveInitialDelayMillis: 10_000,
      allowExitOnIdle: options.mayExit ?? false,
      // Awaited by the pool, whatever its type says.
      onConnect: setTerms as (client: pg.ClientBase) => void,
    });
    return new Database(pool, true, options.mayExit === true ? undefined : new Reconnect(), sockets);
  }

  /**
   * One statement, one round trip, with the session's terms. Where the session can't have any (a pooler, or a
   * pool of the app's whose role says otherwise), in a transaction that says them.
   */
  async executeSql(text: string, values: unknown[] = []): Promise<{ rows: unknown[] }> {
    return this.withClient(async (client) => {
      const inTransaction = () => transact(client, (tx) => tx.executeSql(text, values), {});
      if (!(await this.#mayRunPlainly(client))) return inTransaction();
      try {
        return await client.query(timed(text, values));
      } catch (error) {
        // A role's own time-outs may be shorter than ours.
        if (this.#ownsPool || !isRetryable(error)) throw error;
        return inTransaction();
      }
    });
  }

  /**
   * Runs `work` in one READ COMMITTED transaction whose commit is durable when this resolves. Under READ
   * COMMITTED each statement sees what the wait for an earlier statement's lock let in; under a stricter
   * default of the role or database, counts would silently be those from before the wait.
   */
  async transaction<Result>(
    work: (tx: Sql) => Promise<Result>,
    options: TransactionOptions = {},
  ): Promise<Result> {
    return this.withClient((client) => transact(client, work, options));
  }

  /**
   * `transaction`, again after a deadlock, a serialization failure or a time-out: those leave nothing
   * behind. Bounded and jittered. Never for work that has effects outside the transaction.
   */
  async retryingTransaction<Result>(
    work: (tx: Sql) => Promise<Result>,
    options: TransactionOptions & { readonly tries?: number } = {},
  ): Promise<Result> {
    const tries = options.tries ?? 5;
    for (let attempt = 1; ; attempt++) {
      try {
        return await this.transaction(work, options);
      } catch (error) {
        if (attempt >= tries || !isRetryable(error)) throw error;
        await wait(retryDelayMs(attempt));
      }
    }
  }

  /**
   * Waits for what is under way, but no longer than `patienceMs`: then its connections are cut off, and it
   * fails. Any number of times.
   */
  async close(patienceMs?: number): Promise<void> {
    if (!this.#ownsPool) return;
    this.#closing ??= this.pool.end();
    if (patienceMs === undefined) return this.#closing;
    const cutOff = setTimeout(() => {
      for (const socket of this.#sockets) socket.destroy();
    }, patienceMs);
    await this.#closing.finally(() => clearTimeout(cutOff));
  }

  async #mayRunPlainly(client: pg.ClientBase): Promise<boolean> {
    if (this.#ownsPool) return hasTerms(client);
    this.#readsAsExpected ??= await readsAsExpected(client);
    return this.#readsAsExpected;
  }

  /** The connection goes back as it came, or is given up when its state is unknown. */
  async withClient<Result>(work: (client: pg.ClientBase) => Promise<Result>): Promise<Result> {
    const client = await this.#checkOut();
    let usable = false;
    // Without a listener, a connection that dies between two statements ends the process.
    const onError = () => {};
    client.on('error', onError);
    try {
      const result = await work(client);
      usable = true;
      return result;
    } catch (error) {
      usable = isUsableAfter(error);
      throw error;
    } finally {
      client.off('error', onError);
      client.release(!usable);
    }
  }

  /** Whether one connection can be kept for listening without leaving too few for an app's own pool. */
  get canSpareOne(): boolean {
    return this.#ownsPool || (this.pool.options?.max ?? 0) >= LARGE_POOL;
  }

  /** A connection that doesn't come back until it is released, for good. */
  takeOut(): Promise<pg.PoolClient> {
    return this.#checkOut();
  }

  async #checkOut(): Promise<pg.PoolClient> {
    if (this.#reconnect === undefined) return this.pool.connect();
    // What is idle needs no knock; it may be dead, too, and is given up then.
    if (this.#reconnect.isAway && this.pool.idleCount > 0) return this.pool.connect();
    return this.#reconnect.connect(() => this.pool.connect());
  }
}

/** Errors after which the transaction is known to be over and the session in order. */
const usableAfter = new WeakSet<object>();

function isUsableAfter(error: unknown): boolean {
  return typeof error === 'object' && error !== null && usableAfter.has(error);
}

async function transact<Result>(
  client: pg.ClientBase,
  work: (tx: Sql) => Promise<Result>,
  options: TransactionOptions,
): Promise<Result> {
  const query = (text: string, values?: unknown[]) =>
    client.query(timed(text, values, options.statementTimeoutMs));
  await begin(client, options);
  let result: Result;
  try {
    result = await work({ executeSql: query });
  } catch (error) {
    // Also after an error of our own, which is no reason to give the connection up.
    if (!isLostConnection(error) && (await rolledBack(query))) markUsable(error);
    throw error;
  }
  let answer: pg.QueryResult;
  try {
    answer = await query('commit');
  } catch (error) {
    if (!isAnswered(error)) throw new CommitUnknownError(error);
    markUsable(error);
    throw error;
  }
  // COMMIT after a failed statement succeeds, as a ROLLBACK: nothing that `work` returned is true.
  if (answer.command !== 'COMMIT') {
    const ignored = new Error('a failed statement was ignored: nothing was committed');
    markUsable(ignored);
    throw ignored;
  }
  return result;
}

async function begin(client: pg.ClientBase, options: TransactionOptions): Promise<void> {
  try {
    await client.query(timed(beginStatement(options, client), undefined, options.statementTimeoutMs));
  } catch (error) {
    throw isStatementPooling(error) ? noTransactions() : error;
  }
}

/** For whoever has to refuse a connection on which transactions can't be. */
export function noTransactions(): OnetakeError {
  return new OnetakeError(
    'configuration_invalid',
    'The connection string leads to a pooler in statement mode, which allows no transactions.',
    { hint: 'Set pool_mode = transaction (or session) for this database, or connect past the pooler.' },
  );
}

function markUsable(error: unknown): void {
  if (typeof error === 'object' && error !== null) usableAfter.add(error);
}

async function rolledBack(query: (text: string) => Promise<unknown>): Promise<boolean> {
  try {
    await query('rollback');
    return true;
  } catch {
    return false;
  }
}

/** Full jitter, so that two transactions which met once don't meet again. */
export function retryDelayMs(attempt: number): number {
  return Math.random() * Math.min(1_000, 20 * 2 ** attempt);
}
