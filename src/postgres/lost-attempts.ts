import type { AttemptIntent } from '../core/spooled-outcome.ts';
import { firstRow, rows, type Sql } from './database.ts';

// Attempts that a database lost: its transaction A was confirmed, and a restore, or a standby that took over,
// doesn't have it. Only the outcome that their worker holds tells that they ever were.

/** In `health_effect`: what happened under a breaker that this database may never have had counts for nothing. */
export const INTENT_LOST = 'intent_lost';

/**
 * Writes the attempt's row again, under the request's lock. It keeps its number when no other attempt of the
 * request came later, by number or by start; else it gets one below all others, so that the last attempt stays
 * the last.
 */
export async function insertLostAttempt(tx: Sql, intent: AttemptIntent): Promise<void> {
  await tx.executeSql(
    `with others as materialized (
  select min(attempt) as first, min(attempt) filter (where attempt >= $3 or started_at > $4) as later
  from onetake.submission_attempts
  where request_id = $2
), written as (
  insert into onetake.submission_attempts (id, request_id, attempt, account, operation, breaker_name, generation,
    hold_epoch, is_probe, worker, started_at, lease_expires_at, window_until, slot_until, quarantine_until, override)
  select $1, r.id, case when o.later is null or o.later > $3 then $3 else least(o.first - 1, 0) end, r.account,
    r.operation, $5, $6, $7, $8, $9, $4, $10, $11, $12, $13, $14
  from onetake.generation_requests r, others o
  where r.id = $2
)
update onetake.generation_requests r
set submissions = $3
from others o
where r.id = $2 and o.later is null`,
    [
      intent.attemptId,
      intent.requestId,
      intent.attempt,
      intent.startedAt,
      intent.breakerName,
      intent.generation,
      intent.holdEpoch,
      intent.isProbe,
      intent.worker,
      intent.leaseExpiresAt,
      intent.windowUntil,
      intent.slotUntil,
      intent.quarantineUntil,
      intent.override,
    ],
  );
}

export interface OtherTakes {
  /**
   * A task that an earlier attempt turned out to have been accepted under, whose money is still gone, and that has
   * not become another request's.
   */
  readonly earlierTaskId: string | null;
  /**
   * Another attempt, which this database had lost, is on the wire, or is unknown and came to light after this one was
   * admitted. Where nothing is lost, the one before is settled before the next is admitted.
   */
  readonly hasUnseenLoss: boolean;
}

/**
 * What other attempts of the request have bought, or may have, that nobody knew when attempt `attemptId` was
 * admitted.
 */
export async function findOtherTakes(tx: Sql, requestId: string, attemptId: string): Promise<OtherTakes> {
  const row = await firstRow<OtherTakes>(
    tx,
    `select
  (
    select f.provider_task_id
    from onetake.followed_tasks f
    join onetake.submission_attempts a on a.id = f.attempt_id
    where f.request_id = $1 and a.attempt < mine.attempt and f.refunded is not true
      and not exists (
        select from onetake.generation_requests o
        where o.account = f.account and o.provider_task_id = f.provider_task_id and o.id <> f.request_id
      )
    order by a.attempt desc, f.since desc
    limit 1
  ) as "earlierTaskId",
  exists (
    select from onetake.submission_attempts l
    where l.request_id = $1 and l.id <> mine.id
      and (l.settled_at is null or (l.certainty = 'unknown' and l.settled_at > mine.started_at))
  ) as "hasUnseenLoss"
from onetake.submission_attempts mine
where mine.id = $2`,
    [requestId, attemptId],
  );
  return row as OtherTakes;
}

/** Which of these attempts this database has no row of, or, of `settled`, no outcome, or, of `ended`, no stream's end. */
export async function listForgottenAttempts(
  sql: Sql,
  attempts: {
    readonly unsettled: readonly string[];
    readonly settled: readonly string[];
    readonly ended: readonly string[];
  },
): Promise<string[]> {
  const forgotten = await rows<{ id: string }>(
    sql,
    `select k.id from unnest($1::uuid[]) as k (id)
where not exists (select from onetake.submission_attempts a where a.id = k.id)
union all
select k.id from unnest($2::uuid[]) as k (id)
where not exists (select from onetake.submission_attempts a where a.id = k.id and a.settled_at is not null)
union all
select k.id from unnest($3::uuid[]) as k (id)
where not exists (
  select from onetake.submission_attempts a where a.id = k.id and a.stream_ended_at is not null
)`,
    [attempts.unsettled, attempts.settled, attempts.ended],
  );
  return forgotten.map(({ id }) => id);
}
