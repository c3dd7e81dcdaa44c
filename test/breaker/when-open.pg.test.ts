import { describe, expect, it } from 'vitest';
import type { AdmittedAttempt } from '../../src/postgres/submission-attempts.ts';
import { answered, type BreakerWorld, COOLDOWN_MS, openBreakerWorld } from '../support/breaker-world.ts';
import { rowPrints } from '../support/world.ts';

const accepts = () => answered(202);

describe('a breaker that an app asks before it enqueues', () => {
  const ask = (world: BreakerWorld, requestKey: string) =>
    world.client.enqueue({
      operation: 'text-to-music',
      fields: { prompt: 'rain', duration: 5 },
      requestKey,
      whenOpen: 'refuse',
    });

  // 1.55
  it('refuses with retry_at, as a value, and makes no row', async () => {
    const world = await openBreakerWorld();
    const { retry_at: retryAt } = await world.opened();
    const prints = await rowPrints(world.database);
    expect(await ask(world, 'one')).toEqual({ refused: 'breaker_open', retryAt });
    expect(await rowPrints(world.database)).toEqual(prints);
  });

  it('takes the request once a probe is due: it may be the probe', async () => {
    const world = await openBreakerWorld();
    await world.opened();
    await world.passTime(COOLDOWN_MS);
    expect(await ask(world, 'one')).toMatchObject({ state: 'queued', created: true });
    await world.settle((await world.round())[0] as AdmittedAttempt, accepts());
    expect(await world.breaker()).toMatchObject({ state: 'closed' });
  });

  it('refuses while the probe is in flight, without an instant', async () => {
    const world = await openBreakerWorld();
    await world.opened(1);
    await world.probe();
    expect(await ask(world, 'one')).toEqual({ refused: 'breaker_open', retryAt: null });
  });

  it('answers by what is in force: an override goes before the state', async () => {
    const world = await openBreakerWorld();
    const force = (mode: 'forced_open' | 'forced_closed') =>
      world.client.overrideBreaker({ name: 'sonilo/text-to-music', mode, actor: 'op', reason: 'test' });
    await force('forced_open');
    expect(await ask(world, 'one')).toEqual({ refused: 'breaker_open', retryAt: null });
    await force('forced_closed');
    await world.database.query(`update onetake.circuit_breakers
set state = 'open', opened_at = now(), retry_at = now() + interval '30 s'`);
    expect(await ask(world, 'two')).toMatchObject({ state: 'queued' });
  });
});
