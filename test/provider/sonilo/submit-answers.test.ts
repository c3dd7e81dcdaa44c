import { brotliCompressSync, deflateRawSync, deflateSync, gzipSync } from 'node:zlib';
import { describe, expect, test, vi } from 'vitest';
import { outcomeOfResponse } from '../../../src/core/outcome.ts';
import type { Submission } from '../../../src/core/provider.ts';
import { createSoniloProvider } from '../../../src/provider/sonilo/client.ts';
import { API_KEY, PROMPT, submission, submitTo, WITHOUT_TASK_ID } from './fixtures.ts';
import { rawServer, response } from './raw-server.ts';

// Deadlines are waited for, on machines on which much else runs.
vi.setConfig({ testTimeout: 30_000 });

type Answer = Parameters<typeof response>;

async function answeredWith(answer: Answer, changes: Partial<Submission> = {}) {
  const { outcome, server } = await submitTo(
    { onRequest: (socket) => socket.write(response(...answer)) },
    changes,
  );
  expect(server.posts).toBe(1);
  expect(server.requests).toHaveLength(1);
  expect(server.connections).toBe(1);
  return outcome;
}

const answered = (httpStatus: number, changes: object = {}) => ({
  phase: 'answered',
  headersSent: true,
  headersSentProof: 'oracle',
  httpStatus,
  errorCode: null,
  providerTaskId: null,
  responseAgeMs: expect.any(Number),
  closed: true,
  ...changes,
});

const ACCEPTED = {
  health: 'success',
  certainty: 'accepted',
  reason: 'task_accepted',
  alert: false,
  retryAfterMs: null,
};
const BODY = '{"task_id":"task-1","status":"processing"}';

describe('the request', () => {
  test('is the stored form, whole and urlencoded, with the key in its header only', async () => {
    const { server } = await submitTo({ onRequest: (socket) => socket.write(response(202, BODY)) });
    const [request] = server.requests;
    expect(request?.line).toBe('POST /v1/text-to-music');
    expect(Object.fromEntries(new URLSearchParams(request?.body))).toEqual({
      mode: 'async',
      output_format: 'm4a',
      prompt: PROMPT,
      stems: 'false',
      variants_num: '1',
    });
    expect(request?.headers).toMatchObject({
      authorization: `Bearer ${API_KEY}`,
      'content-type': 'application/x-www-form-urlencoded',
      'content-length': String(request?.body.length),
      'accept-encoding': 'identity',
      connection: 'close',
    });
    expect(request?.headers).not.toHaveProperty('transfer-encoding');
  });

  test('goes to the path of its operation', async () => {
    const { server } = await submitTo(
      { onRequest: (socket) => socket.write(response(202, BODY)) },
      { operation: 'video-to-music', fields: { mode: 'async', video_url: 'https://example.com/v.mp4' } },
    );
    expect(server.requests.map(({ line }) => line)).toEqual(['POST /v1/video-to-music']);
  });

  test('has a connection of its own each time: 100 POSTs, 100 sockets', async () => {
    const server = await rawServer({
      onRequest: (socket) => socket.write(response(202, BODY, [['connection', 'keep-alive']])),
    });
    const provider = createSoniloProvider({ baseUrl: `http://127.0.0.1:${server.port}` });
    for (let round = 0; round < 10; round += 1) {
      const outcomes = await Promise.all(Array.from({ length: 10 }, () => provider.submit(submission())));
      expect(outcomes.every(({ certainty }) => certainty === 'accepted')).toBe(true);
    }
    await provider.close();
    await server.stop();
    expect([server.connections, server.posts]).toEqual([100, 100]);
  });
});

describe('the gate', () => {
  test.each([
    ['before the dispatch', 0, 0, 'kept_back'],
    ['once connected', 1, 1, 'oracle'],
    ['in the turn of the first byte', 2, 1, 'oracle'],
  ])('closed %s: no byte reaches the server', async (_title, openFor, connections, headersSentProof) => {
    let asked = 0;
    const { outcome, server } = await submitTo({}, { maySend: () => ++asked <= openFor });
    expect(outcome).toEqual({
      health: 'none',
      certainty: 'unsent',
      reason: 'unsent_own_doing',
      alert: true,
      retryAfterMs: null,
      evidence: {
        phase: 'unsent',
        headersSent: false,
        headersSentProof,
        httpStatus: null,
        errorCode: 'gate_closed',
        providerTaskId: null,
        responseAgeMs: null,
        closed: true,
      },
    });
    expect(server.bytes).toBe(0);
    expect(server.connections).toBe(connections);
  });

  test('that throws is closed', async () => {
    for (const openFor of [0, 1, 2]) {
      let asked = 0;
      const { outcome, server } = await submitTo(
        {},
        {
          maySend: () => {
            if (++asked > openFor) throw new Error('broken');
            return true;
          },
        },
      );
      expect(outcome).toMatchObject({ certainty: 'unsent', reason: 'unsent_own_doing' });
      expect(server.bytes).toBe(0);
    }
  });
});

describe('a 2xx', () => {
  test.each([200, 201, 202, 299])('%i with a task id is accepted', async (status) => {
    expect(await answeredWith([status, BODY])).toEqual({
      ...ACCEPTED,
      evidence: answered(status, { providerTaskId: 'task-1' }),
    });
  });

  test.each([
    ['with a byte order mark', Buffer.from(`\uFEFF${BODY}`), undefined],
    ['in gzip', gzipSync(BODY), 'gzip'],
    ['in brotli', brotliCompressSync(BODY), 'br'],
    ['in deflate', deflateSync(BODY), 'deflate'],
    ['in bare deflate', deflateRawSync(BODY), 'deflate'],
    ['in two encodings', brotliCompressSync(gzipSync(BODY)), 'GZIP, br'],
    ['called identity', Buffer.from(BODY), 'identity'],
  ])('%s is read', async (_title, body, encoding) => {
    const outcome = await answeredWith([
      202,
      body,
      encoding === undefined ? [] : [['content-encoding', encoding]],
    ]);
    expect(outcome).toEqual({ ...ACCEPTED, evidence: answered(202, { providerTaskId: 'task-1' }) });
  });

  test.each([
    ['an id of 255 characters', 'x'.repeat(255)],
    ['an id with slashes and dots', '../a?b=c/é'],
  ])('with %s is accepted', async (_title, taskId) => {
    const outcome = await answeredWith([202, JSON.stringify({ task_id: taskId })]);
    expect(outcome).toEqual({ ...ACCEPTED, evidence: answered(202, { providerTaskId: taskId }) });
  });

  const bomb = gzipSync(JSON.stringify({ task_id: 'task-1', x: 'y'.repeat(1_100_000) }));
  test.each<[string, string | Buffer, [string, string][]?]>([
    ['an empty body', ''],
    ['HTML', '<html><body>Accepted</body></html>'],
    ['an array', `[${BODY}]`],
    ['null', 'null'],
    ['a bare string', '"task-1"'],
    ['broken JSON', '{"task_id":"task-1"'],
    ['deep nesting', '['.repeat(500_000)],
    ['no id', '{"status":"processing"}'],
    ['an id of null', '{"task_id":null}'],
    ['an empty id', '{"task_id":""}'],
    ['an id of 0', '{"task_id":0}'],
    ['an id of true', '{"task_id":true}'],
    ['an object as id', '{"task_id":{"id":"task-1"}}'],
    ['an array as id', '{"task_id":["task-1"]}'],
    ['an id of 300 characters', JSON.stringify({ task_id: 'x'.repeat(300) })],
    ['an id with a control character', '{"task_id":"task\\u0000-1"}'],
    ['an id with a lone surrogate', '{"task_id":"task\\ud800"}'],
    ['bytes that are not UTF-8', Buffer.from(BODY.replace('task-1', 'task-\xff'), 'latin1')],
    ['gzip that is cut', gzipSync(BODY).subarray(0, 30), [['content-encoding', 'gzip']]],
    ['gzip that is none', BODY, [['content-encoding', 'gzip']]],
    ['gzip that unpacks beyond the cap', bomb, [['content-encoding', 'gzip']]],
    ['an unknown encoding', BODY, [['content-encoding', 'compress']]],
    ['three encodings', BODY, [['content-encoding', 'gzip, gzip, gzip']]],
    [
      'a music stream',
      '{"type":"title","title":"x"}\n{"type":"complete"}\n',
      [['content-type', 'application/x-ndjson']],
    ],
  ])('with %s has no usable task id', async (_title, body, headers = []) => {
    expect(await answeredWith([202, body, headers])).toEqual({ ...WITHOUT_TASK_ID, evidence: answered(202) });
  });

  test('204 has no usable task id', async () => {
    const { outcome, server } = await submitTo({
      onRequest: (socket) => socket.write('HTTP/1.1 204 No Content\r\n\r\n'),
    });
    expect(outcome).toEqual({ ...WITHOUT_TASK_ID, evidence: answered(204) });
    expect(server.posts).toBe(1);
  });
});

describe('another status', () => {
  const statuses = [
    ...[300, 304, 399],
    ...[400, 401, 402, 403, 404, 405, 406, 407, 408, 409, 410, 411, 413, 415, 418, 421, 422, 423, 425, 426],
    ...[
      428, 431, 451, 499, 500, 501, 502, 503, 504, 505, 507, 508, 511, 520, 521, 522, 523, 524, 526, 530, 599,
    ],
  ];
  test.each(statuses)('%i follows the HTTP table', async (status) => {
    const body = status === 304 ? '' : '{"code":"some_code","message":"Too many secrets","task_id":"task-1"}';
    expect(await answeredWith([status, body])).toEqual({
      ...outcomeOfResponse({ status }),
      retryAfterMs: null,
      evidence: answered(status, { errorCode: status === 304 ? null : 'some_code' }),
    });
  });

  test.each([301, 302, 303, 307, 308])('%i is not followed, by any method', async (status) => {
    const { outcome, server } = await submitTo({
      onRequest: (socket) => socket.write(response(status, '', [['location', '/v1/elsewhere']])),
    });
    expect(outcome).toMatchObject({ certainty: 'unknown', reason: 'unreviewed_status', alert: true });
    expect(server.requests.map(({ line }) => line)).toEqual(['POST /v1/text-to-music']);
  });

  test('5xx on the resubmit list is refused by the owner’s word', async () => {
    const outcome = await answeredWith([503, '{"code":"unavailable"}'], { resubmitOn: [503] });
    expect(outcome).toMatchObject({ certainty: 'refused', reason: 'resubmit_permitted' });
  });

  test.each([
    ['prose', '{"code":"your prompt was rude"}', null],
    ['longer than 64 characters', JSON.stringify({ code: 'x'.repeat(65) }), null],
    ['a number', '{"code":42}', null],
    ['an echo of the key', JSON.stringify({ code: `bad.${API_KEY}` }), null],
    ['absent', '{"detail":[{"loc":["body","prompt"],"msg":"Field required"}]}', null],
    ['in HTML', '<html>code</html>', null],
    ['plain', '{"code":"invalid_request"}', 'invalid_request'],
  ])('its code is kept only when it is plain: %s', async (_title, body, errorCode) => {
    expect(await answeredWith([400, body])).toMatchObject({
      reason: 'request_refused',
      evidence: answered(400, { errorCode }),
    });
  });
});

describe('429', () => {
  const RATE =
    '{"code":"rate_limit_exceeded","message":"Rate limit exceeded: your account allows 60 requests"}';
  const CONCURRENCY =
    '{"code":"rate_limit_exceeded","message":"Too many concurrent generations: 4 of 4 in progress"}';

  test.each([
    ['the rate', RATE, 'rate_limited'],
    ['the concurrency', CONCURRENCY, 'concurrency_limited'],
    [
      'the concurrency in the fallback shape',
      '{"detail":"Too many concurrent generations: 1 of 1"}',
      'concurrency_limited',
    ],
    ['a text nobody knows', '{"message":"Daily generation limit reached"}', 'rate_limited'],
    ['the words elsewhere in the text', '{"message":"Not: Too many concurrent generations"}', 'rate_limited'],
    ['HTML', '<html>Too many concurrent generations</html>', 'rate_limited'],
    ['nothing', '', 'rate_limited'],
  ])('about %s', async (_title, body, reason) => {
    expect(await answeredWith([429, body])).toMatchObject({
      health: 'capacity_signal',
      certainty: 'refused',
      reason,
      retryAfterMs: null,
    });
  });

  test.each<[string, string[], number | null]>([
    ['seconds', ['7'], 7_000],
    ['a fraction', ['0.5'], 500],
    ['zero', ['0'], 0],
    ['a date in the past', ['Wed, 21 Oct 2015 07:28:00 GMT'], 0],
    ['junk', ['soon'], null],
    ['a negative number', ['-3'], null],
    ['nothing', [''], null],
    ['two, the first sane one counts', ['soon', '9'], 9_000],
    ['none', [], null],
  ])('Retry-After: %s', async (_title, values, retryAfterMs) => {
    for (const body of [RATE, CONCURRENCY]) {
      const headers = values.map((value) => ['retry-after', value] as const);
      expect(await answeredWith([429, body, headers])).toMatchObject({ retryAfterMs });
    }
  });

  test('Retry-After with a date ahead counts from now', async () => {
    const at = new Date(Date.now() + 90_000).toUTCString();
    const { retryAfterMs } = await answeredWith([429, RATE, [['retry-after', at]]]);
    expect(retryAfterMs).toBeGreaterThan(60_000);
    expect(retryAfterMs).toBeLessThanOrEqual(90_000);
  });

  test.each([
    ['an hour behind', -3_600_000],
    ['a day ahead', 86_400_000],
  ])('Retry-After with a date is meant by the clock of the answer, %s', async (_title, ms) => {
    const there = Date.now() + ms;
    const headers = [
      ['date', new Date(there).toUTCString()],
      ['retry-after', new Date(there + 90_000).toUTCString()],
    ] as const;
    expect(await answeredWith([429, RATE, headers])).toMatchObject({ retryAfterMs: 90_000 });
  });
});
