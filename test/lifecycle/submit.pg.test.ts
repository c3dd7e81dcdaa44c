import { expect, it } from 'vitest';
import { openWorld } from '../support/world.ts';

it('smoke', async () => {
  const t = performance.now();
  const world = await openWorld();
  console.log('open', performance.now() - t);
  const id = await world.song('a');
  const worker = world.worker();
  expect(await worker.runOnce()).toBe(1);
  console.log('ran', performance.now() - t);
  expect(await world.request(id)).toMatchObject({ state: 'accepted', charge: 'charged' });
  await world.passTime(2000);
  const poller = world.poller();
  expect(await poller.runOnce()).toBe(1);
  expect(await world.request(id)).toMatchObject({ state: 'succeeded', result_status: 'linked' });
  console.log('done', performance.now() - t, world.events);
});
