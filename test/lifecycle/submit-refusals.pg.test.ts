import { describe, expect, it } from 'vitest';
import { openWorld } from '../support/world.ts';

describe('an account that is refused', () => {
  it.each([
    [401, { code: 'invalid_api_key' }, 'key_refused', null],
    [402, { code: 'insufficient_balance' }, 'payment_required', null],
    [402, { code: 'trial_exhausted' }, 'payment_required', 'text-to-music'],
    [403, { code: 'service_not_allowed' }, 'access_denied', 'text-to-music'],
  ])(
    '%i %o: held, the request back in the queue, nothing sent until a release',
    async (status, body, kind, operation) => {
      const world = await openWorld({ provider: 'raw', limits: { maxConcurrentGenerations: 1 } });
      world.raw.onPost = (call) => call.answer(status, body);
      const [first, second] = (await world.songs(2)) as [string, string];
      const worker = world.worker();

      await worker.runOnce();

      expect(await world.request(first)).toMatchObject({
        state: 'queued',
        state_reason: 'account_refused',
        charge: 'none',
      });
      expect(await world.attempt(first)).toMatchObject({
        health: 'request_or_account_failure',
        certainty: 'refused',
        http_status: status,
      });
      expect(await world.database.query('select * from onetake.account_holds')).toMatchObject([
        { account: 'default', operation, kind, ended_at: null },
      ]);
      await world.passTime(86_400_000);
      expect(await worker.runOnce()).toBe(0);
      expect(world.raw.posts).toHaveLength(1);
      expect(await world.breaker()).toMatchObject({ state: 'closed', consecutive_failures: 0 });

      world.raw.onPost = (call) => call.accept();
      await world.client.releaseAccount('default', null, { actor: 'an operator', reason: 'paid the bill' });
      await worker.runOnce();
      await world.database.query('update onetake.submission_attempts set slot_freed_at = clock_timestamp()');
      await worker.runOnce();
      expect(world.raw.posts).toHaveLength(3);
      expect(await world.request(first)).toMatchObject({
        state: 'accepted',
        submissions: 2,
        charge: 'charged',
      });
      expect(await world.request(second)).toMatchObject({ state: 'accepted', submissions: 1 });
    },
  );

  it('is held anew although an earlier hold, whose time is over, was never ended', async () => {
    const world = await openWorld({ provider: 'raw' });
    await world.database.query(
      `insert into onetake.account_holds (account, kind, since, until, epoch)
values ('default', 'key_refused', now() - interval '1 hour', now() - interval '1 s', 0)`,
    );
    world.raw.onPost = (call) => call.answer(401, { code: 'invalid_api_key' });
    await world.songs(2);
    const worker = world.worker();
    for (let n = 0; n < 3; n++) await worker.runOnce();
    // One goes first after the end of a hold; after its refusal nothing is sent.
    expect(world.posts()).toBe(1);
    expect(
      await world.database.query(
        'select until is null as live, ended_by, ended_at = until as ended_in_time from onetake.account_holds order by id',
      ),
    ).toEqual([
      { live: false, ended_by: 'until', ended_in_time: true },
      { live: true, ended_by: null, ended_in_time: null },
    ]);
  });

  it('a hold of one operation leaves the others alone', async () => {
    const world = await openWorld({ provider: 'raw' });
    world.raw.onPost = (call) => (call.path.endsWith('text-to-music') ? call.answer(403, {}) : call.accept());
    const held = await world.song('held');
    const worker = world.worker();
    await worker.runOnce();
    const other = await world.song('other', { operation: 'video-to-music' });

    await worker.runOnce();

    expect((await world.request(held))['state']).toBe('queued');
    expect((await world.request(other))['state']).toBe('accepted');
  });

  it('the answer to a POST from before a release does not hold it again', async () => {
    const world = await openWorld({ provider: 'raw' });
    world.raw.onPost = () => undefined;
    const id = await world.song('one');
    const worker = world.worker();
    const ran = worker.runOnce();
    const call = await world.raw.post(1);
    await world.client.releaseAccount('default', null, { actor: 'an operator', reason: 'a new key' });

    call.answer(401, { code: 'invalid_api_key' });
    await ran;

    expect(await world.database.query('select * from onetake.account_holds')).toEqual([]);
    expect(await world.request(id)).toMatchObject({ state: 'queued' });
  });
});

describe('429', () => {
  it.each([
    ['for the rate', { code: 'rate_limit_exceeded' }, { 'retry-after': '75' }, 'rate', 75_000],
    [
      'for the rate, with a Retry-After below the window',
      { code: 'rate_limit_exceeded' },
      { 'retry-after': '3' },
      'rate',
      60_000,
    ],
    ['for an unknown cause', 'slow down', {}, 'rate', 60_000],
    [
      'for concurrency',
      { message: 'Too many concurrent generations: 4 of 4 in progress' },
      {},
      'concurrency',
      5_000,
    ],
  ])('%s pauses the account and uses nothing up', async (_what, body, headers, kind, pauseMs) => {
    const world = await openWorld({ provider: 'raw', limits: { maxConcurrentGenerations: 1 } });
    world.raw.onPost = (call) => call.answer(429, body, headers as Record<string, string>);
    const [first, second] = (await world.songs(2)) as [string, string];
    const worker = world.worker();

    await worker.runOnce();

    expect(await world.request(first)).toMatchObject({ state: 'queued', charge: 'none' });
    expect(await world.attempt(first)).toMatchObject({ health: 'capacity_signal', certainty: 'refused' });
    const [account] = await world.database.query<{ paused_until: Date; pause_kind: string }>(
      'select paused_until, pause_kind from onetake.accounts',
    );
    expect(account?.pause_kind).toBe(kind);
    const settled = (await world.attempt(first))['settled_at'] as Date;
    const paused = Number(account?.paused_until) - Number(settled);
    expect(paused).toBeGreaterThanOrEqual(pauseMs);
    expect(paused).toBeLessThan(pauseMs + 1_000);
    expect(await worker.runOnce()).toBe(0);
    expect(await world.breaker()).toMatchObject({ state: 'closed', consecutive_failures: 0 });

    await world.passTime(pauseMs - 1_500);
    expect(await worker.runOnce()).toBe(0);
    expect(world.raw.posts).toHaveLength(1);

    await world.passTime(60_000);
    world.raw.onPost = (call) => call.accept();
    await worker.runOnce();
    await world.database.query('update onetake.submission_attempts set slot_freed_at = clock_timestamp()');
    await worker.runOnce();
    expect(world.raw.posts).toHaveLength(3);
    expect(await world.states()).toEqual({ 'song 1': 'accepted', 'song 2': 'accepted' });
    expect(await world.request(second)).toMatchObject({ submissions: 1 });
  });

  it('for concurrency lets the request go as soon as a generation of ours ends', async () => {
    const world = await openWorld({ provider: 'raw' });
    world.raw.onPost = (call) =>
      call.number === 2 ? call.answer(429, { message: 'Too many concurrent generations' }) : call.accept();
    const worker = world.worker();
    const running = await world.song('running');
    await worker.runOnce();
    const refused = await world.song('refused');
    await worker.runOnce();
    expect(await world.request(refused)).toMatchObject({
      state: 'queued',
      state_reason: 'concurrency_limited',
    });
    expect(await worker.runOnce()).toBe(0);
    world.raw.onGet = (call) =>
      call.answer(200, { task_id: call.path.split('/').at(-1), status: 'failed', error: { code: 'x' } });
    await world.passTime(1_000);
    await world.poller().runOnce();
    expect(await world.request(running)).toMatchObject({ state: 'failed' });
    expect(await worker.runOnce()).toBe(1);
    expect(await world.request(refused)).toMatchObject({ state: 'accepted', submissions: 2 });
  });
});
