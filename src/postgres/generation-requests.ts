import type { Attention, RequestState } from '../core/generation-request.ts';
import type { OutcomeReason } from '../core/outcome.ts';
import { END_ATTENTION } from './attention.ts';
import { firstRow, rows, type Sql } from './database.ts';

// Statements about one request after its enqueue, in the order of its life.

/** A job must be sent for this request by whoever can; rescue does. */
export async function markJobDue(sql: Sql, id: string): Promise<void> {
  await sql.executeSql(
    `update onetake.generation_requests set job_due = true where id = $1::text::uuid and state = 'queued'`,
    [id],
  );
}

export async function clearJobDue(tx: Sql, id: string): Promise<void> {
  await tx.executeSql('update onetake.generation_requests set job_due = false where id = $1 and job_due', [
    id,
  ]);
}

type LaneName = { readonly account: string; readonly operation: string };

export interface AdmissibleRequest {
  readonly id: string;
  readonly state: RequestState;
  readonly notBefore: Date;
  readonly submitBefore: Date | null;
  readonly jobPriority: number;
}

/** Locks what can be locked at once: admission holds account and breaker, and waits for no request. */
export async function lockForAdmission(
  tx: Sql,
  ids: readonly string[],
  lane: LaneName,
): Promise<AdmissibleRequest[]> {
  return rows(
    tx,
    `select id, state, not_before as "notBefore", submit_before as "submitBefore",
  priority - round as "jobPriority"
from onetake.generation_requests
where id = any($1::uuid[]) and account = $2 and operation = $3
for no key update skip locked`,
    [ids, lane.account, lane.operation],
  );
}

/** Which of these exist and are still queued; read without a lock, for jobs whose request was locked. */
export async function listStillQueued(
  tx: Sql,
  ids: readonly string[],
  lane: LaneName,
): Promise<{ id: string; jobPriority: number }[]> {
  return rows(
    tx,
    `select id, priority - round as "jobPriority" from onetake.generation_requests
where id = any($1::uuid[]) and account = $2 and operation = $3 and state = 'queued'`,
    [ids, lane.account, lane.operation],
  );
}

export interface LockedRequest {
  readonly id: string;
  readonly account: string;
  readonly operation: string;
  readonly state: RequestState;
  readonly mode: 'async' | 'stream';
  readonly submissions: number;
  readonly jobPriority: number;
  readonly providerTaskId: string | null;
  /** Whose answer is its stream. */
  readonly streamAttemptId: string | null;
  readonly pollErrors: number;
  /** That stream is being read; `readerIsLost`: by nobody who has been heard of. */
  readonly isRead: boolean;
  readonly readerIsLost: boolean;
}

/** Waits for the request's row lock: first in the lock order request, attempt, account, breaker, job. */
export async function lockRequest(tx: Sql, id: string): Promise<LockedRequest | undefined> {
  return firstRow(
    tx,
    `select id, account, operation, state, mode, submissions, provider_task_id as "providerTaskId",
  poll_errors as "pollErrors", priority - round as "jobPriority", stream_attempt_id as "streamAttemptId", reader_lease_until is not null as "isRead",
  coalesce(reader_lease_until <= clock_timestamp() and reader_missed_at is not null, false) as "readerIsLost"
from onetake.generation_requests where id = $1 for no key update`,
    [id],
  );
}

/** Another request's own task, or one that was paid for on another request's account. */
export async function isTaskIdInUse(
  tx: Sql,
  account: string,
  taskId: string,
  exceptId: string,
): Promise<boolean> {
  const found = await rows(
    tx,
    `select from onetake.generation_requests where account = $1 and provider_task_id = $2 and id <> $3
union all
select from onetake.followed_tasks where account = $1 and provider_task_id = $2 and request_id <> $3`,
    [account, taskId, exceptId],
  );
  return found.length > 0;
}

// The moves below are made under the request's lock, after the attempt's outcome has been written.

export async function acceptRequest(tx: Sql, id: string, taskId: string, firstPollMs: number): Promise<void> {
  await tx.executeSql(
    `update onetake.generation_requests
set state = 'accepted', state_reason = null, provider_task_id = $2, accepted_at = clock_timestamp(),
  next_poll_at = clock_timestamp() + $3 * interval '1 ms', poll_errors = 0, job_due = false,
  charge = onetake.charge_of(id), ${END_ATTENTION}
where id = $1`,
    [id, taskId, firstPollMs],
  );
}

export async function rejectRequest(tx: Sql, id: string, stateReason: string): Promise<void> {
  await tx.executeSql(
    `update onetake.generation_requests
set state = 'rejected', state_reason = $2, settled_at = clock_timestamp(), job_due = false,
  charge = onetake.charge_of(id), ${END_ATTENTION}
where id = $1`,
    [id, stateReason],
  );
}

/** Its attempt is on the wire, and this database had forgotten it. */
export async function resumeSubmitting(tx: Sql, id: string): Promise<void> {
  await tx.executeSql(
    `update onetake.generation_requests set state = 'submitting', state_reason = null, job_due = false where id = $1`,
    [id],
  );
}

export async function freezeRequest(tx: Sql, id: string, stateReason: OutcomeReason): Promise<void> {
  await tx.executeSql(
    `update onetake.generation_requests
set state = 'ambiguous', state_reason = $2, job_due = false, charge = onetake.charge_of(id)
where id = $1`,
    [id, stateReason],
  );
}

/** Back to `queued`; returns when its job is due. */
export async function returnRequest(
  tx: Sql,
  id: string,
  stateReason: OutcomeReason,
  delayMs: number,
  notBefore: Date | null,
): Promise<Date> {
  const row = await firstRow<{ notBefore: Date }>(
    tx,
    `update onetake.generation_requests
set state = 'queued', state_reason = $2, charge = onetake.charge_of(id),
  not_before = date_trunc('milliseconds', greatest(clock_timestamp() + $3 * interval '1 ms', $4::timestamptz))
where id = $1
returning not_before as "notBefore"`,
    [id, stateReason, delayMs, notBefore],
  );
  return (row as { notBefore: Date }).notBefore;
}

export async function updateCharge(tx: Sql, id: string): Promise<void> {
  await tx.executeSql(
    `update onetake.generation_requests set charge = onetake.charge_of(id)
where id = $1 and charge <> onetake.charge_of(id)`,
    [id],
  );
}

/** An alarm about money is not hidden behind a lesser one. */
export async function noteAttention(tx: Sql, id: string, attention: Attention): Promise<void> {
  await tx.executeSql(
    `update onetake.generation_requests r
set attention = n.attention,
  attention_since = case when r.attention = n.attention then r.attention_since else clock_timestamp() end,
  charge = onetake.charge_of(r.id)
from (
  select coalesce(onetake.lasting_attention(x.attention), $2) as attention
  from onetake.generation_requests x where x.id = $1
) n
where r.id = $1`,
    [id, attention],
  );
}

export interface RequestDueForJob {
  readonly id: string;
  readonly account: string;
  readonly operation: string;
  readonly notBefore: Date;
  readonly jobPriority: number;
}

/** The lanes of the first `limit` rows that want a job. */
export async function listLanesOfDueJobs(
  sql: Sql,
  limit: number,
  passedOver: readonly string[] = [],
): Promise<{ account: string; operation: string }[]> {
  return rows(
    sql,
    `select distinct account, operation from (
  select account, operation from onetake.generation_requests
  where job_due and id <> all($2::uuid[])
  order by not_before
  limit $1
) due`,
    [limit, passedOver],
  );
}

/** Rows that say themselves that they want a job. */
export async function lockJobDue(
  tx: Sql,
  limit: number,
  passedOver: readonly string[] = [],
): Promise<RequestDueForJob[]> {
  return rows(
    tx,
    `select id, account, operation, not_before as "notBefore", priority - round as "jobPriority"
from onetake.generation_requests
where job_due and id <> all($2::uuid[])
order by not_before
limit $1
for no key update skip locked`,
    [limit, passedOver],
  );
}

/**
 * Ends queued requests that nobody waits for any more; also while the breaker is open. On a database that isn't the one
 * that was confirmed, nobody can say that they were never submitted: there they wait for an operator.
 */
export async function expireOverdue(sql: Sql, limit: number): Promise<string[]> {
  const expired = await rows<{ id: string }>(
    sql,
    `update onetake.generation_requests r
set state = 'expired', state_reason = 'submit_before', settled_at = clock_timestamp(), job_due = false,
  ${END_ATTENTION}
from (
  select id from onetake.generation_requests
  where state = 'queued' and submit_before is not null and submit_before <= now()
    and (select c.trouble from onetake.check_installation() c) is null
  order by submit_before
  limit $1
  for no key update skip locked
) due
where r.id = due.id
returning r.id`,
    [limit],
  );
  return expired.map((row) => row.id);
}

/** One page of queued rows that claim to have a job, by id, for the sweep that looks for vanished jobs. */
export async function listQueued(
  sql: Sql,
  afterId: string | null,
  limit: number,
): Promise<RequestDueForJob[]> {
  return rows(
    sql,
    `select id, account, operation, not_before as "notBefore", priority - round as "jobPriority"
from onetake.generation_requests
where state = 'queued' and not job_due and created_at < now() - interval '10 s'
  and id > coalesce($1::uuid, '00000000-0000-0000-0000-000000000000')
order by id
limit $2`,
    [afterId, limit],
  );
}
