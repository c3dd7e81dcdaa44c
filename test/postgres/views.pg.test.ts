import { randomUUID } from 'node:crypto';
import type pg from 'pg';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import {
  ago,
  type Columns,
  insert,
  insertAmbiguous,
  insertAttempt,
  insertRequest,
  settledAs,
} from '../support/fixtures.ts';
import { createTestDatabase, type TestDatabase } from '../support/test-database.ts';

// One database, and each test in a transaction that is rolled back.
let clone: TestDatabase;
let client: pg.PoolClient;
const database = {
  query: async <Row extends pg.QueryResultRow>(text: string, values?: unknown[]): Promise<Row[]> =>
    (await client.query<Row>(text, values)).rows,
};
beforeAll(async () => {
  clone = await createTestDatabase();
  client = await clone.pool({ max: 1 }).connect();
});
beforeEach(() => client.query('begin isolation level read committed'));
afterEach(() => client.query('rollback'));
afterAll(async () => {
  client.release();
  await clone.drop();
});

const BREAKER = 'sonilo/text-to-music';
const SECONDS = /\d\d:\d\d:\d\d/;

async function setBreaker(columns: Columns): Promise<void> {
  const names = Object.keys(columns);
  await database.query(
    `update onetake.circuit_breakers set ${names.map((name, i) => `${name} = $${i + 2}`).join(', ')} where name = $1`,
    [BREAKER, ...Object.values(columns)],
  );
}

async function openBreaker(retryAt: Date, transition: Columns = {}): Promise<void> {
  await setBreaker({ state: 'open', opened_at: ago(10_000), retry_at: retryAt, consecutive_failures: 0 });
  await insert(database, 'circuit_breaker_transitions', {
    at: ago(10_000),
    breaker_name: BREAKER,
    number: 1,
    previous_state: 'closed',
    next_state: 'open',
    cause: 'failure_threshold',
    http_status: 502,
    failures: 3,
    generation: 2,
    ...transition,
  });
}

async function halfOpen(leaseExpiresAt: Date): Promise<void> {
  const id = await insertRequest(database, { state: 'submitting' });
  const attemptId = await insertAttempt(database, id, { is_probe: true, lease_expires_at: leaseExpiresAt });
  await setBreaker({ state: 'half_open', probe_attempt_id: attemptId, probe_request_id: id });
}

async function status(): Promise<Record<string, unknown>> {
  const [row] = await database.query('select * from onetake.breaker_status where name = $1', [BREAKER]);
  return row as Record<string, unknown>;
}

describe('breaker_status', () => {
  it('says that submissions flow', async () => {
    expect(await status()).toMatchObject({
      state: 'closed',
      effective_state: 'closed',
      why: 'closed: submissions flow',
      retry_in_ms: null,
    });
  });

  it('counts the failures in a row', async () => {
    await setBreaker({ consecutive_failures: 2 });
    expect(await status()).toMatchObject({
      effective_state: 'closed',
      why: 'closed: 2 of 3 dependency failures in a row',
    });
  });

  it.each([
    ['failure_threshold', '3 dependency failures in a row (last answer 502)'],
    ['probe_failed', 'the probe failed (last answer 502)'],
    ['probe_lost', 'the probe’s worker was lost (last answer 502)'],
    ['probe_neutral', 'the probe told nothing (last answer 502)'],
  ])('says since when and why it is open (%s), and when the next probe is', async (cause, why) => {
    await openBreaker(ago(-20_000), { cause });
    const row = await status();
    expect(row).toMatchObject({ state: 'open', effective_state: 'open' });
    expect(row['why']).toMatch(/^open since \d\d:\d\d:\d\d: .*, next probe at \d\d:\d\d:\d\d$/);
    expect(String(row['why']).replace("probe's", 'probe’s')).toContain(why);
    expect(Number(row['retry_in_ms'])).toBeGreaterThan(15_000);
    expect(Number(row['retry_in_ms'])).toBeLessThanOrEqual(20_000);
  });

  it('says that a probe is due once the cooldown is over', async () => {
    await openBreaker(ago(1_000));
    expect(await status()).toMatchObject({
      state: 'open',
      effective_state: 'probe_due',
      why: expect.stringMatching(/a probe is due since \d\d:\d\d:\d\d$/),
      retry_in_ms: '0',
    });
  });

  it('says that a probe is in flight, and since when', async () => {
    await halfOpen(ago(-30_000));
    expect(await status()).toMatchObject({
      effective_state: 'half_open',
      why: expect.stringMatching(/^half open: one probe is in flight since \d\d:\d\d:\d\d$/),
    });
  });

  it('says that the probe is overdue once its lease is over, and lost when its attempt is nowhere', async () => {
    const overdue = { state: 'half_open', effective_state: 'probe_overdue' };
    await halfOpen(ago(1_000));
    expect(await status()).toMatchObject({
      ...overdue,
      why: expect.stringMatching(/^half open: the probe of \d\d:\d\d:\d\d is overdue$/),
    });
    await setBreaker({ probe_attempt_id: randomUUID() });
    expect(await status()).toMatchObject({ ...overdue, why: 'half open: the probe is lost' });
  });

  it('counts the failures that opened it, not those that the threshold says by now', async () => {
    await openBreaker(ago(-20_000), { failures: 5 });
    await setBreaker({ failure_threshold: 2 });
    expect((await status())['why']).toContain('5 dependency failures in a row');
  });

  it('says since when it has not been closed, over all its probes, and nothing of earlier outages', async () => {
    expect(await status()).toMatchObject({ not_closed_since: null });
    const began = ago(400_000);
    const steps: readonly Columns[] = [
      { at: ago(900_000) },
      { at: ago(870_000), previous_state: 'open', next_state: 'half_open', cause: 'probe_granted' },
      { at: ago(860_000), previous_state: 'half_open', next_state: 'closed', cause: 'probe_succeeded' },
      { at: began },
      { at: ago(370_000), previous_state: 'open', next_state: 'half_open', cause: 'probe_granted' },
      { at: ago(360_000), previous_state: 'half_open', next_state: 'open', cause: 'probe_failed' },
    ];
    for (const [n, step] of steps.entries()) await openBreaker(ago(-20_000), { number: n + 1, ...step });
    expect(await status()).toMatchObject({ not_closed_since: began });
    await setBreaker({ state: 'closed', opened_at: null, retry_at: null });
    expect(await status()).toMatchObject({ not_closed_since: null });
  });
});

describe('request_overview.waiting_for', () => {
  async function waitingFor(id: string): Promise<string | null> {
    const [row] = await database.query<{ waiting_for: string | null }>(
      'select waiting_for from onetake.request_overview where id = $1',
      [id],
    );
    return (row as { waiting_for: string | null }).waiting_for;
  }
  const queued = (columns: Columns = {}) => insertRequest(database, columns);
  const runningAttempt = async (columns: Columns) => {
    const id = await insertRequest(database, { state: 'accepted' });
    await insertAttempt(database, id, columns);
  };

  it('names a worker when nothing is in the way', async () => {
    expect(await waitingFor(await queued())).toBe('a worker');
  });

  it('names the hold of the account, before anything else', async () => {
    await openBreaker(ago(-20_000));
    await insert(database, 'account_holds', {
      account: 'default',
      kind: 'key_refused',
      since: new Date('2026-01-02T11:58:00Z'),
      epoch: 0,
    });
    expect(await waitingFor(await queued())).toBe('account held: key refused since 11:58');
  });

  it('leaves out a hold of another operation, one that has ended and one that ran out', async () => {
    const hold = { account: 'default', kind: 'operator', since: ago(0), epoch: 0 };
    await insert(database, 'account_holds', { ...hold, operation: 'video-to-music' });
    const proven = { ...hold, trial_ended_at: ago(0) };
    await insert(database, 'account_holds', { ...proven, operation: 'text-to-music', ended_at: ago(0) });
    await insert(database, 'account_holds', { ...proven, until: ago(1) });
    expect(await waitingFor(await queued())).toBe('a worker');
  });

  it('says that one goes first after a hold that nothing has proven over', async () => {
    const hold = { account: 'default', kind: 'operator', since: ago(0), epoch: 0 };
    await insert(database, 'account_holds', { ...hold, ended_at: new Date('2026-01-02T11:58:00Z') });
    const id = await queued();
    const whole = 'account released at 11:58: one request goes first, alone';
    expect(await waitingFor(id)).toBe(`${whole} (none is under way); 1 waits`);
    await queued({ operation: 'video-to-music' });
    expect(await waitingFor(id)).toBe(`${whole} (none is under way); 2 wait`);
    await runningAttempt({ operation: 'video-to-music', started_at: ago(1_000) });
    expect(await waitingFor(id)).toMatch(/alone \(under way since \d\d:\d\d:\d\d\); 2 wait$/);
    // Of one operation alone.
    await database.query(`update onetake.account_holds set operation = 'text-to-music'`);
    const one = 'account released at 11:58: one request of text-to-music goes first, alone';
    expect(await waitingFor(id)).toBe(`${one} (none is under way); 1 waits`);
    await runningAttempt({ started_at: ago(1_000) });
    expect(await waitingFor(id)).toMatch(
      / of text-to-music goes first, alone \(under way since .*\); 1 waits$/,
    );
  });

  it.each([
    ['3 × 502', {}],
    ['4 × no answer', { failures: 4, http_status: null }],
    ['probe failed', { cause: 'probe_failed', failures: null }],
    ['probe lost', { cause: 'probe_lost', failures: null, http_status: null }],
  ])('names the breaker, its next probe and why: %s', async (why, transition) => {
    const retryAt = new Date(Date.now() + 20_000);
    await openBreaker(retryAt, transition);
    const at = retryAt.toISOString().slice(11, 19);
    expect(await waitingFor(await queued())).toBe(`breaker open until ${at} (${why})`);
  });

  it('names no breaker that only shadows, or is forced closed', async () => {
    const id = await queued();
    await openBreaker(ago(-20_000));
    await setBreaker({ shadow: true });
    expect(await waitingFor(id)).toBe('a worker');
    const override = { override_actor: 'ada', override_reason: 'test' };
    await setBreaker({ shadow: false, override: 'forced_closed', ...override });
    expect(await waitingFor(id)).toBe('a worker');
    await setBreaker({ override: 'forced_open' });
    expect(await waitingFor(id)).toBe('breaker forced open by ada: test');
  });

  it('names a probe that is due, or in flight', async () => {
    const id = await queued();
    await openBreaker(ago(1));
    expect(await waitingFor(id)).toBe('breaker open: a probe is due');
    await setBreaker({ state: 'closed', opened_at: null, retry_at: null });
    await setBreaker({ state: 'half_open', probe_attempt_id: randomUUID(), probe_request_id: id });
    expect(await waitingFor(id)).toBe('breaker half open: one probe is in flight');
  });

  it('does not name the breaker of another operation', async () => {
    await openBreaker(ago(-20_000));
    expect(await waitingFor(await insertRequest(database, { operation: 'video-to-music' }))).toBe('a worker');
  });

  it('names the provider’s limit and the end of the pause', async () => {
    await database.query(
      `update onetake.accounts set paused_until = now() + interval '30 s', pause_kind = 'concurrency'`,
    );
    const text = await waitingFor(await queued());
    expect(text).toMatch(SECONDS);
    expect(text).toMatch(/^concurrency limit of the provider: paused until/);
  });

  it('names the instant that the request itself waits for, and why', async () => {
    const id = await insertRequest(database, { not_before: ago(-60_000), state_reason: 'rearmed' });
    expect(await waitingFor(id)).toMatch(/^not before \d\d:\d\d:\d\d \(rearmed\)$/);
  });

  it('names the rate, and when the next slot of the minute comes', async () => {
    await database.query('update onetake.accounts set requests_per_minute = 2');
    await runningAttempt({ slot_freed_at: ago(0), window_until: ago(-20_000) });
    await runningAttempt({ slot_freed_at: ago(0), window_until: ago(-14_000) });
    await runningAttempt({ slot_freed_at: ago(0), window_until: ago(1) });
    expect(await waitingFor(await queued())).toBe('rate: 2 of 2 requests this minute, next slot in 14 s');
  });

  it('names the generations that are running', async () => {
    for (let i = 0; i < 4; i++) await runningAttempt({ window_until: ago(0) });
    await runningAttempt({ window_until: ago(0), slot_freed_at: ago(0) });
    await runningAttempt({ window_until: ago(0), slot_until: ago(1) });
    expect(await waitingFor(await queued())).toBe('4 of 4 generations running');
  });

  it('tells those that perhaps don’t run: their outcome is unknown', async () => {
    await runningAttempt({ window_until: ago(0) });
    for (let i = 0; i < 3; i++) {
      const { attemptId } = await insertAmbiguous(database);
      await database.query('update onetake.submission_attempts set window_until = now() where id = $1', [
        attemptId,
      ]);
    }
    expect(await waitingFor(await queued())).toBe('4 of 4 generations running, 3 perhaps: outcome unknown');
  });

  it.each([
    ['submitting', "the provider's answer"],
    ['accepted', 'the provider: task accepted, still running'],
    ['ambiguous', 'outcome unknown: needs an operator'],
    ['succeeded', null],
    ['failed', null],
    ['rejected', null],
    ['cancelled', null],
    ['expired', null],
  ] as const)('says of one that is %s: %s', async (state, text) => {
    expect(await waitingFor(await insertRequest(database, { state }))).toBe(text);
  });

  it('says that its files are coming once the provider is done', async () => {
    const id = await insertRequest(database, { state: 'accepted', provider_finished_at: ago(0) });
    expect(await waitingFor(id)).toBe('its files');
  });

  it.each([
    ['file_storage', "storage that can be written to: its files can't be stored"],
    ['file_http_status', "its files: they can't be brought in (http status)"],
    ['http_404', "the provider: its task can't be read (http_404)"],
  ])('says what stands in the way when the trouble is %s', async (poll_trouble, text) => {
    const failing = { attention: 'poll_failing', attention_since: ago(0), poll_trouble };
    const columns = { state: 'accepted', provider_finished_at: ago(0), ...failing } as const;
    expect(await waitingFor(await insertRequest(database, columns))).toBe(text);
  });
});

describe('ambiguous_submissions', () => {
  it('lists the frozen ones only, oldest first, with what is known of the last attempt', async () => {
    await insertRequest(database, { state: 'accepted' });
    const young = await insertAmbiguous(database, { settled_at: ago(5_000) }, { created_at: ago(10_000) });
    const closedAt = ago(55_000);
    const old = await insertAmbiguous(
      database,
      {
        attempt: 2,
        http_status: 502,
        error_code: 'UND_ERR_SOCKET',
        phase: 'response_started',
        settled_at: ago(60_000),
        closed_at: closedAt,
      },
      { created_at: ago(90_000), state_reason: 'server_error' },
    );
    await insertAttempt(database, old.id, settledAs('unknown', { attempt: 1, http_status: 202 }));
    const rows = await database.query<Record<string, unknown>>('select * from onetake.ambiguous_submissions');
    expect(rows.map((row) => row['id'])).toEqual([old.id, young.id]);
    expect(rows[0]).toMatchObject({
      reason: 'server_error',
      account: 'default',
      operation: 'text-to-music',
      attempt: 2,
      phase: 'response_started',
      http_status: 502,
      error_code: 'UND_ERR_SOCKET',
      charge: 'possible',
      needs_force: true,
      paid_evidence: 'attempt 1 was answered 202',
      evidence: null,
    });
    expect(rows[1]).toMatchObject({ needs_force: false, paid_evidence: null });
    expect(Number(rows[0]?.['age_ms'])).toBeGreaterThanOrEqual(60_000);
    expect(Number(rows[1]?.['age_ms'])).toBeLessThan(30_000);
  });

  it('says from when it may be re-armed: at once when the attempt is closed, else after its quarantine', async () => {
    const quarantine = ago(-120_000);
    const settled = ago(1_000);
    const closed = await insertAmbiguous(database, { closed_at: ago(0), settled_at: settled });
    const left = await insertAmbiguous(database, { quarantine_until: quarantine });
    const rearmable = async (id: string) =>
      (
        await database.query<{ rearmable_at: Date }>(
          'select rearmable_at from onetake.ambiguous_submissions where id = $1',
          [id],
        )
      )[0]?.rearmable_at;
    expect(await rearmable(closed.id)).toEqual(settled);
    expect(await rearmable(left.id)).toEqual(quarantine);
  });

  const late = (attemptId: string, columns: Columns) =>
    insert(database, 'attempt_evidence', {
      attempt_id: attemptId,
      seen_at: ago(0),
      source: 'late_answer',
      ...columns,
    });
  const evidenceOf = async () =>
    (
      await database.query('select needs_force, paid_evidence, evidence from onetake.ambiguous_submissions')
    )[0];

  it('shows later evidence of every attempt, and that a success needs force', async () => {
    const { id, attemptId } = await insertAmbiguous(database, { http_status: 202 }, { submissions: 2 });
    const second = await insertAttempt(database, id, settledAs('unknown', { attempt: 2, http_status: 502 }));
    await late(attemptId, { certainty: 'refused', http_status: 401 });
    await late(second, { certainty: 'refused', http_status: 429 });
    await late(second, { certainty: 'unknown', error_code: 'ECONNRESET' });
    expect(await evidenceOf()).toEqual({
      needs_force: true,
      paid_evidence: 'attempt 1 was answered 202',
      evidence:
        'attempt 1: late answer refused 401; attempt 2: late answer refused 429; attempt 2: late answer unknown ECONNRESET',
    });
  });

  it.each<[string, Columns, string | null]>([
    ['a late 2xx without an id', { certainty: 'unknown', http_status: 200 }, 'attempt 1 was answered 200'],
    [
      'a late acceptance',
      { certainty: 'accepted', http_status: 202, provider_task_id: 'late-task' },
      'attempt 1 was accepted as task late-task',
    ],
    [
      'a word that was taken back',
      { source: 'operator', certainty: 'accepted', provider_task_id: 'wrong', withdrawn_at: ago(0) },
      null,
    ],
    ['a late 502', { certainty: 'unknown', http_status: 502 }, null],
    ['a late 300', { certainty: 'unknown', http_status: 300 }, null],
  ])('says what speaks for a payment: %s', async (_what, columns, paid) => {
    const { attemptId } = await insertAmbiguous(database);
    await late(attemptId, columns);
    expect(await evidenceOf()).toMatchObject({ needs_force: paid !== null, paid_evidence: paid });
    if (columns['withdrawn_at'] !== undefined) expect(await evidenceOf()).toMatchObject({ evidence: null });
  });

  it('names a known task before a bare 2xx, whichever came last', async () => {
    const { id } = await insertAmbiguous(
      database,
      { certainty: 'accepted', provider_task_id: 'first-task', http_status: 202 },
      { submissions: 2 },
    );
    await insertAttempt(database, id, settledAs('unknown', { attempt: 2, http_status: 200 }));
    expect(await evidenceOf()).toMatchObject({
      needs_force: true,
      paid_evidence: 'attempt 1 was accepted as task first-task',
    });
  });

  it('lists one that has no attempt', async () => {
    await insertRequest(database, { state: 'ambiguous', state_reason: 'intent_lost' });
    expect(
      await database.query('select reason, attempt, needs_force from onetake.ambiguous_submissions'),
    ).toEqual([{ reason: 'intent_lost', attempt: null, needs_force: false }]);
  });
});

describe('money that was not returned', () => {
  it('lists what failed and what belongs to no request, until it is refunded', async () => {
    const failed = async (columns: object) =>
      insertRequest(database, {
        state: 'failed',
        failure_reason: 'provider',
        settled_at: ago(9_000),
        ...columns,
      });
    await failed({ refunded: true });
    await failed({ failure_reason: 'abandoned', provider_task_id: null });
    const watched = await failed({
      refunded: false,
      next_poll_at: ago(-1_000),
      refund_watch_until: ago(-60_000),
      provider_task_id: 'watched',
    });
    const given = await failed({
      provider_task_id: 'over',
      settled_at: ago(8_000),
      refund_watch_until: ago(1),
    });
    const { id, attemptId } = await insertAmbiguous(database);
    const followed = { request_id: id, attempt_id: attemptId, account: 'default', follow_until: ago(-9) };
    await insert(database, 'followed_tasks', { ...followed, provider_task_id: 'twice', since: ago(7_000) });
    await insert(database, 'followed_tasks', {
      ...followed,
      provider_task_id: 'returned',
      since: ago(6_000),
      refunded: true,
    });
    // Given up as unknown, and paid for after all: once, as its task.
    const task = await failed({ failure_reason: 'abandoned', provider_task_id: null, charge: 'charged' });
    const itsAttempt = await insertAttempt(database, task, settledAs('unknown', {}));
    const late = {
      attempt_id: itsAttempt,
      seen_at: ago(4_000),
      source: 'late_answer',
      certainty: 'accepted',
    };
    await insert(database, 'attempt_evidence', { ...late, provider_task_id: 'late' });
    await insert(database, 'followed_tasks', {
      ...followed,
      request_id: task,
      attempt_id: itsAttempt,
      provider_task_id: 'late',
      since: ago(5_000),
    });
    const stream = await insertRequest(database, {
      state: 'cancelled',
      mode: 'stream',
      charge: 'charged',
      settled_at: ago(4_000),
    });
    await insertAttempt(database, stream, settledAs('unknown', { stream_unclaimed_at: ago(4_000) }));
    expect(
      await database.query(
        'select request_id, provider_task_id, why, refunded, watched_until is not null as watched from onetake.money_not_returned',
      ),
    ).toEqual([
      { request_id: watched, provider_task_id: 'watched', why: 'provider', refunded: false, watched: true },
      { request_id: given, provider_task_id: 'over', why: 'provider', refunded: null, watched: false },
      { request_id: id, provider_task_id: 'twice', why: 'unclaimed', refunded: null, watched: false },
      { request_id: task, provider_task_id: 'late', why: 'unclaimed', refunded: null, watched: false },
      { request_id: stream, provider_task_id: null, why: 'unclaimed', refunded: null, watched: false },
    ]);
  });
});

describe('attention', () => {
  it('holds everything that wants a person, oldest first, with the command that ends it', async () => {
    await insertRequest(database, { state: 'succeeded' });
    const frozen = await insertAmbiguous(database, { settled_at: ago(30_000) });
    const noted = await insertRequest(database, {
      state: 'accepted',
      attention: 'poll_failing',
      attention_since: ago(20_000),
      poll_trouble: 'http_404',
    });
    for (const [operation, since] of [
      [null, 40_000],
      ['dubbing', 50_000],
    ] as const) {
      const kind = 'payment_required';
      await insert(database, 'account_holds', {
        account: 'default',
        operation,
        kind,
        since: ago(since),
        epoch: 0,
      });
    }
    expect(
      await database.query('select subject_kind, subject, what, command from onetake.attention'),
    ).toEqual([
      {
        subject_kind: 'account',
        subject: 'default/dubbing',
        what: 'held: payment required',
        command: "onetake accounts release default --operation dubbing --reason '…'",
      },
      {
        subject_kind: 'account',
        subject: 'default',
        what: 'held: payment required',
        command: "onetake accounts release default --reason '…'",
      },
      {
        subject_kind: 'request',
        subject: frozen.id,
        what: 'outcome unknown: transport',
        command: `onetake ambiguous show ${frozen.id}`,
      },
      {
        subject_kind: 'request',
        subject: noted,
        what: 'poll failing: http_404',
        command: `onetake ambiguous resolve ${noted} --abandon --reason '…'`,
      },
    ]);
  });

  it.each([
    ['overdue', null, 'overdue', 'ambiguous resolve ID --abandon'],
    ['poll_failing', 'http_401', 'poll failing: http_401', 'doctor'],
    ['poll_failing', 'file_storage', "its files can't be stored", 'doctor'],
    [
      'poll_failing',
      'file_not_media',
      "its files can't be brought in: not media",
      'ambiguous resolve ID --abandon',
    ],
    ['poll_failing', null, 'poll failing', 'ambiguous resolve ID --abandon'],
    ['result_empty', null, 'result empty', 'requests show ID'],
    ['not_refunded', null, 'not refunded', 'requests acknowledge ID'],
  ])('names the command that ends %s (%s)', async (attention, poll_trouble, what, command) => {
    const columns = { attention, attention_since: ago(0), poll_trouble };
    const id = await insertRequest(database, { state: 'accepted', ...columns });
    expect(await database.query('select what, command from onetake.attention')).toMatchObject([
      { what, command: expect.stringContaining(`onetake ${command.replace('ID', id)}`) },
    ]);
  });

  it('names an account whose tasks can’t be read, once that has lasted', async () => {
    const pause = { account: 'default', paused_until: ago(0), failures: 3, reason: 'http_500' };
    await insert(database, 'read_pauses', { ...pause, since: ago(50_000) });
    expect(await database.query('select from onetake.attention')).toEqual([]);
    await database.query(`update onetake.read_pauses set since = since - interval '11 s'`);
    expect(
      await database.query('select subject_kind, subject, what, command from onetake.attention'),
    ).toEqual([
      {
        subject_kind: 'account',
        subject: 'default',
        what: "its tasks can't be read: http_500",
        command: 'onetake doctor',
      },
    ]);
  });

  it('names the alarm of a frozen request beside its unknown outcome', async () => {
    await insertAmbiguous(database, {}, { attention: 'possibly_paid_twice', attention_since: ago(0) });
    const rows = await database.query<{ what: string }>('select what from onetake.attention');
    expect(rows.map((row) => row.what).sort()).toEqual(['outcome unknown: transport', 'possibly paid twice']);
  });

  it.each([
    ['open', () => openBreaker(ago(-20_000), { at: ago(300_100) })],
    [
      'half open',
      async () => {
        await openBreaker(ago(-20_000), { at: ago(300_100) });
        await setBreaker({ state: 'closed', opened_at: null, retry_at: null });
        await halfOpen(ago(-30_000));
      },
    ],
  ])('names a breaker that has been %s for five minutes', async (_what, arrange) => {
    await arrange();
    expect(await database.query('select * from onetake.attention')).toMatchObject([
      {
        subject_kind: 'breaker',
        subject: BREAKER,
        what: `not closed for long: ${String((await status())['why'])}`,
        command: `onetake breaker show ${BREAKER}`,
      },
    ]);
  });

  it('leaves a breaker out that opened a moment ago, is closed again, or only shadows', async () => {
    const listed = () => database.query('select subject from onetake.attention');
    await openBreaker(ago(-20_000), { at: ago(290_000) });
    expect(await listed()).toEqual([]);
    await database.query(`update onetake.circuit_breaker_transitions set at = at - interval '1 minute'`);
    expect(await listed()).toHaveLength(1);
    await setBreaker({ shadow: true });
    expect(await listed()).toEqual([]);
    await setBreaker({ shadow: false, state: 'closed', opened_at: null, retry_at: null });
    expect(await listed()).toEqual([]);
  });
});
