import { firstRow, rows, type Sql } from './database.ts';
import { LOCKED_COLUMNS, type LockedAttempt } from './submission-attempts.ts';

// Settled attempts, and ended streams of them, whose health nobody has applied: between B1 and B2. All of it is served
// by the partial indexes submission_attempts_health_due and submission_attempts_stream_health_due, which are empty but
// for what is under way.

const SUBMISSION_DUE = 'settled_at is not null and health_applied_at is null';
const STREAM_DUE = 'stream_ended_at is not null and stream_health_applied_at is null';

/** Which of the two evidences of an attempt. */
export type HealthOf = 'submission' | 'stream';

export interface DueHealth {
  readonly attempt: LockedAttempt;
  readonly of: HealthOf;
}

/** The breaker of an attempt whose health is due; undefined when it is not. */
export async function findHealthDue(sql: Sql, attemptId: string): Promise<string | undefined> {
  const row = await firstRow<{ name: string }>(
    sql,
    `select breaker_name as name from onetake.submission_attempts
where id = $1 and ((${SUBMISSION_DUE}) or (${STREAM_DUE}))`,
    [attemptId],
  );
  return row?.name;
}

export async function listBreakersWithHealthDue(sql: Sql): Promise<string[]> {
  const due = await rows<{ name: string }>(
    sql,
    `select d.name from (
  select breaker_name as name, settled_at as since from onetake.submission_attempts where ${SUBMISSION_DUE}
  union all
  select breaker_name, stream_ended_at from onetake.submission_attempts where ${STREAM_DUE}
) d
group by d.name
order by min(d.since)`,
  );
  return due.map((row) => row.name);
}

/**
 * In the order in which they were settled or ended, which is the order in which they count. The caller holds the
 * breaker's lock, so it waits for none of these.
 */
export async function takeHealthDue(tx: Sql, breaker: string, limit: number): Promise<DueHealth[]> {
  const attempts = await rows<LockedAttempt>(
    tx,
    `select ${LOCKED_COLUMNS} from onetake.submission_attempts
where breaker_name = $1 and ((${SUBMISSION_DUE}) or (${STREAM_DUE}))
order by case when health_applied_at is null then settled_at else stream_ended_at end, id
limit $2
for no key update skip locked`,
    [breaker, limit],
  );
  const due = attempts.flatMap(dueOf).sort((a, b) => a.at.getTime() - b.at.getTime());
  // Behind the last one of a full page others may come first that end later than they were settled.
  const last = attempts.length < limit ? undefined : attempts.map(firstDueAt).at(-1);
  return last === undefined ? due : due.filter(({ at }) => at <= last);
}

function dueOf(attempt: LockedAttempt): (DueHealth & { readonly at: Date })[] {
  const { settledAt, healthAppliedAt, streamEndedAt, streamHealthAppliedAt } = attempt;
  return [
    ...(settledAt !== null && healthAppliedAt === null
      ? [{ attempt, of: 'submission' as const, at: settledAt }]
      : []),
    ...(streamEndedAt !== null && streamHealthAppliedAt === null
      ? [{ attempt, of: 'stream' as const, at: streamEndedAt }]
      : []),
  ];
}

function firstDueAt(attempt: LockedAttempt): Date | undefined {
  return dueOf(attempt)[0]?.at;
}

export interface HealthEffectOf {
  readonly attemptId: string;
  readonly effect: string;
  /** Default: its submission. */
  readonly of?: HealthOf;
}

export async function writeHealthEffects(tx: Sql, effects: readonly HealthEffectOf[]): Promise<void> {
  const submissions = effects.filter(({ of = 'submission' }) => of === 'submission');
  const streams = effects.filter(({ of }) => of === 'stream');
  if (submissions.length > 0) await writeEffects(tx, 'health', submissions);
  if (streams.length > 0) await writeEffects(tx, 'stream_health', streams);
}

async function writeEffects(
  tx: Sql,
  column: 'health' | 'stream_health',
  effects: readonly HealthEffectOf[],
): Promise<void> {
  await tx.executeSql(
    `update onetake.submission_attempts a
set ${column}_applied_at = clock_timestamp(), ${column}_effect = d.effect
from unnest($1::uuid[], $2::text[]) as d (id, effect)
where a.id = d.id and a.${column}_applied_at is null`,
    [effects.map(({ attemptId }) => attemptId), effects.map(({ effect }) => effect)],
  );
}
