import { firstRow, type Sql } from './database.ts';

/**
 * The database's clock, in a statement of its own: after a lock, `clock_timestamp()` in the same statement
 * would give the time from before the wait, and `now()` that of the transaction's start. Cut to ms, so
 * that an instant read here is never ahead of the database.
 */
export async function readClock(sql: Sql): Promise<Date> {
  const row = await firstRow<{ now: Date }>(sql, 'select clock_timestamp() as now');
  return (row as { now: Date }).now;
}
