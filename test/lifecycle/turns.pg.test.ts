import { beforeEach, describe, expect, it, onTestFinished } from 'vitest';
import { admit } from '../../src/lifecycle/admit.ts';
import { rescue } from '../../src/lifecycle/rescue.ts';
import { settle } from '../../src/lifecycle/settle.ts';
import { type LifecycleContext, laneOf, lifecycleContext } from '../support/lifecycle-context.ts';
import { acceptedAs, answeredWith, GATE_CLOSED, refusedWith } from '../support/outcomes.ts';
import { openWorld, type World } from '../support/world.ts';

let world: World;
let ctx: LifecycleContext;
let keys: Map<string, string>;
beforeEach(async () => {
  world = await openWorld({
    provider: 'raw',
    limits: { requestsPerMinute: 1_000_000, maxConcurrentGenerations: 100_000 },
  });
  const opened = await lifecycleContext({
    connectionString: world.database.connectionString,
    config: world.config,
  });
  onTestFinished(() => opened.stop());
  ctx = opened;
  keys = new Map();
});

/** One song of the group, named by it and its number: `a1`, `a2`, … */
async function song(key: string, options: { priority?: number; account?: string } = {}): Promise<string> {
  const result = await world.client.enqueue({
    operation: 'text-to-music',
    fields: { prompt: key },
    requestKey: key,
    fairGroup: key.replace(/\d+$/, ''),
    ...options,
  });
  const { id } = result as { id: string };
  keys.set(id, key);
  return id;
}

async function songs(group: string, from: number, to: number, options = {}): Promise<void> {
  for (let n = from; n <= to; n++) await song(`${group}${n}`, options);
}

type Attempts = Extract<Awaited<ReturnType<typeof admit>>, { attempts: unknown }>['attempts'];

async function admitted(wanted: number): Promise<Attempts> {
  for (let tries = 0; tries < 5; tries++) {
    const result = await admit(ctx, await laneOf(ctx), { wanted });
    if ('attempts' in result) return result.attempts;
    if (result.blockedBy !== 'stale_jobs') throw new Error(`blocked: ${result.blockedBy}`);
  }
  throw new Error('nothing but stale jobs');
}

/** The keys of the next ones that are admitted, one at a time, each accepted at once unless told otherwise. */
async function next(
  count: number,
  then: (attempt: Attempts[number]) => Promise<unknown> = (attempt) =>
    settle(ctx, attempt, acceptedAs(attempt.attemptId)),
): Promise<string[]> {
  const order: string[] = [];
  for (let n = 0; n < count; n++) {
    const [attempt] = await admitted(1);
    order.push(keys.get(attempt?.requestId ?? '') ?? '?');
    await then(attempt as Attempts[number]);
  }
  return order;
}

describe('groups of one account', () => {
  it('take turns, each in the order of its enqueues', async () => {
    await songs('a', 1, 4);
    await songs('b', 1, 2);
    await song('c1');
    expect(await next(7)).toEqual(['a1', 'b1', 'c1', 'a2', 'b2', 'a3', 'a4']);
  });

  it('that come later wait for the round that has begun, and for none before it', async () => {
    await songs('a', 1, 6);
    expect(await next(3)).toEqual(['a1', 'a2', 'a3']);
    await songs('b', 1, 2);
    expect(await next(5)).toEqual(['a4', 'b1', 'a5', 'b2', 'a6']);
  });

  it('save no turns up while they have nothing queued, nor lose any to a queue that ran empty', async () => {
    await songs('a', 1, 5);
    await next(5);
    await songs('b', 1, 3);
    await songs('a', 6, 7);
    expect(await next(5)).toEqual(['b1', 'a6', 'b2', 'a7', 'b3']);
  });

  it('can’t be overtaken for ever by one that has never more than one queued', async () => {
    await songs('a', 1, 4);
    const order: string[] = [];
    for (let n = 1; n <= 4; n++) {
      await song(`b${n}`);
      order.push(...(await next(1)));
    }
    order.push(...(await next(4)));
    expect(order).toEqual(['a1', 'b1', 'a2', 'b2', 'a3', 'b3', 'a4', 'b4']);
  });

  it('are one where none is named', async () => {
    for (const n of [1, 2, 3]) await song(`${n}`);
    await song('a1');
    expect(await next(4)).toEqual(['1', 'a1', '2', '3']);
  });

  it('take turns in each account for itself', async () => {
    await world.client.upsertAccount({
      name: 'second',
      provider: 'sonilo',
      requestsPerMinute: 60,
      maxConcurrentGenerations: 4,
    });
    await songs('a', 1, 3);
    await song('a9', { account: 'second' });
    expect(
      await world.database.query(
        `select account, array_agg(round order by round) as rounds from onetake.generation_requests group by 1 order by 1`,
      ),
    ).toEqual([
      { account: 'default', rounds: [1, 2, 3] },
      { account: 'second', rounds: [1] },
    ]);
  });
});

describe('a priority', () => {
  it('puts a request so many rounds before its turn, or after it', async () => {
    await songs('a', 1, 5);
    await song('b1', { priority: -3 });
    expect(await next(1)).toEqual(['a1']);
    await song('c1', { priority: 2 });
    expect(await next(6)).toEqual(['c1', 'a2', 'a3', 'a4', 'b1', 'a5']);
  });

  it('above zero goes before what its own group has queued, and below zero before nothing', async () => {
    await songs('a', 1, 5);
    await song('a8', { priority: 1 });
    await song('a9', { priority: -1 });
    expect(await next(7)).toEqual(['a8', 'a1', 'a2', 'a9', 'a3', 'a4', 'a5']);
  });

  it('of 100 goes before no more than 100 requests of a group, whatever comes after', async () => {
    await song('a1');
    const before: string[] = [];
    for (let n = 1; n <= 130 && before.at(-1) !== 'a1'; n++) {
      // Of a new group each time, and of one that has never more than one queued.
      await song(`${n % 2 ? 'b' : `c${n}-`}${n}`, { priority: 100 });
      before.push(...(await next(1)));
    }
    expect(before.indexOf('a1')).toBe(100);
  });

  it('of a flood delays a single request of priority 0 by 101 requests at most', async () => {
    await songs('a', 1, 110, { priority: 100 });
    await song('b1');
    const order = await next(111);
    expect(order.indexOf('b1')).toBe(101);
  });
});

describe('a request that is sent again', () => {
  it.each([
    ['a 429', refusedWith(429)],
    ['it was not sent', GATE_CLOSED],
  ])('after %s keeps its place', async (_, outcome) => {
    await songs('a', 1, 4);
    await song('b1');
    const two = await admitted(2);
    expect(two.map((attempt) => keys.get(attempt.requestId)).sort()).toEqual(['a1', 'b1']);
    for (const attempt of two) await settle(ctx, attempt, outcome);
    await songs('c', 1, 2);
    await world.passTime(3_600_000);
    expect((await next(2)).sort()).toEqual(['a1', 'b1']);
    expect(await next(4)).toEqual(['a2', 'c1', 'a3', 'c2']);
  });

  it('by an operator’s re-arm keeps its place', async () => {
    await songs('a', 1, 4);
    expect(await next(1, (attempt) => settle(ctx, attempt, answeredWith(500)))).toEqual(['a1']);
    expect(await next(1)).toEqual(['a2']);
    const id = [...keys].find(([, key]) => key === 'a1')?.[0] as string;
    await world.client.resolve({ id, as: 'not_accepted', actor: 'mia', reason: 'asked them' });
    await rescue(ctx);
    expect(await next(3)).toEqual(['a1', 'a3', 'a4']);
  });

  it('because its time had not come, or somebody had it locked, keeps its place', async () => {
    await songs('a', 1, 3);
    await world.database.query(
      `update onetake.generation_requests set not_before = now() + interval '1 hour' where request_key = 'a1'`,
    );
    expect(await next(1)).toEqual(['a2']);
    await world.passTime(3_600_000);
    expect(await next(2)).toEqual(['a1', 'a3']);
  });

  it('because its job had vanished, or could not be sent at first, keeps its place', async () => {
    await songs('a', 1, 4);
    await world.database.query(
      `with gone as (delete from onetake_queue.job where data->>'requestId' in (
  select id::text from onetake.generation_requests where request_key in ('a2', 'a3')))
update onetake.generation_requests set job_due = true where request_key in ('a2', 'a3')`,
    );
    await rescue(ctx);
    expect(await next(4)).toEqual(['a1', 'a2', 'a3', 'a4']);
  });
});
