import { describe, expect, it } from 'vitest';
import type { ProviderCall } from '../support/raw-provider.ts';
import { openWorld, type World } from '../support/world.ts';

const SONGS = 24;
const REFUSALS = 30;
const SLOTS = 4;
const promptOf = (call: ProviderCall) => new URLSearchParams(call.body).get('prompt') ?? '';

const HEADERS = ['7', '0', '-3', '1.5', 'soon', '', '999999999', 'Wed, 21 Oct 2015 07:28:00 GMT', undefined];

async function paused(world: World): Promise<{ ms: number | null; kind: string | null }> {
  const [row] = await world.database.query<{ ms: number | null; kind: string | null }>(
    `select (extract(epoch from paused_until - clock_timestamp()) * 1000)::float8 as ms, pause_kind as kind
from onetake.accounts where name = 'default'`,
  );
  return row ?? { ms: null, kind: null };
}

describe.each([
  ['the rate', { message: 'Rate limit exceeded' }],
  ['the concurrency', { message: 'Too many concurrent generations' }],
  ['a text that nobody knows', { message: 'later, please' }],
])('a storm of 429s of %s', (_, body) => {
  it('fails, freezes and loses nothing, is no word about the provider, and ends first in, first out', async () => {
    const world = await openWorld({ provider: 'raw', limits: { maxConcurrentGenerations: SLOTS } });
    let refused = 0;
    const accepted: string[] = [];
    world.raw.onPost = (call) => {
      if (refused < REFUSALS) {
        const retryAfter = HEADERS[refused++ % HEADERS.length];
        call.answer(429, body, retryAfter === undefined ? {} : { 'retry-after': retryAfter });
        return;
      }
      accepted.push(promptOf(call));
      call.accept();
    };
    await world.songs(SONGS);
    const workers = [world.worker(), world.worker(), world.worker()];
    for (let round = 0; round < 200 && accepted.length < SONGS; round++) {
      await Promise.all(workers.map((worker) => worker.runOnce()));
      const { ms } = await paused(world);
      // A floor and a cap, whatever Retry-After says.
      if (ms !== null && ms > 0) expect(ms).toBeLessThanOrEqual(900_000);
      await world.database.query(
        `update onetake.submission_attempts set slot_freed_at = clock_timestamp() where slot_freed_at is null and settled_at is not null`,
      );
      await world.passTime(61_000);
    }
    expect(refused).toBe(REFUSALS);
    expect(accepted).toHaveLength(SONGS);
    expect(await world.states()).toEqual(
      Object.fromEntries(Array.from({ length: SONGS }, (_unused, n) => [`song ${n + 1}`, 'accepted'])),
    );
    // Those under way at once may swap: before the last refusal, and when who was refused comes again. Nobody falls
    // further behind who had come first.
    const swaps = 2 * (SLOTS - 1);
    const places = accepted.map((prompt) => Number(prompt.replace('song ', '')));
    for (const [place, song] of places.entries())
      expect(Math.abs(place + 1 - song)).toBeLessThanOrEqual(swaps);
    expect(await world.breaker()).toMatchObject({ state: 'closed', consecutive_failures: 0 });
    const [attempts] = await world.database.query(
      `select count(*) filter (where certainty = 'refused')::int as refused,
  count(*) filter (where certainty = 'unknown')::int as unknown,
  count(*) filter (where health = 'dependency_failure')::int as failures from onetake.submission_attempts`,
    );
    expect(attempts).toEqual({ refused: REFUSALS, unknown: 0, failures: 0 });
  });
});

describe('the pause after a 429', () => {
  it.each([
    ['the rate, without Retry-After', { message: 'Rate limit exceeded' }, undefined, 60_000],
    ['the rate, 7 s', { message: 'Rate limit exceeded' }, '7', 60_000],
    ['the rate, 120 s', { message: 'Rate limit exceeded' }, '120', 120_000],
    ['the rate, for ever', { message: 'Rate limit exceeded' }, '999999999', 900_000],
    ['the rate, negative', { message: 'Rate limit exceeded' }, '-5', 60_000],
    ['the rate, junk', { message: 'Rate limit exceeded' }, 'tomorrow', 60_000],
  ])('of %s lies between floor and cap', async (_, body, retryAfter, expected) => {
    const world = await openWorld({ provider: 'raw' });
    world.raw.onPost = (call) =>
      call.answer(429, body, retryAfter === undefined ? {} : { 'retry-after': retryAfter });
    const id = await world.song('one');
    await world.worker().runOnce();
    const { ms, kind } = await paused(world);
    expect(kind).toBe('rate');
    expect(ms).toBeGreaterThan(expected - 5_000);
    expect(ms).toBeLessThanOrEqual(expected);
    expect(await world.request(id)).toMatchObject({ state: 'queued', charge: 'none' });
  });

  it('of the concurrency doubles from 5 s to 60 s, and begins anew after an acceptance', async () => {
    const world = await openWorld({ provider: 'raw' });
    let isFull = true;
    world.raw.onPost = (call) =>
      isFull ? call.answer(429, { message: 'Too many concurrent generations' }) : call.accept();
    await world.songs(2);
    const worker = world.worker();
    const pauses: number[] = [];
    const once = async () => {
      await world.database.query(
        `update onetake.accounts set paused_until = null, pause_kind = null where name = 'default'`,
      );
      await world.database.query(
        `update onetake.generation_requests set not_before = clock_timestamp() - interval '1 s' where state = 'queued'`,
      );
      await worker.runOnce();
      pauses.push(Math.round(((await paused(world)).ms ?? 0) / 1_000));
    };
    await world.database.query(`update onetake.accounts set max_concurrent_generations = 1`);
    for (let n = 0; n < 6; n++) await once();
    expect(pauses).toEqual([5, 10, 20, 40, 60, 60]);
    isFull = false;
    await once();
    await world.database.query('update onetake.submission_attempts set slot_freed_at = clock_timestamp()');
    isFull = true;
    pauses.length = 0;
    await once();
    expect(pauses).toEqual([5]);
  });
});
