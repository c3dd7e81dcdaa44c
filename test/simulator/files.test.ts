import { expect, test } from 'vitest';
import { bodyOf, KEY, type Setup, SONG, setUp, stoppedClock } from './harness.ts';

async function finishedSong({ post, get }: Setup): Promise<() => Promise<string>> {
  const { task_id: taskId } = await bodyOf(post(SONG));
  return async () => {
    const task = await bodyOf(get(`/v1/tasks/${taskId}`));
    return (task['audio'] as unknown as [{ url: string }])[0].url;
  };
}

test('refuses a URL after its time; reading the task again gives a fresh one', async () => {
  const clock = stoppedClock();
  const setup = await setUp({ clock, runTimeMs: 0, urlTtlMs: 1_000 });
  const urlOf = await finishedSong(setup);
  const first = await urlOf();
  clock.advance(999);
  expect((await fetch(first)).status).toBe(200);
  clock.advance(1);
  const expired = await fetch(first);
  expect([expired.status, expired.headers.get('content-type')]).toEqual([403, 'application/xml']);
  expect(await expired.text()).toContain('<Code>AccessDenied</Code><Message>Request has expired.');
  const second = await urlOf();
  expect(second).not.toBe(first);
  expect((await fetch(second)).status).toBe(200);
});

test('gives another URL at each reading', async () => {
  const urlOf = await finishedSong(await setUp({ clock: stoppedClock(), runTimeMs: 0 }));
  expect(await urlOf()).not.toBe(await urlOf());
});

test.each([
  ['a later expiry', (url: URL) => url.searchParams.set('X-Expires', '99999999999999')],
  ['another file', (url: URL) => (url.pathname = url.pathname.replace('0.wav', '1.wav'))],
  ['no signature', (url: URL) => url.searchParams.delete('X-Signature')],
])('refuses a URL with %s', async (_what, change) => {
  const urlOf = await finishedSong(await setUp({ runTimeMs: 0 }));
  const url = new URL(await urlOf());
  change(url);
  const answer = await fetch(url);
  expect(answer.status).toBe(403);
  expect(await answer.text()).toContain('SignatureDoesNotMatch');
});

test('refuses a key', async () => {
  const urlOf = await finishedSong(await setUp({ runTimeMs: 0 }));
  const answer = await fetch(await urlOf(), { headers: { authorization: `Bearer ${KEY}` } });
  expect(answer.status).toBe(400);
  expect(await answer.text()).toContain('Only one auth mechanism allowed');
});

test.each([
  ['bytes=0-3', 206, 'bytes 0-3/441044', 0, 4],
  ['bytes=44-', 206, 'bytes 44-441043/441044', 44, 441_044],
  ['bytes=-100', 206, 'bytes 440944-441043/441044', 440_944, 441_044],
  ['bytes=44100-44200', 206, 'bytes 44100-44200/441044', 44_100, 44_201],
  ['bytes=441000-999999', 206, 'bytes 441000-441043/441044', 441_000, 441_044],
  ['bytes=441044-', 416, 'bytes */441044', 0, 0],
  ['pages=1-2', 200, null, 0, 441_044],
])('answers Range %s with %i and those bytes', async (range, status, contentRange, start, end) => {
  const urlOf = await finishedSong(await setUp({ runTimeMs: 0 }));
  const whole = Buffer.from(await (await fetch(await urlOf())).arrayBuffer());
  const answer = await fetch(await urlOf(), { headers: { range } });
  expect([answer.status, answer.headers.get('content-range')]).toEqual([status, contentRange]);
  const bytes = Buffer.from(await answer.arrayBuffer());
  if (status !== 416) expect(bytes.equals(whole.subarray(start, end))).toBe(true);
});

test('forgets its files with a reset', async () => {
  const setup = await setUp({ runTimeMs: 0 });
  const urlOf = await finishedSong(setup);
  const url = await urlOf();
  setup.simulator.reset();
  expect((await fetch(url)).status).toBe(404);
});
