import { describe, expect, test } from 'vitest';
import { providerCode } from '../../src/provider/sonilo/provider-code.ts';
import type { Problems } from '../../src/simulator/checks.ts';
import { readMagicPrompt } from '../../src/simulator/magic-prompt.ts';
import { bodyOf, rawPost, SONG, setUp, stoppedClock } from './harness.ts';

const asking = (settings: string) => ({ ...SONG, prompt: `a slow waltz [simulate ${settings}]` });

describe('a prompt', () => {
  test('asks for a status, a charge and a delay', async () => {
    const { post, entry } = await setUp();
    const fields = asking('status=503 charge=true delayMs=1');
    expect((await post(fields)).status).toBe(503);
    expect(entry(fields)).toMatchObject({ charges: 1, answers: [{ status: 503, charged: true }] });
    expect((await post(SONG)).status).toBe(202);
  });

  test('asks for an end', async () => {
    const { port } = await setUp();
    expect(await rawPost(port, asking('end=reset'))).toEqual({ text: '', ending: 'ECONNRESET' });
  });

  test('asks for a body and a Retry-After', async () => {
    const { post } = await setUp();
    const answer = await post(asking('status=429 retryAfter=7 body="please wait"'));
    expect([answer.status, answer.headers.get('retry-after'), await answer.text()]).toEqual([
      429,
      '7',
      'please wait',
    ]);
  });

  test('asks for the first POSTs only', async () => {
    const { post, entry } = await setUp();
    const fields = asking('status=502 times=2');
    const statuses: number[] = [];
    for (let count = 0; count < 3; count += 1) statuses.push((await post(fields)).status);
    expect(statuses).toEqual([502, 502, 202]);
    expect(entry(fields)).toMatchObject({ posts: 3, charges: 1 });
  });

  test('asks for a failure, which is refunded a little later', async () => {
    const clock = stoppedClock();
    const { post, get, entry, simulator } = await setUp({ clock, refundDelayMs: 1_000 });
    const fields = asking('fail=CONTENT_POLICY runTimeMs=100');
    const { task_id: taskId } = await bodyOf(post(fields));
    clock.advance(99);
    expect(await bodyOf(get(`/v1/tasks/${taskId}`))).toMatchObject({ status: 'processing' });
    clock.advance(1);
    expect(await bodyOf(get(`/v1/tasks/${taskId}`))).toMatchObject({
      status: 'failed',
      error: { code: 'content_policy' },
      refunded: false,
    });
    expect(entry(fields)).toMatchObject({ charges: 1, refunds: 0 });
    clock.advance(1_000);
    expect((await bodyOf(get(`/v1/tasks/${taskId}`)))['refunded']).toBe(true);
    expect(entry(fields)).toMatchObject({ charges: 1, refunds: 1 });
    expect(simulator.ledger().totals).toMatchObject({ refunds: 1 });
  });

  test.each([
    ['CONTENT_POLICY', 'content_policy'],
    ['content_policy', 'CONTENT_POLICY'],
    ['Policy-2.1', 'policy-2.1'],
  ])('that asks for the failure %s gets a code that onetake keeps: %s', (asked, expected) => {
    const { prompt } = asking(`fail=${asked}`);
    const code = readMagicPrompt(prompt, [])?.failure;
    expect(code).toBe(expected);
    expect(providerCode(code, { apiKey: 'sk_test', fields: { prompt } })).toBe(expected);
  });

  test('yields to a script, but keeps its failure', async () => {
    const clock = stoppedClock();
    const { post, get } = await setUp({ clock, runTimeMs: 0, script: [{ respond: { status: 200 } }] });
    const answer = await post(asking('status=502 charge=true fail'));
    expect(answer.status).toBe(200);
    const { task_id: taskId } = await bodyOf(answer);
    expect(await bodyOf(get(`/v1/tasks/${taskId}`))).toMatchObject({ error: { code: 'generation_failed' } });
  });

  test.each([
    'stauts=502',
    'status=abc',
    'status=99',
    'end=bang',
    'charge=maybe',
    'times=0',
    'fail=402',
    'fail="a b"',
    '!!',
  ])('that asks for %s is refused, so that the typo is seen', async (settings) => {
    const { post, simulator } = await setUp();
    const answer = await post(asking(settings));
    expect(answer.status).toBe(422);
    expect(JSON.stringify(await bodyOf(answer))).toContain('[simulate');
    expect(simulator.ledger().totals.charges).toBe(0);
  });

  test('without a request is an ordinary one', () => {
    const problems: Problems = [];
    expect(readMagicPrompt('we simulate [the sea] [simulated]', problems)).toBeUndefined();
    expect(problems).toEqual([]);
  });
});
