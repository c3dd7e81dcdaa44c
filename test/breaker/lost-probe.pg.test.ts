import { describe, expect, it } from 'vitest';
import { reapLostProbe } from '../../src/lifecycle/apply-health.ts';
import { recordOutcome } from '../../src/lifecycle/record-outcome.ts';
import { rescue } from '../../src/lifecycle/rescue.ts';
import {
  answered,
  type BreakerWorld,
  between,
  COOLDOWN_MS,
  expectChain,
  halfOpen,
  LEASE_MS,
} from '../support/breaker-world.ts';
import { MUSIC, type Row } from '../support/world.ts';

const fails = () => answered(502);
const accepts = () => answered(202);
const PROBED = ['failure_threshold', 'probe_granted'];

describe('a half-open breaker whose prober is gone', () => {
  const lose = async (world: BreakerWorld): Promise<void> => world.passTime(LEASE_MS + 1);

  // 1.13
  it('is overdue from the end of the lease on, and names no instant that is past', async () => {
    const { world } = await halfOpen();
    await lose(world);
    const status = await world.status();
    expect(status).toMatchObject({
      state: 'half_open',
      effective_state: 'probe_overdue',
      retry_at: null,
      retry_in_ms: null,
    });
    expect(status['why']).toMatch(/^half open: the probe of \d\d:\d\d:\d\d is overdue$/);
  });

  // 1.9, 1.15, 1.16, 2.26, 2.47
  it('opens again; the request is frozen, never queued, and nobody probes before a whole cooldown', async () => {
    const { world, probe } = await halfOpen(2);
    await lose(world);
    await rescue(world.ctx);

    const row = await world.breaker();
    expect(row).toMatchObject({ state: 'open', generation: 4, failed_probes: 1 });
    expect(between(row, 'opened_at', 'retry_at')).toBe(COOLDOWN_MS);
    expectChain(await world.transitions(), [...PROBED, 'probe_lost']);
    expect(await world.request(probe.requestId)).toMatchObject({
      state: 'ambiguous',
      state_reason: 'worker_lost',
    });
    expect((await world.status())['why']).toContain("the probe's worker was lost");
    expect(await world.round()).toEqual([]);
    await world.passTime(COOLDOWN_MS);
    const [second, ...more] = await world.round();
    expect(more).toEqual([]);
    expect(second?.requestId).not.toBe(probe.requestId);
  });

  // 1.4
  it('is closed by the second probe alone, when the lost one answers after all', async () => {
    const { world, probe } = await halfOpen(2);
    await lose(world);
    await rescue(world.ctx);
    const second = await world.probe();
    const before = await world.breaker();
    await world.settle(probe, accepts());
    expect(await world.breaker()).toEqual(before);
    expect(await world.request(probe.requestId)).toMatchObject({ state: 'accepted', charge: 'charged' });
    await world.settle(second, accepts());
    expect(await world.breaker()).toMatchObject({ state: 'closed', generation: 6 });
  });

  it.each([
    ['success', accepts, 'probe_succeeded', 'closed'],
    ['failure', fails, 'probe_failed', 'open'],
  ])(
    'takes a %s that is on the attempt already, before it calls the probe lost',
    async (_what, outcome, cause, state) => {
      const { world, probe } = await halfOpen();
      await world.ctx.database.transaction((tx) => recordOutcome(world.ctx, tx, probe, outcome(), 'worker'));
      await lose(world);
      const other = await world.process();
      await Promise.all([
        reapLostProbe(world.ctx, MUSIC, probe.attemptId),
        reapLostProbe(other, MUSIC, probe.attemptId),
        rescue(world.ctx),
        rescue(other),
      ]);
      expect(await world.breaker()).toMatchObject({ state, generation: 4 });
      expectChain(await world.transitions(), [...PROBED, cause]);
      expect(world.transitionEvents()).toHaveLength(3);
    },
  );

  it('is opened again once by two rescuers, with one event', async () => {
    const { world } = await halfOpen(3);
    const others = await Promise.all([1, 2, 3].map(() => world.process()));
    await lose(world);
    await Promise.all([world.ctx, ...others].map((own) => rescue(own)));
    expectChain(await world.transitions(), [...PROBED, 'probe_lost']);
    expect(world.transitionEvents().map(({ cause }) => cause)).toEqual([...PROBED, 'probe_lost']);
  });

  it('is opened again by the reaper alone, which leaves the request to rescue', async () => {
    const { world, probe } = await halfOpen();
    await lose(world);
    expect(await reapLostProbe(world.ctx, MUSIC, probe.attemptId)).toBe(true);
    expect(await world.breaker()).toMatchObject({ state: 'open' });
    expect(await world.request(probe.requestId)).toMatchObject({ state: 'submitting' });
    await rescue(world.ctx);
    expect(await world.request(probe.requestId)).toMatchObject({ state: 'ambiguous' });
    expect(await world.effect(probe)).toBe('stale_generation');
    expectChain(await world.transitions(), [...PROBED, 'probe_lost']);
  });

  it('is left alone while the lease runs, also by a reaper that was called for another probe', async () => {
    const { world, probe } = await halfOpen();
    await world.expectUnwritten(async () => {
      expect(await reapLostProbe(world.ctx, MUSIC, probe.attemptId)).toBe(false);
      expect(await reapLostProbe(world.ctx, MUSIC, '00000000-0000-4000-8000-000000000000')).toBe(false);
    });
  });

  it('waits for a worker that is settling the probe at this moment, and takes its word', async () => {
    const { world, probe } = await halfOpen();
    await lose(world);
    const other = await world.process();
    const settled = world.ctx.database.transaction(async (tx) => {
      const recorded = await recordOutcome(world.ctx, tx, probe, accepts(), 'worker');
      const rescued = rescue(other);
      return { recorded, rescued };
    });
    await (await settled).rescued;
    await rescue(other);
    expect(await world.breaker()).toMatchObject({ state: 'closed' });
    expectChain(await world.transitions(), [...PROBED, 'probe_succeeded']);
  });

  it('is opened again when its probe’s attempt has vanished', async () => {
    const { world } = await halfOpen();
    await world.database.query('delete from onetake.submission_attempts where is_probe');
    expect(await world.status()).toMatchObject({
      effective_state: 'probe_overdue',
      why: 'half open: the probe is lost',
    } satisfies Row);
    await rescue(world.ctx);
    expect(await world.breaker()).toMatchObject({ state: 'open', generation: 4 });
  });
});
