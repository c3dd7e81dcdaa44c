import { describe, expect, it } from 'vitest';
import type { SubmissionOutcome } from '../../src/core/provider.ts';
import { recordOutcome } from '../../src/lifecycle/record-outcome.ts';
import { rescue } from '../../src/lifecycle/rescue.ts';
import type { AdmittedAttempt } from '../../src/postgres/submission-attempts.ts';
import { answered, type BreakerWorld, expectChain, openBreakerWorld } from '../support/breaker-world.ts';
import { databaseTimePasses } from '../support/fleet.ts';
import { waitFor } from '../support/wait-for.ts';
import { lockRows, MUSIC, waitForBlocked } from '../support/world.ts';

const fails = () => answered(502);
const accepts = () => answered(202);

/** Admitted together; settled one after another while somebody holds the breaker's row, which is free afterwards. */
async function settledBehindLock(
  world: BreakerWorld,
  outcomes: readonly SubmissionOutcome[],
): Promise<AdmittedAttempt[]> {
  await world.songs(outcomes.length);
  const attempts = await world.round(world.ctx, outcomes.length);
  const processes = await Promise.all(outcomes.map(() => world.process({}, { poolMax: 2 })));
  const release = await lockRows(world.database, 'select from onetake.circuit_breakers');
  const settles: Promise<void>[] = [];
  for (const [n, attempt] of attempts.entries()) {
    const settling = world.settle(attempt, outcomes[n] as SubmissionOutcome, processes[n]);
    settles.push(settling);
    await waitFor(async () => (await world.attempt(attempt.requestId))['settled_at'], {
      what: `outcome ${n + 1} to be recorded`,
    });
    // The next one comes when this one has its place in the queue for the lock, or needs none.
    await Promise.race([settling, waitForBlocked(world.database, n + 1)]);
  }
  await release();
  await Promise.all(settles);
  return attempts;
}

const effects = (world: BreakerWorld, attempts: readonly AdmittedAttempt[]) =>
  Promise.all(attempts.map((attempt) => world.effect(attempt)));

describe('a closed breaker whose row somebody holds', () => {
  it('does not open on three failures that a success has broken, though all four waited for its lock', async () => {
    const world = await openBreakerWorld();
    const attempts = await settledBehindLock(world, [fails(), fails(), accepts(), fails()]);
    expect(await effects(world, attempts)).toEqual(['counted', 'counted', 'reset', 'counted']);
    expect(await world.breaker()).toMatchObject({ state: 'closed', consecutive_failures: 1, transitions: 0 });
  });

  it('opens on three failures that came before a success, and not on the next two', async () => {
    const world = await openBreakerWorld();
    const attempts = await settledBehindLock(world, [fails(), fails(), fails(), accepts(), fails(), fails()]);
    expect(await effects(world, attempts)).toEqual([
      'counted',
      'counted',
      'opened',
      'stale_generation',
      'stale_generation',
      'stale_generation',
    ]);
    expectChain(await world.transitions(), ['failure_threshold']);
  });

  it('holds up no acceptance when nothing that failed is before it', async () => {
    const world = await openBreakerWorld();
    const attempt = await world.admitted();
    const release = await lockRows(world.database, 'select from onetake.circuit_breakers');
    await world.settle(attempt, accepts());
    await release();
    expect(await world.effect(attempt)).toBe('nothing_to_apply');
  });

  it('holds up no acceptance for a failure of another operation', async () => {
    const world = await openBreakerWorld();
    const attempt = await world.admitted();
    const video = await world.admitted({ operation: 'video-to-music' });
    const release = await lockRows(world.database, 'select from onetake.circuit_breakers');
    const failing = world.settle(video, fails());
    await waitForBlocked(world.database, 1);
    await world.settle(attempt, accepts());
    expect(await world.effect(attempt)).toBe('nothing_to_apply');
    await release();
    await failing;
    expect(await world.breaker('sonilo/video-to-music')).toMatchObject({ consecutive_failures: 1 });
  });

  it('has all that waited applied by whoever gets its lock first', async () => {
    const world = await openBreakerWorld({ breaker: { failureThreshold: 9 } });
    const attempts = await settledBehindLock(world, [fails(), fails(), accepts(), fails(), answered(422)]);
    expect(attempts).toHaveLength(5);
    const writers = await world.database.query('select distinct xmin::text from onetake.submission_attempts');
    expect(writers).toHaveLength(1);
    expect(await world.breaker()).toMatchObject({ consecutive_failures: 1 });
  });
});

/** The worker dies between the money and the health. */
async function recorded(world: BreakerWorld, outcome: SubmissionOutcome): Promise<AdmittedAttempt> {
  const attempt = await world.admitted();
  await world.ctx.database.transaction((tx) => recordOutcome(world.ctx, tx, attempt, outcome, 'worker'));
  return attempt;
}

describe('a closed breaker whose workers died before they could tell it', () => {
  it('counts their failures before the success that was settled after them', async () => {
    const world = await openBreakerWorld();
    const dead = [await recorded(world, fails()), await recorded(world, fails())];
    const success = await world.admitted();
    await world.settle(success, accepts());
    expect(await effects(world, [...dead, success])).toEqual(['counted', 'counted', 'reset']);
    await world.each(fails());
    await rescue(world.ctx);
    expect(await world.breaker()).toMatchObject({ state: 'closed', consecutive_failures: 1 });
  });

  it('opens by them, though each success since was settled by somebody who lives', async () => {
    const world = await openBreakerWorld();
    const dead = [];
    for (let n = 0; n < 3; n++) dead.push(await recorded(world, fails()));
    await world.each(accepts());
    expect(await effects(world, dead)).toEqual(['counted', 'counted', 'opened']);
    expect(await world.breaker()).toMatchObject({ state: 'open' });
    expectChain(await world.transitions(), ['failure_threshold']);
    expect(world.transitionEvents()).toMatchObject([{ number: 1, requestId: dead[2]?.requestId }]);
  });

  it('is told once by several rescuers, in the order of the settles', async () => {
    const world = await openBreakerWorld({ breaker: { failureThreshold: 4 } });
    const dead: AdmittedAttempt[] = [];
    for (const outcome of [fails, accepts, fails, fails, () => answered(422), fails]) {
      dead.push(await recorded(world, outcome()));
    }
    const rescuers = await Promise.all([1, 2, 3].map(() => world.process()));
    await Promise.all(rescuers.map((own) => rescue(own)));
    expect(await effects(world, dead)).toEqual([
      'counted',
      'reset',
      'counted',
      'counted',
      'neutral',
      'counted',
    ]);
    expect(await world.breaker()).toMatchObject({ state: 'closed', consecutive_failures: 3 });
  });

  it('is told of twelve hundred in the same order, a part of them at a time', async () => {
    const world = await openBreakerWorld();
    await world.database.query(`with made as (
  insert into onetake.generation_requests (account, operation, request_key, fields, payload_digest)
  select 'default', 'text-to-music', n::text, '{"prompt": "a song"}', repeat('0', 64) from generate_series(1, 1200) n
  returning id, request_key::int as n
)
insert into onetake.submission_attempts (id, request_id, attempt, account, operation, breaker_name, generation,
  hold_epoch, is_probe, worker, started_at, lease_expires_at, window_until, slot_until, quarantine_until,
  settled_at, settled_by, phase, health, certainty, reason)
select gen_random_uuid(), id, 1, 'default', 'text-to-music', '${MUSIC}', 1, 0, false, 'dead', now(), now(), now(), now(),
  now(), now() - interval '1 min' + n * interval '1 ms', 'worker', 'answered',
  case when n % 3 = 0 and n < 1200 then 'success' else 'dependency_failure' end, 'unknown', 'server_error'
from made`);
    await rescue(world.ctx);
    const told =
      await world.database.query(`select health_effect as effect, count(*)::int as n, min(request_key::int) as first
from onetake.submission_attempts a join onetake.generation_requests r on r.id = a.request_id group by 1 order by 3`);
    expect(told).toEqual([
      { effect: 'counted', n: 800, first: 1 },
      { effect: 'reset', n: 399, first: 3 },
      { effect: 'opened', n: 1, first: 1200 },
    ]);
    expectChain(await world.transitions(), ['failure_threshold']);
  });

  it('waits for none of them that somebody has locked, and is told of that one later', async () => {
    const world = await openBreakerWorld();
    const locked = await recorded(world, fails());
    const other = await recorded(world, fails());
    const release = await lockRows(world.database, 'select from onetake.submission_attempts where id = $1', [
      locked.attemptId,
    ]);
    await rescue(world.ctx);
    expect(await effects(world, [locked, other])).toEqual([null, 'counted']);
    await release();
    await rescue(world.ctx);
    expect(await effects(world, [locked])).toEqual(['counted']);
    expect(await world.breaker()).toMatchObject({ consecutive_failures: 2 });
  });
});

describe('a closed breaker, while an acceptance waits for the row of its own request,', () => {
  /** The acceptance is settled when somebody gives its request back; what it saw of the breaker is old by then. */
  async function settledAfter(world: BreakerWorld, meanwhile: () => Promise<unknown>) {
    const success = await world.admitted();
    const release = await lockRows(world.database, 'select from onetake.generation_requests where id = $1', [
      success.requestId,
    ]);
    const settling = world.settle(success, accepts());
    await waitForBlocked(world.database, 1);
    await meanwhile();
    await databaseTimePasses(world, 200);
    await release();
    await settling;
    return success;
  }

  it('is reset by it when failures were counted meanwhile', async () => {
    const world = await openBreakerWorld();
    await world.songs(2);
    const failing = await world.round(world.ctx, 2);
    const success = await settledAfter(world, async () => {
      for (const attempt of failing) await world.settle(attempt, fails());
    });
    expect(await effects(world, [...failing, success])).toEqual(['counted', 'counted', 'reset']);
    expect(await world.breaker()).toMatchObject({ state: 'closed', consecutive_failures: 0 });
  });

  it('says that it came under an override which was laid over it meanwhile', async () => {
    const world = await openBreakerWorld();
    const success = await settledAfter(world, () =>
      world.client.overrideBreaker({ name: MUSIC, mode: 'forced_open', actor: 'op', reason: 'test' }),
    );
    expect(await world.effect(success)).toBe('under_override');
  });
});
