import type { BreakerOverride } from '../core/circuit-breaker.ts';
import type { EncodedFields } from '../core/operations.ts';
import type { Certainty, Health, OutcomeReason, Phase } from '../core/outcome.ts';
import type { WireProof } from '../core/provider.ts';
import type { AttemptIntent, AttemptTerms } from '../core/spooled-outcome.ts';
import { firstRow, rows, type Sql } from './database.ts';

export interface Admission {
  readonly requestId: string;
  readonly attemptId: string;
}

export interface AdmittedAttempt extends AttemptIntent {
  readonly fields: EncodedFields;
  readonly mode: 'async' | 'stream';
  /** Nobody wants it sent later. */
  readonly submitBefore: Date | null;
}

/** Writes intent: requests become `submitting` and get their attempts, in one statement. */
export async function admitRequests(
  tx: Sql,
  admissions: readonly Admission[],
  terms: AttemptTerms,
): Promise<AdmittedAttempt[]> {
  const written = await rows<Omit<AdmittedAttempt, keyof AttemptTerms>>(
    tx,
    `with admitted as (
  select * from unnest($1::uuid[], $2::uuid[]) as t (request_id, attempt_id)
), moved as (
  update onetake.generation_requests r
  set state = 'submitting', state_reason = null, submissions = r.submissions + 1, job_due = false
  from admitted
  where r.id = admitted.request_id and r.state = 'queued'
  returning r.id, admitted.attempt_id, r.submissions, r.account, r.operation, r.fields, r.mode, r.round, r.submit_before
), written as (
  insert into onetake.submission_attempts (id, request_id, attempt, account, operation, breaker_name, generation,
    hold_epoch, is_probe, worker, started_at, lease_expires_at, window_until, slot_until, quarantine_until, override,
    round)
  select attempt_id, id, submissions, account, operation, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, round from moved
)
select attempt_id as "attemptId", id as "requestId", submissions as attempt, account, operation, fields, mode,
  submit_before as "submitBefore"
from moved`,
    [
      admissions.map((admission) => admission.requestId),
      admissions.map((admission) => admission.attemptId),
      terms.breakerName,
      terms.generation,
      terms.holdEpoch,
      terms.isProbe,
      terms.worker,
      terms.startedAt,
      terms.leaseExpiresAt,
      terms.windowUntil,
      terms.slotUntil,
      terms.quarantineUntil,
      terms.override,
    ],
  );
  return written.map((attempt) => ({ ...attempt, ...terms }));
}

/**
 * Which of these attempts are committed, for a COMMIT whose answer was lost. The lock on their requests
 * makes the read wait for a server process that may still be committing; a plain read would lie.
 */
export async function findCommittedAttempts(tx: Sql, admissions: readonly Admission[]): Promise<Admission[]> {
  await tx.executeSql(
    'select from onetake.generation_requests where id = any($1::uuid[]) order by id for no key update',
    [admissions.map((admission) => admission.requestId)],
  );
  return rows(
    tx,
    `select id as "attemptId", request_id as "requestId" from onetake.submission_attempts
where id = any($1::uuid[])`,
    [admissions.map((admission) => admission.attemptId)],
  );
}

export interface LockedAttempt {
  readonly id: string;
  readonly requestId: string;
  readonly attempt: number;
  readonly account: string;
  readonly breakerName: string;
  readonly generation: number;
  readonly holdEpoch: number;
  readonly isProbe: boolean;
  /** In force at its admission. */
  readonly override: BreakerOverride | null;
  readonly overrideAtSettle: BreakerOverride | null;
  readonly settledAt: Date | null;
  readonly settledBy: 'worker' | 'rescue' | null;
  readonly leaseIsOver: boolean;
  readonly health: Health | null;
  readonly healthAppliedAt: Date | null;
  readonly reason: OutcomeReason | null;
  readonly httpStatus: number | null;
  readonly providerTaskId: string | null;
  readonly healthEffect: string | null;
  /** Of its stream: the second evidence, of an attempt that has one. */
  readonly streamEndedAt: Date | null;
  readonly streamEnd: string | null;
  readonly streamHealth: Health | null;
  readonly streamHealthAppliedAt: Date | null;
  readonly overrideAtStreamEnd: BreakerOverride | null;
}

export const LOCKED_COLUMNS = `id, request_id as "requestId", attempt, account, breaker_name as "breakerName", generation,
  hold_epoch as "holdEpoch", is_probe as "isProbe", override,
  override_at_settle as "overrideAtSettle", settled_at as "settledAt", settled_by as "settledBy",
  lease_expires_at <= clock_timestamp() as "leaseIsOver", health, health_applied_at as "healthAppliedAt", reason,
  http_status as "httpStatus", provider_task_id as "providerTaskId", health_effect as "healthEffect",
  stream_ended_at as "streamEndedAt", stream_end as "streamEnd", stream_health as "streamHealth",
  stream_health_applied_at as "streamHealthAppliedAt", override_at_stream_end as "overrideAtStreamEnd"`;

export async function lockAttempt(tx: Sql, id: string): Promise<LockedAttempt | undefined> {
  return firstRow(
    tx,
    `select ${LOCKED_COLUMNS} from onetake.submission_attempts where id = $1 for no key update`,
    [id],
  );
}

export interface AttemptOutcome {
  readonly settledBy: 'worker' | 'rescue';
  readonly phase: Phase;
  readonly headersSent: boolean | null;
  readonly headersSentProof: WireProof | null;
  readonly httpStatus: number | null;
  readonly errorCode: string | null;
  readonly health: Health;
  readonly certainty: Certainty;
  readonly reason: OutcomeReason;
  readonly providerTaskId: string | null;
  /** The latest moment at which the POST can have arrived, as ms before now; null: the end of the lease. */
  readonly arrivedBeforeMs: number | null;
  readonly windowMs: number;
  readonly freesSlot: boolean;
  readonly closed: boolean;
}

/**
 * The clock, and the breaker of attempt $1 as a plain read sees it: what is in force over it, and whether a
 * success would find it closed with nothing to reset or to ramp. A failure that settled before and still waits
 * for the breaker's lock is something to reset: its count comes first. What was seen before a wait for a row's lock
 * proves nothing any more, and then the breaker is asked under its own lock.
 */
export const AT_SETTLE = `
  select c.now, onetake.override_in_force(b.override, b.override_expires_at, c.now) as override,
    coalesce(b.state = 'closed' and b.generation = x.generation and b.consecutive_failures = 0
      and b.ramp_acceptances is null, false)
    and not exists (
      select from onetake.submission_attempts d
      where d.settled_at is not null and d.health_applied_at is null and d.health = 'dependency_failure'
        and d.breaker_name = x.breaker_name and d.generation = x.generation
    )
    and not exists (
      select from onetake.submission_attempts d
      where d.stream_ended_at is not null and d.stream_health_applied_at is null
        and d.stream_health = 'dependency_failure' and d.breaker_name = x.breaker_name
    )
    and c.now < statement_timestamp() + interval '100 ms' as nothing_to_reset
  from (select clock_timestamp() as now) c
  cross join onetake.submission_attempts x
  left join onetake.circuit_breakers b on b.name = x.breaker_name
  where x.id = $1
`;

/** What is said of such a success: attempt `a`, and `s` of `AT_SETTLE`. */
export const NOTHING_TO_APPLY = `case when coalesce(a.override, s.override) is null then 'nothing_to_apply'
    else 'under_override' end`;

/**
 * Writes the outcome columns: once, by whoever settles first. A success that finds the breaker closed with
 * nothing to reset has nothing to apply, and says so at once: the common path needs no second transaction.
 */
export async function writeOutcome(
  tx: Sql,
  attemptId: string,
  outcome: AttemptOutcome,
): Promise<{ healthDue: boolean }> {
  const row = await firstRow<{ healthDue: boolean }>(
    tx,
    `update onetake.submission_attempts a
set settled_at = s.now, settled_by = $2, phase = $3, http_status = $4, error_code = $5, health = $6,
  certainty = $7, reason = $8, provider_task_id = $9,
  window_until = case
    when $7 = 'unsent' then s.now
    when $10::float8 is null then a.window_until
    else least(a.window_until, s.now - $10::float8 * interval '1 ms' + $11 * interval '1 ms')
  end,
  slot_freed_at = case when $12 then coalesce(a.slot_freed_at, s.now) else a.slot_freed_at end,
  closed_at = case when $13 then s.now else null end,
  health_applied_at = case when $6 = 'success' and s.nothing_to_reset then s.now end,
  health_effect = case when $6 = 'success' and s.nothing_to_reset then ${NOTHING_TO_APPLY} end,
  override_at_settle = s.override, headers_sent = $14, headers_sent_proof = $15
from (${AT_SETTLE}) s
where a.id = $1 and a.settled_at is null
returning a.health_applied_at is null as "healthDue"`,
    [
      attemptId,
      outcome.settledBy,
      outcome.phase,
      outcome.httpStatus,
      outcome.errorCode,
      outcome.health,
      outcome.certainty,
      outcome.reason,
      outcome.providerTaskId,
      outcome.arrivedBeforeMs,
      outcome.windowMs,
      outcome.freesSlot,
      outcome.closed,
      outcome.headersSent,
      outcome.headersSentProof,
    ],
  );
  return { healthDue: row?.healthDue ?? false };
}

/**
 * What came after somebody else had settled the attempt. Never counts for the breaker. False: the same is there
 * already, from a commit whose answer was lost or from another machine. The caller holds the attempt's lock.
 */
export async function insertLateEvidence(
  tx: Sql,
  attemptId: string,
  evidence: Pick<
    AttemptOutcome,
    'phase' | 'httpStatus' | 'errorCode' | 'certainty' | 'providerTaskId' | 'closed'
  >,
): Promise<boolean> {
  const inserted = await rows(
    tx,
    `with closed as (
  update onetake.submission_attempts set closed_at = clock_timestamp()
  where id = $1 and $7 and closed_at is null
)
insert into onetake.attempt_evidence (attempt_id, seen_at, source, phase, http_status, error_code, certainty,
  provider_task_id)
select $1, clock_timestamp(), 'late_answer', $2, $3::integer, $4, $5, $6
where not exists (
  select from onetake.attempt_evidence e
  where e.attempt_id = $1 and e.source = 'late_answer'
    and (e.phase, e.http_status, e.error_code, e.certainty, e.provider_task_id)
      is not distinct from ($2, $3::integer, $4, $5, $6)
)
returning id`,
    [
      attemptId,
      evidence.phase,
      evidence.httpStatus,
      evidence.errorCode,
      evidence.certainty,
      evidence.providerTaskId,
      evidence.closed,
    ],
  );
  return inserted.length > 0;
}

/** The provider has finished this task: its generation no longer runs. True when a slot became free. */
export async function freeSlotOfTask(tx: Sql, requestId: string, taskId: string): Promise<boolean> {
  const freed = await rows(
    tx,
    `update onetake.submission_attempts a set slot_freed_at = clock_timestamp()
where a.id = onetake.attempt_of_task($1, $2) and a.slot_freed_at is null
returning a.id`,
    [requestId, taskId],
  );
  return freed.length > 0;
}

export async function noteRefund(tx: Sql, requestId: string, taskId: string): Promise<void> {
  await tx.executeSql(
    `update onetake.submission_attempts a set refunded = true where a.id = onetake.attempt_of_task($1, $2)`,
    [requestId, taskId],
  );
}

/** Attempts whose lease is over and whose outcome nobody wrote. */
export async function listEndedLeases(
  tx: Sql,
  limit: number,
  passedOver: readonly string[] = [],
): Promise<{ attemptId: string; requestId: string }[]> {
  return rows(
    tx,
    // The lock is given back at once: it only leaves out what somebody holds, however much that is.
    `select a.id as "attemptId", a.request_id as "requestId"
from onetake.submission_attempts a
join onetake.generation_requests r on r.id = a.request_id
where a.settled_at is null and a.lease_expires_at <= now() and a.id <> all($2::uuid[])
order by a.lease_expires_at
limit $1
for no key update of r skip locked`,
    [limit, passedOver],
  );
}
