import { describe, expect, it } from 'vitest';
import { checkKeys } from '../../src/lifecycle/check-keys.ts';
import { openAttemptWorld } from '../support/attempts.ts';
import type { ProviderCall } from '../support/raw-provider.ts';
import { openWorld, type World } from '../support/world.ts';

const HELD = `select from onetake.account_holds where ended_at is null and (until is null or until > clock_timestamp())`;

async function heldWorld(
  status: number,
  songs: number,
  onGet: (call: ProviderCall) => void = (call) => call.answer(503),
): Promise<World> {
  const world = await openWorld({ provider: 'raw', limits: { maxConcurrentGenerations: 1_000 } });
  world.raw.onGet = onGet;
  world.raw.onPost = (call) => call.answer(status, { code: 'refused' });
  await world.song('first');
  const worker = world.worker();
  await worker.runOnce();
  await worker.stop();
  await world.songs(songs - 1);
  expect(await world.database.query(HELD)).toHaveLength(1);
  return world;
}

describe('a refused key', () => {
  it('ends its hold when a free check passes that was refused before, and one request goes first', async () => {
    let keyIsFine = false;
    const world = await heldWorld(401, 4, (call) => call.answer(keyIsFine ? 200 : 401, {}));
    const before = world.posts();
    world.raw.onPost = (call) => call.accept();
    const worker = world.worker();
    await worker.runOnce();
    expect(await world.database.query(HELD)).toHaveLength(1);
    keyIsFine = true;
    await worker.runOnce();
    // Not yet due.
    expect(await world.database.query(HELD)).toHaveLength(1);
    await world.passTime(31_000);
    await worker.runOnce();
    expect(await world.database.query(HELD)).toEqual([]);
    expect(world.events.filter(({ name }) => name === 'account:released')).toMatchObject([
      { event: { account: 'default', operation: null, reason: 'key_check' } },
    ]);
    expect(world.posts()).toBe(before);
    expect(await worker.runOnce()).toBe(1);
    await worker.runOnce();
    expect(world.posts() - before).toBe(4);
  });

  it('stays held by a check that passes from the start: the POST was refused all the same', async () => {
    let checks = 0;
    const world = await heldWorld(401, 2, (call) => {
      checks++;
      call.answer(200, {});
    });
    const worker = world.worker();
    for (let n = 0; n < 5; n++) {
      await worker.runOnce();
      await world.passTime(900_001);
    }
    expect(checks).toBe(5);
    expect(await world.database.query(HELD)).toHaveLength(1);
    expect(world.posts()).toBe(1);
  });

  it('is checked more and more seldom, by one process at a time, and an answer that tells nothing changes nothing', async () => {
    let checks = 0;
    const world = await heldWorld(401, 2, (call) => {
      checks++;
      call.answer(503, {});
    });
    const workers = [world.worker(), world.worker(), world.worker()];
    const everybody = () => Promise.all(workers.map((worker) => worker.runOnce()));
    await everybody();
    expect(checks).toBe(1);
    // 30 s, 1 min, 2, 4, 8, 15, 15, …
    for (let minute = 0; minute < 62; minute++) {
      await world.passTime(60_000);
      await everybody();
    }
    expect(checks).toBeGreaterThanOrEqual(7);
    expect(checks).toBeLessThanOrEqual(10);
    expect(await world.database.query(HELD)).toHaveLength(1);
  });

  it('is not checked for a hold of another kind', async () => {
    let checks = 0;
    const world = await heldWorld(402, 2, (call) => {
      checks++;
      call.answer(200, {});
    });
    await world.worker().runOnce();
    expect(checks).toBe(0);
  });
});

describe('many refused keys', () => {
  /** So many held accounts, the first held first, and what is asked of whom when its key is tried. */
  async function heldAccounts(count: number) {
    const world = await openAttemptWorld();
    await world.database.query(
      `with made as (
  insert into onetake.accounts (name, provider, requests_per_minute, max_concurrent_generations)
  select 'tenant-' || n, 'sonilo', 60, 4 from generate_series(1, $1::int) n
)
insert into onetake.account_holds (account, kind, since, epoch)
select 'tenant-' || n, 'key_refused', clock_timestamp() - interval '1 h' + n * interval '1 us', 0
from generate_series(1, $1::int) n`,
      [count],
    );
    const asked: string[] = [];
    world.raw.onGet = (call) => {
      asked.push((call.authorization ?? '').replace('Bearer sk_', ''));
      call.answer(503, {});
    };
    const apiKeyOf = (account: string): string | Promise<string> => `sk_${account}`;
    return { asked, terms: { ...world.ctx, apiKeyOf, hasKey: (_: string) => true, goesOn: () => true } };
  }
  const named = (from: number, to: number) =>
    Array.from({ length: to - from + 1 }, (_, n) => `tenant-${from + n}`);

  it('have their turns, those held longest first, and none a second before each had its first', async () => {
    const { asked, terms } = await heldAccounts(45);
    for (const upTo of [20, 40, 45, 45]) {
      await checkKeys(terms);
      expect(asked).toEqual(named(1, upTo));
    }
  });

  it('of other processes don’t hide ours, however many they are', async () => {
    const { asked, terms } = await heldAccounts(2_100);
    await checkKeys({ ...terms, hasKey: (name) => name === 'tenant-2100' });
    expect(asked).toEqual(['tenant-2100']);
  });

  it('don’t wait for one that never comes', async () => {
    const { asked, terms } = await heldAccounts(3);
    const apiKeyOf = (account: string) =>
      account === 'tenant-1' ? new Promise<string>(() => undefined) : terms.apiKeyOf(account);
    await checkKeys({ ...terms, apiKeyOf }, 200);
    expect(asked).toEqual(named(2, 3));
  });
});
