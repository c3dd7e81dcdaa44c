import { sql } from 'drizzle-orm/sql';
import { fromDrizzle } from 'pg-boss';
import { OnetakeError } from '../core/errors.ts';
import type { Executor } from './executor.ts';

/** What a driver answers with: a result that has the rows, or the rows alone. */
// biome-ignore lint/suspicious/noExplicitAny: each driver has its own type for its rows.
type DriverAnswer = { rows: any[] } | any[];

/**
 * The caller's transaction, by shape: a drizzle transaction (any 0.4x, any driver, any copy of drizzle), a
 * `pg` client that has begun one, or anything with `executeSql`.
 */
export type CallerTransaction =
  // biome-ignore lint/suspicious/noExplicitAny: each driver has its own result type; only rows are read.
  | { execute(query: any): PromiseLike<any> }
  // biome-ignore lint/suspicious/noExplicitAny: as above.
  | { query(text: string, values?: any[]): PromiseLike<DriverAnswer> }
  | { executeSql(text: string, values?: unknown[]): PromiseLike<DriverAnswer> };

/**
 * drizzle's own error has the statement's values in its message, prompts among them: what the driver threw
 * goes on in its place, with its code.
 */
function throughDrizzle(tx: Parameters<typeof fromDrizzle>[0]): Executor {
  // The tag of our copy of drizzle: SQL objects are recognised by a global symbol, not by class.
  const { executeSql } = fromDrizzle(tx, sql);
  return {
    executeSql: (text, values) =>
      executeSql(text, values).catch((error: unknown) => {
        throw error instanceof Error && error.cause instanceof Error ? error.cause : error;
      }),
  };
}

/**
 * True when the driver says that a transaction is open on that connection, in its own words: `pg` does, and drizzle
 * over it has the client at hand. False says nothing: then a SAVEPOINT tells.
 */
export function isKnownOpen(tx: CallerTransaction): boolean {
  const client = statusOf(tx) ?? statusOf((tx as { session?: { client?: unknown } }).session?.client);
  return client === 'T';
}

function statusOf(client: unknown): unknown {
  const asked = client as { getTransactionStatus?: () => unknown } | undefined;
  return typeof asked?.getTransactionStatus === 'function' ? asked.getTransactionStatus() : undefined;
}

/** Runs our statements on the caller's connection, and on no other. */
export function callerExecutor(tx: CallerTransaction): Executor {
  if (typeof tx === 'object' && tx !== null) {
    if ('executeSql' in tx && typeof tx.executeSql === 'function') {
      return withRows((text, values) => tx.executeSql(text, values));
    }
    if ('execute' in tx && typeof tx.execute === 'function') return throughDrizzle(tx as never);
    if ('query' in tx && typeof tx.query === 'function') {
      return withRows((text, values) => tx.query(text, values));
    }
  }
  throw new OnetakeError(
    'invalid_option',
    'tx: expected a drizzle transaction, a pg client or { executeSql }.',
    {
      hint: 'Pass the transaction object itself, for example the `tx` that db.transaction() hands you.',
    },
  );
}

/** An answer without rows must not pass for one that found nothing. */
function withRows(run: (text: string, values?: unknown[]) => PromiseLike<DriverAnswer>): Executor {
  return {
    async executeSql(text, values) {
      const answer = (await run(text, values)) as DriverAnswer | undefined;
      if (Array.isArray(answer)) return { rows: answer };
      if (Array.isArray(answer?.rows)) return answer;
      if (/^(savepoint|release|rollback)\b/.test(text)) return { rows: [] };
      throw new OnetakeError('invalid_option', 'tx: its answer to a query has no rows.', {
        hint: 'Resolve to the rows, or to { rows }.',
      });
    },
  };
}
