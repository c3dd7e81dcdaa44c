import { describe, expect, it } from 'vitest';
import type { OnetakeConfig } from '../../src/runtime/define-config.ts';
import { migrate } from '../../src/worker.ts';
import {
  answered,
  type BreakerWorld,
  between,
  COOLDOWN_MS,
  openBreakerWorld,
} from '../support/breaker-world.ts';

const fails = () => answered(502);
const accepts = () => answered(202);
type Settings = NonNullable<
  NonNullable<NonNullable<OnetakeConfig['operations']>['text-to-music']>['breaker']
>;

/** The same configuration with other breaker settings of music. */
function configured(world: BreakerWorld, breaker: Settings): OnetakeConfig {
  const { operations = {} } = world.config;
  return {
    ...world.config,
    operations: { ...operations, 'text-to-music': { ...operations['text-to-music'], breaker } },
  };
}

const migrateTo = (world: BreakerWorld, breaker: Settings) =>
  migrate({ connectionString: world.database.connectionString, config: configured(world, breaker) });

describe('the breaker’s settings', () => {
  it('are a row that migrate writes, with a revision that grows when they change', async () => {
    const world = await openBreakerWorld({
      breaker: {
        failureThreshold: 4,
        cooldownMs: 2_000,
        cooldownGrowth: 1.5,
        maxCooldownMs: 9_000,
        jitter: 0.1,
      },
    });
    const row = await world.breaker();
    expect(row).toMatchObject({
      failure_threshold: 4,
      cooldown_ms: 2_000,
      cooldown_growth: 1.5,
      max_cooldown_ms: 9_000,
      jitter: 0.1,
      shadow: false,
    });
    const same = {
      failureThreshold: 4,
      cooldownMs: 2_000,
      cooldownGrowth: 1.5,
      maxCooldownMs: 9_000,
      jitter: 0.1,
    };
    expect((await migrateTo(world, same)).changed).toEqual([]);
    expect(await world.breaker()).toEqual(row);
    expect((await migrateTo(world, { ...same, shadow: true })).changed).toEqual([
      'operations.text-to-music.breaker',
    ]);
    expect(await world.breaker()).toMatchObject({ shadow: true, revision: Number(row['revision']) + 1 });
  });

  it('are those of one revision after the other when two are migrated to at once', async () => {
    const world = await openBreakerWorld();
    const { revision } = await world.breaker();
    const results = await Promise.all(
      [1_000, 2_000, 1_000, 2_000].map((cooldownMs) => migrateTo(world, { cooldownMs })),
    );
    const changed = results.filter((result) => result.changed.length > 0).length;
    expect(changed).toBeGreaterThanOrEqual(2);
    const row = await world.breaker();
    expect(row['revision']).toBe(Number(revision) + changed);
    expect([1_000, 2_000]).toContain(row['cooldown_ms']);
  });

  it('change the next opening and leave the present one its retry_at', async () => {
    const world = await openBreakerWorld();
    const opened = await world.opened(2);
    await migrateTo(world, { failureThreshold: 3, cooldownMs: 1_000 });
    expect(await world.breaker()).toMatchObject({
      state: 'open',
      generation: opened['generation'],
      opened_at: opened['opened_at'],
      retry_at: opened['retry_at'],
      cooldown_ms: 1_000,
    });
    await world.passTime(5_000);
    expect(await world.round()).toEqual([]);
    const probe = await world.probe();
    await world.settle(probe, fails());
    expect(between(await world.breaker(), 'opened_at', 'retry_at')).toBe(1_000);
  });

  it('leave a probe in flight its place', async () => {
    const world = await openBreakerWorld();
    await world.opened(2);
    const probe = await world.probe();
    await migrateTo(world, { failureThreshold: 1, cooldownMs: 1_000 });
    expect(await world.breaker()).toMatchObject({ state: 'half_open', probe_attempt_id: probe.attemptId });
    await world.settle(probe, accepts());
    expect(await world.breaker()).toMatchObject({ state: 'closed' });
  });

  // 1.39
  it('open at the next failure when the threshold is lowered to less than was counted', async () => {
    const world = await openBreakerWorld({ breaker: { failureThreshold: 9 } });
    await world.each(...Array.from({ length: 6 }, fails));
    await migrateTo(world, { failureThreshold: 3 });
    expect(await world.breaker()).toMatchObject({ state: 'closed', consecutive_failures: 6 });
    expect(await world.round()).toEqual([]);
    await world.each(fails());
    expect(await world.breaker()).toMatchObject({ state: 'open' });
  });

  it('go on counting from where they were when the threshold is raised', async () => {
    const world = await openBreakerWorld();
    await world.each(fails(), fails());
    await migrateTo(world, { failureThreshold: 5 });
    await world.each(fails(), fails());
    expect(await world.breaker()).toMatchObject({ state: 'closed', consecutive_failures: 4 });
    await world.each(fails());
    expect(await world.breaker()).toMatchObject({ state: 'open' });
  });

  it('are those of the row for two versions of the file at once: nothing flaps, and who differs says so once', async () => {
    const world = await openBreakerWorld();
    world.raw.onPost = (call) => call.answer(502);
    const row = await world.breaker();
    const older = world.worker({ name: 'older' });
    const newer = world.worker({
      name: 'newer',
      config: configured(world, { failureThreshold: 1, cooldownMs: 1_000, shadow: true }),
    });
    for (let n = 0; n < 2; n++) {
      for (const [i, worker] of [older, newer].entries()) {
        await world.song(`song ${n} ${i}`);
        await worker.runOnce();
        const {
          revision,
          failure_threshold: threshold,
          cooldown_ms: cooldownMs,
          shadow,
        } = await world.breaker();
        expect([revision, threshold, cooldownMs, shadow]).toEqual([row['revision'], 3, COOLDOWN_MS, false]);
      }
    }
    expect(between(await world.breaker(), 'opened_at', 'retry_at')).toBe(COOLDOWN_MS);
    const said = world.events.filter(({ name }) => name === 'configuration:differs');
    expect(said).toEqual([
      { name: 'configuration:differs', event: { settings: 'operations.text-to-music.breaker' } },
    ]);
  });

  // 2.33
  it.each([
    ['failure_threshold', 0],
    ['failure_threshold', 1_001],
    ['failure_threshold', -1],
    ['cooldown_ms', 99],
    ['cooldown_ms', 86_400_001],
    ['cooldown_growth', 0.9],
    ['cooldown_growth', 11],
    ['cooldown_growth', Number.NaN],
    ['max_cooldown_ms', 29_999],
    ['max_cooldown_ms', 86_400_001],
    ['jitter', -0.1],
    ['jitter', 0.6],
    ['jitter', Number.NaN],
  ])('are refused by the row itself: %s = %d', async (column, value) => {
    const world = await openBreakerWorld();
    await expect(
      world.database.query(`update onetake.circuit_breakers set ${column} = $1`, [value]),
    ).rejects.toMatchObject({ code: '23514', constraint: `circuit_breakers_${column}_in_bounds` });
  });

  it.each([
    ['failureThreshold', { failureThreshold: 0 }],
    ['cooldownMs', { cooldownMs: 50 }],
    ['cooldownGrowth', { cooldownGrowth: Number.NaN }],
    ['maxCooldownMs', { cooldownMs: 30_000, maxCooldownMs: 10_000 }],
    ['jitter', { jitter: 2 }],
    ['shadow', { shadow: 'yes' as never }],
  ])('are refused by name before anything is written: %s', async (name, breaker) => {
    const world = await openBreakerWorld();
    await world.expectUntouched(async () => {
      await expect(migrateTo(world, breaker)).rejects.toMatchObject({
        code: 'configuration_invalid',
        problems: [{ path: `operations.text-to-music.breaker.${name}` }],
      });
    });
  });
});
