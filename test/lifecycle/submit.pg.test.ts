import { describe, expect, it } from 'vitest';
import { waitFor } from '../support/wait-for.ts';
import type { ProviderCall } from '../support/raw-provider.ts';
import { API_KEY, IMPATIENT, MUSIC, openTransactions, openWorld, type Row } from '../support/world.ts';

// Every row of the outcome table, through the real worker, over a real socket, into the real rows.

interface Expected {
  readonly state: string;
  readonly reason: string | null;
  readonly charge: string;
  readonly attempt: Row;
  /** Consecutive failures at the breaker. */
  readonly failures: number;
  readonly slotFreed: boolean;
}

const ACCEPTED: Expected = {
  state: 'accepted',
  reason: null,
  charge: 'charged',
  attempt: { phase: 'answered', health: 'success', certainty: 'accepted', reason: 'task_accepted', error_code: null },
  failures: 0,
  slotFreed: false,
};

const WITHOUT_ID: Expected = {
  state: 'ambiguous',
  reason: 'accepted_without_task_id',
  charge: 'possible',
  attempt: {
    phase: 'answered',
    health: 'unknown_failure',
    certainty: 'unknown',
    reason: 'accepted_without_task_id',
    provider_task_id: null,
  },
  failures: 0,
  slotFreed: false,
};

const REJECTED: Expected = {
  state: 'rejected',
  reason: 'request_refused',
  charge: 'none',
  attempt: { phase: 'answered', health: 'request_or_account_failure', certainty: 'refused', reason: 'request_refused' },
  failures: 0,
  slotFreed: true,
};

const SERVER_ERROR: Expected = {
  state: 'ambiguous',
  reason: 'server_error',
  charge: 'possible',
  attempt: { phase: 'answered', health: 'dependency_failure', certainty: 'unknown', reason: 'server_error' },
  failures: 1,
  slotFreed: true,
};

const UNREVIEWED: Expected = {
  state: 'ambiguous',
  reason: 'unreviewed_status',
  charge: 'possible',
  attempt: { phase: 'answered', health: 'unknown_failure', certainty: 'unknown', reason: 'unreviewed_status' },
  failures: 0,
  slotFreed: false,
};

const TRANSPORT: Expected = {
  state: 'ambiguous',
  reason: 'transport',
  charge: 'possible',
  attempt: { phase: 'sent', health: 'dependency_failure', certainty: 'unknown', reason: 'transport', http_status: null },
  failures: 1,
  slotFreed: false,
};

const CUT = `HTTP/1.1 202 Accepted\r\ncontent-type: application/json\r\ncontent-length: 60\r\n\r\n{"task_id": "tas`;

type Case = readonly [answer: string, behave: (call: ProviderCall) => void, expected: Expected];

const CASES: readonly Case[] = [
  ['202 with a task id', (call) => call.accept('a-task'), ACCEPTED],
  ['200 with a task id', (call) => call.answer(200, { task_id: 'a-task' }), ACCEPTED],
  ['202 without an id', (call) => call.answer(202, { status: 'processing' }), WITHOUT_ID],
  ['202 with an empty body', (call) => call.answer(202), WITHOUT_ID],
  ['202 with HTML', (call) => call.answer(202, '<html>Welcome</html>'), WITHOUT_ID],
  ['202 with a number for an id', (call) => call.answer(202, { task_id: 17 }), WITHOUT_ID],
  ['202 with a NUL in the id', (call) => call.answer(202, { task_id: 'a\u0000b' }), WITHOUT_ID],
  [
    '202 whose body is cut',
    (call) => call.socket.end(CUT),
    { ...WITHOUT_ID, attempt: { ...WITHOUT_ID.attempt, phase: 'response_started', http_status: 202 } },
  ],
  ...[400, 413, 422].map((status): Case => [String(status), (call) => call.answer(status, { detail: 'no' }), REJECTED]),
  ...[500, 502, 503, 504].map((status): Case => [String(status), (call) => call.answer(status, '<h1>Bad</h1>'), SERVER_ERROR]),
  ['503 with Retry-After', (call) => call.answer(503, '', { 'retry-after': '1' }), SERVER_ERROR],
  ...[404, 405, 409, 415, 418].map((status): Case => [String(status), (call) => call.answer(status), UNREVIEWED]),
  ['520', (call) => call.answer(520), { ...UNREVIEWED, slotFreed: true }],
  ['307 to another place', (call) => call.answer(307, '', { location: '/v1/elsewhere' }), UNREVIEWED],
  ['a connection that is reset', (call) => call.socket.resetAndDestroy(), TRANSPORT],
  ['a connection that is closed', (call) => call.socket.end(), TRANSPORT],
  ['an answer that is not HTTP', (call) => call.socket.end('SSH-2.0-OpenSSH\r\n\r\n'), TRANSPORT],
];

describe('one POST, answered with', () => {
  it.each(CASES)('%s', async (_answer, behave, expected) => {
    const world = await openWorld({ provider: 'raw' });
    world.raw.onPost = behave;
    const id = await world.song('one', { prompt: 'a canary in a mine' });
    const worker = world.worker();

    expect(await worker.runOnce()).toBe(1);

    const request = await world.request(id);
    expect(request).toMatchObject({ state: expected.state, state_reason: expected.reason, charge: expected.charge });
    const attempt = await world.attempt(id);
    expect(attempt).toMatchObject({ ...expected.attempt, settled_by: 'worker', attempt: 1, breaker_name: MUSIC });
    expect(attempt['slot_freed_at'] !== null).toBe(expected.slotFreed);
    expect(attempt['closed_at']).not.toBeNull();
    expect(attempt['health_applied_at']).not.toBeNull();
    expect(await world.breaker()).toMatchObject({ state: 'closed', consecutive_failures: expected.failures });
    // Nothing brings it back by itself.
    await world.passTime(3_600_000);
    expect(await worker.runOnce()).toBe(0);
    expect(world.raw.posts).toHaveLength(1);
    expect(world.raw.gets).toHaveLength(0);
    expect((await world.request(id))['state']).toBe(expected.state);
  });

  it('silence, until the deadline', async () => {
    const world = await openWorld({ provider: 'raw', operation: IMPATIENT });
    world.raw.onPost = () => undefined;
    const id = await world.song('one');

    await world.worker().runOnce();

    expect(await world.request(id)).toMatchObject({ state: 'ambiguous', state_reason: 'transport', charge: 'possible' });
    expect(await world.attempt(id)).toMatchObject({
      ...TRANSPORT.attempt,
      error_code: 'first_response_deadline',
      slot_freed_at: null,
    });
    expect(await world.breaker()).toMatchObject({ consecutive_failures: 1 });
    expect(world.raw.posts).toHaveLength(1);
  });

  it('the task id of another request of the account', async () => {
    const world = await openWorld({ provider: 'raw' });
    world.raw.onPost = (call) => call.accept('the-same');
    const first = await world.song('first');
    const worker = world.worker();
    await worker.runOnce();
    const second = await world.song('second');

    await worker.runOnce();

    expect(await world.request(first)).toMatchObject({ state: 'accepted', provider_task_id: 'the-same' });
    expect(await world.request(second)).toMatchObject({
      state: 'ambiguous',
      state_reason: 'task_id_conflict',
      provider_task_id: null,
      charge: 'possible',
    });
    // The evidence keeps what the provider said.
    expect(await world.attempt(second)).toMatchObject({
      health: 'unknown_failure',
      certainty: 'unknown',
      provider_task_id: 'the-same',
      slot_freed_at: null,
    });
    expect(world.events.filter(({ name }) => name === 'submission:alert')).toHaveLength(1);
    expect(world.raw.posts).toHaveLength(2);
  });

  it('the same task id twice at once', async () => {
    const world = await openWorld({ provider: 'raw' });
    const calls: ProviderCall[] = [];
    world.raw.onPost = (call) => {
      calls.push(call);
      if (calls.length === 2) for (const held of calls) held.accept('the-same');
    };
    await world.songs(2);

    await world.worker().runOnce();

    expect(Object.values(await world.states()).sort()).toEqual(['accepted', 'ambiguous']);
  });

  it('a connection that is refused: nothing was sent, so it goes back and waits a little', async () => {
    const world = await openWorld({ provider: new URL('http://127.0.0.1:9') });
    const id = await world.song('one');
    const worker = world.worker();

    await worker.runOnce();

    const request = await world.request(id);
    expect(request).toMatchObject({ state: 'queued', state_reason: 'unsent', charge: 'none', submissions: 1 });
    const attempt = await world.attempt(id);
    expect(attempt).toMatchObject({
      phase: 'unsent',
      health: 'dependency_failure',
      certainty: 'unsent',
      error_code: 'ECONNREFUSED',
    });
    // It used neither slot nor minute.
    expect(attempt['slot_freed_at']).not.toBeNull();
    expect(attempt['window_until']).toEqual(attempt['settled_at']);
    const delay = Number(request['not_before']) - Number(attempt['settled_at']);
    expect(delay).toBeGreaterThan(900);
    expect(delay).toBeLessThan(1_500);
    expect(await worker.runOnce()).toBe(0);
    expect(await world.breaker()).toMatchObject({ consecutive_failures: 1 });

    await world.passTime(1_100);
    expect(await worker.runOnce()).toBe(1);
    const again = await world.request(id);
    const second = await world.attempt(id);
    expect(Number(again['not_before']) - Number(second['settled_at'])).toBeGreaterThan(1_900);
  });

  it('502, which the owner said is safe to send again, at most maxSubmissions times', async () => {
    const world = await openWorld({ provider: 'raw', operation: { resubmitOn: [502], maxSubmissions: 3 } });
    world.raw.onPost = (call) => call.answer(502);
    const id = await world.song('one');
    const worker = world.worker();

    await worker.runOnce();
    expect(await world.request(id)).toMatchObject({ state: 'queued', state_reason: 'resubmit_permitted', charge: 'none' });
    expect(await world.attempt(id)).toMatchObject({ certainty: 'refused', health: 'dependency_failure' });
    expect(await worker.runOnce()).toBe(0);
    await world.passTime(1_500);
    await worker.runOnce();
    await world.passTime(120_000);
    await worker.runOnce();

    expect(await world.request(id)).toMatchObject({ state: 'rejected', state_reason: 'max_submissions', submissions: 3 });
    await world.passTime(120_000);
    await worker.runOnce();
    expect(world.raw.posts).toHaveLength(3);
    // The breaker counted each of them.
    expect(await world.breaker()).toMatchObject({ state: 'open' });
  });
});

describe('an account that is refused', () => {
  it.each([
    [401, { code: 'invalid_api_key' }, 'key_refused', null],
    [402, { code: 'insufficient_balance' }, 'payment_required', null],
    [402, { code: 'trial_exhausted' }, 'payment_required', 'text-to-music'],
    [403, { code: 'service_not_allowed' }, 'access_denied', 'text-to-music'],
  ])('%i %o: held, the request back in the queue, nothing sent until a release', async (status, body, kind, operation) => {
    const world = await openWorld({ provider: 'raw', limits: { maxConcurrentGenerations: 1 } });
    world.raw.onPost = (call) => call.answer(status, body);
    const [first, second] = (await world.songs(2)) as [string, string];
    const worker = world.worker();

    await worker.runOnce();

    expect(await world.request(first)).toMatchObject({ state: 'queued', state_reason: 'account_refused', charge: 'none' });
    expect(await world.attempt(first)).toMatchObject({
      health: 'request_or_account_failure',
      certainty: 'refused',
      http_status: status,
    });
    expect(await world.database.query('select * from onetake.account_holds')).toMatchObject([
      { account: 'default', operation, kind, ended_at: null },
    ]);
    await world.passTime(86_400_000);
    expect(await worker.runOnce()).toBe(0);
    expect(world.raw.posts).toHaveLength(1);
    expect(await world.breaker()).toMatchObject({ state: 'closed', consecutive_failures: 0 });

    world.raw.onPost = (call) => call.accept();
    await world.client.releaseAccount('default', null, { actor: 'an operator', reason: 'paid the bill' });
    await worker.runOnce();
    await world.database.query('update onetake.submission_attempts set slot_freed_at = clock_timestamp()');
    await worker.runOnce();
    expect(world.raw.posts).toHaveLength(3);
    expect(await world.request(first)).toMatchObject({ state: 'accepted', submissions: 2, charge: 'charged' });
    expect(await world.request(second)).toMatchObject({ state: 'accepted', submissions: 1 });
  });

  it('a hold of one operation leaves the others alone', async () => {
    const world = await openWorld({ provider: 'raw' });
    world.raw.onPost = (call) => (call.path.endsWith('text-to-music') ? call.answer(403, {}) : call.accept());
    const held = await world.song('held');
    const worker = world.worker();
    await worker.runOnce();
    const other = await world.song('other', { operation: 'video-to-music' });

    await worker.runOnce();

    expect((await world.request(held))['state']).toBe('queued');
    expect((await world.request(other))['state']).toBe('accepted');
  });

  it('the answer to a POST from before a release does not hold it again', async () => {
    const world = await openWorld({ provider: 'raw' });
    world.raw.onPost = () => undefined;
    const id = await world.song('one');
    const worker = world.worker();
    const ran = worker.runOnce();
    const call = await world.raw.post(1);
    await world.client.releaseAccount('default', null, { actor: 'an operator', reason: 'a new key' });

    call.answer(401, { code: 'invalid_api_key' });
    await ran;

    expect(await world.database.query('select * from onetake.account_holds')).toEqual([]);
    expect(await world.request(id)).toMatchObject({ state: 'queued' });
  });
});

describe('429', () => {
  it.each([
    ['for the rate', { code: 'rate_limit_exceeded' }, { 'retry-after': '75' }, 'rate', 75_000],
    ['for the rate, with a Retry-After below the window', { code: 'rate_limit_exceeded' }, { 'retry-after': '3' }, 'rate', 60_000],
    ['for an unknown cause', 'slow down', {}, 'rate', 60_000],
    ['for concurrency', { message: 'Too many concurrent generations: 4 of 4 in progress' }, {}, 'concurrency', 5_000],
  ])('%s pauses the account and uses nothing up', async (_what, body, headers, kind, pauseMs) => {
    const world = await openWorld({ provider: 'raw', limits: { maxConcurrentGenerations: 1 } });
    world.raw.onPost = (call) => call.answer(429, body, headers as Record<string, string>);
    const [first, second] = (await world.songs(2)) as [string, string];
    const worker = world.worker();

    await worker.runOnce();

    expect(await world.request(first)).toMatchObject({ state: 'queued', charge: 'none' });
    expect(await world.attempt(first)).toMatchObject({ health: 'capacity_signal', certainty: 'refused' });
    const [account] = await world.database.query<{ paused_until: Date; pause_kind: string }>(
      'select paused_until, pause_kind from onetake.accounts',
    );
    expect(account?.pause_kind).toBe(kind);
    const settled = (await world.attempt(first))['settled_at'] as Date;
    const paused = Number(account?.paused_until) - Number(settled);
    expect(paused).toBeGreaterThanOrEqual(pauseMs);
    expect(paused).toBeLessThan(pauseMs + 1_000);
    expect(await worker.runOnce()).toBe(0);
    expect(await world.breaker()).toMatchObject({ state: 'closed', consecutive_failures: 0 });

    await world.passTime(pauseMs - 1_500);
    expect(await worker.runOnce()).toBe(0);
    expect(world.raw.posts).toHaveLength(1);

    await world.passTime(60_000);
    world.raw.onPost = (call) => call.accept();
    await worker.runOnce();
    await world.database.query('update onetake.submission_attempts set slot_freed_at = clock_timestamp()');
    await worker.runOnce();
    expect(world.raw.posts).toHaveLength(3);
    expect(await world.states()).toEqual({ 'song 1': 'accepted', 'song 2': 'accepted' });
    expect(await world.request(second)).toMatchObject({ submissions: 1 });
  });
});

describe('before the first byte', () => {
  it('the intent is committed, and no transaction or lock of ours is open while the POST is', async () => {
    const seen: { at: string; state: unknown; attempt: unknown; open: Row[] }[] = [];
    const look = async (at: string) => {
      const request = await world.request(id);
      const attempts = await world.attempts(id);
      seen.push({ at, state: request['state'], attempt: attempts[0]?.['attempt'], open: await openTransactions(world.database) });
      // Whoever wants the row's lock gets it at once.
      await world.database.query('select from onetake.generation_requests where id = $1 for update nowait', [id]);
      await world.database.query('select from onetake.accounts for update nowait');
      await world.database.query('select from onetake.circuit_breakers for update nowait');
    };
    let id = '';
    const world = await openWorld({
      simulator: { onFirstByte: () => look('first byte'), onPost: () => look('before the answer') },
    });
    id = await world.song('one');
    const worker = world.worker();
    await worker.start();
    await waitFor(async () => (await world.request(id))['state'] === 'accepted', { what: 'the song to be accepted' });

    expect(seen).toEqual([
      { at: 'first byte', state: 'submitting', attempt: 1, open: [] },
      { at: 'before the answer', state: 'submitting', attempt: 1, open: [] },
    ]);
    expect(await world.attempt(id)).toMatchObject({ http_status: 202 });
  });

  it('a key that is missing at that moment sends nothing and loses nothing', async () => {
    const world = await openWorld({ provider: 'raw' });
    const id = await world.song('one');
    const worker = world.worker({
      credentials: () => {
        throw new Error(API_KEY);
      },
    });

    await worker.runOnce();

    expect(world.raw.posts).toHaveLength(0);
    expect(await world.request(id)).toMatchObject({ state: 'queued', state_reason: 'unsent_own_doing', charge: 'none' });
    expect(await world.attempt(id)).toMatchObject({ health: 'none', certainty: 'unsent', error_code: 'missing_api_key' });
    expect(JSON.stringify(world.events)).not.toContain(API_KEY);
    expect(await world.breaker()).toMatchObject({ consecutive_failures: 0 });
  });

  it('a provider that throws is taken for unknown, one that lies about its evidence is still recorded', async () => {
    const world = await openWorld({ config: { accounts: { default: { provider: 'mine', apiKeyEnv: 'MY_KEY' } }, providers: { mine: { baseUrl: 'http://127.0.0.1:9' } } } });
    const answers = [
      () => Promise.reject(new Error('a bug')),
      () =>
        Promise.resolve({
          health: 'success', certainty: 'accepted', reason: 'task_accepted', alert: false, retryAfterMs: null,
          evidence: { phase: 'answered', httpStatus: 202, errorCode: 'not a plain code: sk_secret\n', providerTaskId: 'x\u0000y', responseAgeMs: 1, closed: true },
        } as const),
    ];
    const mine = {
      name: 'mine',
      submit: () => (answers.shift() as () => Promise<never>)(),
      readTask: () => Promise.reject(new Error('unused')),
      close: async () => undefined,
    };
    const worker = world.worker({ providers: { mine } });
    const thrown = await world.song('thrown');
    await worker.runOnce();
    const lied = await world.song('lied');
    await worker.runOnce();

    expect(await world.request(thrown)).toMatchObject({ state: 'ambiguous', state_reason: 'transport' });
    expect(await world.attempt(thrown)).toMatchObject({ error_code: 'provider_threw' });
    expect(await world.request(lied)).toMatchObject({ state: 'ambiguous', state_reason: 'accepted_without_task_id', charge: 'possible' });
  });
});
