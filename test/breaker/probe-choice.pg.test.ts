import { describe, expect, it } from 'vitest';
import type { Provider } from '../../src/core/provider.ts';
import { dispatch } from '../../src/lifecycle/dispatch.ts';
import type { AdmittedAttempt } from '../../src/postgres/submission-attempts.ts';
import { answered, type BreakerWorld, COOLDOWN_MS, openBreakerWorld } from '../support/breaker-world.ts';
import { jobRows, lockRows } from '../support/world.ts';

const fails = () => answered(502);
const accepts = () => answered(202);

async function account(world: BreakerWorld, name: string, limits: { slots?: number } = {}): Promise<void> {
  await world.client.upsertAccount({
    name,
    provider: 'sonilo',
    requestsPerMinute: 1_000,
    maxConcurrentGenerations: limits.slots ?? 100,
  });
}

/** Opened by the account `default`, which has nothing waiting, and the cooldown is over. */
async function dueWorld(): Promise<BreakerWorld> {
  const world = await openBreakerWorld();
  await world.opened();
  await world.passTime(COOLDOWN_MS);
  return world;
}

async function rearm(world: BreakerWorld, id: string): Promise<void> {
  await world.client.resolve({ id, as: 'not_accepted', actor: 'op', reason: 'checked with the provider' });
}

const probed = async (world: BreakerWorld) => {
  const [probe, ...more] = (await world.round()) as [AdmittedAttempt];
  expect(more).toEqual([]);
  return probe;
};

describe('the probe', () => {
  it('is a request that never had an unknown outcome, however long a re-armed one has waited', async () => {
    const world = await openBreakerWorld();
    const [first] = [await world.admitted()];
    await world.settle(first, fails());
    await rearm(world, first.requestId);
    await world.each(fails(), fails());
    const fresh = await world.song('fresh');
    await world.passTime(COOLDOWN_MS);
    expect(await world.breaker()).toMatchObject({ state: 'open' });

    expect((await probed(world)).requestId).toBe(fresh);
  });

  it('is never a re-armed request of a better account while another account has one that is fresh', async () => {
    const world = await openBreakerWorld();
    await world.each(accepts());
    await account(world, 'other');
    const old = await world.admitted();
    await world.settle(old, fails());
    await world.each(fails(), fails());
    await rearm(world, old.requestId);
    const fresh = await world.song('fresh', { account: 'other' });
    await world.passTime(COOLDOWN_MS);

    expect((await probed(world)).requestId).toBe(fresh);
  });

  it('is a re-armed request when nothing else is due', async () => {
    const world = await openBreakerWorld();
    const old = await world.admitted();
    await world.settle(old, fails());
    await world.each(fails(), fails());
    await rearm(world, old.requestId);
    await world.passTime(COOLDOWN_MS);
    expect((await probed(world)).requestId).toBe(old.requestId);
  });

  it('is of an account with a recent acceptance before one without', async () => {
    const world = await openBreakerWorld();
    await account(world, 'another');
    await account(world, 'proven');
    const good = await world.admitted({ account: 'proven' });
    await world.settle(good, accepts());
    await world.opened();
    await world.song('of another', { account: 'another' });
    const id = await world.song('of proven', { account: 'proven' });
    await world.passTime(COOLDOWN_MS);
    expect((await probed(world)).requestId).toBe(id);
  });

  it('takes turns over the accounts: each has been asked once before one is asked again', async () => {
    const world = await dueWorld();
    const names = ['a', 'b', 'c', 'd'];
    for (const name of names) {
      await account(world, name);
      for (let n = 0; n < 3; n++) await world.song(`${name} ${n}`, { account: name });
    }
    const asked: string[] = [];
    for (let n = 0; n < 8; n++) {
      const probe = await probed(world);
      asked.push(probe.account);
      await world.settle(probe, answered(422));
      await world.passTime(COOLDOWN_MS);
    }
    expect(asked.slice(0, 4).toSorted()).toEqual(names);
    expect(asked.slice(4)).toEqual(asked.slice(0, 4));
  });

  it('reaches the healthy account past five that have no balance: they can’t keep a breaker open', async () => {
    const world = await dueWorld();
    for (const name of ['p1', 'p2', 'p3', 'p4', 'p5', 'z']) {
      await account(world, name);
      await world.song(`of ${name}`, { account: name });
    }
    let probes = 0;
    for (; (await world.breaker())['state'] !== 'closed' && probes < 10; probes++) {
      const probe = await probed(world);
      await world.settle(probe, probe.account === 'z' ? accepts() : answered(402));
      await world.passTime(COOLDOWN_MS);
    }
    expect(await world.breaker()).toMatchObject({ state: 'closed' });
    expect(probes).toBeLessThanOrEqual(6);
  });

  it('passes on from an account with acceptances of late whose probes tell nothing', async () => {
    const world = await openBreakerWorld();
    await account(world, 'odd');
    await account(world, 'sound');
    await world.settle(await world.admitted({ account: 'odd' }), accepts());
    await world.opened();
    for (let n = 0; n < 4; n++) await world.song(`odd ${n}`, { account: 'odd' });
    await world.song('sound', { account: 'sound' });
    await world.passTime(COOLDOWN_MS);
    const first = await probed(world);
    await world.settle(first, answered(418));
    await world.passTime(COOLDOWN_MS);
    const second = await probed(world);
    expect([first.account, second.account]).toEqual(['odd', 'sound']);
  });

  it('reaches the one account with a free slot past thirty that have none', async () => {
    const world = await dueWorld();
    for (let n = 0; n < 30; n++) {
      const name = `full-${n}`;
      await account(world, name, { slots: 1 });
      const id = await world.song(`running ${n}`, { account: name });
      await world.database.query(
        `with moved as (update onetake.generation_requests set state = 'submitting', submissions = 1 where id = $1)
insert into onetake.submission_attempts (id, request_id, attempt, account, operation, breaker_name, generation,
  hold_epoch, is_probe, worker, started_at, lease_expires_at, window_until, slot_until, quarantine_until)
values (gen_random_uuid(), $1, 1, $2, 'video-to-music', 'sonilo/video-to-music', 1, 0, false, 'w', now(),
  now() + interval '1 h', now() + interval '1 h', now() + interval '1 h', now() + interval '1 h')`,
        [id, name],
      );
      await world.song(`waiting ${n}`, { account: name });
    }
    await account(world, 'roomy');
    const id = await world.song('roomy', { account: 'roomy' });
    expect((await probed(world)).requestId).toBe(id);
  });

  it('takes its own job and touches no other, wherever it waits in the queue', async () => {
    const world = await openBreakerWorld();
    await world.opened(20);
    await world.passTime(COOLDOWN_MS);
    const before = await jobRows(world.database);
    const probe = await probed(world);
    const after = await jobRows(world.database);
    expect(after).toHaveLength(before.length - 1);
    expect(before).toEqual(expect.arrayContaining(after));
    const taken = before.filter((row) => !after.some((one) => one['ctid'] === row['ctid']));
    expect(taken).toMatchObject([{ job: { singleton_key: probe.requestId } }]);
  });

  it.each([
    ['of the same account', 'a'],
    ['of another account', 'b'],
  ])('is the next request, %s, when somebody has the first one locked', async (_whose, name) => {
    const world = await dueWorld();
    await account(world, 'a');
    await account(world, 'b');
    const locked = await world.song('locked', { account: 'a' });
    const free = await world.song('free', { account: name });
    const holder = await world.database.pool({ max: 1 }).connect();
    await holder.query('begin');
    await holder.query('select from onetake.generation_requests where id = $1 for update', [locked]);
    expect((await probed(world)).requestId).toBe(free);
    await holder.query('rollback');
    holder.release();
  });

  it('is nobody’s who finds the breaker’s lock taken: he has lost and writes nothing', async () => {
    const world = await openBreakerWorld();
    await world.opened(3);
    await world.passTime(COOLDOWN_MS);
    const holder = await world.database.pool({ max: 1 }).connect();
    await holder.query('begin');
    await holder.query('select from onetake.circuit_breakers for no key update');
    await world.expectUnwritten(async () => {
      expect(await world.round()).toEqual([]);
    });
    await holder.query('rollback');
    holder.release();
    expect(await world.round()).toHaveLength(1);
  });

  it('is another account’s while somebody holds the row of the best one', async () => {
    const world = await dueWorld();
    await account(world, 'a');
    await account(world, 'b');
    await world.song('of a', { account: 'a' });
    const id = await world.song('of b', { account: 'b' });
    const release = await lockRows(world.database, `select from onetake.accounts where name = 'a'`);
    expect((await probed(world)).requestId).toBe(id);
    await release();
  });

  it('is found behind any number of accounts whose keys other workers have', async () => {
    const world = await dueWorld();
    await world.database.query(`insert into onetake.accounts (name, provider, requests_per_minute, max_concurrent_generations)
select 'theirs-' || n, 'sonilo', 60, 4 from generate_series(1, 600) n`);
    await world.database.query(`insert into onetake.generation_requests (account, operation, request_key, fields, payload_digest)
select name, 'text-to-music', 'song', '{"prompt": "a song"}', repeat('0', 64) from onetake.accounts where name like 'theirs-%'`);
    const id = await world.song('ours');
    const admitted: AdmittedAttempt[] = [];
    const terms = {
      freeSlots: () => 1 - admitted.length,
      reaches: ({ account: name }: { account: string }) => name === 'default',
    };
    await dispatch(world.ctx, null, terms, (_lane, batch) => void admitted.push(...batch.attempts));
    expect(admitted).toMatchObject([{ requestId: id }]);
    expect(await world.breaker()).toMatchObject({ state: 'half_open', probe_request_id: id });
  });

  it('is left to the workers that know the provider, by one that does not and has every key', async () => {
    const world = await dueWorld();
    await world.client.upsertAccount({
      name: 'elsewhere',
      provider: 'mine',
      requestsPerMinute: 60,
      maxConcurrentGenerations: 4,
    });
    const id = await world.song('song', { account: 'elsewhere' });
    const older = world.worker({ name: 'older' });
    expect(await older.runOnce()).toBe(0);
    expect(await world.attempts(id)).toEqual([]);
    await world.database.query(`insert into onetake.circuit_breakers
(name, failure_threshold, cooldown_ms, state, opened_at, retry_at)
values ('mine/text-to-music', 3, 30000, 'open', now() - interval '1 min', now() - interval '30 s')`);
    expect(await older.runOnce()).toBe(0);
    expect(await world.breaker('mine/text-to-music')).toMatchObject({ state: 'open', transitions: 0 });
    const mine: Provider = {
      name: 'mine',
      submit: () => Promise.resolve(accepts()),
      readTask: () => Promise.reject(new Error('nobody asks')),
      close: () => Promise.resolve(),
    };
    expect(await world.worker({ providers: { mine } }).runOnce()).toBe(1);
    expect(await world.breaker('mine/text-to-music')).toMatchObject({ state: 'closed' });
    expect(await world.request(id)).toMatchObject({ state: 'accepted', submissions: 1 });
  });

  it('is left to the workers of a newer release, by one that does not know the operation', async () => {
    const world = await openBreakerWorld();
    await world.database.query(`insert into onetake.circuit_breakers
(name, failure_threshold, cooldown_ms, state, opened_at, retry_at)
values ('sonilo/text-to-opera', 3, 30000, 'open', now() - interval '1 min', now() - interval '30 s')`);
    await world.database.query(`insert into onetake.generation_requests
(account, operation, request_key, fields, payload_digest, job_due)
values ('default', 'text-to-opera', 'aria', '{"prompt": "an aria"}', repeat('0', 64), true)`);
    const worker = world.worker();
    for (let n = 0; n < 2; n++) expect(await worker.runOnce()).toBe(0);
    expect(await world.breaker('sonilo/text-to-opera')).toMatchObject({ state: 'open', transitions: 0 });
    expect(await world.states()).toEqual({ aria: 'queued' });
    expect(world.posts()).toBe(0);
  });

  it('is not asked of an operation that has nothing waiting, when another one has', async () => {
    const world = await dueWorld();
    const video = await world.song('video', { operation: 'video-to-music' });
    expect(await world.round()).toMatchObject([{ requestId: video }]);
    expect(await world.breaker()).toMatchObject({ state: 'open', generation: 2 });
  });
});
