import { describe, expect, it } from 'vitest';
import { rescue } from '../../src/lifecycle/rescue.ts';
import {
  answered,
  type BreakerWorld,
  between,
  broken,
  COOLDOWN_MS,
  LEASE_MS,
  openBreakerWorld,
} from '../support/breaker-world.ts';

const fails = () => answered(502);
const accepts = () => answered(202);

describe('an open breaker whose probes fail', () => {
  const failedProbes = async (world: BreakerWorld, count: number): Promise<number[]> => {
    const cooldowns: number[] = [];
    for (let n = 0; n < count; n++) {
      await world.settle(await world.probe(), fails());
      cooldowns.push(between(await world.breaker(), 'opened_at', 'retry_at'));
    }
    return cooldowns;
  };

  // 1.36, 2.29, 2.37
  it('waits longer from probe to probe, up to the cap, and begins anew after a close', async () => {
    const world = await openBreakerWorld({
      breaker: { cooldownMs: 1_000, cooldownGrowth: 2, maxCooldownMs: 5_000 },
    });
    const first = await world.opened(6);
    expect(between(first, 'opened_at', 'retry_at')).toBe(1_000);
    expect(await failedProbes(world, 4)).toEqual([2_000, 4_000, 5_000, 5_000]);
    expect(await world.breaker()).toMatchObject({ failed_probes: 4 });
    await world.settle(await world.probe(), accepts());
    expect(await world.breaker()).toMatchObject({ state: 'closed', failed_probes: 0 });
    expect(between(await world.opened(), 'opened_at', 'retry_at')).toBe(1_000);
  });

  it('waits longer after a lost probe too, and no longer after a neutral one', async () => {
    const world = await openBreakerWorld({ breaker: { cooldownMs: 60_000, cooldownGrowth: 3 } });
    await world.opened(4);
    await world.probe();
    await world.passTime(LEASE_MS + 1);
    await rescue(world.ctx);
    expect(between(await world.breaker(), 'opened_at', 'retry_at')).toBe(180_000);
    await world.settle(await world.probe(), answered(418));
    expect(between(await world.breaker(), 'opened_at', 'retry_at')).toBe(180_000);
    expect(await world.breaker()).toMatchObject({ failed_probes: 1 });
    await world.settle(await world.probe(), broken('transport'));
    expect(between(await world.breaker(), 'opened_at', 'retry_at')).toBe(540_000);
  });

  it('waits the same each time by default', async () => {
    const world = await openBreakerWorld();
    await world.opened(3);
    expect(await failedProbes(world, 3)).toEqual([COOLDOWN_MS, COOLDOWN_MS, COOLDOWN_MS]);
  });

  // 1.26
  it('draws the jitter once at each opening, never below the cooldown, and stores the boundary', async () => {
    const world = await openBreakerWorld({ breaker: { cooldownMs: 10_000, jitter: 0.5 } });
    await world.opened(10);
    const cooldowns = await failedProbes(world, 9);
    for (const cooldown of cooldowns) {
      expect(cooldown).toBeGreaterThanOrEqual(10_000);
      expect(cooldown).toBeLessThanOrEqual(15_000);
    }
    expect(new Set(cooldowns).size).toBeGreaterThan(5);
    const row = await world.breaker();
    await world.round();
    expect(await world.breaker()).toEqual(row);
    expect(await world.transitions()).toMatchObject(
      expect.arrayContaining([expect.objectContaining({ retry_at: row['retry_at'] })]),
    );
  });

  it('draws the jitter on top of the cap, and grows no more by it', async () => {
    const world = await openBreakerWorld({
      breaker: {
        failureThreshold: 1,
        cooldownMs: 1_000,
        cooldownGrowth: 10,
        maxCooldownMs: 3_000,
        jitter: 0.5,
      },
    });
    await world.opened(12);
    const cooldowns = await failedProbes(world, 12);
    for (const cooldown of cooldowns) {
      expect(cooldown).toBeGreaterThanOrEqual(3_000);
      expect(cooldown).toBeLessThanOrEqual(4_500);
    }
    expect(new Set(cooldowns).size).toBeGreaterThan(6);
  });
});

describe('many breakers that one outage opens', () => {
  // 1.26
  it('are due at instants of their own, each fixed at its opening', async () => {
    const world = await openBreakerWorld();
    await world.database.query(`insert into onetake.accounts (name, provider, requests_per_minute,
  max_concurrent_generations) select 'a' || n, 'p' || n, 60, 4 from generate_series(1, 40) n`);
    await world.database.query(`insert into onetake.circuit_breakers (name, failure_threshold, cooldown_ms, jitter)
select 'p' || n || '/text-to-music', 1, 10000, 0.5 from generate_series(1, 40) n`);
    for (let n = 1; n <= 40; n++) await world.song(`song ${n}`, { account: `a${n}` });
    await rescue(world.ctx);
    const attempts = await world.round(world.ctx, 40);
    expect(attempts).toHaveLength(40);
    await Promise.all(attempts.map((attempt) => world.settle(attempt, fails())));
    const open = await world.database.query(
      `select retry_at, opened_at from onetake.circuit_breakers where state = 'open'`,
    );
    const cooldowns = open.map((row) => between(row, 'opened_at', 'retry_at'));
    expect(cooldowns).toHaveLength(40);
    expect(Math.min(...cooldowns)).toBeGreaterThanOrEqual(10_000);
    expect(Math.max(...cooldowns)).toBeLessThanOrEqual(15_000);
    expect(new Set(cooldowns).size).toBeGreaterThan(25);
    expect(await world.round(world.ctx, 40)).toEqual([]);
  });
});
