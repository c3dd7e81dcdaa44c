import { beforeEach, describe, expect, it } from 'vitest';
import type { SubmissionOutcome } from '../../src/core/provider.ts';
import { rescue } from '../../src/lifecycle/rescue.ts';
import { settle } from '../../src/lifecycle/settle.ts';
import { type Attempt, openSpoolWorld, type SpoolWorld } from '../support/spool-world.ts';
import { answered, RESET, UNSENT } from '../support/spooled.ts';
import { LEASE_MS, type Row } from '../support/world.ts';

// A database that a backup or a stale standby brought back: transaction A of an attempt is gone, its request is
// queued as if nothing had been sent, and only the outcome in memory or in the spool tells of a paid POST.

const OPERATOR = { actor: 'an operator', reason: 'looked it up in the ledger' };
const ALERT = 'submission:alert';

let world: SpoolWorld;

beforeEach(async () => {
  world = await openSpoolWorld();
});

/** What admission wrote of an attempt, without what its outcome writes. */
function termsOf(row: Row): Row {
  const terms: Record<string, unknown> = {};
  const names = [
    'id',
    'request_id',
    'attempt',
    'account',
    'operation',
    'breaker_name',
    'generation',
    'override',
  ];
  names.push(
    'hold_epoch',
    'is_probe',
    'worker',
    'started_at',
    'lease_expires_at',
    'slot_until',
    'quarantine_until',
  );
  for (const name of names) terms[name] = row[name];
  return terms;
}

async function letEverybodyTry(): Promise<void> {
  await world.confirmed();
  const worker = world.worker();
  for (let n = 0; n < 3; n++) {
    await worker.runOnce();
    await world.passTime(30_000);
  }
}

const byWorker = (attempt: Attempt, outcome: SubmissionOutcome) => settle(world.ctx, attempt, outcome);
const byReplay = async (attempt: Attempt, outcome: SubmissionOutcome) => {
  await world.leaves(attempt, outcome);
  await world.replay();
  expect(await world.files()).toEqual([]);
};

describe.each([
  ['its live worker', byWorker],
  ['a replay', byReplay],
])('an attempt that the database has lost, told by %s', (_who, tell) => {
  it.each<[string, SubmissionOutcome, object]>([
    [
      'an acceptance',
      answered(202, 'a-task'),
      { state: 'accepted', provider_task_id: 'a-task', charge: 'charged' },
    ],
    ['a 422', answered(422), { state: 'rejected', state_reason: 'request_refused', charge: 'none' }],
    ['a 429', answered(429), { state: 'queued', state_reason: 'rate_limited', charge: 'none' }],
    ['a 502', answered(502), { state: 'ambiguous', state_reason: 'intent_lost', charge: 'possible' }],
    [
      'a 2xx without an id',
      answered(200),
      { state: 'ambiguous', state_reason: 'intent_lost', charge: 'possible' },
    ],
    ['a reset', RESET, { state: 'ambiguous', state_reason: 'intent_lost', charge: 'possible' }],
  ])('is written again, and its request follows the table: %s', async (_what, outcome, request) => {
    const attempt = await world.submitting('one');
    const before = await world.attempt(attempt.requestId);
    await world.lose(attempt);
    await tell(attempt, outcome);
    expect(await world.request(attempt.requestId)).toMatchObject({ submissions: 1, ...request });
    const after = await world.attempt(attempt.requestId);
    expect(termsOf(after)).toEqual(termsOf(before));
    expect(after).toMatchObject({
      settled_by: 'worker',
      certainty: outcome.certainty,
      reason: outcome.reason,
    });
    // What this database's breaker is like says nothing of the one that it was sent under.
    expect(await world.breaker()).toMatchObject({ state: 'closed', consecutive_failures: 0 });
    expect(after['health_applied_at']).not.toBeNull();
    expect(world.seen('submission:settled')).toMatchObject([{ from: 'queued' }]);
    expect(world.seen(ALERT).map(({ reason }) => reason)).toEqual(['intent_lost']);
    // Nothing is sent for it by whoever finds the old job, unless the provider refused it for now.
    if (request !== undefined && !('charge' in request && request.charge === 'none')) {
      await letEverybodyTry();
      expect(world.posts()).toBe(0);
    }
  });

  it('is frozen also when its request waits by a re-arm that came before it', async () => {
    const first = await world.submitting('one');
    await settle(world.ctx, first, RESET);
    await world.client.resolve({ id: first.requestId, as: 'not_accepted', ...OPERATOR });
    await rescue(world.ctx);
    const second = await world.admitted();
    await world.lose(second);
    await world.database.query(
      `update onetake.generation_requests set state_reason = 'rearmed' where id = $1`,
      [second.requestId],
    );
    await tell(second, answered(502));
    expect(await world.request(second.requestId)).toMatchObject({
      state: 'ambiguous',
      state_reason: 'intent_lost',
      submissions: 2,
    });
    expect((await world.attempts(second.requestId)).map((row) => row['attempt'])).toEqual([1, 2]);
  });

  it('keeps its slot and its place in the provider’s minute', async () => {
    const attempt = await world.submitting('one');
    const before = await world.attempt(attempt.requestId);
    await world.lose(attempt);
    await tell(attempt, RESET);
    expect(await world.attempt(attempt.requestId)).toMatchObject({
      slot_freed_at: null,
      slot_until: before['slot_until'],
      window_until: before['window_until'],
    });
  });

  it('is accepted though its request was withdrawn meanwhile: that is said, and charged', async () => {
    const attempt = await world.submitting('one');
    await world.lose(attempt);
    await world.client.cancel(attempt.requestId, OPERATOR);
    await tell(attempt, answered(202, 'a-task'));
    expect(await world.request(attempt.requestId)).toMatchObject({
      state: 'cancelled',
      attention: 'paid_though_withdrawn',
      charge: 'charged',
    });
  });

  it('is unknown and its request was withdrawn meanwhile: it may be charged', async () => {
    const attempt = await world.submitting('one');
    await world.lose(attempt);
    await world.client.cancel(attempt.requestId, OPERATOR);
    await tell(attempt, RESET);
    expect(await world.request(attempt.requestId)).toMatchObject({ state: 'cancelled', charge: 'possible' });
  });
});

describe('a lost attempt of which nothing was sent', () => {
  it('leaves no trace when its live worker says so: the database is right', async () => {
    const attempt = await world.submitting('one');
    await world.lose(attempt);
    const events = world.events.length;
    await settle(world.ctx, attempt, UNSENT);
    expect(await world.request(attempt.requestId)).toMatchObject({ state: 'queued', submissions: 0 });
    expect(await world.attempts(attempt.requestId)).toEqual([]);
    expect(world.events).toHaveLength(events);
  });

  it('was perhaps never committed: a file that says so leaves no trace either, and doubts nobody', async () => {
    const attempt = await world.submitting('one');
    await world.lose(attempt);
    await byReplay({ ...attempt, isUnconfirmed: true }, UNSENT);
    expect(await world.request(attempt.requestId)).toMatchObject({ state: 'queued', submissions: 0 });
    expect(await world.attempts(attempt.requestId)).toEqual([]);
    expect(world.seen(ALERT)).toEqual([]);
    const worker = world.worker();
    await worker.runOnce();
    expect(world.posts()).toBe(1);
  });

  it('is frozen when only a file says so', async () => {
    const attempt = await world.submitting('one');
    await world.lose(attempt);
    await byReplay(attempt, UNSENT);
    expect(await world.request(attempt.requestId)).toMatchObject({
      state: 'ambiguous',
      state_reason: 'intent_lost',
      charge: 'possible',
    });
    expect(await world.attempt(attempt.requestId)).toMatchObject({ phase: 'unsent', certainty: 'unknown' });
  });
});

describe('a request that was submitted again before its lost attempt came to light', () => {
  let lost: Attempt;
  let later: Attempt;

  beforeEach(async () => {
    lost = await world.submitting('one');
    await world.lose(lost);
    later = await world.admitted();
    expect(later).toMatchObject({ requestId: lost.requestId, attempt: 1 });
  });

  const numbers = async () =>
    (await world.attempts(lost.requestId)).map((row) => [row['attempt'], row['id'] === later.attemptId]);

  it('has been paid twice when both are accepted, and says so', async () => {
    await byReplay(lost, answered(202, 'the-lost'));
    expect(await world.request(lost.requestId)).toMatchObject({
      state: 'submitting',
      attention: 'possibly_paid_twice',
      submissions: 1,
    });
    expect(await numbers()).toEqual([
      [0, false],
      [1, true],
    ]);
    await settle(world.ctx, later, answered(202, 'the-later'));
    expect(await world.request(lost.requestId)).toMatchObject({
      state: 'accepted',
      provider_task_id: 'the-later',
      attention: 'possibly_paid_twice',
      charge: 'charged',
    });
  });

  it.each([422, 429])('takes the lost task when the later one bought nothing (%i)', async (status) => {
    await byReplay(lost, answered(202, 'the-lost'));
    await settle(world.ctx, later, answered(status));
    expect(await world.request(lost.requestId)).toMatchObject({
      state: 'accepted',
      provider_task_id: 'the-lost',
      charge: 'charged',
    });
    await letEverybodyTry();
    expect(world.posts()).toBe(0);
  });

  it('is frozen instead of sent a third time, once, when the lost one is unknown', async () => {
    await byReplay(lost, RESET);
    expect(await world.request(lost.requestId)).toMatchObject({ state: 'submitting' });
    await settle(world.ctx, later, answered(429));
    expect(await world.request(lost.requestId)).toMatchObject({
      state: 'ambiguous',
      state_reason: 'intent_lost',
      charge: 'possible',
    });
    await letEverybodyTry();
    expect(world.posts()).toBe(0);
    // An operator who knows of it permits another, and that one is like any other.
    await world.client.resolve({ id: lost.requestId, as: 'not_accepted', ...OPERATOR });
    await world.passTime(900_000);
    await rescue(world.ctx);
    await world.confirmed();
    const third = await world.admitted();
    expect(third).toMatchObject({ requestId: lost.requestId, attempt: 2 });
    await settle(world.ctx, third, answered(429));
    expect(await world.request(lost.requestId)).toMatchObject({
      state: 'queued',
      state_reason: 'rate_limited',
    });
  });

  it('is frozen when it has come back to the queue already', async () => {
    await settle(world.ctx, later, answered(429));
    await byReplay(lost, RESET);
    expect(await world.request(lost.requestId)).toMatchObject({
      state: 'ambiguous',
      state_reason: 'intent_lost',
    });
  });

  it('is accepted as the lost task when it has come back to the queue already', async () => {
    await settle(world.ctx, later, answered(429));
    await byReplay(lost, answered(202, 'the-lost'));
    expect(await world.request(lost.requestId)).toMatchObject({
      state: 'accepted',
      provider_task_id: 'the-lost',
    });
  });

  it('is not rejected by what the lost one was refused for', async () => {
    await settle(world.ctx, later, answered(429));
    await byReplay(lost, answered(422));
    expect(await world.request(lost.requestId)).toMatchObject({ state: 'queued' });
  });

  it('numbers each lost attempt below all others, whatever number it had', async () => {
    const more = [
      { ...lost, attemptId: crypto.randomUUID(), attempt: 2 },
      { ...lost, attemptId: crypto.randomUUID(), attempt: 1 },
    ];
    for (const one of [lost, ...more]) await byReplay(one, RESET);
    expect(await numbers()).toEqual([
      [-2, false],
      [-1, false],
      [0, false],
      [1, true],
    ]);
    await settle(world.ctx, later, answered(202, 'the-later'));
    expect(await world.request(lost.requestId)).toMatchObject({ state: 'accepted', submissions: 1 });
  });
});

it('a lost attempt keeps its number when earlier ones are missing too, and they come in below it', async () => {
  const attempt = await world.submitting('one');
  await world.lose(attempt);
  await byReplay({ ...attempt, attempt: 3 }, RESET);
  const earlier = {
    ...attempt,
    attemptId: crypto.randomUUID(),
    attempt: 2,
    startedAt: new Date(attempt.startedAt.getTime() - 60_000),
  };
  await byReplay(earlier, answered(422));
  expect((await world.attempts(attempt.requestId)).map((row) => row['attempt'])).toEqual([2, 3]);
  expect(await world.request(attempt.requestId)).toMatchObject({ state: 'ambiguous', submissions: 3 });
});

it('a late outcome that the lease has run out on is no lost attempt', async () => {
  const attempt = await world.submitting('one');
  await world.passTime(LEASE_MS + 1);
  await rescue(world.ctx);
  await byReplay(attempt, RESET);
  expect(await world.attempts(attempt.requestId)).toHaveLength(1);
  expect(world.seen(ALERT)).toEqual([]);
});
