import { describe, expect, it, onTestFinished } from 'vitest';
import { dispatch, type LaneCursor } from '../../src/lifecycle/dispatch.ts';
import { lifecycleContext } from '../support/lifecycle-context.ts';
import { hold } from '../support/raw-provider.ts';
import { waitFor } from '../support/wait-for.ts';
import { jobRows, openWorld, rowPrints, type World, type WorldOptions } from '../support/world.ts';

type Blocked = readonly [why: string, options: WorldOptions, block: (world: World) => Promise<void>];

const SLOW_WINDOW = { requestsPerMinute: 2, maxConcurrentGenerations: 100 };

const BLOCKS: readonly Blocked[] = [
  [
    'the breaker is open',
    {},
    async (world) => {
      await world.database.query(
        `update onetake.circuit_breakers set state = 'open', opened_at = now(), retry_at = now() + interval '1 h'`,
      );
    },
  ],
  [
    'a probe is out',
    {},
    async (world) => {
      world.raw.onPost = hold;
      await world.song('probe');
      await world.database.query(
        `update onetake.circuit_breakers set state = 'open', opened_at = now(), retry_at = now()`,
      );
      void world
        .worker()
        .runOnce()
        .catch(() => undefined);
      await world.raw.post(1);
    },
  ],
  [
    'the account is held',
    {},
    async (world) => {
      // Of a refused key somebody would ask now and then, and write down when.
      await world.database.query(
        `insert into onetake.account_holds (account, kind, since, epoch) values ('default', 'payment_required', now(), 0)`,
      );
    },
  ],
  [
    'the account is paused',
    {},
    async (world) => {
      await world.database.query(
        `update onetake.accounts set paused_until = now() + interval '1 h', pause_kind = 'rate'`,
      );
    },
  ],
  [
    'its minute is spent',
    { limits: SLOW_WINDOW },
    async (world) => {
      await world.songs(2, 'spent');
      await world.worker().runOnce();
      expect(world.posts()).toBe(2);
    },
  ],
  [
    'its slots are taken',
    { limits: { maxConcurrentGenerations: 2 } },
    async (world) => {
      await world.songs(2, 'spent');
      await world.worker().runOnce();
      expect(world.posts()).toBe(2);
    },
  ],
  [
    'nothing is due yet',
    {},
    async (world) => {
      await world.songs(2, 'later');
      await world.database.query(
        `update onetake.generation_requests set not_before = now() + interval '1 h'`,
      );
      await world.database.query(
        `update onetake_queue.job set start_after = now() + interval '1 h' where name like 'submit/%'`,
      );
    },
  ],
];

describe('dispatch only reads while', () => {
  it.each(BLOCKS)('%s', async (why, options, block) => {
    const world = await openWorld({ provider: 'raw', ...options });
    await block(world);
    if (why !== 'nothing is due yet') await world.songs(3, 'waiting');
    const posts = world.posts();
    const workers = [world.worker(), world.worker()];
    for (const worker of workers) await worker.start();
    const before = await rowPrints(world.database);

    // Loops that run by themselves, and rounds on top.
    for (let n = 0; n < 10; n++) {
      for (const worker of workers) expect(await worker.runOnce()).toBe(0);
    }

    expect(await rowPrints(world.database)).toEqual(before);
    expect(world.posts()).toBe(posts);
    expect(world.events.filter(({ name }) => name === 'process:trouble')).toEqual([]);
  });
});

describe('a round', () => {
  it('says when the earliest blocked lane opens, a millisecond late rather than early', async () => {
    const world = await openWorld({ provider: 'raw' });
    const ctx = await context(world);
    await world.song('one');
    await world.song('two', { operation: 'video-to-music' });
    await world.database.query(
      `update onetake.circuit_breakers set state = 'open', opened_at = now(),
         retry_at = clock_timestamp() + case when name like '%text%' then interval '40 s' else interval '20 s' end`,
    );

    const round = await dispatch(ctx, null, { freeSlots: () => 8, reaches: () => true }, fail);

    expect(round.admitted).toBe(0);
    expect(round.wakeInMs).toBeGreaterThan(19_000);
    expect(round.wakeInMs).toBeLessThanOrEqual(20_001);
  });

  it('sleeps at the end of a list longer than one round, once every lane of it was seen blocked', async () => {
    const world = await openWorld({ provider: 'raw' });
    const ctx = await context(world);
    await world.song('one');
    await world.database.query(
      `update onetake.generation_requests set not_before = clock_timestamp() + interval '40 s'`,
    );
    await world.database.query(
      `insert into onetake.accounts
select (jsonb_populate_record(a, jsonb_build_object('name', 'lane-' || n))).*
from onetake.accounts a, generate_series(1, 2050) n where a.name = 'default'`,
    );
    await world.database.query(
      `insert into onetake.generation_requests
select (jsonb_populate_record(r, jsonb_build_object('id', gen_random_uuid(), 'account', 'lane-' || n))).*
from onetake.generation_requests r, generate_series(1, 2050) n`,
    );
    const waits: (number | null)[] = [];
    let cursor: LaneCursor = null;
    for (let n = 0; n < 2; n++) {
      const round = await dispatch(ctx, cursor, { freeSlots: () => 8, reaches: () => true }, fail);
      cursor = round.cursor;
      waits.push(round.wakeInMs);
    }
    expect(cursor).toBeNull();
    expect(waits).toEqual([0, expect.any(Number)]);
    expect(waits[1]).toBeGreaterThan(20_000);
  });

  it('gives every lane its turn when slots are scarce', async () => {
    const accounts = Object.fromEntries(
      ['anna', 'ben', 'cleo'].map((name) => [
        name,
        { apiKeyEnv: `KEY_${name.toUpperCase()}`, requestsPerMinute: 100, maxConcurrentGenerations: 100 },
      ]),
    );
    const world = await openWorld({ provider: 'raw', config: { accounts } });
    const ctx = await context(world);
    for (const account of Object.keys(accounts)) {
      for (let n = 0; n < 3; n++) await world.song(`${account} ${n}`, { account });
    }
    const turns: string[] = [];
    let cursor: LaneCursor = null;
    for (let n = 0; n < 6; n++) {
      let free = 1;
      const round = await dispatch(ctx, cursor, { freeSlots: () => free, reaches: () => true }, (lane) => {
        free = 0;
        turns.push(lane.account);
      });
      cursor = round.cursor;
      // A round that ended at the end of the list begins anew.
      if (round.admitted === 0) n--;
    }
    expect(turns).toEqual(['anna', 'ben', 'cleo', 'anna', 'ben', 'cleo']);
  });

  it('is not held up by a lane of another account that is blocked', async () => {
    const accounts = {
      blocked: { apiKeyEnv: 'BLOCKED_KEY', requestsPerMinute: 1, maxConcurrentGenerations: 1 },
      open: { apiKeyEnv: 'KEY', requestsPerMinute: 100, maxConcurrentGenerations: 100 },
    };
    const world = await openWorld({ provider: 'raw', config: { accounts } });
    for (let n = 0; n < 3; n++) {
      await world.song(`blocked ${n}`, { account: 'blocked' });
      await world.song(`open ${n}`, { account: 'open' });
    }
    await world.worker().runOnce();
    expect(world.posts()).toBe(4);
  });
});

describe('jobs of requests that wait no more', () => {
  const staleWorld = async () => {
    const world = await openWorld({ provider: 'raw', limits: { maxConcurrentGenerations: 2 } });
    const stale = await world.songs(30, 'stale');
    const live = await world.song('live');
    for (const id of stale) await world.client.cancel(id, { actor: 'me', reason: 'test' });
    return { world, live };
  };

  it('don’t delay their lane: the request behind them goes in the same round', async () => {
    const { world, live } = await staleWorld();
    expect(await world.worker().runOnce()).toBe(1);
    expect(await world.request(live)).toMatchObject({ state: 'accepted' });
    expect(await jobRows(world.database)).toEqual([]);
  });

  it('don’t delay a probe', async () => {
    const { world, live } = await staleWorld();
    await world.database.query(
      `update onetake.circuit_breakers set state = 'open', opened_at = now(), retry_at = now()`,
    );
    expect(await world.worker().runOnce()).toBe(1);
    expect(await world.attempt(live)).toMatchObject({ is_probe: true, certainty: 'accepted' });
    expect(await world.breaker()).toMatchObject({ state: 'closed' });
  });
});

describe('a lane that this worker can’t serve', () => {
  const twoAccounts = async () => {
    const account = { apiKeyEnv: 'KEY', requestsPerMinute: 100, maxConcurrentGenerations: 100 };
    const world = await openWorld({
      provider: 'raw',
      config: { accounts: { foreign: account, mine: { ...account, apiKeyEnv: 'MY_KEY' } } },
    });
    const foreign = await world.song('foreign', { account: 'foreign' });
    const mine = await world.song('mine', { account: 'mine' });
    return { world, foreign, mine, ctx: await context(world) };
  };
  const terms = { freeSlots: () => 8, reaches: ({ account }: { account: string }) => account === 'mine' };

  it('is left alone', async () => {
    const { world, foreign, ctx } = await twoAccounts();
    const lanes: string[] = [];
    const round = await dispatch(ctx, null, terms, (lane) => void lanes.push(lane.account));
    expect(lanes).toEqual(['mine']);
    expect(round.admitted).toBe(1);
    expect(await world.request(foreign)).toMatchObject({ state: 'queued', submissions: 0 });
  });

  it('lends no request to the probe: another lane’s takes it', async () => {
    const { world, foreign, mine, ctx } = await twoAccounts();
    await world.database.query(
      `update onetake.circuit_breakers set state = 'open', opened_at = now(), retry_at = now()`,
    );
    const probes: string[] = [];
    await dispatch(ctx, null, terms, (_lane, { attempts }) =>
      probes.push(...attempts.map(({ requestId }) => requestId)),
    );
    expect(probes).toEqual([mine]);
    expect(await world.request(foreign)).toMatchObject({ state: 'queued', submissions: 0 });
  });
});

describe('a started worker', () => {
  it('submits at retry_at by itself, without a notification', async () => {
    const world = await openWorld({ provider: 'raw' });
    const id = await world.song('one');
    await world.database.query(
      `update onetake.circuit_breakers set state = 'open', opened_at = now(), retry_at = clock_timestamp() + interval '400 ms'
       where name = 'sonilo/text-to-music'`,
    );
    const retryAt = (await world.breaker())['retry_at'] as Date;
    await world.worker().start();

    await waitFor(async () => (await world.request(id))['state'] === 'accepted', {
      what: 'the probe to be accepted',
    });

    const started = (await world.attempt(id))['started_at'] as Date;
    expect(Number(started) - Number(retryAt)).toBeGreaterThanOrEqual(0);
  });

  it('starts what is enqueued, and what a freed slot lets in, without waiting for its next look', async () => {
    const world = await openWorld({ provider: 'raw', limits: { maxConcurrentGenerations: 1 } });
    const worker = world.worker();
    const poller = world.poller();
    await worker.start();
    await poller.start();
    const gaps: number[] = [];
    for (let n = 0; n < 4; n++) {
      const id = await world.song(`song ${n}`);
      await waitFor(async () => (await world.request(id))['state'] === 'accepted', {
        what: 'it to be accepted',
      });
      const request = await world.request(id);
      gaps.push(Number((await world.attempt(id))['started_at']) - Number(request['created_at']));
      world.raw.onGet = (call) =>
        call.answer(200, {
          task_id: call.path.split('/').at(-1),
          status: 'failed',
          error: { code: 'x' },
          refunded: true,
        });
      await waitFor(async () => (await world.request(id))['state'] === 'failed', { what: 'it to end' });
    }
    gaps.sort((one, other) => one - other);
    expect(gaps[1]).toBeLessThan(900);
  });
});

const fail = (): never => {
  throw new Error('nothing may start');
};

async function context(world: World) {
  const ctx = await lifecycleContext({
    connectionString: world.database.connectionString,
    config: world.config,
  });
  onTestFinished(() => ctx.stop());
  return ctx;
}
