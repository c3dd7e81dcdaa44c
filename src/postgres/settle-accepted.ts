import type { OutcomeReason, Phase } from '../core/outcome.ts';
import type { WireProof } from '../core/provider.ts';
import { END_ATTENTION } from './attention.ts';
import { firstRow, type Sql } from './database.ts';
import { AT_SETTLE, NOTHING_TO_APPLY } from './submission-attempts.ts';

/**
 * All of B1 in one statement, for the common path: the worker's own attempt, still the last one of a request
 * that is still `submitting`, was accepted, its
 * id (if it has one) is followed for no other request, and no hold is to be proven over. Undefined when any of
 * that is not so; then nothing was written, and the long way decides. Locks in the order of everybody else
 * (request, attempt, account): each part waits for the rows of the one before. Raises a unique violation when the
 * task id is another request's own.
 *
 * The implicit transaction gets its lock_timeout and its durability from the statement itself.
 */
export async function settleAccepted(
  sql: Sql,
  ids: { readonly attemptId: string; readonly requestId: string },
  accepted: {
    /** Null: the answer is a stream, and its reader gets a lease instead. */
    readonly taskId: string | null;
    readonly reason: OutcomeReason;
    readonly phase: Phase;
    readonly httpStatus: number | null;
    readonly arrivedBeforeMs: number | null;
    readonly windowMs: number;
    readonly closed: boolean;
    readonly firstPollMs: number;
    readonly readerLeaseMs: number;
    readonly headersSent: boolean | null;
    readonly headersSentProof: WireProof | null;
  },
): Promise<{ healthDue: boolean } | undefined> {
  return firstRow(
    sql,
    `with terms as materialized (
  select set_config('lock_timeout', '5000', true),
    case when current_setting('synchronous_commit') in ('off', 'local', 'remote_write')
      then set_config('synchronous_commit', 'on', true) end
), request as materialized (
  select r.id, r.account, r.submissions
  from onetake.generation_requests r, terms
  where r.id = $2 and r.state = 'submitting' and ($3::text is not null or r.mode = 'stream')
    and not exists (
      select from onetake.followed_tasks f
      where f.account = r.account and f.provider_task_id = $3 and f.request_id <> r.id
    )
    and not exists (select from onetake.account_holds h where h.account = r.account and h.trial_ended_at is null)
  for no key update of r
), attempt as (
  update onetake.submission_attempts a
  set settled_at = s.now, settled_by = 'worker', phase = $11, http_status = $4, health = 'success',
    certainty = 'accepted', reason = $12, provider_task_id = $3,
    window_until = case
      when $5::float8 is null then a.window_until
      else least(a.window_until, s.now - $5::float8 * interval '1 ms' + $6 * interval '1 ms')
    end,
    closed_at = case when $7 then s.now end,
    health_applied_at = case when s.nothing_to_reset then s.now end,
    health_effect = case when s.nothing_to_reset then ${NOTHING_TO_APPLY} end,
    override_at_settle = s.override, headers_sent = $9, headers_sent_proof = $10
  from request, lateral (${AT_SETTLE}) s
  where a.id = $1 and a.request_id = request.id and a.attempt = request.submissions and a.settled_at is null
  returning request.id as request_id, request.account, a.health_applied_at is null as health_due
), moved as (
  update onetake.generation_requests r
  set state = 'accepted', state_reason = null, provider_task_id = $3, accepted_at = clock_timestamp(),
    next_poll_at = case when $3::text is not null then clock_timestamp() + $8 * interval '1 ms' end, poll_errors = 0,
    stream_attempt_id = case when $3::text is null then $1::uuid end,
    reader_lease_until = case when $3::text is null then clock_timestamp() + $13 * interval '1 ms' end,
    job_due = false, charge = 'charged',
    ${END_ATTENTION}
  from attempt
  where r.id = attempt.request_id
), refusals as (
  update onetake.accounts c
  set capacity_refusals = 0
  from attempt
  where c.name = attempt.account and c.capacity_refusals > 0
)
select health_due as "healthDue" from attempt`,
    [
      ids.attemptId,
      ids.requestId,
      accepted.taskId,
      accepted.httpStatus,
      accepted.arrivedBeforeMs,
      accepted.windowMs,
      accepted.closed,
      accepted.firstPollMs,
      accepted.headersSent,
      accepted.headersSentProof,
      accepted.phase,
      accepted.reason,
      accepted.readerLeaseMs,
    ],
  );
}
