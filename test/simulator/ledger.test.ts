import { describe, expect, test } from 'vitest';
import type { Ledger } from '../../src/simulator/ledger.ts';
import { bodyOf, KEY, SONG, setUp, stoppedClock } from './harness.ts';

const ledgerOf = async (url: string) => (await (await fetch(`${url}/__simulator/ledger`)).json()) as Ledger;

describe('the ledger', () => {
  test('tells POSTs, charges and task ids of each form over HTTP', async () => {
    const script = [{ posts: [2, 2] as const, respond: { status: 502 } }];
    const { url, post, simulator } = await setUp({ clock: stoppedClock(), script, runTimeMs: 1_000 });
    const other = { ...SONG, prompt: 'a fast polka' };
    const { task_id: first } = await bodyOf(post(SONG));
    await post(other);
    const { task_id: second } = await bodyOf(post(other));

    const ledger = await ledgerOf(url);
    expect(ledger).toEqual(simulator.ledger());
    expect(ledger.totals).toEqual({
      posts: 3,
      charges: 2,
      refunds: 0,
      tasks: 2,
      chargedTwice: 0,
      maxConcurrency: 2,
    });
    const at = '2026-11-01T00:00:00.000Z';
    expect(ledger.forms).toMatchObject([
      { operation: 'text-to-music', prompt: 'a slow waltz', posts: 1, charges: 1, taskIds: [first] },
      {
        prompt: 'a fast polka',
        posts: 2,
        charges: 1,
        taskIds: [second],
        answers: [
          { at, status: 502, charged: false },
          { at, status: 202, charged: true, taskId: second },
        ],
      },
    ]);
    expect(ledger.accounts).toMatchObject([{ posts: 3, maxConcurrency: 2 }]);
    expect(JSON.stringify(ledger)).not.toContain(KEY);
  });

  test('knows a form again in another order and encoding', async () => {
    const { url, post, simulator } = await setUp();
    await post(SONG);
    const body = new URLSearchParams(Object.entries(SONG).toReversed());
    await fetch(`${url}/v1/text-to-music`, {
      method: 'POST',
      headers: { authorization: `Bearer ${KEY}` },
      body,
    });
    expect(simulator.ledger().forms).toMatchObject([{ posts: 2, charges: 2 }]);
  });

  test('keeps bodies apart that are no form', async () => {
    const { url, simulator } = await setUp();
    for (const body of ['{"prompt":"a"}', '{"prompt":"b"}']) {
      await fetch(`${url}/v1/text-to-music`, {
        method: 'POST',
        headers: { authorization: `Bearer ${KEY}` },
        body,
      });
    }
    expect(simulator.ledger().forms).toMatchObject([{ posts: 1 }, { posts: 1 }]);
  });

  test('says how many forms were charged twice, until all but one charge is refunded', async () => {
    const clock = stoppedClock();
    const { post, simulator } = await setUp({ clock, runTimeMs: 1_000, refundDelayMs: 1_000 });
    const failing = { ...SONG, prompt: 'a waltz [simulate fail times=1]' };
    for (const fields of [SONG, SONG, failing, failing]) await post(fields);
    expect(simulator.ledger().totals).toMatchObject({ charges: 4, refunds: 0, chargedTwice: 2 });
    clock.advance(2_000);
    expect(simulator.ledger().totals).toMatchObject({ charges: 4, refunds: 1, chargedTwice: 1 });
  });

  test('keeps the accounts apart', async () => {
    const { post, simulator } = await setUp({ keys: { sk_a: { account: 'a' } } });
    await post(SONG, { key: 'sk_a' });
    await post(SONG, { key: 'sk_b' });
    await post(SONG, { key: 'nobody' });
    const { forms, totals } = simulator.ledger();
    expect(forms.map(({ account, posts }) => [account, posts])).toEqual([
      ['a', 1],
      [expect.stringMatching(/^key-[0-9a-f]{12}$/), 1],
      [null, 1],
    ]);
    expect(totals).toMatchObject({ charges: 2, chargedTwice: 0 });
  });
});

describe('control', () => {
  test('replaces the script, and refuses a bad one without losing the old', async () => {
    const { url, post } = await setUp({ runTimeMs: 0 });
    const put = (body: string) => fetch(`${url}/__simulator/script`, { method: 'PUT', body });
    expect(await bodyOf(put('[{"respond":{"status":503}}]'))).toEqual({ rules: 1 });
    expect((await post(SONG)).status).toBe(503);
    const refused = await put('[{"respond":{"end":"hangs"}}]');
    expect(refused.status).toBe(400);
    expect((await bodyOf(refused))['message']).toContain('script[0].respond.end');
    expect((await put('not json')).status).toBe(400);
    expect((await post(SONG)).status).toBe(503);
    await put('[]');
    expect((await post(SONG)).status).toBe(202);
  });

  test('goes on counting POSTs under a new script, and from one after a reset', async () => {
    const { url, post, simulator } = await setUp({ runTimeMs: 0 });
    await post(SONG);
    simulator.setScript([{ posts: [2, 2], respond: { status: 503 } }]);
    expect((await post(SONG)).status).toBe(503);
    const answer = await fetch(`${url}/__simulator/reset`, { method: 'POST' });
    expect(await bodyOf(answer)).toEqual({ reset: true });
    expect(simulator.ledger()).toMatchObject({ totals: { posts: 0, charges: 0 }, forms: [] });
    expect((await post(SONG)).status).toBe(202);
    expect((await post(SONG)).status).toBe(503);
  });

  test('empties the windows and slots with a reset', async () => {
    const { post, simulator } = await setUp({ requestsPerMinute: 1, maxConcurrentGenerations: 1 });
    await post(SONG);
    expect((await post(SONG)).status).toBe(429);
    simulator.reset();
    expect((await post(SONG)).status).toBe(202);
  });

  test('is not counted and names what it knows', async () => {
    const { url, simulator } = await setUp();
    const answer = await fetch(`${url}/__simulator/ledgers`);
    expect(answer.status).toBe(404);
    expect((await bodyOf(answer))['message']).toContain('GET ledger');
    expect(simulator.ledger().totals.posts).toBe(0);
  });
});
