import { randomUUID } from 'node:crypto';
import { describe, expect, it } from 'vitest';
import { admit } from '../../src/lifecycle/admit.ts';
import { applyHealth } from '../../src/lifecycle/apply-health.ts';
import { recordOutcome } from '../../src/lifecycle/record-outcome.ts';
import { rescue } from '../../src/lifecycle/rescue.ts';
import { submit } from '../../src/lifecycle/submit.ts';
import type { AdmittedAttempt } from '../../src/postgres/submission-attempts.ts';
import {
  answered,
  type BreakerWorld,
  between,
  broken,
  COOLDOWN_MS,
  expectChain,
  NEUTRAL,
  openBreakerWorld,
} from '../support/breaker-world.ts';
import { laneOf } from '../support/lifecycle-context.ts';
import { deadlocks, LEASE_MS } from '../support/world.ts';

const fails = () => answered(502);
const accepts = () => answered(202);

/** So many in flight at once. */
async function inFlight(world: BreakerWorld, count: number): Promise<AdmittedAttempt[]> {
  await world.songs(count, `song ${randomUUID()}`);
  const attempts = await world.round(world.ctx, count);
  expect(attempts).toHaveLength(count);
  return attempts;
}

const effectsOf = (world: BreakerWorld, attempts: readonly AdmittedAttempt[]) =>
  Promise.all(attempts.map((attempt) => world.effect(attempt)));

describe('a closed breaker', () => {
  // 2.1
  it('is what a new operation begins with', async () => {
    const world = await openBreakerWorld();
    expect(await world.breaker()).toMatchObject({
      state: 'closed',
      generation: 1,
      consecutive_failures: 0,
      transitions: 0,
      ramp_acceptances: null,
    });
    expect(await world.status()).toMatchObject({
      effective_state: 'closed',
      why: 'closed: submissions flow',
      retry_in_ms: null,
    });
  });

  // 2.5
  it('opens at exactly the threshold-th failure in a row, for exactly one cooldown', async () => {
    const world = await openBreakerWorld({ breaker: { failureThreshold: 5 } });
    await world.each(...Array.from({ length: 4 }, fails), accepts(), ...Array.from({ length: 4 }, fails));
    expect(await world.breaker()).toMatchObject({ state: 'closed', generation: 1, consecutive_failures: 4 });
    expect(await world.status()).toMatchObject({ why: 'closed: 4 of 5 dependency failures in a row' });
    await world.each(fails());
    const row = await world.breaker();
    expect(row).toMatchObject({ state: 'open', generation: 2, consecutive_failures: 0, failed_probes: 0 });
    expect(between(row, 'opened_at', 'retry_at')).toBe(COOLDOWN_MS);
    expectChain(await world.transitions(), ['failure_threshold']);
  });

  // 2.4
  it('counts one failure after five successes as a row of one', async () => {
    const world = await openBreakerWorld();
    await world.each(...Array.from({ length: 5 }, accepts), fails());
    expect(await world.breaker()).toMatchObject({ state: 'closed', consecutive_failures: 1 });
  });

  // 2.8, 2.43
  it('neither counts a neutral outcome nor lets it break the row', async () => {
    const world = await openBreakerWorld();
    await world.each(fails(), fails());
    for (const [what, outcome] of Object.entries(NEUTRAL)) {
      const attempt = await world.admitted();
      await world.settle(attempt, outcome());
      expect([what, await world.effect(attempt)]).toEqual([what, 'neutral']);
      expect(await world.breaker()).toMatchObject({ state: 'closed', consecutive_failures: 2 });
      // What it did to the account and to its request is another matter, and would be in the way here.
      await world.client.releaseAccount('default', null, { actor: 'test', reason: 'next' });
      await world.database.query('update onetake.accounts set paused_until = null, pause_kind = null');
      await world.database.query(`update onetake.generation_requests
set state = 'cancelled', settled_at = now(), job_due = false where state = 'queued'`);
      await world.database.query(`delete from onetake_queue.job`);
    }
    await world.each(fails());
    expect(await world.breaker()).toMatchObject({ state: 'open' });
  });

  it('counts a transport failure whether or not a byte has left', async () => {
    const world = await openBreakerWorld();
    await world.each(broken('transport'), broken('unsent'));
    expect(await world.breaker()).toMatchObject({ consecutive_failures: 2 });
  });

  it('counts outcomes in the order in which they are settled, not in that of their admission', async () => {
    const world = await openBreakerWorld();
    const [first, second, third, fourth] = (await inFlight(world, 4)) as [
      AdmittedAttempt,
      AdmittedAttempt,
      AdmittedAttempt,
      AdmittedAttempt,
    ];
    await world.settle(fourth, fails());
    await world.settle(third, fails());
    await world.settle(first, accepts());
    await world.settle(second, fails());
    expect(await effectsOf(world, [fourth, third, first, second])).toEqual([
      'counted',
      'counted',
      'reset',
      'counted',
    ]);
    expect(await world.breaker()).toMatchObject({ state: 'closed', consecutive_failures: 1 });
  });

  // 1.33, 1.39, 2.40
  it('opens once when failures arrive together from many processes', async () => {
    const world = await openBreakerWorld();
    const attempts = await inFlight(world, 16);
    const processes = await Promise.all([1, 2, 3, 4].map(() => world.process()));
    await Promise.all(attempts.map((attempt, n) => world.settle(attempt, fails(), processes[n % 4])));

    const row = await world.breaker();
    expect(row).toMatchObject({ state: 'open', generation: 2, transitions: 1 });
    expect(between(row, 'opened_at', 'retry_at')).toBe(COOLDOWN_MS);
    expectChain(await world.transitions(), ['failure_threshold']);
    expect(world.transitionEvents()).toHaveLength(1);
    const effects = await effectsOf(world, attempts);
    expect(effects.filter((effect) => effect === 'counted')).toHaveLength(2);
    expect(effects.filter((effect) => effect === 'opened')).toHaveLength(1);
    expect(effects.filter((effect) => effect === 'stale_generation')).toHaveLength(13);
  });

  // 1.38
  it('never opens on a row that a success has broken, whichever of the two comes first', async () => {
    const world = await openBreakerWorld({ breaker: { failureThreshold: 2 } });
    const other = await world.process();
    for (let n = 0; n < 12; n++) {
      const [last, success] = (await inFlight(world, 2)) as [AdmittedAttempt, AdmittedAttempt];
      await world.each(fails());
      const { generation } = await world.breaker();
      await Promise.all([world.settle(last, fails()), world.settle(success, accepts(), other)]);
      const row = await world.breaker();
      const effects = await effectsOf(world, [last, success]);
      if (row['state'] === 'open') expect(effects).toEqual(['opened', 'stale_generation']);
      else {
        expect(effects).toEqual(['counted', 'reset']);
        expect(row).toMatchObject({ generation, consecutive_failures: 1 });
      }
      await world.database.query(`update onetake.circuit_breakers
set state = 'closed', opened_at = null, retry_at = null, consecutive_failures = 0`);
    }
  });

  // 1.47
  it('counts each POST of one request, once', async () => {
    const world = await openBreakerWorld({ operation: { resubmitOn: [503], maxSubmissions: 9 } });
    const id = await world.song('one');
    for (let n = 0; n < 3; n++) {
      const [attempt] = (await world.round()) as [AdmittedAttempt];
      expect(attempt.requestId).toBe(id);
      await world.settle(attempt, answered(503, { resubmitOn: [503] }));
      await world.settle(attempt, answered(503, { resubmitOn: [503] }));
      await applyHealth(world.ctx, attempt.attemptId);
      await world.passTime(4_000);
    }
    expect(await world.breaker()).toMatchObject({ state: 'open' });
    expect(await world.attempts(id)).toMatchObject([
      { health_effect: 'counted' },
      { health_effect: 'counted' },
      { health_effect: 'opened' },
    ]);
  });

  // 2.11
  it('counts a provider that throws once, and its attempt is settled', async () => {
    const world = await openBreakerWorld();
    const attempt = await world.admitted();
    const provider = { submit: () => Promise.reject(new Error('a fault of the adapter')) };
    const ctx = await world.process({ providerNamed: () => provider as never });
    await world.settle(attempt, await submit(ctx, attempt, 'sonilo', () => true), ctx);
    expect(await world.attempt(attempt.requestId)).toMatchObject({
      error_code: 'provider_threw',
      health: 'dependency_failure',
      health_effect: 'counted',
    });
    expect(await world.breaker()).toMatchObject({ consecutive_failures: 1 });
  });

  it('applies each outcome once, however many processes apply it', async () => {
    const world = await openBreakerWorld();
    const attempt = await world.admitted();
    await world.ctx.database.transaction((tx) => recordOutcome(world.ctx, tx, attempt, fails(), 'worker'));
    const other = await world.process();
    await Promise.all(
      [1, 2, 3, 4, 5, 6].map((n) => applyHealth(n % 2 ? world.ctx : other, attempt.attemptId)),
    );
    expect(await world.breaker()).toMatchObject({ consecutive_failures: 1 });
  });

  it('is opened by rescue when the workers died between the money and the health', async () => {
    const world = await openBreakerWorld();
    for (const attempt of await inFlight(world, 3)) {
      await world.ctx.database.transaction((tx) => recordOutcome(world.ctx, tx, attempt, fails(), 'worker'));
    }
    expect(await world.breaker()).toMatchObject({ state: 'closed', consecutive_failures: 0 });
    const other = await world.process();
    await Promise.all([rescue(world.ctx), rescue(other)]);
    expectChain(await world.transitions(), ['failure_threshold']);
    expect(world.transitionEvents()).toHaveLength(1);
  });

  it('learns nothing from a submission whose worker was lost', async () => {
    const world = await openBreakerWorld();
    const attempts = await inFlight(world, 4);
    await world.passTime(LEASE_MS + 1);
    await rescue(world.ctx);
    expect(await effectsOf(world, attempts)).toEqual(['neutral', 'neutral', 'neutral', 'neutral']);
    expect(await world.breaker()).toMatchObject({ state: 'closed', consecutive_failures: 0 });
  });

  // 2.23
  it('grants no probe, and is not changed by who comes for one', async () => {
    const world = await openBreakerWorld();
    const id = await world.song('one');
    const lane = await laneOf(world.ctx);
    await world.expectUnwritten(async () => {
      const result = await admit(world.ctx, lane, { wanted: 1, probeWith: id });
      expect(result).toEqual({ blockedBy: 'breaker' });
    });
  });

  // 2.42
  it('begins each count anew at a transition, whatever was counted before', async () => {
    const world = await openBreakerWorld();
    await world.closedAgain();
    await world.each(fails(), fails());
    expect(await world.breaker()).toMatchObject({ state: 'closed', consecutive_failures: 2 });
    await world.each(fails());
    expect(await world.breaker()).toMatchObject({ state: 'open', generation: 5 });
  });

  // 1.1
  it('counts nothing that was admitted before the outage, and says so on the attempt', async () => {
    const world = await openBreakerWorld({ breaker: { failureThreshold: 1, cooldownMs: 1_000 } });
    const [first, ...late] = await inFlight(world, 4);
    await world.settle(first as AdmittedAttempt, fails());
    await world.song('probe');
    await world.settle(await world.probe(), accepts());
    await world.database.query('update onetake.circuit_breakers set ramp_acceptances = null');
    const closed = await world.breaker();
    for (const [n, outcome] of [fails(), accepts(), answered(422)].entries()) {
      await world.settle(late[n] as AdmittedAttempt, outcome);
    }
    expect(await world.breaker()).toEqual(closed);
    expect(await effectsOf(world, late)).toEqual([
      'stale_generation',
      'stale_generation',
      'stale_generation',
    ]);
  });

  it('belongs to one operation: another one of the same account is neither blocked nor counted', async () => {
    const world = await openBreakerWorld();
    await world.opened(1);
    const before = await world.breaker();
    const video = () => world.admitted({ operation: 'video-to-music' });
    await world.settle(await video(), accepts());
    await world.settle(await video(), fails());
    expect(await world.breaker('sonilo/video-to-music')).toMatchObject({
      state: 'closed',
      consecutive_failures: 1,
    });
    expect(await world.breaker()).toEqual(before);
  });

  // 1.44
  it('is locked in one order by those who admit and those who settle: nobody deadlocks', async () => {
    const world = await openBreakerWorld({ breaker: { failureThreshold: 2, cooldownMs: 100 } });
    await world.songs(48);
    const processes = await Promise.all([1, 2, 3, 4].map(() => world.process()));
    let n = 0;
    await Promise.all(
      processes.map(async (own) => {
        for (let turn = 0; turn < 12; turn++) {
          const attempts = await world.round(own, 3);
          const outcomes = attempts.map(() =>
            n++ % 3 === 0 ? accepts() : n % 7 === 0 ? answered(429) : fails(),
          );
          await Promise.all(attempts.map((one, i) => world.settle(one, outcomes[i] as never, own)));
          await rescue(own);
          await world.database.query('update onetake.accounts set paused_until = null, pause_kind = null');
        }
      }),
    );
    const transitions = await world.transitions();
    expectChain(
      transitions,
      transitions.map((row) => row['cause'] as string),
    );
    expect(transitions.length).toBeGreaterThan(2);
    expect(world.transitionEvents()).toHaveLength(transitions.length);
    for (const one of [world.ctx, ...processes]) await one.stop();
    expect(await deadlocks(world.database)).toBe(0);
  });
});
