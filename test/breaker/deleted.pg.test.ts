import { describe, expect, it } from 'vitest';
import { recordOutcome } from '../../src/lifecycle/record-outcome.ts';
import { rescue } from '../../src/lifecycle/rescue.ts';
import { answered, type BreakerWorld, openBreakerWorld } from '../support/breaker-world.ts';
import { MUSIC } from '../support/world.ts';

const fails = () => answered(502);

// 1.56
describe('a breaker whose row somebody has deleted', () => {
  const remove = async (world: BreakerWorld) => {
    await world.database.query('delete from onetake.circuit_breaker_transitions');
    await world.database.query(`delete from onetake.circuit_breakers where name = '${MUSIC}'`);
  };

  it('is made again by the next admission, closed and with the configured settings', async () => {
    const world = await openBreakerWorld({ breaker: { cooldownMs: 5_000 } });
    await world.opened(2);
    await remove(world);
    expect(await world.round()).toHaveLength(2);
    expect(await world.breaker()).toMatchObject({ state: 'closed', generation: 1, cooldown_ms: 5_000 });
  });

  it('is made again by the next outcome, and the outcome of another generation moves it no more', async () => {
    const world = await openBreakerWorld();
    await world.opened(1);
    const probe = await world.probe();
    await remove(world);
    await world.settle(probe, fails());
    expect(await world.breaker()).toMatchObject({
      state: 'closed',
      generation: 1,
      consecutive_failures: 0,
    });
    expect(await world.effect(probe)).toBe('stale_generation');
    expect(await rescue(world.ctx)).toBe(0);
  });

  it.each([
    ['an admission', (world: BreakerWorld) => world.round()],
    ['an outcome', (world: BreakerWorld) => rescue(world.ctx)],
  ])('is written down by %s that makes it again, once', async (_what, make) => {
    const world = await openBreakerWorld();
    const attempt = await world.admitted();
    await world.ctx.database.transaction((tx) => recordOutcome(world.ctx, tx, attempt, fails(), 'worker'));
    await world.song('next');
    const actions = () =>
      world.database.query('select actor, action, subject from onetake.operator_actions order by id');
    await remove(world);
    expect(await actions()).toEqual([]);
    await make(world);
    await rescue(world.ctx);
    await world.round();
    expect(await actions()).toEqual([{ actor: 'onetake', action: 'make_breaker', subject: MUSIC }]);
    expect(await world.breaker()).toMatchObject({ state: 'closed', consecutive_failures: 1 });
  });

  it('cannot be deleted while it has a history', async () => {
    const world = await openBreakerWorld();
    await world.opened();
    await expect(world.database.query('delete from onetake.circuit_breakers')).rejects.toMatchObject({
      constraint: 'circuit_breaker_transitions_breaker_fk',
    });
  });
});
