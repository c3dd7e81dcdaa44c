import type { EncodedFields } from '../core/operations.ts';
import { rows, type Sql } from './database.ts';
import { type ClaimTerms, HEED_READ_PAUSES } from './read-pauses.ts';

// Accepted tasks that are not the task of their request, as the poller follows them for their money. Nothing here
// knows of breakers.

/** Follows what the request is known to have been accepted under beside its own task. Harmless twice. */
export async function followOtherTasks(tx: Sql, requestId: string): Promise<void> {
  await tx.executeSql('select onetake.follow_other_tasks($1)', [requestId]);
}

export interface DueLook {
  readonly requestId: string;
  readonly taskId: string;
  readonly account: string;
  readonly operation: string;
  readonly provider: string;
  readonly fields: EncodedFields;
  /** Since its POST. */
  readonly ageMs: number;
  /** Since it failed; null while it has not ended. */
  readonly sinceFailureMs: number | null;
  readonly errors: number;
  /** Pauses in a row, where this is the one read that the account's pause lets through; else null. */
  readonly probeOf: number | null;
}

export interface LookClaim {
  readonly tasks: readonly DueLook[];
  /** So many were due, and wait because the reads of their account are paused. */
  readonly deferred: number;
}

/**
 * Claims due looks, like due polls: `next_look_at` is schedule and claim in one, and a poller that dies leaves
 * nothing to repair. One whose time is over, or that its request has taken for its own task, is looked at no more.
 * Index: followed_tasks_due.
 */
export async function claimDueLooks(tx: Sql, terms: ClaimTerms): Promise<LookClaim> {
  const claimed = await rows<DueLook & { isOver: boolean; waits: boolean }>(
    tx,
    `with page as materialized (
  select d.*, r.operation, r.fields,
    d.follow_until <= now() or d.provider_task_id is not distinct from r.provider_task_id as is_over
  from (
    select request_id, provider_task_id, attempt_id, account, follow_until, next_look_at as due
    from onetake.followed_tasks
    where next_look_at <= now()
    order by next_look_at
    limit $1
    for no key update skip locked
  ) d
  join onetake.generation_requests r on r.id = d.request_id
), ${HEED_READ_PAUSES}
update onetake.followed_tasks f
set next_look_at = case when not s.is_over then s.claimed_until end
from sorted s
join onetake.submission_attempts a on a.id = s.attempt_id
join onetake.accounts c on c.name = s.account
where f.request_id = s.request_id and f.provider_task_id = s.provider_task_id
returning f.request_id as "requestId", f.provider_task_id as "taskId", f.account, s.operation, s.fields, c.provider,
  (extract(epoch from now() - a.started_at) * 1000)::float8 as "ageMs",
  (extract(epoch from now() - f.finished_at) * 1000)::float8 as "sinceFailureMs", f.look_errors as errors,
  s.failures as "probeOf", s.is_over as "isOver", s.waits`,
    [terms.limit, terms.leaseMs, terms.intervalMs],
  );
  const due = claimed.filter(({ isOver }) => !isOver);
  const tasks = due.filter(({ waits }) => !waits);
  return { tasks, deferred: due.length - tasks.length };
}

export interface Look {
  /** Null: nothing new. */
  readonly outcome: 'succeeded' | 'failed' | null;
  readonly refunded: boolean | null;
  readonly errors: number;
  /** Null: nobody looks again. */
  readonly nextMs: number | null;
  /** From its end on, so much longer at most. */
  readonly watchMs: number;
}

/** What one look told; the outcome is written once, and a refund is never taken back. */
export async function noteLook(
  tx: Sql,
  task: Pick<DueLook, 'requestId' | 'taskId'>,
  look: Look,
): Promise<void> {
  await tx.executeSql(
    `update onetake.followed_tasks
set outcome = coalesce(outcome, $3), refunded = case when refunded then true else coalesce($4, refunded) end,
  finished_at = case when outcome is null and $3 is not null then clock_timestamp() else finished_at end,
  follow_until = case when outcome is null and $3 is not null then clock_timestamp() + $7 * interval '1 ms'
    else follow_until end,
  look_errors = $5, next_look_at = clock_timestamp() + $6 * interval '1 ms'
where request_id = $1 and provider_task_id = $2`,
    [task.requestId, task.taskId, look.outcome, look.refunded, look.errors, look.nextMs, look.watchMs],
  );
}

/** The request's own task has its refund here too, where it was followed once before it was the request's own. */
export async function noteRefundOfFollowed(tx: Sql, requestId: string, taskId: string): Promise<void> {
  await tx.executeSql(
    'update onetake.followed_tasks set refunded = true where request_id = $1 and provider_task_id = $2',
    [requestId, taskId],
  );
}

/**
 * Money that came back: `charge` again over all attempts, and the alarm ends when every task that is nobody's has
 * been refunded.
 */
export async function settleAlarm(tx: Sql, requestId: string): Promise<void> {
  await tx.executeSql(
    `update onetake.generation_requests r
set charge = onetake.charge_of(r.id),
  attention = case when s.still then r.attention end,
  attention_since = case when s.still then r.attention_since end
from (
  select onetake.lasting_attention(x.attention) is null or exists (
    select from onetake.unclaimed_tasks u where u.request_id = x.id and u.refunded is not true
  ) as still
  from onetake.generation_requests x where x.id = $1
) s
where r.id = $1`,
    [requestId],
  );
}

export interface UnclaimedTask {
  readonly providerTaskId: string;
  readonly attempt: number;
  readonly since: Date;
  readonly status: 'processing' | 'succeeded' | 'failed';
  readonly refunded: boolean | null;
  /** Null: nobody looks any more. */
  readonly followedUntil: Date | null;
}

export async function listUnclaimedTasks(sql: Sql, requestId: string): Promise<UnclaimedTask[]> {
  return rows(
    sql,
    `select provider_task_id as "providerTaskId", attempt, since, status, refunded, followed_until as "followedUntil"
from onetake.unclaimed_tasks where request_id = $1 order by since`,
    [requestId],
  );
}
