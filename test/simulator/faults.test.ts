import { connect } from 'node:net';
import { describe, expect, test } from 'vitest';
import type { SimulatorEvent } from '../../src/simulator/events.ts';
import type { ScriptedResponse } from '../../src/simulator/script.ts';
import { waitFor } from '../support/wait-for.ts';
import { bodyOf, KEY, rawPost, SONG, setUp } from './harness.ts';

const scripted = (respond: ScriptedResponse) => ({ script: [{ respond }] });

describe('an end', () => {
  test.each([
    ['reset', {}, { text: '', ending: 'ECONNRESET' }],
    ['close', {}, { text: '', ending: 'fin' }],
    ['reset', { status: 202 }, { text: /^HTTP\/1\.1 202 [\s\S]*\r\n\r\n$/, ending: 'ECONNRESET' }],
    ['close', { status: 202 }, { text: /^HTTP\/1\.1 202 [\s\S]*\r\n\r\n$/, ending: 'fin' }],
    ['cut', {}, { text: /^HTTP\/1\.1 202 [\s\S]*\r\n\r\n\{"task_id":"[^"]+$/, ending: 'fin' }],
  ] as const)('of %s with %o is seen on the wire, after the charge', async (end, more, expected) => {
    const { port, entry, simulator } = await setUp(scripted({ ...more, end }));
    const { text, ending } = await rawPost(port, SONG);
    if (expected.text === '') expect(text).toBe('');
    else expect(text).toMatch(expected.text);
    expect(ending).toBe(expected.ending);

    const [taskId] = entry(SONG)?.taskIds ?? [];
    await waitFor(() => entry(SONG)?.answers[0]?.end !== undefined, { what: 'the answer to be booked' });
    const status = text === '' ? null : 202;
    expect(entry(SONG)?.answers).toEqual([{ at: expect.any(String), status, end, charged: true, taskId }]);
    expect(simulator.ledger().totals).toMatchObject({ posts: 1, charges: 1, tasks: 1 });
  });

  test('of hang holds the connection in silence until the simulator stops', async () => {
    const { port, entry, simulator } = await setUp(scripted({ end: 'hang' }));
    const held = rawPost(port, SONG);
    await waitFor(() => entry(SONG)?.answers[0]?.end === 'hang', { what: 'the POST to be held' });
    expect(entry(SONG)).toMatchObject({ charges: 1, answers: [{ status: null, charged: true }] });
    await simulator.stop();
    expect((await held).text).toBe('');
  });

  test('without a charge leaves no task behind', async () => {
    const { port, simulator } = await setUp(scripted({ end: 'reset', charge: false }));
    expect((await rawPost(port, SONG)).ending).toBe('ECONNRESET');
    expect(simulator.ledger().totals).toMatchObject({ posts: 1, charges: 0, tasks: 0 });
  });
});

describe('a scripted status', () => {
  test('of 502 is answered in place of the provider, uncharged, even when the form is bad', async () => {
    const { post, simulator } = await setUp(scripted({ status: 502 }));
    expect((await post(SONG)).status).toBe(502);
    expect((await post({ ...SONG, duration: '1' })).status).toBe(502);
    expect(simulator.ledger().totals).toMatchObject({ posts: 2, charges: 0, tasks: 0 });
  });

  test('of 502 with a charge creates the task first, which then succeeds', async () => {
    const { post, get, entry } = await setUp({ ...scripted({ status: 502, charge: true }), runTimeMs: 0 });
    const answer = await post(SONG);
    expect(answer.status).toBe(502);
    expect(await bodyOf(answer)).toEqual({ code: 'upstream_error', message: 'Upstream error' });
    const [taskId] = entry(SONG)?.taskIds ?? [];
    expect(await bodyOf(get(`/v1/tasks/${taskId}`))).toMatchObject({ status: 'succeeded' });
  });

  test('with a charge gives way to the provider’s own refusal', async () => {
    const { post, simulator } = await setUp(scripted({ status: 502, charge: true }));
    expect((await post({ ...SONG, duration: '1' })).status).toBe(422);
    expect((await post(SONG, { key: 'nobody' })).status).toBe(401);
    expect(simulator.ledger().totals).toMatchObject({ charges: 0, tasks: 0 });
  });

  test('of 200 carries the id of the task, as some versions answer', async () => {
    const { post, entry } = await setUp(scripted({ status: 200 }));
    const answer = await post(SONG);
    expect(answer.status).toBe(200);
    expect((await bodyOf(answer))['task_id']).toBe(entry(SONG)?.taskIds[0]);
  });

  test.each([
    ['text', '<html>busy</html>', 'text/html', '<html>busy</html>'],
    ['an object', { task_id: 7 }, 'application/json', '{"task_id":7}'],
    ['null', null, 'application/json', 'null'],
    ['nothing', '', 'text/plain', ''],
  ])('may have a body of %s', async (_what, body, type, text) => {
    const { post, simulator } = await setUp(scripted({ status: 202, body }));
    const answer = await post(SONG);
    expect(answer.headers.get('content-type')).toBe(type);
    expect(await answer.text()).toBe(text);
    expect(simulator.ledger().totals.charges).toBe(1);
  });

  test('of 202 without a charge names a task that is never found, another each time', async () => {
    const { post, get, simulator } = await setUp(scripted({ status: 202, charge: false }));
    const { task_id: first } = await bodyOf(post(SONG));
    const { task_id: second } = await bodyOf(post(SONG));
    expect(first).not.toBe(second);
    expect((await get(`/v1/tasks/${first}`)).status).toBe(404);
    expect(simulator.ledger().totals).toMatchObject({ posts: 2, charges: 0 });
  });

  test('may have headers, and lead elsewhere', async () => {
    const { post } = await setUp(scripted({ status: 307, headers: { Location: 'https://example.com/' } }));
    const answer = await post(SONG);
    expect([answer.status, answer.headers.get('location')]).toEqual([307, 'https://example.com/']);
  });

  test('outside the documented ones looks like a gateway’s page', async () => {
    const { post } = await setUp(scripted({ status: 504 }));
    const answer = await post(SONG);
    expect(answer.headers.get('content-type')).toBe('text/html');
  });
});

describe('a delay', () => {
  test('comes after the charge, and outlives a client that gives up', async () => {
    const { url, entry } = await setUp(scripted({ delayMs: 3_600_000 }));
    const leave = new AbortController();
    const body = new URLSearchParams(SONG);
    const headers = { authorization: `Bearer ${KEY}` };
    const answer = fetch(`${url}/v1/text-to-music`, { method: 'POST', headers, body, signal: leave.signal });
    await waitFor(() => entry(SONG)?.charges === 1, { what: 'the charge' });
    expect(entry(SONG)?.answers).toMatchObject([{ status: null, charged: true }]);
    leave.abort();
    await expect(answer).rejects.toThrow();
    await waitFor(() => entry(SONG)?.answers[0]?.end === 'client_gone', { what: 'the client to be missed' });
    expect(entry(SONG)?.taskIds).toHaveLength(1);
  });

  test('passes, and then the answer comes', async () => {
    const { post } = await setUp(scripted({ delayMs: 50 }));
    const before = performance.now();
    expect((await post(SONG)).status).toBe(202);
    expect(performance.now() - before).toBeGreaterThan(45);
  });
});

describe('a client that vanishes', () => {
  test('in the middle of its body is counted, not charged, and harms nobody', async () => {
    const { port, post, simulator } = await setUp();
    const socket = connect(port, '127.0.0.1');
    const head = ['POST /v1/text-to-music HTTP/1.1', 'Host: simulator', 'Content-Length: 1000'];
    socket.write(`${head.join('\r\n')}\r\n\r\nprompt=`);
    await waitFor(() => simulator.ledger().totals.posts === 1, { what: 'the headers to be seen' });
    socket.resetAndDestroy();
    expect((await post(SONG)).status).toBe(202);
    expect(simulator.ledger().totals).toMatchObject({ posts: 2, charges: 1 });
  });
});

describe('hooks', () => {
  test('that hold a client until it leaves don’t keep its delay running', async () => {
    const held = Promise.withResolvers<void>();
    const { url, entry } = await setUp({ ...scripted({ delayMs: 3_600_000 }), onPost: () => held.promise });
    const leave = new AbortController();
    const body = new URLSearchParams(SONG);
    const headers = { authorization: `Bearer ${KEY}` };
    const answer = fetch(`${url}/v1/text-to-music`, { method: 'POST', headers, body, signal: leave.signal });
    await waitFor(() => entry(SONG)?.charges === 1, { what: 'the charge' });
    leave.abort();
    await expect(answer).rejects.toThrow();
    expect((await fetch(url)).status).toBe(404);
    held.resolve();
    await waitFor(() => entry(SONG)?.answers[0]?.end === 'client_gone', { what: 'the client to be missed' });
  });

  test('see the headers first, then the POST that is charged and not yet answered', async () => {
    const seen: unknown[] = [];
    const { simulator, post, entry } = await setUp({
      onFirstByte: (about) => {
        seen.push(about, simulator.ledger().totals.charges);
      },
      onPost: (about) => {
        seen.push(about, simulator.ledger().totals.charges, entry(SONG)?.answers[0]?.status);
      },
    });
    const { task_id: taskId } = await bodyOf(post(SONG));
    const base = { number: 1, operation: 'text-to-music' };
    const { form, prompt } = entry(SONG) ?? {};
    expect(seen).toEqual([base, 0, { ...base, form, prompt, taskId }, 1, null]);
  });

  test('hold the answer as long as they like', async () => {
    const held = Promise.withResolvers<void>();
    const { post, entry } = await setUp({ onPost: () => held.promise });
    const answer = post(SONG);
    await waitFor(() => entry(SONG)?.charges === 1, { what: 'the charge' });
    expect(entry(SONG)?.answers).toMatchObject([{ status: null }]);
    held.resolve();
    expect((await answer).status).toBe(202);
  });

  test('that throw are told in a 500', async () => {
    const { post } = await setUp({
      onPost: () => {
        throw new Error('expected no lock');
      },
    });
    const answer = await post(SONG);
    expect(answer.status).toBe(500);
    expect((await bodyOf(answer))['message']).toContain('expected no lock');
  });

  test('are told of every event, without keys and prompts', async () => {
    const events: SimulatorEvent[] = [];
    const { post, get } = await setUp({ runTimeMs: 0, onEvent: (event) => events.push(event) });
    const { task_id: taskId } = await bodyOf(post(SONG));
    const task = await bodyOf(get(`/v1/tasks/${taskId}`));
    await fetch((task['audio'] as unknown as [{ url: string }])[0].url);
    await waitFor(() => events.length === 4, { what: 'four events' });
    expect(events.map(({ type }) => type)).toEqual(['post', 'answer', 'poll', 'download']);
    expect(events[1]).toMatchObject({ number: 1, status: 202, charged: true, taskId });
    expect(JSON.stringify(events)).not.toMatch(/waltz|sk_test|X-Signature/);
  });
});
