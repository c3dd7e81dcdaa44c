import { describe, expect, it } from 'vitest';
import { admit } from '../../src/lifecycle/admit.ts';
import { rescue } from '../../src/lifecycle/rescue.ts';
import type { AdmittedAttempt } from '../../src/postgres/submission-attempts.ts';
import {
  answered,
  type BreakerWorld,
  between,
  COOLDOWN_MS,
  expectChain,
  openBreakerWorld,
  waitForListeners,
} from '../support/breaker-world.ts';
import { laneOf } from '../support/lifecycle-context.ts';
import { waitFor } from '../support/wait-for.ts';
import { jobRows } from '../support/world.ts';

const fails = () => answered(502);
const accepts = () => answered(202);

/** Opened while so many others of its generation were in flight. */
async function openedInFlight(world: BreakerWorld, others: number): Promise<AdmittedAttempt[]> {
  await world.songs(others + 3, 'in flight');
  const [one, two, three, ...rest] = await world.round(world.ctx, others + 3);
  for (const attempt of [one, two, three]) await world.settle(attempt as AdmittedAttempt, fails());
  expect(await world.breaker()).toMatchObject({ state: 'open' });
  return rest;
}

describe('an open breaker', () => {
  // 1.31
  it('keeps opened_at and retry_at when thirty more failures land', async () => {
    const world = await openBreakerWorld();
    const late = await openedInFlight(world, 30);
    const opened = await world.breaker();
    await Promise.all(late.map((attempt) => world.settle(attempt, fails())));
    expect(await world.breaker()).toEqual(opened);
    expect(new Set(await Promise.all(late.map((attempt) => world.effect(attempt))))).toEqual(
      new Set(['stale_generation']),
    );
    expectChain(await world.transitions(), ['failure_threshold']);
  });

  // 1.7, 2.35
  it('is not closed by the success of a submission from before; the money is recorded', async () => {
    const world = await openBreakerWorld();
    const [late] = (await openedInFlight(world, 1)) as [AdmittedAttempt];
    const opened = await world.breaker();
    await world.settle(late, accepts());
    expect(await world.breaker()).toEqual(opened);
    expect(await world.effect(late)).toBe('stale_generation');
    expect(await world.request(late.requestId)).toMatchObject({ state: 'accepted', charge: 'charged' });
  });

  // 1.32, 2.2
  it('lets every worker of every process only read: nothing is written, locked or said', async () => {
    const world = await openBreakerWorld();
    await world.opened(5);
    const processes = [world.ctx, await world.process(), await world.process()];
    await world.passTime(COOLDOWN_MS - 10_000);
    await world.expectUntouched(async () => {
      for (let n = 0; n < 3; n++) {
        for (const own of processes) {
          expect(await world.round(own)).toEqual([]);
          expect(await rescue(own)).toBe(0);
        }
      }
    });
  });

  it('refuses also who read it while it was closed, and writes nothing for it', async () => {
    const world = await openBreakerWorld();
    await world.song('one');
    const lane = await laneOf(world.ctx);
    expect(lane).toMatchObject({ breakerState: 'closed' });
    await world.database.query(`update onetake.circuit_breakers
set state = 'open', opened_at = now(), retry_at = now() + interval '30 s'`);
    await world.expectUnwritten(async () => {
      expect(await admit(world.ctx, lane, { wanted: 5 })).toMatchObject({ blockedBy: 'breaker' });
    });
  });

  it('keeps enqueue, cancel and expiry going', async () => {
    const world = await openBreakerWorld();
    await world.opened();
    const cancelled = await world.song('cancelled');
    const expiring = await world.song('expiring', { submitBefore: new Date(Date.now() + 5_000) });
    await world.client.cancel(cancelled, { actor: 'the user', reason: 'changed their mind' });
    await world.passTime(5_001);
    await rescue(world.ctx);
    expect(await world.request(cancelled)).toMatchObject({ state: 'cancelled' });
    expect(await world.request(expiring)).toMatchObject({ state: 'expired', charge: 'none' });
  });

  // 2.5, 2.16, 2.39
  it('is shut until retry_at by the database’s clock, and a probe is due from then on', async () => {
    const world = await openBreakerWorld();
    await world.opened(1);
    await world.passTime(COOLDOWN_MS - 10_000);
    expect(await world.round()).toEqual([]);
    const early = await world.status();
    expect(early).toMatchObject({ state: 'open', effective_state: 'open' });
    expect(Number(early['retry_in_ms'])).toBeGreaterThan(0);
    expect(Number(early['retry_in_ms'])).toBeLessThanOrEqual(10_000);
    await world.passTime(10_000);
    expect(await world.round()).toHaveLength(1);
  });

  // 1.16, 1.17
  it('is still stored as open when its cooldown is over and nobody asks; both are told', async () => {
    const world = await openBreakerWorld();
    const { retry_at: retryAt } = await world.opened();
    await world.passTime(COOLDOWN_MS + 1);
    const status = await world.status();
    expect(status).toMatchObject({ state: 'open', effective_state: 'probe_due', retry_in_ms: '0' });
    expect(status['why']).toMatch(
      /^open since \d\d:\d\d:\d\d: 3 dependency failures in a row \(last answer 502\), a probe is due since \d\d:\d\d:\d\d$/,
    );
    expect(between({ was: retryAt, is: status['retry_at'] }, 'is', 'was')).toBe(COOLDOWN_MS + 1);
  });

  it.each([
    [
      'its account is held',
      `insert into onetake.account_holds (account, kind, since, epoch) values ('default', 'operator', now(), 0)`,
    ],
    [
      'its account is paused',
      `update onetake.accounts set paused_until = now() + interval '1 min', pause_kind = 'rate'`,
    ],
    ['its account’s minute is spent', `update onetake.accounts set requests_per_minute = 3`],
    [
      'its account’s slots are taken',
      `with free as (update onetake.accounts set max_concurrent_generations = 3)
update onetake.submission_attempts set slot_freed_at = null`,
    ],
    [
      'its time has not come',
      `update onetake.generation_requests set not_before = now() + interval '1 min' where state = 'queued'`,
    ],
    [
      'its deadline is over',
      `update onetake.generation_requests set submit_before = now() - interval '1 s' where state = 'queued'`,
    ],
  ])('stays open, with nothing written, when the only request is not eligible: %s', async (_why, block) => {
    const world = await openBreakerWorld();
    await world.opened(1);
    await world.passTime(COOLDOWN_MS);
    await world.database.query(block);
    await world.expectUnwritten(async () => {
      expect(await world.round()).toEqual([]);
    });
    expect(await world.breaker()).toMatchObject({ state: 'open', generation: 2 });
  });

  // 1.19, 1.20, 1.22
  it('gives the probe to one of sixty-four that come for it at retry_at', async () => {
    const world = await openBreakerWorld({ breaker: { cooldownMs: 1_000 } });
    await world.opened(70);
    const processes = await Promise.all(Array.from({ length: 16 }, () => world.process({}, { poolMax: 2 })));
    for (let turn = 0; turn < 6; turn++) {
      await world.passTime(1_000);
      const jobs = await jobRows(world.database);
      const rounds = processes.flatMap((own) => [1, 2, 3, 4].map(() => world.round(own, 4)));
      const [probe, ...more] = (await Promise.all(rounds)).flat();
      expect(more).toEqual([]);
      const row = await world.breaker();
      expect(row).toMatchObject({ state: 'half_open', probe_attempt_id: probe?.attemptId });
      const left = await jobRows(world.database);
      expect(left).toHaveLength(jobs.length - 1);
      expect(jobs).toEqual(expect.arrayContaining(left));
      await world.settle(probe as AdmittedAttempt, fails());
    }
    const probes = await world.database.query('select from onetake.submission_attempts where is_probe');
    expect(probes).toHaveLength(6);
  });

  // 1.20
  it('gives it to one of two who have both seen it open, under the lock', async () => {
    const world = await openBreakerWorld();
    await world.opened(2);
    await world.passTime(COOLDOWN_MS);
    const lane = await laneOf(world.ctx);
    const ids = await world.database.query<{ id: string }>(
      `select id from onetake.generation_requests where state = 'queued' order by created_at`,
    );
    const [a, b] = [world.ctx, await world.process()];
    const results = [];
    for (const [own, { id }] of [
      [a, ids[0]],
      [b, ids[1]],
    ] as [typeof a, { id: string }][]) {
      results.push(await admit(own, lane, { wanted: 1, probeWith: id }));
    }
    expect(results[0]).toMatchObject({ attempts: [{ requestId: ids[0]?.id }] });
    expect(results[1]).toMatchObject({ blockedBy: 'breaker' });
    expect(await world.request(ids[1]?.id as string)).toMatchObject({ state: 'queued', submissions: 0 });
  });

  it.each([
    ['no notice is sent', false],
    ['the session that listens was ended', true],
  ])('is probed by a worker that is not told, since %s', async (_why, isCut) => {
    const world = await openBreakerWorld();
    await world.opened(2);
    world.raw.onPost = () => undefined;
    const worker = world.worker();
    await worker.start();
    await waitForListeners(world, 1);
    // The round that submits this one has seen when the other lane is due.
    await world.song('video', { operation: 'video-to-music' });
    await world.raw.post(1);
    if (isCut) {
      await world.database.query(`select pg_terminate_backend(pid) from pg_stat_activity
where datname = current_database() and query ilike 'listen onetake'`);
    }
    await world.database.query(`update onetake.circuit_breakers
set retry_at = clock_timestamp(), opened_at = least(opened_at, clock_timestamp()) where state = 'open'`);
    // Before the first one's deadline, whose end would wake it.
    await waitFor(() => world.raw.posts[1], { what: 'the probe', timeoutMs: 6_000 });
    expect(await world.breaker()).toMatchObject({ state: 'half_open' });
  });

  it.each(['cancelled', 'put off'])(
    'is not probed with a request that is being %s at that moment',
    async (how) => {
      const world = await openBreakerWorld();
      await world.opened();
      const leaving = await world.song('leaving');
      await world.passTime(COOLDOWN_MS);
      const operator = await world.database.pool({ max: 1 }).connect();
      await operator.query('begin');
      if (how === 'cancelled') {
        await operator.query(`select onetake.cancel_request($1, 'the user', 'changed their mind')`, [
          leaving,
        ]);
      } else {
        await operator.query(
          `update onetake.generation_requests set not_before = now() + interval '1 h' where id = $1`,
          [leaving],
        );
      }
      expect(await world.round()).toEqual([]);
      await operator.query('commit');
      operator.release();
      expect(await world.round()).toEqual([]);
      expect(await world.breaker()).toMatchObject({ state: 'open', generation: 2 });
      const next = await world.song('next');
      expect(await world.round()).toMatchObject([{ requestId: next }]);
    },
  );

  // 1.43, 2.30
  it('outlives every process: one that boots meanwhile resets nothing and keeps the cooldown', async () => {
    const world = await openBreakerWorld();
    await world.opened(1);
    await world.passTime(COOLDOWN_MS / 2);
    const opened = await world.breaker();
    const worker = world.worker();
    expect(await worker.runOnce()).toBe(0);
    expect(await world.breaker()).toEqual(opened);
    expect(world.posts()).toBe(0);
  });

  // 2.44
  it('gives one probe when all processes restart after the boundary', async () => {
    const world = await openBreakerWorld();
    await world.opened(4);
    await world.passTime(COOLDOWN_MS * 10);
    const workers = [world.worker(), world.worker(), world.worker()];
    world.raw.onPost = () => undefined;
    const ran = Promise.all(workers.map((worker) => worker.runOnce()));
    const call = await world.raw.post(1);
    expect(await world.breaker()).toMatchObject({ state: 'half_open' });
    expect(await world.worker().runOnce()).toBe(0);
    call.answer(502);
    await ran;
    expect(world.posts()).toBe(1);
  });
});
