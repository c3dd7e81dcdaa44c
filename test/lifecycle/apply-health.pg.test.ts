import { describe, expect, it, onTestFinished } from 'vitest';
import type { SubmissionOutcome } from '../../src/core/provider.ts';
import { admit } from '../../src/lifecycle/admit.ts';
import { applyHealth, reapLostProbe } from '../../src/lifecycle/apply-health.ts';
import { admitProbe } from '../../src/lifecycle/probe.ts';
import { recordOutcome } from '../../src/lifecycle/record-outcome.ts';
import { rescue } from '../../src/lifecycle/rescue.ts';
import { laneOf, lifecycleContext } from '../support/lifecycle-context.ts';
import { hold, type ProviderCall } from '../support/raw-provider.ts';
import { waitFor } from '../support/wait-for.ts';
import { jobRows, LEASE_MS, MUSIC, openWorld, type Row, type World } from '../support/world.ts';

const COOLDOWN_MS = 30_000;
const bad = (call: ProviderCall): void => call.answer(502);
const good = (call: ProviderCall): void => call.accept();

/** One POST at a time, so that outcomes come in order. */
function oneByOne(world: World) {
  return world.worker({ config: { ...world.config, worker: { concurrency: 1 } } });
}

/** A world whose breaker three failures have opened, with three more songs waiting. */
async function openedWorld(): Promise<World> {
  const world = await openWorld({ provider: 'raw' });
  world.raw.onPost = bad;
  await world.songs(6);
  const worker = oneByOne(world);
  for (let n = 0; n < 3; n++) await worker.runOnce();
  expect(await world.breaker()).toMatchObject({ state: 'open', generation: 2 });
  return world;
}

/** Numbered without a gap, and each begins where the one before has ended. */
function expectChain(transitions: readonly Row[], causes: readonly string[]): void {
  expect(transitions.map((row) => row['cause'])).toEqual(causes);
  expect(transitions.map((row) => row['number'])).toEqual(causes.map((_, index) => index + 1));
  expect(transitions.map((row) => row['generation'])).toEqual(causes.map((_, index) => index + 2));
  let state: unknown = 'closed';
  for (const row of transitions) {
    expect(row['previous_state']).toBe(state);
    state = row['next_state'];
  }
}

async function waitForSettled(world: World, count: number): Promise<void> {
  await waitFor(
    async () => {
      const settled = await world.database.query(
        'select from onetake.submission_attempts where health_applied_at is not null',
      );
      return settled.length >= count;
    },
    { what: `${count} outcomes to be applied` },
  );
}

const since = (row: Row, from: string, to: string): number => Number(row[to]) - Number(row[from]);

describe('a closed breaker', () => {
  it('opens at the third failure in a row, once, and leaves the queued jobs untouched', async () => {
    const world = await openWorld({ provider: 'raw' });
    world.raw.onPost = bad;
    const ids = await world.songs(6);
    const worker = oneByOne(world);
    await worker.runOnce();
    await worker.runOnce();
    expect(await world.breaker()).toMatchObject({ state: 'closed', consecutive_failures: 2 });
    await worker.runOnce();
    const breaker = await world.breaker();
    expect(breaker).toMatchObject({ state: 'open', consecutive_failures: 0, generation: 2 });
    expect(since(breaker, 'opened_at', 'retry_at')).toBe(COOLDOWN_MS);
    const jobs = await jobRows(world.database);
    expect(jobs).toHaveLength(3);

    for (let n = 0; n < 5; n++) expect(await worker.runOnce()).toBe(0);

    expect(await jobRows(world.database)).toEqual(jobs);
    expect(await world.breaker()).toEqual(breaker);
    expect(world.posts()).toBe(3);
    expectChain(await world.transitions(), ['failure_threshold']);
    const [transition] = await world.transitions();
    expect(transition).toMatchObject({
      outcome_kind: 'dependency_failure',
      http_status: 502,
      request_id: ids[2],
      retry_at: breaker['retry_at'],
    });
    expect(world.events.filter(({ name }) => name === 'breaker:transition')).toHaveLength(1);
  });

  it('starts its count anew at a success, and at nothing else', async () => {
    const world = await openWorld({ provider: 'raw' });
    const worker = oneByOne(world);
    const answers = [
      bad,
      bad,
      good,
      bad,
      bad,
      (call: ProviderCall) => call.answer(422, {}),
      (call: ProviderCall) => call.answer(418),
    ];
    const counts: unknown[] = [];
    for (const [n, answer] of answers.entries()) {
      world.raw.onPost = answer;
      await world.song(`song ${n}`);
      await worker.runOnce();
      counts.push((await world.breaker())['consecutive_failures']);
    }
    expect(counts).toEqual([1, 2, 0, 1, 2, 2, 2]);
    const effects = await world.database.query(
      'select health_effect from onetake.submission_attempts order by started_at',
    );
    expect(effects.map((row) => row['health_effect'])).toEqual([
      'counted',
      'counted',
      'reset',
      'counted',
      'counted',
      'neutral',
      'neutral',
    ]);
  });

  it('is not written by a success that finds nothing to reset', async () => {
    const world = await openWorld({ provider: 'raw' });
    const print = () =>
      world.database.query(
        `select xmin::text, ctid::text from onetake.circuit_breakers where name = '${MUSIC}'`,
      );
    const before = await print();
    const id = await world.song('one');
    await world.worker().runOnce();
    expect(await world.attempt(id)).toMatchObject({ health: 'success', health_effect: 'nothing_to_apply' });
    expect(await print()).toEqual(before);
  });

  it('belongs to one operation', async () => {
    const world = await openedWorld();
    world.raw.onPost = good;
    const other = await world.song('video', { operation: 'video-to-music' });
    await world.worker().runOnce();
    expect(await world.request(other)).toMatchObject({ state: 'accepted' });
    expect(world.posts()).toBe(4);
    expect(await world.breaker('sonilo/video-to-music')).toMatchObject({ state: 'closed' });
  });

  it('opens once when many fail at the same moment, and what comes later moves nothing', async () => {
    const world = await openWorld({ provider: 'raw' });
    world.raw.onPost = hold;
    await world.songs(12);
    const workers = [world.worker(), world.worker()];
    const ran = Promise.all(workers.map((worker) => worker.runOnce()));
    await world.raw.post(12);
    for (const call of world.raw.posts.slice(0, 6)) bad(call);
    await waitForSettled(world, 6);
    const opened = await world.breaker();
    expect(opened).toMatchObject({ state: 'open' });

    for (const call of world.raw.posts.slice(6, 10)) bad(call);
    for (const call of world.raw.posts.slice(10)) good(call);
    await ran;

    expect(await world.breaker()).toEqual(opened);
    expectChain(await world.transitions(), ['failure_threshold']);
    const effects = await world.database.query<{ effect: string; count: number }>(
      'select health_effect as effect, count(*)::int from onetake.submission_attempts group by 1 order by 1',
    );
    expect(effects).toEqual([
      { effect: 'counted', count: 2 },
      { effect: 'opened', count: 1 },
      { effect: 'stale_generation', count: 9 },
    ]);
    // The money is another matter: the late successes are accepted.
    expect(Object.values(await world.states()).filter((state) => state === 'accepted')).toHaveLength(2);
  });

  it('hears nothing from outcomes of an earlier time', async () => {
    const world = await openWorld({ provider: 'raw' });
    world.raw.onPost = hold;
    await world.songs(7);
    const worker = world.worker();
    const ran = worker.runOnce();
    await world.raw.post(7);
    for (const call of world.raw.posts.slice(0, 3)) bad(call);
    await waitForSettled(world, 3);
    await world.passTime(COOLDOWN_MS);
    world.raw.onPost = good;
    await world.song('probe');
    await world.worker().runOnce();
    const closed = await world.breaker();
    expect(closed).toMatchObject({ state: 'closed', generation: 4 });

    for (const call of world.raw.posts.slice(3, 6)) bad(call);
    await waitForSettled(world, 7);
    expect(await world.breaker()).toEqual(closed);
    world.raw.onPost = bad;
    await world.song('fails');
    await world.worker().runOnce();
    // Nor does a late success take a failure of now away.
    good(world.raw.posts[6] as ProviderCall);
    await ran;
    expect(await world.breaker()).toMatchObject({ state: 'closed', generation: 4, consecutive_failures: 1 });
    const stale = await world.database.query(
      `select from onetake.submission_attempts where health_effect = 'stale_generation'`,
    );
    expect(stale).toHaveLength(4);
  });

  it('is made again with the configured settings when its row is gone', async () => {
    const world = await openWorld({
      provider: 'raw',
      operation: { breaker: { failureThreshold: 1, cooldownMs: 5_000 } },
    });
    world.raw.onPost = hold;
    await world.song('one');
    const ran = world.worker().runOnce();
    const call = await world.raw.post(1);
    await world.database.query('delete from onetake.circuit_breakers');
    bad(call);
    await ran;
    expect(await world.breaker()).toMatchObject({ state: 'open', failure_threshold: 1, cooldown_ms: 5_000 });
  });
});

describe('an open breaker', () => {
  it('lets one probe through at retry_at, not a moment before', async () => {
    const world = await openedWorld();
    const workers = [world.worker(), world.worker(), world.worker()];
    const round = () => Promise.all(workers.map((worker) => worker.runOnce()));
    await world.passTime(COOLDOWN_MS - 5_000);
    await round();
    expect(world.posts()).toBe(3);
    world.raw.onPost = hold;
    await world.passTime(5_000);

    const ran = round();
    const probe = await world.raw.post(4);
    const half = await world.breaker();
    expect(half).toMatchObject({ state: 'half_open', generation: 3, retry_at: null, opened_at: null });
    const attempt = await world.attempt(half['probe_request_id'] as string);
    expect(attempt).toMatchObject({ id: half['probe_attempt_id'], is_probe: true, generation: 3 });
    expect(await world.worker().runOnce()).toBe(0);
    good(probe);
    await ran;

    expect(world.posts()).toBe(4);
    expect(await world.breaker()).toMatchObject({ state: 'closed', generation: 4, consecutive_failures: 0 });
    expectChain(await world.transitions(), ['failure_threshold', 'probe_granted', 'probe_succeeded']);
    world.raw.onPost = good;
    await world.worker().runOnce();
    expect(world.posts()).toBe(6);
  });

  it.each([
    ['fails', bad, 'probe_failed', 'ambiguous'],
    ['is refused as a request', (call: ProviderCall) => call.answer(422, {}), 'probe_neutral', 'rejected'],
    ['meets a 429', (call: ProviderCall) => call.answer(429, {}), 'probe_neutral', 'queued'],
    ['has its key refused', (call: ProviderCall) => call.answer(401, {}), 'probe_neutral', 'queued'],
    [
      'gets an answer that nobody has reviewed',
      (call: ProviderCall) => call.answer(418),
      'probe_neutral',
      'ambiguous',
    ],
  ])('opens again, for a whole cooldown, when its probe %s', async (_what, answer, cause, state) => {
    const world = await openedWorld();
    await world.passTime(COOLDOWN_MS);
    world.raw.onPost = answer;
    const worker = oneByOne(world);

    await worker.runOnce();

    const breaker = await world.breaker();
    expect(breaker).toMatchObject({ state: 'open', generation: 4 });
    expect(since(breaker, 'opened_at', 'retry_at')).toBe(COOLDOWN_MS);
    expectChain(await world.transitions(), ['failure_threshold', 'probe_granted', cause]);
    const probe = (await world.transitions())[1]?.['request_id'] as string;
    expect(await world.request(probe)).toMatchObject({ state });
    expect(await worker.runOnce()).toBe(0);
    expect(world.posts()).toBe(4);
  });

  it('is opened again by the end of a lost probe’s lease; its request is frozen, and its late answer moves no breaker', async () => {
    const world = await openedWorld();
    await world.passTime(COOLDOWN_MS);
    world.raw.onPost = hold;
    const lost = oneByOne(world);
    const ran = lost.runOnce();
    const probe = await world.raw.post(4);
    const id = (await world.breaker())['probe_request_id'] as string;
    await world.passTime(LEASE_MS + 1);

    const others = [world.worker(), world.worker()];
    await Promise.all(others.map((worker) => worker.runOnce()));

    const reopened = await world.breaker();
    expect(reopened).toMatchObject({ state: 'open', generation: 4 });
    expect(await world.request(id)).toMatchObject({
      state: 'ambiguous',
      state_reason: 'worker_lost',
      charge: 'possible',
    });
    expectChain(await world.transitions(), ['failure_threshold', 'probe_granted', 'probe_lost']);
    good(probe);
    await ran;
    expect(await world.breaker()).toEqual(reopened);
    expect(await world.request(id)).toMatchObject({ state: 'accepted', charge: 'charged', submissions: 1 });
    expect(world.posts()).toBe(4);
  });

  it('takes evidence that is there already before it calls a probe lost', async () => {
    const world = await openedWorld();
    await world.passTime(COOLDOWN_MS);
    const ctx = await context(world);
    const probe = await admitProbe(ctx, 'sonilo', 'text-to-music');
    if (probe === undefined) throw new Error('no probe');
    const [attempt] = probe.batch.attempts as [(typeof probe.batch.attempts)[number]];
    await ctx.database.transaction((tx) => recordOutcome(ctx, tx, attempt, ACCEPTED, 'worker'));
    await world.passTime(LEASE_MS + 1);

    // Its worker died between the money and the health.
    const reaped = await Promise.all([1, 2, 3].map(() => reapLostProbe(ctx, MUSIC, attempt.attemptId)));

    expect(reaped.filter(Boolean)).toHaveLength(1);
    expectChain(await world.transitions(), ['failure_threshold', 'probe_granted', 'probe_succeeded']);
  });

  it('does not keep enqueue, cancel and expiry from going on', async () => {
    const world = await openedWorld();
    const submitBefore = new Date(Date.now() + 5_000);
    const expiring = await world.song('expiring', { submitBefore });
    const cancelled = await world.song('cancelled');
    await world.client.cancel(cancelled, { actor: 'the user', reason: 'changed their mind' });
    await world.passTime(5_001);

    await world.worker().runOnce();

    expect(await world.request(expiring)).toMatchObject({ state: 'expired', charge: 'none' });
    expect(await world.request(cancelled)).toMatchObject({ state: 'cancelled' });
    expect(world.posts()).toBe(3);
  });
});

describe('the health of one attempt', () => {
  it('is applied once, however many apply it', async () => {
    const world = await openWorld({ provider: 'raw' });
    const ctx = await context(world);
    const attempt = await settledAttempt(world, ctx);

    await Promise.all(Array.from({ length: 6 }, () => applyHealth(ctx, attempt)));

    expect(await world.breaker()).toMatchObject({ consecutive_failures: 1 });
  });

  it('is applied by rescue when its worker died between the money and the health, in the order of the outcomes', async () => {
    const world = await openWorld({ provider: 'raw' });
    const ctx = await context(world);
    for (let n = 0; n < 3; n++) await settledAttempt(world, ctx);
    expect(await world.breaker()).toMatchObject({ state: 'closed', consecutive_failures: 0 });

    await Promise.all([rescue(ctx), rescue(ctx)]);

    expect(await world.breaker()).toMatchObject({ state: 'open' });
    expectChain(await world.transitions(), ['failure_threshold']);
  });

  it('is not applied before its outcome is settled', async () => {
    const world = await openWorld({ provider: 'raw' });
    const ctx = await context(world);
    await world.song('one');
    const batch = await admit(ctx, await laneOf(ctx), { wanted: 1 });
    if (!('attempts' in batch)) throw new Error('not admitted');
    await applyHealth(ctx, batch.attempts[0]?.attemptId as string);
    expect((await world.attempts(batch.attempts[0]?.requestId as string))[0]).toMatchObject({
      health_applied_at: null,
    });
  });
});

const ACCEPTED: SubmissionOutcome = {
  health: 'success',
  certainty: 'accepted',
  reason: 'task_accepted',
  alert: false,
  retryAfterMs: null,
  evidence: {
    phase: 'answered',
    httpStatus: 202,
    errorCode: null,
    providerTaskId: 'a-task',
    responseAgeMs: 1,
    closed: true,
  },
};

const BAD_GATEWAY: SubmissionOutcome = {
  health: 'dependency_failure',
  certainty: 'unknown',
  reason: 'server_error',
  alert: false,
  retryAfterMs: null,
  evidence: {
    phase: 'answered',
    httpStatus: 502,
    errorCode: null,
    providerTaskId: null,
    responseAgeMs: 1,
    closed: true,
  },
};

async function context(world: World) {
  const ctx = await lifecycleContext({
    connectionString: world.database.connectionString,
    config: world.config,
  });
  onTestFinished(() => ctx.stop());
  return ctx;
}

/** B1 of a failure has been committed, and B2 has not. */
async function settledAttempt(world: World, ctx: Awaited<ReturnType<typeof context>>): Promise<string> {
  await world.song(`song ${Math.random()}`);
  const batch = await admit(ctx, await laneOf(ctx), { wanted: 1 });
  if (!('attempts' in batch)) throw new Error('not admitted');
  const [attempt] = batch.attempts as [(typeof batch.attempts)[number]];
  await ctx.database.transaction((tx) => recordOutcome(ctx, tx, attempt, BAD_GATEWAY, 'worker'));
  return attempt.attemptId;
}
