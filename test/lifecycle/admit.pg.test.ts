import { describe, expect, it, onTestFinished } from 'vitest';
import { admit } from '../../src/lifecycle/admit.ts';
import { rescue } from '../../src/lifecycle/rescue.ts';
import { settle } from '../../src/lifecycle/settle.ts';
import { submit } from '../../src/lifecycle/submit.ts';
import { type Lane, readLanes } from '../../src/postgres/lanes.ts';
import { COMMIT, databaseProxy } from '../support/database-proxy.ts';
import { laneOf, lifecycleContext } from '../support/lifecycle-context.ts';
import { hold } from '../support/raw-provider.ts';
import { waitFor } from '../support/wait-for.ts';
import { jobRows, LEASE_MS, lockRows, openWorld, type World, waitForBlocked } from '../support/world.ts';

const MINUTE_MS = 60_000;

describe('two workers and one account', () => {
  it('never have more generations than slots, nor more POSTs in any minute than the limit, and lose nothing', async () => {
    const limits = { requestsPerMinute: 5, maxConcurrentGenerations: 3 };
    const arrivals: number[] = [];
    let now = () => 0;
    const world = await openWorld({
      limits,
      // The provider has the very same limits: one POST too many and it answers 429.
      simulator: { ...limits, runTimeMs: 7_000, onPost: () => void arrivals.push(now()) },
    });
    let passed = 0;
    now = () => Date.now() + passed;
    await world.songs(24);
    const workers = [world.worker(), world.worker()];
    const pollers = [world.poller(), world.poller()];
    for (let rounds = 0; rounds < 200; rounds++) {
      await Promise.all(workers.map((worker) => worker.runOnce()));
      await Promise.all(pollers.map((poller) => poller.runOnce()));
      if (Object.values(await world.states()).every((state) => state === 'succeeded')) break;
      passed += 2_500;
      await world.passTime(2_500);
    }

    expect(new Set(Object.values(await world.states()))).toEqual(new Set(['succeeded']));
    const { totals, forms } = world.simulator.ledger();
    expect(totals).toMatchObject({ posts: 24, charges: 24, chargedTwice: 0, maxConcurrency: 3 });
    expect(forms.every(({ posts }) => posts === 1)).toBe(true);
    expect(
      Math.max(
        ...arrivals.map((from) => arrivals.filter((at) => at >= from && at < from + MINUTE_MS).length),
      ),
    ).toBe(5);
    // Nor is the limit wasted: the fifth minute has begun when the last POST goes.
    expect(Math.max(...arrivals) - Math.min(...arrivals)).toBeLessThan(5 * (MINUTE_MS + 3_000));
  });

  it('never submit the same request, and submit each', async () => {
    const world = await openWorld();
    await world.songs(40);
    const workers = [world.worker(), world.worker(), world.worker()];
    for (let rounds = 0; rounds < 4; rounds++) await Promise.all(workers.map((worker) => worker.runOnce()));
    const { totals, forms } = world.simulator.ledger();
    expect(totals).toMatchObject({ posts: 40, charges: 40 });
    expect(forms).toHaveLength(40);
  });

  it('go first in, first out', async () => {
    const world = await openWorld({ provider: 'raw', limits: { maxConcurrentGenerations: 1 } });
    await world.songs(8);
    const workers = [world.worker(), world.worker()];
    for (let n = 0; n < 8; n++) {
      await Promise.all(workers.map((worker) => worker.runOnce()));
      await world.database.query(
        'update onetake.submission_attempts set slot_freed_at = now() where slot_freed_at is null',
      );
    }
    const prompts = world.raw.posts.map((call) => /song.\d+/.exec(call.body)?.[0].replace('+', ' '));
    expect(prompts).toEqual(Array.from({ length: 8 }, (_, index) => `song ${index + 1}`));
  });
});

describe('two operations of one account', () => {
  it('that are admitted at the same moment share its one slot', async () => {
    const world = await openWorld({ provider: 'raw', limits: { maxConcurrentGenerations: 1 } });
    const [one, other] = [await context(world), await context(world)];
    await world.song('music');
    await world.song('video', { operation: 'video-to-music' });
    const lanes = [await laneOf(one), await laneOf(other, 'video-to-music')] as const;
    // Each is past the look that decides whether to try; both go on at the same moment.
    const unlock = await lockRows(world.database, 'select from onetake.circuit_breakers');
    const both = Promise.all([admit(one, lanes[0], { wanted: 1 }), admit(other, lanes[1], { wanted: 1 })]);
    await waitForBlocked(world.database, 2);
    await unlock();
    const results = await both;
    expect(results.filter((result) => 'attempts' in result)).toHaveLength(1);
    expect(results.filter((result) => 'blockedBy' in result)).toMatchObject([{ blockedBy: 'concurrency' }]);
    expect(Object.values(await world.states()).sort()).toEqual(['queued', 'submitting']);
  });
});

describe('an account or a breaker that somebody has locked', () => {
  it('costs the accounts after it a moment: theirs go in the same round', async () => {
    const accounts = Object.fromEntries(
      ['anna', 'ben'].map((name) => [
        name,
        { apiKeyEnv: `KEY_${name.toUpperCase()}`, requestsPerMinute: 100, maxConcurrentGenerations: 100 },
      ]),
    );
    const world = await openWorld({ provider: 'raw', config: { accounts } });
    const stuck = await world.song('stuck', { account: 'anna' });
    const free = await world.song('free', { account: 'ben' });
    const unlock = await lockRows(world.database, `select from onetake.accounts where name = 'anna'`);
    const worker = world.worker();
    const started = performance.now();
    expect(await worker.runOnce()).toBe(1);
    expect(performance.now() - started).toBeLessThan(20_000);
    expect(await world.request(free)).toMatchObject({ state: 'accepted' });
    expect(await world.request(stuck)).toMatchObject({ state: 'queued', submissions: 0 });
    expect(world.events).toContainEqual({
      name: 'process:trouble',
      event: { role: 'worker', loop: 'admission', errorCode: '55P03' },
    });
    await unlock();
    await worker.runOnce();
    expect(await world.request(stuck)).toMatchObject({ state: 'accepted', submissions: 1 });
  });

  it('is not waited for by whoever comes for the probe: another has it', async () => {
    const world = await openWorld({ provider: 'raw' });
    const ctx = await context(world);
    const id = await world.song('one');
    await world.database.query(
      `update onetake.circuit_breakers set state = 'open', opened_at = now(), retry_at = now()`,
    );
    const lane = await laneOf(ctx);
    const unlock = await lockRows(world.database, 'select from onetake.circuit_breakers');
    expect(await admit(ctx, lane, { wanted: 1, probeWith: id })).toEqual({ blockedBy: 'breaker' });
    await unlock();
    expect(await admit(ctx, lane, { wanted: 1, probeWith: id })).toMatchObject({
      attempts: [{ requestId: id }],
    });
  });
});

describe('a breaker that opens between the look and the lock', () => {
  it('lets nobody through, and the jobs stay where they were', async () => {
    const world = await openWorld({ provider: 'raw' });
    const ctx = await context(world);
    await world.songs(3);
    const lane = await laneOf(ctx);
    const jobs = await jobRows(world.database);
    const client = await world.database.pool({ max: 1 }).connect();
    await client.query('begin');
    await client.query(
      `update onetake.circuit_breakers set state = 'open', opened_at = now(), retry_at = now() + interval '1 min'`,
    );
    const admitted = admit(ctx, lane, { wanted: 3 });
    await waitForBlocked(world.database, 1);
    await client.query('commit');
    client.release();

    expect(await admitted).toEqual({ blockedBy: 'breaker' });
    expect(new Set(Object.values(await world.states()))).toEqual(new Set(['queued']));
    expect(await jobRows(world.database)).toEqual(jobs);
    expect(await world.database.query('select from onetake.submission_attempts')).toEqual([]);
  });

  it('that is forced shut by an operator meanwhile is obeyed', async () => {
    const world = await openWorld({ provider: 'raw' });
    const ctx = await context(world);
    await world.song('one');
    const lane = await laneOf(ctx);
    const client = await world.database.pool({ max: 1 }).connect();
    await client.query('begin');
    await client.query(`select onetake.force_breaker('sonilo/text-to-music', 'forced_open', 'op', 'test')`);
    const admitted = admit(ctx, lane, { wanted: 1 });
    await waitForBlocked(world.database, 1);
    await client.query('commit');
    client.release();
    expect(await admitted).toEqual({ blockedBy: 'breaker' });
    expect(await admit(ctx, lane, { wanted: 1 })).toMatchObject({ blockedBy: 'breaker' });
  });

  it('is not locked while jobs are taken: a lane of one account keeps no other waiting', async () => {
    const accounts = Object.fromEntries(
      ['anna', 'ben'].map((name) => [
        name,
        { apiKeyEnv: `KEY_${name.toUpperCase()}`, requestsPerMinute: 100, maxConcurrentGenerations: 100 },
      ]),
    );
    const world = await openWorld({ provider: 'raw', config: { accounts } });
    const [one, other] = [await context(world), await context(world)];
    await world.song('one', { account: 'anna' });
    const free = await world.song('other', { account: 'ben' });
    const lanes = (await readLanes(one.database, null, 10)) as [Lane, Lane];
    expect(lanes.map(({ account }) => account)).toEqual(['anna', 'ben']);
    // Completing her job waits.
    await world.database.query(`create table public.gate ();
create function public.slow() returns trigger language plpgsql as
  $$ begin if old.name like '%anna%' then lock table public.gate in access share mode; end if; return new; end $$`);
    await world.database.query(
      'create trigger slow before update on onetake_queue.job for each row execute function public.slow()',
    );
    const client = await world.database.pool({ max: 1 }).connect();
    await client.query('begin');
    await client.query('lock table public.gate in access exclusive mode');
    const stuck = admit(one, lanes[0], { wanted: 1 });
    await waitForBlocked(world.database, 1);
    expect(await admit(other, lanes[1], { wanted: 1 })).toMatchObject({ attempts: [{ requestId: free }] });
    await client.query('commit');
    client.release();
    expect(await stuck).toMatchObject({ attempts: [{ account: 'anna' }] });
  });
});

describe('the window of a POST', () => {
  it('ends 60.25 s after its response began, or after its lease while nobody knows', async () => {
    const world = await openWorld({ provider: 'raw' });
    world.raw.onPost = hold;
    const id = await world.song('one');
    const ran = world.worker().runOnce();
    const call = await world.raw.post(1);
    const inFlight = await world.attempt(id);
    expect(ms(inFlight, 'lease_expires_at', 'window_until')).toBe(60_250);
    expect(ms(inFlight, 'started_at', 'lease_expires_at')).toBe(LEASE_MS);
    expect(ms(inFlight, 'lease_expires_at', 'slot_until')).toBe(600_000);
    call.accept();
    await ran;
    const settled = await world.attempt(id);
    expect(ms(settled, 'settled_at', 'window_until')).toBeGreaterThan(59_500);
    expect(ms(settled, 'settled_at', 'window_until')).toBeLessThanOrEqual(60_250);
  });

  it('counts a refused POST, and not an unsent one', async () => {
    const world = await openWorld({ provider: 'raw', limits: { requestsPerMinute: 2 } });
    world.raw.onPost = (call) => call.answer(422, {});
    await world.songs(4);
    const worker = world.worker();
    await worker.runOnce();
    await worker.runOnce();
    expect(world.posts()).toBe(2);
    await world.passTime(61_000);
    await worker.runOnce();
    expect(world.posts()).toBe(4);
  });

  it('is kept for an attempt whose worker is lost, as is its slot until the task can’t be running', async () => {
    const world = await openWorld({
      provider: 'raw',
      limits: { requestsPerMinute: 1, maxConcurrentGenerations: 1 },
    });
    const ctx = await context(world);
    await world.songs(2);
    await admit(ctx, await laneOf(ctx), { wanted: 1 });
    const worker = world.worker();
    await world.passTime(LEASE_MS + 1);
    await worker.runOnce();
    expect(Object.values(await world.states())).toEqual(['ambiguous', 'queued']);
    await world.passTime(61_000);
    await worker.runOnce();
    expect(world.posts()).toBe(0);
    await world.passTime(600_000);
    await worker.runOnce();
    expect(world.posts()).toBe(1);
  });
});

describe('a job', () => {
  it('whose request somebody has locked is looked at again, and holds nobody up', async () => {
    const world = await openWorld({ provider: 'raw' });
    const [first, second] = (await world.songs(2)) as [string, string];
    const unlock = await lockRows(world.database, 'select from onetake.generation_requests where id = $1', [
      first,
    ]);
    const worker = world.worker();

    await worker.runOnce();
    expect((await world.request(second))['state']).toBe('accepted');
    expect((await world.request(first))['state']).toBe('queued');
    await unlock();
    expect(await worker.runOnce()).toBe(0);
    await world.passTime(1_100);
    expect(await worker.runOnce()).toBe(1);

    expect((await world.request(first))['state']).toBe('accepted');
    expect(world.posts()).toBe(2);
  });

  it('that comes before its request is due waits for it', async () => {
    const world = await openWorld({ provider: 'raw' });
    const [id] = (await world.songs(2)) as [string];
    await world.database.query(
      `update onetake.generation_requests set not_before = now() + interval '1 min' where id = $1`,
      [id],
    );
    const worker = world.worker();
    await worker.runOnce();
    await world.passTime(40_000);
    await worker.runOnce();
    expect(world.posts()).toBe(1);
    await world.passTime(21_000);
    await worker.runOnce();
    expect(world.posts()).toBe(2);
  });

  it.each(['cancelled', 'expired', 'submitting', 'accepted', 'ambiguous'])(
    'of a request that is %s permits nothing',
    async (state) => {
      const world = await openWorld({ provider: 'raw' });
      const ctx = await context(world);
      const id = await world.song('one');
      if (state === 'cancelled') await world.client.cancel(id, { actor: 'me', reason: 'test' });
      else if (state === 'expired') {
        await world.database.query(
          `update onetake.generation_requests set state = 'expired', settled_at = now() where id = $1`,
          [id],
        );
      } else {
        const batch = await admit(ctx, await laneOf(ctx), { wanted: 1 });
        if (!('attempts' in batch)) throw new Error('not admitted');
        const [attempt] = batch.attempts as [(typeof batch.attempts)[number]];
        world.raw.onPost = (call) => (state === 'accepted' ? call.accept() : call.answer(502));
        if (state !== 'submitting')
          await settle(ctx, attempt, await submit(ctx, attempt, 'sonilo', () => batch.maySend(attempt)));
        // A twin of the job, as a hand in the queue's tables would make it.
        await ctx.database.transaction((tx) =>
          ctx.queue.send(tx, { id, account: 'default', operation: 'text-to-music', jobPriority: -1 }, null),
        );
      }
      const posts = world.posts();
      const other = await world.song('other');
      const worker = world.worker();
      await worker.runOnce();
      await worker.runOnce();

      expect((await world.request(id))['state']).toBe(state);
      expect((await world.request(other))['submissions']).toBe(1);
      expect(world.posts()).toBe(posts + 1);
      expect(await world.attempts(id)).toHaveLength(['cancelled', 'expired'].includes(state) ? 0 : 1);
    },
  );
});

describe('jobs of requests that wait no more', () => {
  it('are cleared away and told of, and the one behind them is next', async () => {
    const world = await openWorld({ provider: 'raw', limits: { maxConcurrentGenerations: 2 } });
    const ctx = await context(world);
    const withdrawn = await world.songs(2, 'withdrawn');
    const live = await world.song('live');
    for (const id of withdrawn) await world.client.cancel(id, { actor: 'me', reason: 'test' });
    const lane = await laneOf(ctx);
    expect(await admit(ctx, lane, { wanted: 2 })).toEqual({ blockedBy: 'stale_jobs' });
    expect(await jobRows(world.database)).toHaveLength(1);
    expect(await admit(ctx, lane, { wanted: 2 })).toMatchObject({ attempts: [{ requestId: live }] });
    expect(await admit(ctx, lane, { wanted: 1 })).toEqual({ blockedBy: 'no_job' });
  });

  it('are also those of requests past their deadline that nobody has expired yet', async () => {
    const world = await openWorld({ provider: 'raw' });
    const ctx = await context(world);
    const late = await world.song('late', { submitBefore: new Date(Date.now() + 60_000) });
    const lane = await laneOf(ctx);
    await world.passTime(60_001);
    expect(await admit(ctx, lane, { wanted: 1 })).toEqual({ blockedBy: 'stale_jobs' });
    expect(await world.request(late)).toMatchObject({ state: 'queued', submissions: 0 });
    await world.worker().runOnce();
    expect(await world.request(late)).toMatchObject({ state: 'expired', charge: 'none' });
    expect(world.posts()).toBe(0);
  });
});

describe('a job made by hand', () => {
  const insertJob = (world: World, lane: string, requestId: unknown) =>
    world.database.query(
      `insert into onetake_queue.job (name, data, policy, singleton_key, created_on)
values ($1, $2, 'exclusive', gen_random_uuid()::text, now() - interval '1 hour')`,
      [`submit/${lane}`, JSON.stringify(requestId === undefined ? {} : { requestId })],
    );

  it.each([['not-a-uuid'], [''], [7], [null], [['a']], [undefined]])(
    'whose request id is %j harms nobody in its lane',
    async (requestId) => {
      const world = await openWorld({ provider: 'raw' });
      await insertJob(world, 'default/text-to-music', requestId);
      const id = await world.song('one');
      await world.worker().runOnce();
      expect(await world.request(id)).toMatchObject({ state: 'accepted' });
      expect(world.events.filter(({ name }) => name === 'process:trouble')).toEqual([]);
      expect(await jobRows(world.database)).toEqual([]);
    },
  );

  it('in the lane of another account leads round neither its account’s hold nor its limits', async () => {
    const account = { apiKeyEnv: 'KEY', requestsPerMinute: 100, maxConcurrentGenerations: 100 };
    const world = await openWorld({
      provider: 'raw',
      config: { accounts: { default: account, other: { ...account, apiKeyEnv: 'OTHER_KEY' } } },
    });
    const held = await world.song('held', { account: 'other' });
    await world.database.query(
      `insert into onetake.account_holds (account, kind, since, epoch) values ('other', 'payment_required', now(), 0)`,
    );
    await insertJob(world, 'default/text-to-music', held);
    await insertJob(world, 'default/video-to-music', held);
    const mine = await world.song('mine');
    const worker = world.worker();
    await worker.runOnce();
    await worker.runOnce();
    expect(await world.request(mine)).toMatchObject({ state: 'accepted' });
    expect(await world.request(held)).toMatchObject({ state: 'queued', submissions: 0 });
    // Its own job is where it was: with the hold over, it goes.
    await world.client.releaseAccount('other', null, { actor: 'me', reason: 'paid the bill' });
    await worker.runOnce();
    expect(await world.request(held)).toMatchObject({ state: 'accepted', submissions: 1 });
    expect(world.posts()).toBe(2);
  });

  it('many times over permits one POST', async () => {
    const world = await openWorld({ provider: 'raw' });
    const id = await world.song('one');
    for (let n = 0; n < 5; n++) await insertJob(world, 'default/text-to-music', id);
    const workers = [world.worker(), world.worker()];
    for (let n = 0; n < 3; n++) await Promise.all(workers.map((worker) => worker.runOnce()));
    expect(await world.request(id)).toMatchObject({ state: 'accepted', submissions: 1 });
    expect(world.posts()).toBe(1);
  });
});

describe('the send budget', () => {
  it.each(['monotonic', 'wall'] as const)(
    'once used up by the %s clock, nothing is sent and the request goes back',
    async (which) => {
      const world = await openWorld({ provider: 'raw' });
      const skew = { monotonic: 0, wall: 0 };
      const ctx = await lifecycleContext(
        { connectionString: world.database.connectionString, config: world.config },
        { clock: { monotonic: () => performance.now() + skew.monotonic, now: () => Date.now() + skew.wall } },
      );
      onTestFinished(() => ctx.stop());
      const id = await world.song('one');
      const batch = await admit(ctx, await laneOf(ctx), { wanted: 1 });
      if (!('attempts' in batch)) throw new Error('not admitted');
      const [attempt] = batch.attempts as [(typeof batch.attempts)[number]];
      expect(batch.maySend(attempt)).toBe(true);

      // leaseMs − submissionMs − 1,000
      skew[which] = LEASE_MS - 15_000 - 1_000;
      await settle(ctx, attempt, await submit(ctx, attempt, 'sonilo', () => batch.maySend(attempt)));

      expect(world.posts()).toBe(0);
      expect(await world.request(id)).toMatchObject({
        state: 'queued',
        state_reason: 'unsent_own_doing',
        charge: 'none',
      });
      expect(await world.attempt(id)).toMatchObject({
        certainty: 'unsent',
        error_code: 'gate_closed',
        health: 'none',
      });
    },
  );

  it('is over when the request’s own deadline passes after its admission: nothing is sent, and it expires', async () => {
    const world = await openWorld({ provider: 'raw', operation: { leaseMs: 900_000 } });
    let wall = 0;
    const ctx = await lifecycleContext(
      { connectionString: world.database.connectionString, config: world.config },
      { clock: { monotonic: () => performance.now(), now: () => Date.now() + wall } },
    );
    onTestFinished(() => ctx.stop());
    const ids = [
      await world.song('in time', { submitBefore: new Date(Date.now() + 800_000) }),
      await world.song('late', { submitBefore: new Date(Date.now() + 300_000) }),
    ];
    const batch = await admit(ctx, await laneOf(ctx), { wanted: 2 });
    if (!('attempts' in batch)) throw new Error('not admitted');
    wall = 300_001;
    for (const attempt of batch.attempts) {
      await settle(ctx, attempt, await submit(ctx, attempt, 'sonilo', () => batch.maySend(attempt)));
    }
    expect(world.posts()).toBe(1);
    expect(await world.request(ids[0] as string)).toMatchObject({ state: 'accepted' });
    const late = ids[1] as string;
    expect(await world.request(late)).toMatchObject({ state: 'queued', charge: 'none' });
    expect(await world.attempt(late)).toMatchObject({ certainty: 'unsent', error_code: 'gate_closed' });
    await world.passTime(300_001);
    await rescue(ctx);
    expect(await world.request(late)).toMatchObject({ state: 'expired', charge: 'none' });
  });
});

describe('a COMMIT whose answer is lost', () => {
  it.each(['before', 'after'] as const)('%s the server had it: one POST in the end', async (when) => {
    const world = await openWorld({ provider: 'raw' });
    const proxy = await databaseProxy(world.database.connectionString);
    onTestFinished(() => proxy.stop());
    const ctx = await lifecycleContext({ connectionString: proxy.connectionString, config: world.config });
    onTestFinished(() => ctx.stop());
    const id = await world.song('one');
    const lane = await laneOf(ctx);
    const cut = proxy.cutAt(COMMIT, when);

    const batch = await admit(ctx, lane, { wanted: 1 });
    await cut;

    const committed = when === 'after';
    expect('attempts' in batch).toBe(committed);
    expect((await world.request(id))['state']).toBe(committed ? 'submitting' : 'queued');
    if ('attempts' in batch) {
      for (const attempt of batch.attempts)
        await settle(ctx, attempt, await submit(ctx, attempt, 'sonilo', () => batch.maySend(attempt)));
    }
    const worker = world.worker();
    await worker.runOnce();
    await world.passTime(120_000);
    await worker.runOnce();
    expect(await world.request(id)).toMatchObject({ state: 'accepted', submissions: 1 });
    expect(world.posts()).toBe(1);
  });

  it.each(['before', 'after'] as const)(
    '%s the server had it, by a database that stays away: nothing is sent, and that much is settled',
    async (when) => {
      const world = await openWorld({ provider: 'raw' });
      const proxy = await databaseProxy(world.database.connectionString);
      onTestFinished(() => proxy.stop());
      let skewMs = 0;
      const clock = { now: () => Date.now(), monotonic: () => performance.now() + skewMs };
      const { config } = world;
      const ctx = await lifecycleContext({ connectionString: proxy.connectionString, config }, { clock });
      onTestFinished(() => ctx.stop());
      const id = await world.song('one');
      const lane = await laneOf(ctx);
      const cut = proxy.cutAt(COMMIT, when);
      const admitted = admit(ctx, lane, { wanted: 1 });
      await cut;
      await proxy.down();
      // leaseMs − submissionMs − 1,000
      skewMs = 4_000;
      const batch = await admitted;
      if (!('attempts' in batch)) throw new Error('not admitted');
      await proxy.up();
      for (const attempt of batch.attempts)
        await settle(ctx, attempt, await submit(ctx, attempt, 'sonilo', () => batch.maySend(attempt)));

      expect(world.posts()).toBe(0);
      expect(await world.request(id)).toMatchObject({ state: 'queued', charge: 'none' });
      const settled = when === 'after' ? [{ certainty: 'unsent', health: 'none', settled_by: 'worker' }] : [];
      expect(await world.attempts(id)).toMatchObject(settled);
      const worker = world.worker();
      await world.passTime(120_000);
      await worker.runOnce();
      expect(await world.request(id)).toMatchObject({ state: 'accepted' });
      expect(world.posts()).toBe(1);
    },
  );

  it('is asked about under the lock that a server process which still commits would hold', async () => {
    const world = await openWorld({ provider: 'raw' });
    const proxy = await databaseProxy(world.database.connectionString);
    onTestFinished(() => proxy.stop());
    const ctx = await lifecycleContext({ connectionString: proxy.connectionString, config: world.config });
    onTestFinished(() => ctx.stop());
    const id = await world.song('one');
    const lane = await laneOf(ctx);
    // The commit itself is slow: a deferred trigger waits for a lock of ours, after the client has gone.
    await world.database.query('create table public.gate ()');
    await world.database.query(`
      create function public.slow() returns trigger language plpgsql as
        $$ begin lock table public.gate in access share mode; return null; end $$;
      create constraint trigger slow after insert on onetake.submission_attempts
        deferrable initially deferred for each row execute function public.slow()`);
    const client = await world.database.pool({ max: 1 }).connect();
    await client.query('begin');
    await client.query('lock table public.gate in access exclusive mode');
    const admitted = admit(ctx, lane, { wanted: 1 });
    await waitFor(
      async () =>
        (
          await world.database.query(
            `select from pg_stat_activity where query = 'commit' and wait_event_type = 'Lock'`,
          )
        ).length > 0,
      { what: 'the commit to be under way' },
    );
    await proxy.down();
    await proxy.up();
    await waitFor(
      async () =>
        (
          await world.database.query(
            `select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'`,
          )
        ).length >= 2,
      { what: 'the question to wait for the row' },
    );
    expect((await world.request(id))['state']).toBe('queued');
    await client.query('commit');
    client.release();

    const batch = await admitted;
    expect('attempts' in batch && batch.attempts.length).toBe(1);
    expect((await world.request(id))['state']).toBe('submitting');
  });
});

const ms = (row: Readonly<Record<string, unknown>>, from: string, to: string): number =>
  Number(row[to]) - Number(row[from]);

async function context(world: World) {
  const ctx = await lifecycleContext({
    connectionString: world.database.connectionString,
    config: world.config,
  });
  onTestFinished(() => ctx.stop());
  return ctx;
}
