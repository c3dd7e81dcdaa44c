import { expect, test } from 'vitest';
import { bodyOf, SONG, setUp, stoppedClock } from './harness.ts';

test('refuses the POSTs over the rate, counts them too, and begins anew after sixty seconds', async () => {
  const clock = stoppedClock();
  const { post, simulator } = await setUp({ clock, requestsPerMinute: 2, runTimeMs: 0 });
  expect((await post(SONG)).status).toBe(202);
  clock.advance(20_000);
  expect((await post({ ...SONG, duration: '1' })).status).toBe(422);
  const refused = await post(SONG);
  expect(refused.status).toBe(429);
  expect(refused.headers.get('retry-after')).toBe('40');
  expect(await bodyOf(refused)).toEqual({
    code: 'rate_limit_exceeded',
    message: 'Rate limit exceeded: your account allows 2 requests per minute',
  });
  clock.advance(39_999);
  expect((await post(SONG)).status).toBe(429);
  clock.advance(1);
  expect((await post(SONG)).status).toBe(202);
  expect(simulator.ledger().totals).toMatchObject({ posts: 5, charges: 2 });
});

test('keeps a rate for each account', async () => {
  const { post } = await setUp({ requestsPerMinute: 1, keys: { sk_large: { requestsPerMinute: 2 } } });
  expect((await post(SONG, { key: 'sk_one' })).status).toBe(202);
  expect((await post(SONG, { key: 'sk_two' })).status).toBe(202);
  expect((await post(SONG, { key: 'sk_large' })).status).toBe(202);
  expect((await post(SONG, { key: 'sk_large' })).status).toBe(202);
  expect((await post(SONG, { key: 'sk_large' })).status).toBe(429);
});

test('refuses a generation too many until one has ended', async () => {
  const clock = stoppedClock();
  const { post, simulator } = await setUp({ clock, maxConcurrentGenerations: 2, runTimeMs: 5_000 });
  await post(SONG);
  clock.advance(1_000);
  await post(SONG);
  const refused = await post(SONG);
  expect(refused.status).toBe(429);
  expect(refused.headers.has('retry-after')).toBe(false);
  expect(await bodyOf(refused)).toEqual({
    code: 'rate_limit_exceeded',
    message: 'Too many concurrent generations: 2 of 2 in progress',
  });
  clock.advance(4_000);
  expect((await post(SONG)).status).toBe(202);
  expect(simulator.ledger().totals).toMatchObject({ posts: 4, charges: 3, maxConcurrency: 2 });
});

test('counts a generation whose answer was lost', async () => {
  const script = [{ posts: [1, 1] as const, respond: { status: 502, charge: true } }];
  const { post } = await setUp({ clock: stoppedClock(), maxConcurrentGenerations: 1, script });
  expect((await post(SONG)).status).toBe(502);
  expect((await post(SONG)).status).toBe(429);
});

test('writes Retry-After as it is told', async () => {
  const clock = stoppedClock();
  const dated = await setUp({ clock, requestsPerMinute: 1, rateRetryAfter: 'http-date' });
  await dated.post(SONG);
  const refused = await dated.post(SONG);
  expect(Date.parse(refused.headers.get('retry-after') ?? '')).toBe(clock.now() + 60_000);

  const silent = await setUp({ requestsPerMinute: 1, rateRetryAfter: 'absent' });
  await silent.post(SONG);
  expect((await silent.post(SONG)).headers.has('retry-after')).toBe(false);

  const busy = await setUp({ maxConcurrentGenerations: 1, concurrencyRetryAfter: 'seconds' });
  await busy.post(SONG);
  expect((await busy.post(SONG)).headers.get('retry-after')).toBe('1');
});
