import { sql } from 'drizzle-orm';
import { fromDrizzle } from 'pg-boss';
import { OnetakeError } from '../core/errors.ts';
import type { Executor } from './boss.ts';

/**
 * The caller's transaction, by shape: a drizzle transaction (any 0.4x, any driver, any copy of drizzle), a
 * `pg` client that has begun one, or anything with `executeSql`.
 */
export type CallerTransaction =
  // biome-ignore lint/suspicious/noExplicitAny: each driver has its own result type; only rows are read.
  | { execute(query: any): PromiseLike<any> }
  // biome-ignore lint/suspicious/noExplicitAny: as above.
  | { query(text: string, values?: any[]): Promise<{ rows: any[] }> }
  | Executor;

/** Runs our statements on the caller's connection, and on no other. */
export function callerExecutor(tx: CallerTransaction): Executor {
  if (typeof tx === 'object' && tx !== null) {
    if ('executeSql' in tx && typeof tx.executeSql === 'function') return tx;
    // The tag of our copy of drizzle: SQL objects are recognised by a global symbol, not by class.
    if ('execute' in tx && typeof tx.execute === 'function') return fromDrizzle(tx as never, sql);
    if ('query' in tx && typeof tx.query === 'function') {
      return { executeSql: (text, values) => tx.query(text, values) };
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
