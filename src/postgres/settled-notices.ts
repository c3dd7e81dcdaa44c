import { firstRow, rows, type Sql } from './database.ts';

// Telling the app. That a notice is due is written by the trigger that sees a request end.

/** Asks for notices from now on, or goes on asking. */
export async function noteConsumer(sql: Sql): Promise<void> {
  await sql.executeSql(
    `insert into onetake.settled_consumer as c (since, seen_at) values (clock_timestamp(), clock_timestamp())
on conflict (one) do update set seen_at = clock_timestamp()`,
  );
}

/** Whether anybody has ever asked. */
export async function hasConsumer(sql: Sql): Promise<boolean> {
  return (await firstRow(sql, 'select from onetake.settled_consumer')) !== undefined;
}

/** Takes at most `limit` requests whose notice is due; whoever takes them sends in the same transaction. */
export async function takeDueNotices(tx: Sql, limit: number): Promise<string[]> {
  const taken = await rows<{ id: string }>(
    tx,
    `update onetake.generation_requests r set settled_notice_due = false
from (
  select id from onetake.generation_requests
  where settled_notice_due
  order by settled_at
  limit $1
  for no key update skip locked
) due
where r.id = due.id
returning r.id`,
    [limit],
  );
  return taken.map(({ id }) => id);
}

/** Those of `ids` that have ended, wait for an operator, or aren't there at all. */
export async function listSettled(sql: Sql, ids: readonly string[]): Promise<string[]> {
  const settled = await rows<{ id: string }>(
    sql,
    `select w.id
from unnest($1::uuid[]) w (id)
left join onetake.generation_requests r on r.id = w.id
where r.id is null or r.settled_at is not null or r.state = 'ambiguous'`,
    [ids],
  );
  return settled.map(({ id }) => id);
}
