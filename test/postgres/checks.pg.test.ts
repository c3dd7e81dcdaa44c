import { randomUUID } from 'node:crypto';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import {
  ago,
  type Columns,
  insert,
  insertAttempt,
  insertRequest,
  NO_DIGEST,
  settledAs,
} from '../support/fixtures.ts';
import { createTestDatabase, type TestDatabase } from '../support/test-database.ts';

let database: TestDatabase;
let requestId: string;
let attemptId: string;
beforeAll(async () => {
  database = await createTestDatabase();
  requestId = await insertRequest(database);
  attemptId = await insertAttempt(database, requestId, { attempt: 99 });
});
afterAll(() => database.drop());

const account = (columns: Columns) =>
  insert(database, 'accounts', {
    name: 'spare',
    provider: 'sonilo',
    requests_per_minute: 60,
    max_concurrent_generations: 4,
    ...columns,
  });
const request = (columns: Columns) =>
  insert(database, 'generation_requests', {
    account: 'default',
    operation: 'text-to-music',
    request_key: randomUUID(),
    fields: {},
    payload_digest: NO_DIGEST,
    ...columns,
  });
const doubted = (columns: Columns) =>
  database.query(
    `update onetake.installation set ${Object.keys(columns)
      .map((name, i) => `${name} = $${i + 1}`)
      .join(', ')}`,
    Object.values(columns),
  );
/** A request begins as `queued`, so what only other states forbid is tried on the way there. */
const moved = (columns: Columns) => insertRequest(database, columns);
const attempt = (columns: Columns) => insertAttempt(database, requestId, columns);
const STREAMED = { state: 'accepted', mode: 'stream', provider_task_id: null, next_poll_at: null } as const;
const STREAM_END = { stream_ended_at: ago(0), stream_end: 'complete', stream_health: 'none' };
const breaker = (columns: Columns) =>
  insert(database, 'circuit_breakers', {
    name: `test/${randomUUID()}`,
    failure_threshold: 3,
    cooldown_ms: 30_000,
    ...columns,
  });
const transition = (columns: Columns) =>
  insert(database, 'circuit_breaker_transitions', {
    at: ago(0),
    breaker_name: 'sonilo/text-to-music',
    number: 1,
    previous_state: 'closed',
    next_state: 'open',
    cause: 'failure_threshold',
    generation: 2,
    ...columns,
  });
const action = (columns: Columns) =>
  insert(database, 'operator_actions', {
    at: ago(0),
    actor: 'ada',
    session_user: 'ada',
    action: 'abandon',
    subject: requestId,
    reason: 'test',
    ...columns,
  });
const followed = (columns: Columns) =>
  insert(database, 'followed_tasks', {
    request_id: requestId,
    provider_task_id: randomUUID(),
    account: 'default',
    attempt_id: attemptId,
    since: ago(0),
    follow_until: ago(-1),
    ...columns,
  });
const asset = (columns: Columns) =>
  insert(database, 'assets', {
    request_id: requestId,
    index: 0,
    kind: 'audio',
    location: 'file',
    ...columns,
  });
const evidence = (columns: Columns) =>
  insert(database, 'attempt_evidence', {
    attempt_id: attemptId,
    seen_at: ago(0),
    source: 'operator',
    certainty: 'accepted',
    ...columns,
  });
const hold = (columns: Columns) =>
  insert(database, 'account_holds', {
    account: 'default',
    kind: 'operator',
    since: ago(0),
    epoch: 1,
    ...columns,
  });

/** Rows that no healthy process writes, each by the CHECK that stops it. */
const FORBIDDEN: Readonly<Record<string, readonly (() => Promise<unknown>)[]>> = {
  account_holds_kind_known: [() => hold({ kind: 'whim' })],
  accounts_name_is_plain: [() => account({ name: 'with space' }), () => account({ name: 'x'.repeat(64) })],
  accounts_requests_per_minute_in_bounds: [
    () => account({ requests_per_minute: 0 }),
    () => account({ requests_per_minute: 1_000_001 }),
  ],
  accounts_max_concurrent_generations_in_bounds: [
    () => account({ max_concurrent_generations: 0 }),
    () => account({ max_concurrent_generations: 100_001 }),
  ],
  accounts_pause_has_a_kind: [() => account({ paused_until: ago(0) }), () => account({ pause_kind: 'rate' })],
  accounts_pause_kind_known: [() => account({ paused_until: ago(0), pause_kind: 'whim' })],
  assets_stored_means_verified: [
    () => asset({ stored_at: ago(0), sha256: NO_DIGEST }),
    () => asset({ stored_at: ago(0), bytes: 1 }),
    () => asset({ stored_at: ago(0), bytes: 1, sha256: 'x' }),
  ],
  attempt_evidence_source_known: [() => evidence({ source: 'rumour' })],
  attempt_evidence_certainty_known: [() => evidence({ certainty: 'likely' })],
  circuit_breaker_transitions_layer_known: [() => transition({ layer: 'other' })],
  circuit_breaker_transitions_number_positive: [() => transition({ number: 0 })],
  circuit_breakers_name_is_provider_and_operation: [
    () => breaker({ name: 'text-to-music' }),
    () => breaker({ name: 'a/b/c' }),
  ],
  circuit_breakers_failure_threshold_in_bounds: [
    () => breaker({ failure_threshold: 0 }),
    () => breaker({ failure_threshold: 1_001 }),
  ],
  circuit_breakers_cooldown_ms_in_bounds: [
    () => breaker({ cooldown_ms: 99 }),
    () => breaker({ cooldown_ms: 86_400_001 }),
  ],
  circuit_breakers_state_known: [
    // Has what `half_open` would have, so that only its name is wrong.
    () => breaker({ state: 'ajar', probe_attempt_id: randomUUID(), probe_request_id: requestId }),
  ],
  circuit_breakers_state_has_its_columns: [
    () => breaker({ state: 'closed', retry_at: ago(0) }),
    () => breaker({ state: 'open' }),
    () => breaker({ state: 'open', opened_at: ago(0) }),
    () => breaker({ state: 'open', opened_at: ago(0), retry_at: ago(1_000) }),
    () => breaker({ state: 'open', opened_at: ago(0), retry_at: ago(-1_000), consecutive_failures: 3 }),
    () => breaker({ state: 'half_open' }),
    () => breaker({ state: 'half_open', probe_attempt_id: randomUUID() }),
  ],
  circuit_breakers_cooldown_growth_in_bounds: [
    () => breaker({ cooldown_growth: 0.99 }),
    () => breaker({ cooldown_growth: 10.01 }),
    () => breaker({ cooldown_growth: 'NaN' }),
  ],
  circuit_breakers_max_cooldown_ms_in_bounds: [
    () => breaker({ max_cooldown_ms: 29_999 }),
    () => breaker({ max_cooldown_ms: 86_400_001 }),
  ],
  circuit_breakers_jitter_in_bounds: [
    () => breaker({ jitter: -0.01 }),
    () => breaker({ jitter: 0.51 }),
    () => breaker({ jitter: 'NaN' }),
  ],
  circuit_breakers_ramp_only_closed: [
    () => breaker({ state: 'open', opened_at: ago(0), retry_at: ago(-1_000), ramp_acceptances: 0 }),
  ],
  circuit_breakers_override_known: [
    () => breaker({ override: 'maybe', override_actor: 'ada', override_reason: 'test' }),
  ],
  circuit_breakers_override_has_an_actor: [
    () => breaker({ override: 'forced_open' }),
    () => breaker({ override: 'forced_open', override_actor: 'ada' }),
    () => breaker({ override: 'forced_open', override_reason: 'test' }),
    () => breaker({ override_actor: 'ada' }),
    () => breaker({ override_reason: 'test' }),
    () => breaker({ override_expires_at: ago(-1_000) }),
  ],
  followed_tasks_finished_has_an_outcome: [
    () => followed({ outcome: 'failed' }),
    () => followed({ finished_at: ago(0) }),
  ],
  followed_tasks_outcome_known: [() => followed({ outcome: 'lost', finished_at: ago(0) })],
  generation_requests_state_known: [() => moved({ state: 'queued' }).then((id) => force(id, 'lost'))],
  generation_requests_request_key_length: [
    () => request({ request_key: '' }),
    () => request({ request_key: 'x'.repeat(256) }),
  ],
  generation_requests_payload_digest_is_sha256: [() => request({ payload_digest: 'F'.repeat(64) })],
  generation_requests_fields_are_an_object: [
    () => request({ fields: '[]' }),
    () => request({ fields: '"x"' }),
  ],
  generation_requests_charge_known: [() => request({ charge: 'maybe' })],
  generation_requests_priority_bounded: [() => request({ priority: 101 }), () => request({ priority: -101 })],
  generation_requests_mode_known: [() => request({ mode: 'batch' })],
  generation_requests_failed_has_a_reason: [
    () => request({ failure_reason: 'provider' }),
    () => moved({ state: 'failed', failure_reason: null }),
    () => moved({ state: 'failed', failure_reason: 'mood' }),
  ],
  generation_requests_only_a_failure_has_its_code: [
    () => request({ failure_code: 'CONTENT_POLICY' }),
    () => moved({ state: 'succeeded', failure_code: 'CONTENT_POLICY' }),
  ],
  generation_requests_succeeded_has_a_result: [
    () => request({ result_status: 'stored' }),
    () => moved({ state: 'succeeded', result_status: null }),
    () => moved({ state: 'succeeded', result_status: 'fine' }),
  ],
  generation_requests_settled_when_terminal: [
    () => request({ settled_at: ago(0) }),
    () => moved({ state: 'cancelled', settled_at: null }),
  ],
  generation_requests_accepted_has_a_task: [
    () => moved({ state: 'accepted', accepted_at: null }),
    () => moved(STREAMED),
    () => moved({ state: 'accepted', mode: 'stream', stream_attempt_id: randomUUID() }),
  ],
  generation_requests_submitting_has_an_attempt: [() => moved({ state: 'submitting', submissions: 0 })],
  generation_requests_ambiguous_has_a_reason: [() => moved({ state: 'ambiguous', state_reason: null })],
  generation_requests_only_tasks_are_polled: [
    () => request({ next_poll_at: ago(0) }),
    () => moved({ state: 'rejected', next_poll_at: ago(0), provider_task_id: 'task' }),
  ],
  generation_requests_only_streams_are_read: [
    () => request({ reader_lease_until: ago(0) }),
    () => moved({ state: 'accepted', reader_lease_until: ago(0) }),
    () => moved({ ...STREAMED, stream_attempt_id: randomUUID() }),
  ],
  generation_requests_streams_were_asked_for: [() => request({ stream_attempt_id: randomUUID() })],
  generation_requests_attention_has_a_start: [
    () => request({ attention: 'overdue' }),
    () => request({ attention_since: ago(0) }),
  ],
  operator_actions_name_an_actor: [() => action({ actor: '  ' })],
  operator_actions_give_a_reason: [() => action({ reason: '' })],
  submission_attempts_health_known: [() => attempt(settledAs('unknown', { health: 'fine' }))],
  submission_attempts_certainty_known: [() => attempt({ ...settledAs('unknown'), certainty: 'likely' })],
  submission_attempts_phase_known: [() => attempt(settledAs('unknown', { phase: 'early' }))],
  submission_attempts_headers_sent_proof_known: [
    () => attempt({ headers_sent: false, headers_sent_proof: 'hearsay' }),
  ],
  submission_attempts_headers_sent_is_proven: [
    () => attempt({ headers_sent: true }),
    () => attempt({ headers_sent_proof: 'oracle' }),
  ],
  submission_attempts_unsent_sent_no_headers: [
    () => attempt(settledAs('unsent', { headers_sent: true, headers_sent_proof: 'oracle' })),
  ],
  submission_attempts_settled_by_known: [() => attempt(settledAs('unknown', { settled_by: 'nobody' }))],
  submission_attempts_settled_as_a_whole: [
    () => attempt({ settled_at: ago(0) }),
    () => attempt({ certainty: 'accepted' }),
    () => attempt(settledAs('unknown', { reason: null })),
  ],
  submission_attempts_health_applied_after_settle: [
    () => attempt({ health_applied_at: ago(0), health_effect: 'counted' }),
    () => attempt(settledAs('unknown', { health_effect: null })),
  ],
  submission_attempts_stream_end_is_plain: [
    () => attempt(settledAs('accepted', { ...STREAM_END, stream_end: 'a prompt' })),
  ],
  submission_attempts_stream_health_known: [
    () => attempt(settledAs('accepted', { ...STREAM_END, stream_health: 'success' })),
  ],
  submission_attempts_stream_ends_as_a_whole: [
    () => attempt(STREAM_END),
    () => attempt(settledAs('accepted', { ...STREAM_END, stream_end: null })),
  ],
  submission_attempts_stream_health_applied_after_end: [
    () =>
      attempt(settledAs('accepted', { stream_health_applied_at: ago(0), stream_health_effect: 'counted' })),
    () => attempt(settledAs('accepted', { ...STREAM_END, stream_health_effect: 'counted' })),
  ],
  installation_is_one_row: [() => doubted({ one: false })],
  settled_consumer_is_one_row: [
    () =>
      database.query(
        'insert into onetake.settled_consumer (one, since, seen_at) values (false, now(), now())',
      ),
  ],
  installation_doubt_known: [
    () => doubted({ doubt: 'unsure', doubted_at: ago(0), doubted_by: 'a worker' }),
    () => doubted({ doubt: 'another_cluster', doubted_at: ago(0), doubted_by: 'a worker' }),
  ],
  installation_doubt_is_whole: [
    () => doubted({ doubt: 'stepped_back' }),
    () => doubted({ doubted_by: 'a worker' }),
    () => doubted({ doubt: 'freezing', doubted_at: ago(0), doubted_by: 'mia' }),
    () => doubted({ freeze_before: ago(0) }),
  ],
  submission_attempts_error_code_is_plain: [() => attempt({ error_code: 'password is hunter2' })],
};

function force(id: string, state: string) {
  // The guard would object first, so it is told to look away.
  return database.query(
    `do $$ begin
  set local session_replication_role = replica;
  update onetake.generation_requests set state = '${state}', state_reason = 'test' where id = '${id}';
end $$`,
  );
}

describe.each(Object.entries(FORBIDDEN))('%s', (constraint, rows) => {
  it.each(rows.map((row, i) => [i + 1, row] as const))('refuses impossible row %i', async (_, row) => {
    await expect(row()).rejects.toMatchObject({ code: '23514', constraint });
  });
});

describe('the named CHECKs', () => {
  it('each have a row here that they refuse', async () => {
    const rows = await database.query<{ conname: string }>(
      `select c.conname from pg_constraint c join pg_namespace n on n.oid = c.connamespace
where n.nspname = 'onetake' and c.contype = 'c' order by c.conname collate "C"`,
    );
    expect(rows.map((row) => row.conname)).toEqual(Object.keys(FORBIDDEN).sort());
  });

  it('let an ordinary row of each table in', async () => {
    for (const write of [
      account,
      request,
      attempt,
      breaker,
      transition,
      action,
      asset,
      followed,
      evidence,
      hold,
    ]) {
      await write({});
    }
  });
});
