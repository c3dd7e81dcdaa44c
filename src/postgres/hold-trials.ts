import { firstRow, rows, type Sql } from './database.ts';

// After a hold has ended, until the first acceptance: one POST at a time in what it held. The end may be an
// operator's word or an instant that has passed, so it is read, not written: nobody has to be there for it.

/** Of a hold `h`, at `s.now`. */
const IS_ON_TRIAL = `h.trial_ended_at is null and coalesce(least(h.ended_at, h.until), 'infinity') <= s.now`;

/**
 * Attempts under way in what is on trial, or null. `account` and `operation` are SQL; the clock is `s.now`. Whatever
 * is unsettled counts, from before the hold too. By account_holds_open, and submission_attempts_slots only for a
 * lane on trial: what is unsettled has its slot.
 */
export function trialInFlight(account: string, operation: string): string {
  return `(
    select (
      select count(*)::int from onetake.submission_attempts x
      where x.account = ${account} and x.slot_freed_at is null and x.settled_at is null
        and (t.whole or x.operation = ${operation})
    )
    from (
      select bool_or(h.operation is null) as whole
      from onetake.account_holds h
      where h.account = ${account} and ${IS_ON_TRIAL} and (h.operation is null or h.operation = ${operation})
    ) t
    where t.whole is not null
  )`;
}

/** A lane, or a whole account, in which nothing has been accepted since its hold ended. */
export interface HoldTrial {
  /** Null: every operation of the account, one request for all of them. */
  readonly operation: string | null;
  /** The end of the hold. */
  readonly since: string;
  /** POSTs under way in it; while there is one, the others wait. */
  readonly inFlight: number;
  /** Account refusals (401, 402, 403) since, in a row. */
  readonly refusals: number;
  /** Requests of it that are `queued`. */
  readonly waiting: number;
}

/** Of account `a`, as JSON. Counts nothing for an account without a trial; by generation_requests_dispatch else. */
export const TRIALS_OF_ACCOUNT = `coalesce((
    select jsonb_agg(jsonb_build_object('operation', t.operation, 'since', t.since, 'inFlight', (
        select count(*) from onetake.submission_attempts x
        where x.account = a.name and x.slot_freed_at is null and x.settled_at is null
          and (t.operation is null or x.operation = t.operation)
      ), 'refusals', t.refusals, 'waiting', (
        select count(*) from onetake.generation_requests r
        where r.account = a.name and r.state = 'queued' and (t.operation is null or r.operation = t.operation)
      )) order by t.since, t.operation)
    from (
      select h.operation, max(least(h.ended_at, h.until)) as since, max(h.trial_refusals) as refusals
      from onetake.account_holds h
      where h.account = a.name and ${IS_ON_TRIAL}
      group by h.operation
    ) t
  ), '[]')`;

export interface Trial {
  /** The attempt was admitted after the end of every hold of its lane. */
  readonly isFirst: boolean;
  readonly refusals: number;
}

/** The trial of a lane as one of its attempts sees it; the caller holds the account's lock. */
export async function readTrial(
  tx: Sql,
  attempt: { readonly id: string },
  lane: { readonly account: string; readonly operation: string },
): Promise<Trial | null> {
  const row = await firstRow<{ isFirst: boolean | null; refusals: number | null }>(
    tx,
    `select bool_and(a.started_at >= least(h.ended_at, h.until)) as "isFirst", max(h.trial_refusals) as refusals
from (select clock_timestamp() as now) s
cross join onetake.account_holds h
left join onetake.submission_attempts a on a.id = $3
where h.account = $1 and ${IS_ON_TRIAL} and (h.operation is null or h.operation = $2)`,
    [lane.account, lane.operation, attempt.id],
  );
  if (row === undefined || row.isFirst === null) return null;
  return { isFirst: row.isFirst, refusals: row.refusals ?? 0 };
}

/** An attempt from after the end was accepted. The caller holds the account's lock. */
export async function endTrials(
  tx: Sql,
  attempt: { readonly id: string },
  lane: { readonly account: string; readonly operation: string },
): Promise<void> {
  await tx.executeSql(
    `update onetake.account_holds h
set trial_ended_at = s.now
from (select clock_timestamp() as now) s, onetake.submission_attempts a
where a.id = $3 and h.account = $1 and ${IS_ON_TRIAL} and (h.operation is null or h.operation = $2)
  and a.started_at >= least(h.ended_at, h.until)`,
    [lane.account, lane.operation, attempt.id],
  );
}

/** The caller holds the account's lock. */
export async function countTrialRefusal(
  tx: Sql,
  lane: { readonly account: string; readonly operation: string },
): Promise<void> {
  await tx.executeSql(
    `update onetake.account_holds h
set trial_refusals = h.trial_refusals + 1
from (select clock_timestamp() as now) s
where h.account = $1 and ${IS_ON_TRIAL} and (h.operation is null or h.operation = $2)`,
    [lane.account, lane.operation],
  );
}

/** A new hold of the same scope takes over: after its own end the count begins anew. */
export async function supersedeTrials(tx: Sql, account: string, operation: string | null): Promise<void> {
  await tx.executeSql(
    `update onetake.account_holds h
set trial_ended_at = s.now
from (select clock_timestamp() as now) s
where h.account = $1 and ${IS_ON_TRIAL} and h.operation is not distinct from $2`,
    [account, operation],
  );
}

/** Whether an earlier attempt of the request was refused like this one. By submission_attempts_number_once. */
export async function wasRefusedBefore(
  tx: Sql,
  attempt: { readonly id: string; readonly requestId: string },
  httpStatus: number | null,
): Promise<boolean> {
  const found = await rows(
    tx,
    `select from onetake.submission_attempts a
where a.request_id = $1 and a.id <> $2 and a.certainty = 'refused' and a.http_status = $3
limit 1`,
    [attempt.requestId, attempt.id, httpStatus],
  );
  return found.length > 0;
}
