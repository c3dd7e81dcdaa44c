import { sql } from 'drizzle-orm';
import {
  type AnyPgColumn,
  bigint,
  boolean,
  check,
  doublePrecision,
  foreignKey,
  index,
  integer,
  jsonb,
  pgSchema,
  primaryKey,
  text,
  timestamp,
  unique,
  uniqueIndex,
  uuid,
} from 'drizzle-orm/pg-core';
import { REQUEST_STATES } from '../core/generation-request.ts';

// Views, functions and the trigger are in the custom migrations: they are the SQL interface. States are
// text with a CHECK, because a new enum value can't be used in the transaction that adds it.

const onetake = pgSchema('onetake');

const instant = (name: string) => timestamp(name, { withTimezone: true });
const createdAt = () => instant('created_at').notNull().default(sql`clock_timestamp()`);
const oneOf = (column: string, values: readonly string[]) =>
  sql.raw(`${column} in (${values.map((value) => `'${value}'`).join(', ')})`);

const TERMINAL = ['succeeded', 'failed', 'rejected', 'cancelled', 'expired'];
const HEALTH = [
  'success',
  'dependency_failure',
  'capacity_signal',
  'request_or_account_failure',
  'unknown_failure',
  'none',
];
const CERTAINTY = ['accepted', 'refused', 'unsent', 'unknown'];
const PHASES = ['unsent', 'sent', 'response_started', 'answered', 'lease_over'];

export const accounts = onetake.table(
  'accounts',
  {
    name: text('name').primaryKey(),
    provider: text('provider').notNull(),
    requestsPerMinute: integer('requests_per_minute').notNull(),
    maxConcurrentGenerations: integer('max_concurrent_generations').notNull(),
    // Set by 429s only. A concurrency pause is a fallback: it ends when a generation of ours does.
    pausedUntil: instant('paused_until'),
    pauseKind: text('pause_kind'),
    capacityRefusals: integer('capacity_refusals').notNull().default(0),
    // Grows at each release; an attempt admitted before it can't set a hold any more.
    holdEpoch: integer('hold_epoch').notNull().default(0),
    revision: integer('revision').notNull().default(1),
    createdAt: createdAt(),
  },
  () => [
    check('accounts_name_is_plain', sql.raw(`name ~ '^[A-Za-z0-9_.-]{1,63}$'`)),
    check('accounts_requests_per_minute_in_bounds', sql.raw(`requests_per_minute between 1 and 1000000`)),
    check(
      'accounts_max_concurrent_generations_in_bounds',
      sql.raw(`max_concurrent_generations between 1 and 100000`),
    ),
    check('accounts_pause_has_a_kind', sql.raw(`(paused_until is null) = (pause_kind is null)`)),
    check('accounts_pause_kind_known', oneOf('pause_kind', ['rate', 'concurrency'])),
  ],
);

export const accountHolds = onetake.table(
  'account_holds',
  {
    id: bigint('id', { mode: 'number' }).primaryKey().generatedAlwaysAsIdentity(),
    account: text('account').notNull(),
    // Null: every operation of the account.
    operation: text('operation'),
    kind: text('kind').notNull(),
    reason: text('reason'),
    code: text('code'),
    since: instant('since').notNull(),
    until: instant('until'),
    epoch: integer('epoch').notNull(),
    endedAt: instant('ended_at'),
    endedBy: text('ended_by'),
    // Null: in force, or ended and not proven by an acceptance since. Until then one POST at a time.
    trialEndedAt: instant('trial_ended_at'),
    // Of this trial, in a row.
    trialRefusals: integer('trial_refusals').notNull().default(0),
    // Free checks of a refused key, made while it holds.
    nextCheckAt: instant('next_check_at'),
    checks: integer('checks').notNull().default(0),
    checkRefusedAt: instant('check_refused_at'),
  },
  (table) => [
    foreignKey({
      name: 'account_holds_account_fk',
      columns: [table.account],
      foreignColumns: [accounts.name],
    }),
    check(
      'account_holds_kind_known',
      oneOf('kind', ['key_refused', 'payment_required', 'access_denied', 'operator']),
    ),
    // One live hold per lane and kind, so that a burst of refusals makes one hold.
    uniqueIndex('account_holds_live')
      .on(table.account, sql`coalesce(operation, '')`, table.kind)
      .where(sql.raw(`ended_at is null`)),
    index('account_holds_open').on(table.account).where(sql.raw(`trial_ended_at is null`)),
  ],
);

/**
 * Accounts whose tasks can't be read just now: at most one read at a time until one tells something. A table of its
 * own, so that polling never touches the row that admission locks.
 */
export const readPauses = onetake.table(
  'read_pauses',
  {
    account: text('account').primaryKey(),
    // Null: over. The row stays, so that no role of ours needs to delete.
    since: instant('since'),
    pausedUntil: instant('paused_until').notNull(),
    // The lease of the one read that goes through after it.
    probeUntil: instant('probe_until'),
    // Pauses in a row.
    failures: integer('failures').notNull(),
    reason: text('reason').notNull(),
  },
  (table) => [
    foreignKey({
      name: 'read_pauses_account_fk',
      columns: [table.account],
      foreignColumns: [accounts.name],
    }),
  ],
);

export const generationRequests = onetake.table(
  'generation_requests',
  {
    id: uuid('id').primaryKey().defaultRandom(),
    account: text('account').notNull(),
    operation: text('operation').notNull(),
    requestKey: text('request_key').notNull(),
    state: text('state', { enum: REQUEST_STATES }).notNull().default('queued'),
    stateReason: text('state_reason'),
    failureReason: text('failure_reason'),
    // Which failure, as the provider or we name it; null where nobody says.
    failureCode: text('failure_code'),
    resultStatus: text('result_status'),
    charge: text('charge').notNull().default('none'),
    // The form fields as they go on the wire, our defaults included.
    fields: jsonb('fields').notNull(),
    // SHA-256 over operation and the caller's own fields.
    payloadDigest: text('payload_digest').notNull(),
    mode: text('mode').notNull().default('async'),
    providerTaskId: text('provider_task_id'),
    // Whose answer is its stream; null where none is, or where it was answered with a task.
    streamAttemptId: uuid('stream_attempt_id'),
    // Attempts made; the number of the last one.
    submissions: integer('submissions').notNull().default(0),
    notBefore: instant('not_before').notNull().default(sql`clock_timestamp()`),
    submitBefore: instant('submit_before'),
    acceptedAt: instant('accepted_at'),
    // While a poller is at it, `poll_leases` keeps others off.
    nextPollAt: instant('next_poll_at'),
    pollErrors: integer('poll_errors').notNull().default(0),
    // What the last of them was: a code of ours, the provider's or the transport's.
    pollTrouble: text('poll_trouble'),
    // Reads that said `succeeded` and named no file.
    emptyReads: integer('empty_reads').notNull().default(0),
    providerFinishedAt: instant('provider_finished_at'),
    // Of whoever reads its stream, which has no task; nobody can go on with one that is lost.
    readerLeaseUntil: instant('reader_lease_until'),
    // When rescue first found that lease ended; null: its reader has been heard of since.
    readerMissedAt: instant('reader_missed_at'),
    // Of the file that is being fetched, or of the stream that is being read, as of a moment ago.
    handOffBytes: bigint('hand_off_bytes', { mode: 'number' }),
    handOffTotalBytes: bigint('hand_off_total_bytes', { mode: 'number' }),
    supersedes: uuid('supersedes'),
    fairGroup: text('fair_group').notNull().default(''),
    priority: integer('priority').notNull().default(0),
    // Its turn in its group, fixed at enqueue; its job's priority is `priority - round`.
    round: integer('round').notNull().default(0),
    refunded: boolean('refunded'),
    refundWatchUntil: instant('refund_watch_until'),
    warnings: text('warnings').array().notNull().default(sql`'{}'`),
    // A result that is no file. Customer data.
    document: jsonb('document'),
    // A job must be sent for this row; set by SQL functions, which can't send, and by a failed send.
    jobDue: boolean('job_due').notNull().default(false),
    // It has ended, and the app's consumer has not been sent a job about it yet; set by a trigger.
    settledNoticeDue: boolean('settled_notice_due').notNull().default(false),
    // Frozen after a restore: it may have been submitted by what this database has forgotten.
    recoveredAt: instant('recovered_at'),
    attention: text('attention'),
    attentionSince: instant('attention_since'),
    createdAt: createdAt(),
    settledAt: instant('settled_at'),
  },
  (table) => [
    foreignKey({
      name: 'generation_requests_account_fk',
      columns: [table.account],
      foreignColumns: [accounts.name],
    }),
    foreignKey({
      name: 'generation_requests_supersedes_fk',
      columns: [table.supersedes],
      foreignColumns: [table.id as AnyPgColumn],
    }),
    unique('generation_requests_request_key_once').on(table.account, table.requestKey),
    uniqueIndex('generation_requests_task_once')
      .on(table.account, table.providerTaskId)
      .where(sql.raw(`provider_task_id is not null`)),
    check('generation_requests_state_known', oneOf('state', REQUEST_STATES)),
    check('generation_requests_request_key_length', sql.raw(`length(request_key) between 1 and 255`)),
    check('generation_requests_payload_digest_is_sha256', sql.raw(`payload_digest ~ '^[0-9a-f]{64}$'`)),
    check('generation_requests_fields_are_an_object', sql.raw(`jsonb_typeof(fields) = 'object'`)),
    check('generation_requests_charge_known', oneOf('charge', ['none', 'possible', 'charged', 'refunded'])),
    check('generation_requests_priority_bounded', sql.raw(`priority between -100 and 100`)),
    check('generation_requests_mode_known', oneOf('mode', ['async', 'stream'])),
    check(
      'generation_requests_failed_has_a_reason',
      sql.raw(
        `(state = 'failed') = (failure_reason is not null) and failure_reason in ('provider', 'stream_interrupted', 'abandoned')`,
      ),
    ),
    check(
      'generation_requests_only_a_failure_has_its_code',
      sql.raw(`failure_code is null or state = 'failed'`),
    ),
    check(
      'generation_requests_succeeded_has_a_result',
      sql.raw(
        `(state = 'succeeded') = (result_status is not null) and result_status in ('stored', 'linked', 'empty', 'lost')`,
      ),
    ),
    check(
      'generation_requests_settled_when_terminal',
      sql.raw(`(settled_at is not null) = (state in (${TERMINAL.map((state) => `'${state}'`).join(', ')}))`),
    ),
    check(
      'generation_requests_accepted_has_a_task',
      sql.raw(
        `state not in ('accepted', 'succeeded') or (accepted_at is not null and num_nonnulls(provider_task_id, stream_attempt_id) = 1)`,
      ),
    ),
    check(
      'generation_requests_submitting_has_an_attempt',
      sql.raw(`state <> 'submitting' or submissions >= 1`),
    ),
    check(
      'generation_requests_ambiguous_has_a_reason',
      sql.raw(`state <> 'ambiguous' or state_reason is not null`),
    ),
    check(
      'generation_requests_only_tasks_are_polled',
      sql.raw(`next_poll_at is null or (state in ('accepted', 'failed') and provider_task_id is not null)`),
    ),
    check(
      'generation_requests_only_streams_are_read',
      sql.raw(`(reader_lease_until is not null) = (state = 'accepted' and stream_attempt_id is not null)`),
    ),
    check(
      'generation_requests_streams_were_asked_for',
      sql.raw(`stream_attempt_id is null or mode = 'stream'`),
    ),
    check(
      'generation_requests_attention_has_a_start',
      sql.raw(`(attention is null) = (attention_since is null)`),
    ),
    // Lanes with due work, and what to send next in each: a loose scan over (account, operation).
    index('generation_requests_dispatch')
      .on(table.account, table.operation, table.notBefore)
      .where(sql.raw(`state = 'queued'`)),
    // The last turn that a group has taken: one descent, however many of it wait.
    index('generation_requests_rounds')
      .on(table.account, table.operation, table.fairGroup, sql`sign(priority)`, table.round)
      .where(sql.raw(`state = 'queued'`)),
    index('generation_requests_deadlines')
      .on(table.submitBefore)
      .where(sql.raw(`state = 'queued' and submit_before is not null`)),
    index('generation_requests_job_due').on(table.notBefore).where(sql.raw(`job_due`)),
    index('generation_requests_settled_notice_due').on(table.settledAt).where(sql.raw(`settled_notice_due`)),
    index('generation_requests_due_polls').on(table.nextPollAt).where(sql.raw(`next_poll_at is not null`)),
    index('generation_requests_reader_leases')
      .on(table.readerLeaseUntil)
      .where(sql.raw(`reader_lease_until is not null`)),
    index('generation_requests_ambiguous').on(table.createdAt).where(sql.raw(`state = 'ambiguous'`)),
    index('generation_requests_attention').on(table.attentionSince).where(sql.raw(`attention is not null`)),
    // Money that has not come back, for whoever asks for it.
    index('generation_requests_not_refunded')
      .on(table.settledAt)
      .where(
        sql.raw(
          `state in ('failed', 'rejected', 'cancelled', 'expired') and refunded is not true and (provider_task_id is not null or stream_attempt_id is not null)`,
        ),
      ),
    index('generation_requests_newest').on(table.createdAt),
  ],
);

/**
 * Pollers that are at a task just now. Apart from the request, whose row and indexes would all be written anew for each
 * claim: this table stays as small as what is under way, however many tasks there are. A trigger deletes the lease of a
 * request when somebody moves its `next_poll_at`. No foreign key: a request is never deleted.
 */
export const pollLeases = onetake.table('poll_leases', {
  requestId: uuid('request_id').primaryKey(),
  leaseExpiresAt: instant('lease_expires_at').notNull(),
});

export const submissionAttempts = onetake.table(
  'submission_attempts',
  {
    id: uuid('id').primaryKey(),
    requestId: uuid('request_id').notNull(),
    attempt: integer('attempt').notNull(),
    account: text('account').notNull(),
    operation: text('operation').notNull(),
    breakerName: text('breaker_name').notNull(),
    generation: integer('generation').notNull(),
    override: text('override'),
    holdEpoch: integer('hold_epoch').notNull(),
    // Its request's; null where this database had forgotten the attempt.
    round: integer('round'),
    isProbe: boolean('is_probe').notNull(),
    worker: text('worker').notNull(),
    startedAt: instant('started_at').notNull(),
    leaseExpiresAt: instant('lease_expires_at').notNull(),
    // The provider's minute. Set at admission to its upper bound (as if the POST arrived when the lease
    // ends) and narrowed when the response is known, so that a lost worker needs no repair.
    windowUntil: instant('window_until').notNull(),
    slotUntil: instant('slot_until').notNull(),
    slotFreedAt: instant('slot_freed_at'),
    // Before it, bytes of a killed worker's POST may still arrive; a re-arm waits for it unless closed.
    quarantineUntil: instant('quarantine_until').notNull(),
    closedAt: instant('closed_at'),
    settledAt: instant('settled_at'),
    settledBy: text('settled_by'),
    // In force when it settled; beside `override`, which is that of its admission.
    overrideAtSettle: text('override_at_settle'),
    phase: text('phase'),
    // Null: nobody can tell.
    headersSent: boolean('headers_sent'),
    headersSentProof: text('headers_sent_proof'),
    httpStatus: integer('http_status'),
    errorCode: text('error_code'),
    health: text('health'),
    healthAppliedAt: instant('health_applied_at'),
    healthEffect: text('health_effect'),
    certainty: text('certainty'),
    reason: text('reason'),
    providerTaskId: text('provider_task_id'),
    refunded: boolean('refunded'),
    // The second evidence of an attempt whose answer is a stream: `complete`, or why it was not.
    streamEndedAt: instant('stream_ended_at'),
    streamEnd: text('stream_end'),
    streamHealth: text('stream_health'),
    streamHealthAppliedAt: instant('stream_health_applied_at'),
    streamHealthEffect: text('stream_health_effect'),
    // When it became known that its stream was accepted, paid for, and is the answer to no request: nobody reads it.
    streamUnclaimedAt: instant('stream_unclaimed_at'),
    // In force when it ended.
    overrideAtStreamEnd: text('override_at_stream_end'),
  },
  (table) => [
    foreignKey({
      name: 'submission_attempts_request_fk',
      columns: [table.requestId],
      foreignColumns: [generationRequests.id],
    }),
    unique('submission_attempts_number_once').on(table.requestId, table.attempt),
    check('submission_attempts_health_known', oneOf('health', HEALTH)),
    check('submission_attempts_certainty_known', oneOf('certainty', CERTAINTY)),
    check('submission_attempts_phase_known', oneOf('phase', PHASES)),
    check(
      'submission_attempts_headers_sent_proof_known',
      oneOf('headers_sent_proof', ['oracle', 'error_code', 'kept_back', 'answer', 'provider']),
    ),
    check(
      'submission_attempts_headers_sent_is_proven',
      sql.raw(`(headers_sent is null) = (headers_sent_proof is null)`),
    ),
    check(
      'submission_attempts_unsent_sent_no_headers',
      sql.raw(`certainty <> 'unsent' or headers_sent is not true`),
    ),
    check('submission_attempts_settled_by_known', oneOf('settled_by', ['worker', 'rescue'])),
    check(
      'submission_attempts_settled_as_a_whole',
      sql.raw(`num_nulls(settled_at, settled_by, phase, health, certainty, reason) in (0, 6)`),
    ),
    check(
      'submission_attempts_health_applied_after_settle',
      sql.raw(
        `(health_applied_at is null) = (health_effect is null) and (health_applied_at is null or settled_at is not null)`,
      ),
    ),
    check('submission_attempts_error_code_is_plain', sql.raw(`error_code ~ '^[A-Za-z0-9_.:-]{1,64}$'`)),
    check('submission_attempts_stream_end_is_plain', sql.raw(`stream_end ~ '^[A-Za-z0-9_.:-]{1,64}$'`)),
    check('submission_attempts_stream_health_known', oneOf('stream_health', ['dependency_failure', 'none'])),
    check(
      'submission_attempts_stream_ends_as_a_whole',
      sql.raw(
        `num_nulls(stream_ended_at, stream_end, stream_health) in (0, 3) and (stream_ended_at is null or settled_at is not null)`,
      ),
    ),
    check(
      'submission_attempts_stream_health_applied_after_end',
      sql.raw(
        `(stream_health_applied_at is null) = (stream_health_effect is null) and (stream_health_applied_at is null or stream_ended_at is not null)`,
      ),
    ),
    index('submission_attempts_windows').on(table.account, table.windowUntil),
    // The round that a lane has come to.
    index('submission_attempts_rounds').on(table.account, table.operation, table.round),
    index('submission_attempts_slots')
      .on(table.account, table.slotUntil)
      .where(sql.raw(`slot_freed_at is null`)),
    index('submission_attempts_in_flight')
      .on(table.breakerName, table.generation)
      .where(sql.raw(`settled_at is null`)),
    index('submission_attempts_probes')
      .on(table.breakerName, table.account, table.startedAt)
      .where(sql.raw(`is_probe`)),
    index('submission_attempts_unclaimed_streams')
      .on(table.streamUnclaimedAt)
      .where(sql.raw(`stream_unclaimed_at is not null`)),
    index('submission_attempts_leases').on(table.leaseExpiresAt).where(sql.raw(`settled_at is null`)),
    index('submission_attempts_health_due')
      .on(table.settledAt)
      .where(sql.raw(`settled_at is not null and health_applied_at is null`)),
    index('submission_attempts_stream_health_due')
      .on(table.streamEndedAt)
      .where(sql.raw(`stream_ended_at is not null and stream_health_applied_at is null`)),
  ],
);

export const attemptEvidence = onetake.table(
  'attempt_evidence',
  {
    id: bigint('id', { mode: 'number' }).primaryKey().generatedAlwaysAsIdentity(),
    attemptId: uuid('attempt_id').notNull(),
    seenAt: instant('seen_at').notNull(),
    source: text('source').notNull(),
    phase: text('phase'),
    httpStatus: integer('http_status'),
    errorCode: text('error_code'),
    certainty: text('certainty').notNull(),
    providerTaskId: text('provider_task_id'),
    // An operator took the word back.
    withdrawnAt: instant('withdrawn_at'),
  },
  (table) => [
    foreignKey({
      name: 'attempt_evidence_attempt_fk',
      columns: [table.attemptId],
      foreignColumns: [submissionAttempts.id],
    }),
    check('attempt_evidence_source_known', oneOf('source', ['late_answer', 'operator'])),
    check('attempt_evidence_certainty_known', oneOf('certainty', CERTAINTY)),
    index('attempt_evidence_by_attempt').on(table.attemptId),
  ],
);

/**
 * Tasks that a provider accepted and that are not the task of their request: paid a second time, or paid for a
 * request that had ended. The poller follows each to its end and its refund.
 */
export const followedTasks = onetake.table(
  'followed_tasks',
  {
    requestId: uuid('request_id').notNull(),
    providerTaskId: text('provider_task_id').notNull(),
    account: text('account').notNull(),
    attemptId: uuid('attempt_id').notNull(),
    // When its acceptance became known.
    since: instant('since').notNull(),
    // Both the schedule and, while a poller is at it, its lease; null when nobody looks any more.
    nextLookAt: instant('next_look_at'),
    lookErrors: integer('look_errors').notNull().default(0),
    followUntil: instant('follow_until').notNull(),
    outcome: text('outcome'),
    finishedAt: instant('finished_at'),
    refunded: boolean('refunded'),
  },
  (table) => [
    primaryKey({ name: 'followed_tasks_pk', columns: [table.requestId, table.providerTaskId] }),
    foreignKey({
      name: 'followed_tasks_request_fk',
      columns: [table.requestId],
      foreignColumns: [generationRequests.id],
    }),
    foreignKey({
      name: 'followed_tasks_attempt_fk',
      columns: [table.attemptId],
      foreignColumns: [submissionAttempts.id],
    }),
    check('followed_tasks_outcome_known', oneOf('outcome', ['succeeded', 'failed'])),
    check('followed_tasks_finished_has_an_outcome', sql.raw(`(outcome is null) = (finished_at is null)`)),
    index('followed_tasks_by_task').on(table.account, table.providerTaskId),
    index('followed_tasks_due').on(table.nextLookAt).where(sql.raw(`next_look_at is not null`)),
  ],
);

export const circuitBreakers = onetake.table(
  'circuit_breakers',
  {
    name: text('name').primaryKey(),
    state: text('state').notNull().default('closed'),
    generation: integer('generation').notNull().default(1),
    consecutiveFailures: integer('consecutive_failures').notNull().default(0),
    failureThreshold: integer('failure_threshold').notNull(),
    cooldownMs: integer('cooldown_ms').notNull(),
    cooldownGrowth: doublePrecision('cooldown_growth').notNull().default(1),
    maxCooldownMs: integer('max_cooldown_ms').notNull().default(600_000),
    jitter: doublePrecision('jitter').notNull().default(0),
    // Records what it would have done, and refuses nothing.
    shadow: boolean('shadow').notNull().default(false),
    // Probes in a row that failed or were lost: what the cooldown has grown by.
    failedProbes: integer('failed_probes').notNull().default(0),
    // Acceptances since the last close, while the ramp lasts.
    rampAcceptances: integer('ramp_acceptances'),
    openedAt: instant('opened_at'),
    retryAt: instant('retry_at'),
    probeAttemptId: uuid('probe_attempt_id'),
    probeRequestId: uuid('probe_request_id'),
    override: text('override'),
    overrideActor: text('override_actor'),
    overrideReason: text('override_reason'),
    overrideExpiresAt: instant('override_expires_at'),
    // The number of the last transition row of the layer `state`.
    transitions: integer('transitions').notNull().default(0),
    // The same of the layer `override`.
    overrideTransitions: integer('override_transitions').notNull().default(0),
    revision: integer('revision').notNull().default(1),
    createdAt: createdAt(),
  },
  () => [
    check(
      'circuit_breakers_name_is_provider_and_operation',
      sql.raw(`name ~ '^[A-Za-z0-9_.-]{1,63}/[A-Za-z0-9_.-]{1,63}$'`),
    ),
    check('circuit_breakers_failure_threshold_in_bounds', sql.raw(`failure_threshold between 1 and 1000`)),
    check('circuit_breakers_cooldown_ms_in_bounds', sql.raw(`cooldown_ms between 100 and 86400000`)),
    check('circuit_breakers_cooldown_growth_in_bounds', sql.raw(`cooldown_growth between 1 and 10`)),
    check(
      'circuit_breakers_max_cooldown_ms_in_bounds',
      sql.raw(`max_cooldown_ms between cooldown_ms and 86400000`),
    ),
    check('circuit_breakers_jitter_in_bounds', sql.raw(`jitter between 0 and 0.5`)),
    check(
      'circuit_breakers_override_has_an_actor',
      sql.raw(
        `case when override is null then num_nonnulls(override_actor, override_reason, override_expires_at) = 0
          else num_nonnulls(override_actor, override_reason) = 2 end`,
      ),
    ),
    check('circuit_breakers_ramp_only_closed', sql.raw(`ramp_acceptances is null or state = 'closed'`)),
    check('circuit_breakers_state_known', oneOf('state', ['closed', 'open', 'half_open'])),
    check(
      'circuit_breakers_state_has_its_columns',
      sql.raw(
        `case state
          when 'closed' then num_nonnulls(opened_at, retry_at, probe_attempt_id, probe_request_id) = 0
          when 'open' then num_nonnulls(opened_at, retry_at) = 2 and retry_at >= opened_at
            and num_nonnulls(probe_attempt_id, probe_request_id) = 0 and consecutive_failures = 0
          else num_nonnulls(opened_at, retry_at) = 0 and consecutive_failures = 0
            and probe_attempt_id is not null and probe_request_id is not null
        end`,
      ),
    ),
    check('circuit_breakers_override_known', oneOf('override', ['forced_open', 'forced_closed'])),
  ],
);

export const circuitBreakerTransitions = onetake.table(
  'circuit_breaker_transitions',
  {
    id: bigint('id', { mode: 'number' }).primaryKey().generatedAlwaysAsIdentity(),
    at: instant('at').notNull(),
    breakerName: text('breaker_name').notNull(),
    layer: text('layer').notNull().default('state'),
    number: integer('number').notNull(),
    previousState: text('previous_state').notNull(),
    nextState: text('next_state').notNull(),
    cause: text('cause').notNull(),
    outcomeKind: text('outcome_kind'),
    httpStatus: integer('http_status'),
    // Dependency failures in a row that opened it.
    failures: integer('failures'),
    openedAt: instant('opened_at'),
    retryAt: instant('retry_at'),
    requestId: uuid('request_id'),
    providerTaskId: text('provider_task_id'),
    generation: integer('generation').notNull(),
    actor: text('actor'),
    shadow: boolean('shadow').notNull().default(false),
    // True once its event is out. What stays false is emitted by rescue: SQL functions emit nothing, and a
    // process may die between the commit and the event.
    announced: boolean('announced').notNull().default(false),
  },
  (table) => [
    index('circuit_breaker_transitions_unannounced').on(table.id).where(sql.raw(`not announced`)),
    foreignKey({
      name: 'circuit_breaker_transitions_breaker_fk',
      columns: [table.breakerName],
      foreignColumns: [circuitBreakers.name],
    }),
    unique('circuit_breaker_transitions_number_once').on(table.breakerName, table.layer, table.number),
    check('circuit_breaker_transitions_layer_known', oneOf('layer', ['state', 'override'])),
    check('circuit_breaker_transitions_number_positive', sql.raw(`number >= 1`)),
  ],
);

export const assets = onetake.table(
  'assets',
  {
    requestId: uuid('request_id').notNull(),
    index: integer('index').notNull(),
    kind: text('kind').notNull(),
    // Of several that were ordered at once, which.
    variant: integer('variant').notNull().default(0),
    // Null: what was ordered. Else what came with it (`drums`), or the language of a dubbing.
    label: text('label'),
    contentType: text('content_type'),
    bytes: bigint('bytes', { mode: 'number' }),
    sha256: text('sha256'),
    // A path below the storage, or without storage the provider's temporary URL.
    location: text('location').notNull(),
    storedAt: instant('stored_at'),
  },
  (table) => [
    primaryKey({ name: 'assets_pk', columns: [table.requestId, table.index] }),
    foreignKey({
      name: 'assets_request_fk',
      columns: [table.requestId],
      foreignColumns: [generationRequests.id],
    }),
    check(
      'assets_stored_means_verified',
      sql.raw(
        `stored_at is null or (bytes is not null and sha256 is not null and sha256 ~ '^[0-9a-f]{64}$')`,
      ),
    ),
  ],
);

/**
 * One row: which database this is, as it was last confirmed. What a copy of it has of its own (another cluster,
 * database, timeline or table) tells the copy from it; see `onetake.check_installation`.
 */
export const installation = onetake.table(
  'installation',
  {
    one: boolean('one').primaryKey().default(true),
    id: uuid('id').notNull().defaultRandom(),
    // Grows with each confirmation, and is its time (epoch ms), so that one made after the database was put back is
    // above any that a process remembers from before.
    revision: bigint('revision', { mode: 'number' }).notNull(),
    // Null: this server doesn't tell, so it isn't compared.
    systemIdentifier: bigint('system_identifier', { mode: 'bigint' }),
    timeline: integer('timeline'),
    databaseOid: bigint('database_oid', { mode: 'number' }).notNull(),
    databaseName: text('database_name').notNull(),
    tableOid: bigint('table_oid', { mode: 'number' }).notNull(),
    confirmedAt: instant('confirmed_at').notNull(),
    confirmedBy: text('confirmed_by').notNull(),
    reason: text('reason').notNull(),
    // Known from elsewhere than this database: it has lost what it had confirmed, or a freeze is under way.
    doubt: text('doubt'),
    doubtedAt: instant('doubted_at'),
    doubtedBy: text('doubted_by'),
    // While a freeze is under way: requests enqueued before it are frozen.
    freezeBefore: instant('freeze_before'),
  },
  () => [
    check('installation_is_one_row', sql.raw(`one`)),
    check('installation_doubt_known', oneOf('doubt', ['stepped_back', 'intent_lost', 'freezing'])),
    check(
      'installation_doubt_is_whole',
      sql.raw(
        `num_nulls(doubt, doubted_at, doubted_by) in (0, 3) and (freeze_before is not null) = coalesce(doubt = 'freezing', false)`,
      ),
    ),
  ],
);

/**
 * At most one row: the app wants to be told of each request that ends. Without it, or when nobody has asked for
 * notices for two weeks, none are made, so that none pile up.
 */
export const settledConsumer = onetake.table(
  'settled_consumer',
  {
    one: boolean('one').primaryKey().default(true),
    since: instant('since').notNull(),
    seenAt: instant('seen_at').notNull(),
  },
  () => [check('settled_consumer_is_one_row', sql.raw(`one`))],
);

export const operatorActions = onetake.table(
  'operator_actions',
  {
    id: bigint('id', { mode: 'number' }).primaryKey().generatedAlwaysAsIdentity(),
    at: instant('at').notNull(),
    actor: text('actor').notNull(),
    sessionUser: text('session_user').notNull(),
    action: text('action').notNull(),
    subject: text('subject').notNull(),
    reason: text('reason').notNull(),
  },
  (table) => [
    // What was decided about one request.
    index('operator_actions_by_subject').on(table.subject),
    check('operator_actions_name_an_actor', sql.raw(`btrim(actor) <> ''`)),
    check('operator_actions_give_a_reason', sql.raw(`btrim(reason) <> ''`)),
  ],
);
