import { describe, expect, it } from 'vitest';
import type { OnetakeConfig } from '../../src/runtime/define-config.ts';
import { COOLDOWN_MS, openBreakerWorld } from '../support/breaker-world.ts';

/** Nothing listens there. */
const NOWHERE = 'http://127.0.0.1:1';

describe('a worker that reaches no provider', () => {
  it('says so after five, then neither submits nor probes, and a healthy worker closes the breaker', async () => {
    const world = await openBreakerWorld();
    const config: OnetakeConfig = { ...world.config, providers: { sonilo: { baseUrl: NOWHERE } } };
    const sick = world.worker({ name: 'sick', config });
    await world.songs(5);
    expect(await sick.runOnce()).toBe(5);
    expect(world.events.filter(({ name }) => name === 'worker:sick')).toEqual([
      { name: 'worker:sick', event: { worker: 'sick', provider: 'sonilo' } },
    ]);
    expect(await world.breaker()).toMatchObject({ state: 'open' });
    await world.passTime(COOLDOWN_MS);

    const before = await world.breaker();
    for (let n = 0; n < 3; n++) expect(await sick.runOnce()).toBe(0);
    expect(await world.breaker()).toEqual(before);
    const healthy = world.worker();
    expect(await healthy.runOnce()).toBe(1);
    expect(await world.breaker()).toMatchObject({ state: 'closed' });
    expect(await sick.runOnce()).toBe(0);
    expect(world.posts()).toBe(1);
  });

  it('is not one that kept five back by its own doing: a customer’s missing key stops nobody else', async () => {
    const world = await openBreakerWorld();
    const credentials = (account: string): string => {
      if (account === 'default') throw new Error('no key');
      return 'sk_test';
    };
    const worker = world.worker({ credentials });
    await world.songs(6);
    expect(await worker.runOnce()).toBe(6);
    await world.client.upsertAccount({
      name: 'other',
      provider: 'sonilo',
      requestsPerMinute: 10,
      maxConcurrentGenerations: 10,
    });
    const id = await world.song('other', { account: 'other' });
    await worker.runOnce();
    expect(world.events.filter(({ name }) => name === 'worker:sick')).toEqual([]);
    expect(await world.request(id)).toMatchObject({ state: 'accepted' });
  });
});
