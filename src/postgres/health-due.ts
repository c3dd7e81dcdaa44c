import { firstRow, rows, type Sql } from './database.ts';
import { LOCKED_COLUMNS, type LockedAttempt } from './submission-attempts.ts';

// Settled attempts whose health nobody has applied: between B1 and B2. All of it is served by the partial
// index submission_attempts_health_due, which is empty but for what is under way.

/** The breaker of an attempt whose health is due; undefined when it is not. */
export async function findHealthDue(sql: Sql, attemptId: string): Promise<string | undefined> {
  const row = await firstRow<{ name: string }>(
    sql,
    `select breaker_name as name from onetake.submission_attempts
where id = $1 and settled_at is not null and health_applied_at is null`,
    [attemptId],
  );
  return row?.name;
}

export async function listBreakersWithHealthDue(sql: Sql): Promise<string[]> {
  const due = await rows<{ name: string }>(
    sql,
    `select breaker_name as name from onetake.submission_attempts
where settled_at is not null and health_applied_at is null
group by breaker_name
order by min(settled_at)`,
  );
  return due.map((row) => row.name);
}

/**
 * In the order in which they were settled, which is the order in which they count. The caller holds the
 * breaker's lock, so it waits for none of these.
 */
export async function takeHealthDue(tx: Sql, breaker: string, limit: number): Promise<LockedAttempt[]> {
  return rows(
    tx,
    `select ${LOCKED_COLUMNS} from onetake.submission_attempts
where breaker_name = $1 and settled_at is not null and health_applied_at is null
order by settled_at, id
limit $2
for no key update skip locked`,
    [breaker, limit],
  );
}

export async function writeHealthEffects(
  tx: Sql,
  effects: readonly { readonly attemptId: string; readonly effect: string }[],
): Promise<void> {
  await tx.executeSql(
    `update onetake.submission_attempts a
set health_applied_at = clock_timestamp(), health_effect = d.effect
from unnest($1::uuid[], $2::text[]) as d (id, effect)
where a.id = d.id and a.health_applied_at is null`,
    [effects.map(({ attemptId }) => attemptId), effects.map(({ effect }) => effect)],
  );
}
