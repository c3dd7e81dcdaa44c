import { describe, expect, it } from 'vitest';
import type { ProviderCall } from '../support/raw-provider.ts';
import { IMPATIENT, MUSIC, openWorld, type Row } from '../support/world.ts';

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
  attempt: {
    phase: 'answered',
    health: 'success',
    certainty: 'accepted',
    reason: 'task_accepted',
    error_code: null,
  },
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
  attempt: {
    phase: 'answered',
    health: 'request_or_account_failure',
    certainty: 'refused',
    reason: 'request_refused',
  },
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
  attempt: {
    phase: 'answered',
    health: 'unknown_failure',
    certainty: 'unknown',
    reason: 'unreviewed_status',
  },
  failures: 0,
  slotFreed: false,
};

const TRANSPORT: Expected = {
  state: 'ambiguous',
  reason: 'transport',
  charge: 'possible',
  attempt: {
    phase: 'sent',
    health: 'dependency_failure',
    certainty: 'unknown',
    reason: 'transport',
    http_status: null,
  },
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
  ...[400, 413, 422].map(
    (status): Case => [String(status), (call) => call.answer(status, { detail: 'no' }), REJECTED],
  ),
  ...[500, 502, 503, 504].map(
    (status): Case => [String(status), (call) => call.answer(status, '<h1>Bad</h1>'), SERVER_ERROR],
  ),
  ['503 with Retry-After', (call) => call.answer(503, '', { 'retry-after': '1' }), SERVER_ERROR],
  ...[404, 405, 409, 415, 418].map(
    (status): Case => [String(status), (call) => call.answer(status), UNREVIEWED],
  ),
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
    expect(request).toMatchObject({
      state: expected.state,
      state_reason: expected.reason,
      charge: expected.charge,
    });
    const attempt = await world.attempt(id);
    expect(attempt).toMatchObject({
      ...expected.attempt,
      settled_by: 'worker',
      attempt: 1,
      breaker_name: MUSIC,
    });
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

  it('a code that repeats the prompt: neither stored nor told', async () => {
    const world = await openWorld({ provider: 'raw' });
    const prompt = 'canary_prompt_42';
    world.raw.onPost = (call) => call.answer(422, { code: prompt });
    const id = await world.song('one', { prompt });

    await world.worker().runOnce();

    expect(await world.request(id)).toMatchObject({ state: 'rejected', state_reason: 'request_refused' });
    expect(await world.attempt(id)).toMatchObject({ http_status: 422, error_code: null });
    expect(JSON.stringify(world.events)).not.toContain(prompt);
    // Any other code is.
    world.raw.onPost = (call) => call.answer(422, { code: 'prompt_rejected' });
    const other = await world.song('two', { prompt });
    await world.worker().runOnce();
    expect(await world.attempt(other)).toMatchObject({ error_code: 'prompt_rejected' });
  });

  it('silence, until the deadline', async () => {
    const world = await openWorld({ provider: 'raw', operation: IMPATIENT });
    world.raw.onPost = () => undefined;
    const id = await world.song('one');

    await world.worker().runOnce();

    expect(await world.request(id)).toMatchObject({
      state: 'ambiguous',
      state_reason: 'transport',
      charge: 'possible',
    });
    expect(await world.attempt(id)).toMatchObject({
      ...TRANSPORT.attempt,
      error_code: 'first_response_deadline',
      slot_freed_at: null,
    });
    expect(await world.breaker()).toMatchObject({ consecutive_failures: 1 });
    expect(world.raw.posts).toHaveLength(1);
  });
});
