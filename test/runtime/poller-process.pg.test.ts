import { describe, expect, it, onTestFinished } from 'vitest';
import { databaseProxy } from '../support/database-proxy.ts';
import { hold, type ProviderCall } from '../support/raw-provider.ts';
import { waitFor } from '../support/wait-for.ts';
import { LEASE_MS, lockRows, openWorld, type World } from '../support/world.ts';

const ended = (call: ProviderCall): void =>
  call.answer(200, {
    task_id: call.path.split('/').at(-1),
    status: 'failed',
    error: { code: 'x' },
    refunded: true,
  });

const isFailed = (world: World, id: string) =>
  waitFor(async () => (await world.request(id))['state'] === 'failed', { what: `${id} to end` });

async function acceptedSong(world: World, key = 'one'): Promise<string> {
  const id = await world.song(key);
  await world.worker().runOnce();
  expect(await world.request(id)).toMatchObject({ state: 'accepted' });
  return id;
}

describe('a poller', () => {
  it('follows tasks by itself, looks again, and is idempotent in start() and stop()', async () => {
    const world = await openWorld({ provider: 'raw' });
    const id = await acceptedSong(world);
    const poller = world.poller();
    await Promise.all([poller.start(), poller.start()]);
    await waitFor(() => world.raw.gets.length >= 3, { what: 'three reads' });
    world.raw.onGet = ended;
    await isFailed(world, id);
    await Promise.all([poller.stop(), poller.stop()]);
    expect(world.events.filter(({ name }) => name === 'process:stopped')).toHaveLength(1);
  });

  it('lets reads that are under way end before it stops', async () => {
    const world = await openWorld({ provider: 'raw' });
    const id = await acceptedSong(world);
    world.raw.onGet = hold;
    const poller = world.poller();
    await poller.start();
    await waitFor(() => world.raw.gets.length === 1, { what: 'a read' });
    const stopped = poller.stop();
    ended(world.raw.gets[0] as ProviderCall);
    await stopped;
    expect(await world.request(id)).toMatchObject({ state: 'failed', charge: 'refunded' });
  });

  it('rescues what a worker left behind, with a loop and a pool of its own that can’t hold polling up', async () => {
    const world = await openWorld({ provider: 'raw' });
    world.raw.onGet = ended;
    const accepted = await acceptedSong(world);
    world.raw.onPost = hold;
    const lost = await world.song('lost');
    void world
      .worker()
      .runOnce()
      .catch(() => undefined);
    await world.raw.post(2);
    await world.passTime(LEASE_MS + 1);
    const unlock = await lockRows(world.database, 'select from onetake.circuit_breakers');
    await world.poller().start();
    await isFailed(world, accepted);
    await waitFor(async () => (await world.request(lost))['state'] === 'ambiguous', { what: 'the rescue' });
    await unlock();
  });

  it('does not ask without pause for a task that somebody has locked', async () => {
    const world = await openWorld({ provider: 'raw' });
    const proxy = await databaseProxy(world.database.connectionString);
    onTestFinished(() => proxy.stop());
    const locked = await acceptedSong(world, 'locked');
    const other = await acceptedSong(world, 'other');
    await world.passTime(1_000);
    const unlock = await lockRows(world.database, 'select from onetake.generation_requests where id = $1', [
      locked,
    ]);
    const asked = () => proxy.count('min(next_poll_at)');
    await world.poller({ connectionString: proxy.connectionString }).start();
    // The other one is read each 50 ms: so much time has gone by, and so much may have been asked.
    await waitFor(() => world.raw.gets.length >= 20, { what: 'twenty reads of the other' });
    expect(asked()).toBeLessThan(5 * world.raw.gets.length);
    world.raw.onGet = ended;
    await isFailed(world, other);
    await unlock();
    await isFailed(world, locked);
  });

  it('comes back when the database does', async () => {
    const world = await openWorld({ provider: 'raw' });
    const proxy = await databaseProxy(world.database.connectionString);
    onTestFinished(() => proxy.stop());
    const id = await acceptedSong(world);
    world.raw.onGet = hold;
    await world.poller({ connectionString: proxy.connectionString }).start();
    await waitFor(() => world.raw.gets.length === 1, { what: 'a read' });
    await proxy.down();
    world.raw.onGet = ended;
    ended(world.raw.gets[0] as ProviderCall);
    await waitFor(() => world.events.some(({ name }) => name === 'process:trouble'), {
      what: 'the trouble to be told',
    });
    await proxy.up();
    await world.passTime(31_000);
    await isFailed(world, id);
    expect(world.posts()).toBe(1);
  });
});
