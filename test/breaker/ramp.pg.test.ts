import { describe, expect, it } from 'vitest';
import { rescue } from '../../src/lifecycle/rescue.ts';
import type { AdmittedAttempt } from '../../src/postgres/submission-attempts.ts';
import {
  answered,
  COOLDOWN_MS,
  freezeTimers,
  LEASE_MS,
  openBreakerWorld,
  waitForListeners,
} from '../support/breaker-world.ts';
import { waitFor } from '../support/wait-for.ts';

const fails = () => answered(502);
const accepts = () => answered(202);

describe('a breaker that has just closed', () => {
  it('lets two be in flight, and two more for each acceptance since', async () => {
    const world = await openBreakerWorld();
    await world.closedAgain(40);
    expect(await world.breaker()).toMatchObject({ ramp_acceptances: 0 });
    expect(await world.status()).toMatchObject({
      why: 'closed: ramping up, at most 2 submissions in flight',
    });
    const flying: AdmittedAttempt[] = [];
    const limits: number[] = [];
    for (let n = 0; n < 4; n++) {
      flying.push(...(await world.round(world.ctx, 40)));
      limits.push(flying.length);
      await world.settle(flying.shift() as AdmittedAttempt, accepts());
    }
    expect(limits).toEqual([2, 4, 6, 8]);
    expect(await world.breaker()).toMatchObject({ ramp_acceptances: 4 });
  });

  it('counts what is in flight over all accounts and processes', async () => {
    const world = await openBreakerWorld();
    await world.closedAgain(5);
    for (const name of ['a', 'b', 'c']) {
      await world.client.upsertAccount({
        name,
        provider: 'sonilo',
        requestsPerMinute: 60,
        maxConcurrentGenerations: 9,
      });
      for (let n = 0; n < 4; n++) await world.song(`${name} ${n}`, { account: name });
    }
    const processes = await Promise.all([1, 2, 3, 4].map(() => world.process()));
    const rounds = await Promise.all(processes.map((own) => world.round(own)));
    expect(rounds.flat()).toHaveLength(2);
    for (const own of processes) expect(await world.round(own)).toEqual([]);
  });

  it('refuses beyond that without a write', async () => {
    const world = await openBreakerWorld();
    await world.closedAgain(5);
    expect(await world.round()).toHaveLength(2);
    await world.expectUntouched(async () => {
      for (let n = 0; n < 3; n++) expect(await world.round()).toEqual([]);
    });
    const waiting = await world.client.list({ state: 'queued' } as never);
    expect(waiting[0]).toMatchObject({ waitingFor: 'breaker closed again: submissions ramp up' });
  });

  it('gives the place of one that ended in any way to the next, and grows by acceptances alone', async () => {
    const world = await openBreakerWorld({ breaker: { failureThreshold: 9 } });
    await world.closedAgain(20);
    for (const outcome of [answered(422), answered(418), fails()]) {
      const [one, two] = (await world.round()) as [AdmittedAttempt, AdmittedAttempt];
      await world.settle(one, outcome);
      const next = await world.round();
      expect(next).toHaveLength(1);
      await world.settle(two, outcome);
      await world.settle(next[0] as AdmittedAttempt, outcome);
    }
    expect(await world.breaker()).toMatchObject({ ramp_acceptances: 0, consecutive_failures: 3 });
  });

  it('gives the places of lost workers to the next once their leases are over, and grows no less for it', async () => {
    const world = await openBreakerWorld();
    await world.closedAgain(12);
    const lost = await world.round(world.ctx, 10);
    expect(lost).toHaveLength(2);
    await world.passTime(LEASE_MS - 5_000);
    await rescue(world.ctx);
    expect(await world.round()).toEqual([]);
    await world.passTime(5_001);
    await rescue(world.ctx);
    const next = await world.round(world.ctx, 10);
    expect(next).toHaveLength(2);
    for (const attempt of next) await world.settle(attempt, accepts());
    // What a lost one knows after all is late, and makes no room.
    await world.settle(lost[0] as AdmittedAttempt, accepts());
    expect(await world.breaker()).toMatchObject({ state: 'closed', ramp_acceptances: 2 });
    expect(await world.round(world.ctx, 10)).toHaveLength(6);
  });

  it('does not grow by the late acceptance of a submission from before the outage', async () => {
    const world = await openBreakerWorld({ breaker: { failureThreshold: 1, cooldownMs: 100 } });
    await world.songs(2, 'before');
    const [late, failed] = (await world.round()) as [AdmittedAttempt, AdmittedAttempt];
    await world.settle(failed, fails());
    await world.songs(1, 'probe');
    await world.settle(await world.probe(), accepts());
    await world.settle(late, accepts());
    expect(await world.effect(late)).toBe('stale_generation');
    expect(await world.breaker()).toMatchObject({ state: 'closed', ramp_acceptances: 0 });
  });

  it('opens at its threshold like any closed one, and the next close begins the ramp anew', async () => {
    const world = await openBreakerWorld();
    await world.closedAgain(30);
    for (let n = 0; n < 3; n++) {
      const [one] = (await world.round(world.ctx, 1)) as [AdmittedAttempt];
      await world.settle(one, accepts());
    }
    for (let n = 0; n < 3; n++) {
      const [one] = (await world.round(world.ctx, 1)) as [AdmittedAttempt];
      await world.settle(one, fails());
    }
    expect(await world.breaker()).toMatchObject({ state: 'open', ramp_acceptances: null });
    await world.passTime(COOLDOWN_MS);
    const [probe] = (await world.round()) as [AdmittedAttempt];
    await world.settle(probe, accepts());
    expect(await world.breaker()).toMatchObject({ state: 'closed', ramp_acceptances: 0 });
    expect(await world.round()).toHaveLength(2);
  });

  it('is limited no more once more than a thousand would be allowed', async () => {
    const world = await openBreakerWorld();
    await world.closedAgain(60);
    await world.database.query(
      'update onetake.circuit_breakers set ramp_acceptances = 499 where ramp_acceptances = 0',
    );
    await world.settle((await world.round(world.ctx, 1))[0] as AdmittedAttempt, accepts());
    expect(await world.breaker()).toMatchObject({ ramp_acceptances: null });
    expect(await world.round(world.ctx, 50)).toHaveLength(50);
  });

  it('has no ramp when it has never opened', async () => {
    const world = await openBreakerWorld();
    await world.songs(20);
    expect(await world.round(world.ctx, 20)).toHaveLength(20);
  });

  it('has no ramp while it is forced closed', async () => {
    const world = await openBreakerWorld();
    await world.closedAgain(10);
    await world.client.overrideBreaker({
      name: 'sonilo/text-to-music',
      mode: 'forced_closed',
      actor: 'op',
      reason: 'the backlog must go',
    });
    expect(await world.round(world.ctx, 10)).toHaveLength(10);
  });

  it('tells every worker of each acceptance, since there is room for more', async () => {
    const world = await openBreakerWorld();
    await world.closedAgain(3);
    const [one] = (await world.round(world.ctx, 1)) as [AdmittedAttempt];
    const listener = await world.database.pool({ max: 1 }).connect();
    const heard: (string | undefined)[] = [];
    listener.on('notification', ({ payload }) => heard.push(payload));
    await listener.query('listen onetake');
    await world.settle(one, accepts());
    await waitFor(() => heard.includes('slot'), { what: 'the notice' });
    listener.release(true);
  });

  it('fills the slots of every worker, told of each acceptance without a timer of its own', async () => {
    const world = await openBreakerWorld();
    await world.opened(12);
    await world.passTime(COOLDOWN_MS);
    world.raw.onPost = () => undefined;
    const workers = [1, 2].map(() =>
      world.worker({ config: { ...world.config, worker: { ...world.config.worker, concurrency: 2 } } }),
    );
    freezeTimers(world);
    for (const worker of workers) await worker.start();
    await waitForListeners(world, 2);
    (await world.raw.post(1)).accept();
    const first = await world.raw.post(2);
    await world.raw.post(3);
    first.accept();
    // One of three is done, and each worker has two slots.
    await world.raw.post(6);
    expect(workers.map((worker) => worker.inFlight)).toEqual([2, 2]);
  });
});
