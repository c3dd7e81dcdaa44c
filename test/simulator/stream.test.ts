import { expect, test } from 'vitest';
import { bodyOf, setUp } from './harness.ts';

const STREAMED = { prompt: 'a slow waltz', duration: '5' };

function eventsOf(text: string): { type: string; data?: string; code?: string }[] {
  return text
    .trimEnd()
    .split('\n')
    .map((line) => JSON.parse(line));
}

test('streams title, audio, cost and complete, and the pieces make one file', async () => {
  const { post, get, simulator } = await setUp({ runTimeMs: 0 });
  const answer = await post(STREAMED);
  expect([answer.status, answer.headers.get('content-type')]).toEqual([200, 'application/x-ndjson']);
  const events = eventsOf(await answer.text());
  const audio = events.filter(({ type }) => type === 'audio_chunk');
  expect(events.map(({ type }) => type)).toEqual([
    'title',
    ...audio.map(() => 'audio_chunk'),
    'cost',
    'complete',
  ]);
  expect(audio.length).toBeGreaterThan(2);
  const file = Buffer.concat(audio.map(({ data }) => Buffer.from(data ?? '', 'base64')));
  expect(file.length).toBe(44 + 5 * 44_100);
  expect(file.toString('latin1', 0, 4)).toBe('RIFF');
  const { totals, forms } = simulator.ledger();
  expect(totals).toMatchObject({ posts: 1, charges: 1, tasks: 0 });
  expect(forms[0]?.taskIds).toEqual([]);
  expect((await get('/v1/tasks/any')).status).toBe(404);
});

test('cuts a stream in the middle when it is told to', async () => {
  const { post } = await setUp({ runTimeMs: 0, script: [{ respond: { end: 'cut' } }] });
  const answer = await post(STREAMED);
  const seen: string[] = [];
  const read = async () => {
    for await (const chunk of answer.body ?? []) seen.push(Buffer.from(chunk as Uint8Array).toString());
  };
  await expect(read()).rejects.toThrow('terminated');
  expect(seen.join('')).toContain('audio_chunk');
  expect(seen.join('')).not.toContain('"complete"');
});

test('ends with an error event when the prompt asks for a failure', async () => {
  const { post } = await setUp({ runTimeMs: 0 });
  const events = eventsOf(
    await (await post({ ...STREAMED, prompt: 'a waltz [simulate fail=proxy_error]' })).text(),
  );
  expect(events.at(-1)).toMatchObject({ type: 'error', code: 'PROXY_ERROR' });
  expect(events.some(({ type }) => type === 'complete')).toBe(false);
});

test('holds a slot while it streams', async () => {
  const { post } = await setUp({ maxConcurrentGenerations: 1, runTimeMs: 60_000 });
  const first = await post(STREAMED);
  expect(await bodyOf(post(STREAMED))).toMatchObject({ code: 'rate_limit_exceeded' });
  await first.body?.cancel();
});
