import { setTimeout as wait } from 'node:timers/promises';
import pg from 'pg';
import { isAnswered, isLostConnection, isRetryable } from './errors.ts';

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

export interface TransactionOptions {
  /** How long to wait for a row lock. Default 5,000. */
  readonly lockTimeoutMs?: number;
  readonly statementTimeoutMs?: number;
}

const DEFAULT_LOCK_TIMEOUT_MS = 5_000;
const DEFAULT_STATEMENT_TIMEOUT_MS = 15_000;

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
  readonly #ownsPool: boolean;
  #closing: Promise<void> | undefined;

  constructor(pool: pg.Pool, ownsPool: boolean) {
    this.pool = pool;
    this.#ownsPool = ownsPool;
    // An idle connection that dies must not take the process with it; the next checkout makes a new one.
    if (!ownsPool) return;
    pool.on('error', () => {});
    // The server may end a session in the very packet that says it is ready, before anybody who checked it out
    // could listen; an error without a listener ends the process.
    pool.on('connect', (client) => client.on('error', () => {}));
  }

  static connect(
    connectionString: string,
    options: { max: number; applicationName: string; mayExit?: boolean },
  ): Database {
    const pool = new pg.Pool({
      connectionString,
      max: options.max,
      application_name: options.applicationName,
      connectionTimeoutMillis: 10_000,
      idleTimeoutMillis: 30_000,
      keepAlive: true,
      allowExitOnIdle: options.mayExit ?? false,
    });
    return new Database(pool, true);
  }

  async executeSql(text: string, values: unknown[] = []): Promise<{ rows: unknown[] }> {
    return this.pool.query(text, values);
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
    const client = await this.pool.connect();
    let broken = true;
    // Without a listener, a connection that dies between two statements ends the process.
    const onError = () => {};
    client.on('error', onError);
    try {
      await client.query(beginStatement(options));
      const tx: Sql = { executeSql: (text, values) => client.query(text, values) };
      let result: Result;
      try {
        result = await work(tx);
      } catch (error) {
        // Also after an error of our own, which is no reason to give the connection up.
        if (!isLostConnection(error)) broken = !(await rolledBack(client));
        throw error;
      }
      let answer: pg.QueryResult;
      try {
        answer = await client.query('commit');
      } catch (error) {
        if (!isAnswered(error)) throw new CommitUnknownError(error);
        broken = false;
        throw error;
      }
      broken = false;
      // COMMIT after a failed statement succeeds, as a ROLLBACK: nothing that `work` returned is true.
      if (answer.command !== 'COMMIT')
        throw new Error('a failed statement was ignored: nothing was committed');
      return result;
    } finally {
      client.off('error', onError);
      client.release(broken);
    }
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

  /** Any number of times. */
  async close(): Promise<void> {
    if (this.#ownsPool) this.#closing ??= this.pool.end();
    await this.#closing;
  }
}

async function rolledBack(client: pg.PoolClient): Promise<boolean> {
  try {
    await client.query('rollback');
    return true;
  } catch {
    return false;
  }
}

/** Full jitter, so that two transactions which met once don't meet again. */
export function retryDelayMs(attempt: number): number {
  return Math.random() * Math.min(1_000, 20 * 2 ** attempt);
}

function beginStatement(options: TransactionOptions): string {
  const lockMs = options.lockTimeoutMs ?? DEFAULT_LOCK_TIMEOUT_MS;
  const statementMs = options.statementTimeoutMs ?? DEFAULT_STATEMENT_TIMEOUT_MS;
  // One round trip. A role or database may say synchronous_commit = off, under which a confirmed
  // `submitting` can vanish in a crash; a stricter setting than `on` is left alone.
  return `begin isolation level read committed read write;
set local lock_timeout = ${Math.trunc(lockMs)};
set local statement_timeout = ${Math.trunc(statementMs)};
set local idle_in_transaction_session_timeout = 15000;
select set_config('synchronous_commit', 'on', true)
where current_setting('synchronous_commit') in ('off', 'local', 'remote_write');`;
}
