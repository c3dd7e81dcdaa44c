import { describe, expect, it } from 'vitest';
import { admit } from '../../src/lifecycle/admit.ts';
import { rescue } from '../../src/lifecycle/rescue.ts';
import { settle } from '../../src/lifecycle/settle.ts';
import { type AttemptWorld, OPERATOR, openAttemptWorld } from '../support/attempts.ts';
import { laneOf } from '../support/lifecycle-context.ts';
import { acceptedAs, answeredWith, GATE_CLOSED, outcomeOf, refusedWith } from '../support/outcomes.ts';
import { LEASE_MS, openWorld } from '../support/world.ts';

const LIMITS = { requestsPerMinute: 1_000, maxConcurrentGenerations: 50 };
const BREAKER = { breaker: { failureThreshold: 1_000 } };

/** A worker round as often as anything goes out. */
async function drain(world: Awaited<ReturnType<typeof openWorld>>, rounds = 12): Promise<void> {
  const worker = world.worker();
  for (let round = 0; round < rounds; round++) {
    await worker.runOnce();
    await world.passTime(6_000);
  }
}

const liveHolds = (world: AttemptWorld | Awaited<ReturnType<typeof openWorld>>) =>
  world.database.query(
    'select kind, operation from onetake.account_holds where ended_at is null and coalesce(until > now(), true)',
  );

async function countStates(world: Awaited<ReturnType<typeof openWorld>>): Promise<Record<string, number>> {
  const counts: Record<string, number> = {};
  for (const state of Object.values(await world.states())) counts[state] = (counts[state] ?? 0) + 1;
  return counts;
}

describe('after a wrong release', () => {
  it.each([
    [401, 1, 1],
    [402, 3, 1],
    [403, 3, 1],
  ])('%i: a queue loses one request and spends few POSTs', async (status, posts, rejected) => {
    const world = await openWorld({ provider: 'raw', limits: LIMITS });
    world.raw.onPost = (call) => call.answer(status, { code: 'refused' });
    const ids = await world.songs(30);
    await world.worker().runOnce();
    expect(await liveHolds(world)).toHaveLength(1);
    const before = world.posts();

    await world.client.releaseAccount('default', null, OPERATOR);
    await drain(world);

    expect(world.posts() - before).toBe(posts);
    expect(await liveHolds(world)).toHaveLength(1);
    expect(await countStates(world)).toEqual({ queued: ids.length - rejected, rejected });
    expect(
      await world.database.query(
        `select state_reason, charge from onetake.generation_requests where state = 'rejected'`,
      ),
    ).toEqual([{ state_reason: 'account_refused', charge: 'none' }]);
  });

  it('each further one costs one more', async () => {
    const world = await openWorld({ provider: 'raw', limits: LIMITS });
    world.raw.onPost = (call) => call.answer(402, { code: 'insufficient_balance' });
    await world.songs(20);
    await world.worker().runOnce();
    const before = world.posts();
    for (let release = 1; release <= 3; release++) {
      await world.client.releaseAccount('default', null, OPERATOR);
      await drain(world, 6);
      expect(world.posts() - before).toBe(3 * release);
      expect((await countStates(world))['rejected']).toBe(release);
    }
  });
});

describe('after a release', () => {
  it('lets one request go first, and the rest once it was accepted', async () => {
    const world = await openWorld({ provider: 'raw', limits: LIMITS });
    world.raw.onPost = (call) => call.answer(402, { code: 'insufficient_balance' });
    const ids = await world.songs(10);
    const worker = world.worker();
    await worker.runOnce();
    const before = world.posts();
    world.raw.onPost = (call) => call.accept();
    await world.client.releaseAccount('default', null, OPERATOR);

    await worker.runOnce();
    expect(world.posts() - before).toBe(1);
    await worker.runOnce();
    expect(world.posts() - before).toBeGreaterThan(2);
    await drain(world, 4);
    expect(await countStates(world)).toEqual({ accepted: ids.length });
  });

  it('lets a request that is too dear cost only itself', async () => {
    const world = await openWorld({ provider: 'raw', limits: { ...LIMITS, maxConcurrentGenerations: 1 } });
    world.raw.onPost = (call) =>
      call.body.includes('dear') ? call.answer(402, { code: 'insufficient_balance' }) : call.accept();
    const dear = await world.song('dear');
    const others = await world.songs(6);
    await world.worker().runOnce();
    expect(await liveHolds(world)).toHaveLength(1);

    await world.client.releaseAccount('default', null, OPERATOR);
    for (let round = 0; round < 10; round++) {
      await world.worker().runOnce();
      await world.database.query(
        `update onetake.submission_attempts set slot_freed_at = now() where certainty = 'accepted'`,
      );
    }

    expect(await world.request(dear)).toMatchObject({ state: 'rejected', state_reason: 'account_refused' });
    for (const id of others) expect(await world.request(id)).toMatchObject({ state: 'accepted' });
    expect(await liveHolds(world)).toEqual([]);
  });

  it('two processes at once send one', async () => {
    const world = await openAttemptWorld({ limits: LIMITS });
    await world.songs(4);
    const held = await world.admitted();
    await settle(world.ctx, held, refusedWith(401));
    await world.client.releaseAccount('default', null, OPERATOR);
    const lane = await laneOf(world.ctx);
    const results = await Promise.all(Array.from({ length: 4 }, () => admit(world.ctx, lane, { wanted: 4 })));
    expect(results.flatMap((result) => ('attempts' in result ? result.attempts : []))).toHaveLength(1);
    expect(results.filter((result) => 'blockedBy' in result && result.blockedBy === 'trial')).toHaveLength(3);
  });

  it.each([
    ['was not sent', GATE_CLOSED],
    ['has an unknown outcome', answeredWith(502)],
    ['was refused for itself', refusedWith(400)],
  ])('the next goes alone when the first %s', async (_what, outcome) => {
    const world = await openAttemptWorld({ limits: LIMITS, operation: BREAKER });
    await world.songs(5);
    await settle(world.ctx, await world.admitted(), refusedWith(401));
    await world.client.releaseAccount('default', null, OPERATOR);
    const first = await world.admitted();
    expect(await admit(world.ctx, await laneOf(world.ctx), { wanted: 4 })).toMatchObject({
      blockedBy: 'trial',
    });
    await settle(world.ctx, first, outcome);

    const next = await admit(world.ctx, await laneOf(world.ctx), { wanted: 4 });
    expect('attempts' in next && next.attempts).toHaveLength(1);
  });

  it('the next goes alone when the process of the first is lost', async () => {
    const world = await openAttemptWorld({ limits: LIMITS });
    await world.songs(5);
    await settle(world.ctx, await world.admitted(), refusedWith(401));
    await world.client.releaseAccount('default', null, OPERATOR);
    await world.admitted();
    await world.passTime(LEASE_MS + 1);
    await rescue(world.ctx);

    const next = await admit(world.ctx, await laneOf(world.ctx), { wanted: 4 });
    expect('attempts' in next && next.attempts).toHaveLength(1);
  });

  it.each([
    ['started', 'stream_started', 'success'],
    ['failed by its first event', 'stream_failed', 'dependency_failure'],
  ] as const)('the rest follow a stream that %s: it was accepted', async (_how, reason, health) => {
    // Nothing is stored in this test.
    const config = { storage: { directory: 'unused' } };
    const world = await openAttemptWorld({ limits: LIMITS, operation: BREAKER, config });
    for (const key of ['a', 'b', 'c', 'd', 'e']) await world.song(key, { mode: 'stream' });
    await settle(world.ctx, await world.admitted(), refusedWith(402));
    await world.client.releaseAccount('default', null, OPERATOR);
    await settle(world.ctx, await world.admitted(), outcomeOf({ reason, health }, { httpStatus: 200 }));

    const rest = await admit(world.ctx, await laneOf(world.ctx), { wanted: 3 });
    expect('attempts' in rest && rest.attempts).toHaveLength(3);
    if (!('attempts' in rest)) return;
    // And the next refusal holds at once, as ever.
    for (const attempt of rest.attempts.slice(0, 1)) await settle(world.ctx, attempt, refusedWith(402));
    expect(await liveHolds(world)).toHaveLength(1);
  });

  it('an acceptance of a POST from before the hold proves nothing', async () => {
    const world = await openAttemptWorld({ limits: LIMITS });
    await world.songs(6);
    const early = await world.admitted();
    await settle(world.ctx, await world.admitted(), refusedWith(401));
    await world.client.releaseAccount('default', null, OPERATOR);
    await settle(world.ctx, early, acceptedAs('task-early'));

    const next = await admit(world.ctx, await laneOf(world.ctx), { wanted: 4 });
    expect('attempts' in next && next.attempts).toHaveLength(1);
  });
});

describe('a hold that ends by its time', () => {
  it('lets one go first too, and the answer to a POST from before its end holds nothing', async () => {
    const world = await openAttemptWorld({ limits: LIMITS });
    await world.songs(6);
    const early = await world.admitted();
    await world.database.query(
      `insert into onetake.account_holds (account, kind, since, until, epoch)
values ('default', 'operator', clock_timestamp(), clock_timestamp() + interval '10 s', 0)`,
    );
    expect(await admit(world.ctx, await laneOf(world.ctx), { wanted: 4 })).toMatchObject({
      blockedBy: 'held',
    });
    await world.passTime(10_001);
    await settle(world.ctx, early, refusedWith(401));
    expect(await liveHolds(world)).toEqual([]);

    const next = await admit(world.ctx, await laneOf(world.ctx), { wanted: 4 });
    if (!('attempts' in next)) throw new Error(next.blockedBy);
    expect(next.attempts).toHaveLength(1);
    for (const attempt of next.attempts) await settle(world.ctx, attempt, acceptedAs('task-1'));
    const rest = await admit(world.ctx, await laneOf(world.ctx), { wanted: 3 });
    expect('attempts' in rest && rest.attempts).toHaveLength(3);
  });
});
