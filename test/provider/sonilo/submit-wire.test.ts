import type { Socket } from 'node:net';
import { brotliCompressSync, deflateRawSync, deflateSync, gzipSync } from 'node:zlib';
import { describe, expect, test, vi } from 'vitest';
import { outcomeOfResponse } from '../../../src/core/outcome.ts';
import type { Submission, SubmissionOutcome } from '../../../src/core/provider.ts';
import { parseBaseUrl } from '../../../src/provider/sonilo/base-url.ts';
import { provenOracle } from '../../../src/provider/sonilo/proven-oracle.ts';
import { submitOnce } from '../../../src/provider/sonilo/submit.ts';
import { SHORT, submission, submitTo } from './fixtures.ts';
import { flood, type RawBehaviour, rawServer, response } from './raw-server.ts';

// Deadlines are waited for, on machines on which much else runs.
vi.setConfig({ testTimeout: 30_000 });

const BODY = '{"task_id":"task-1","status":"processing"}';
const ACCEPTED = { certainty: 'accepted', reason: 'task_accepted', alert: false };
const UNIDENTIFIED = { certainty: 'unknown', reason: 'accepted_without_task_id', alert: true };
const UNREVIEWED = { certainty: 'unknown', reason: 'unreviewed_status', alert: true };
const TRANSPORT = { certainty: 'unknown', reason: 'transport', health: 'dependency_failure' };

/** The outcome of a POST that was read whole and answered with these bytes; then the connection stays open. */
async function answered(
  bytes: string | Buffer,
  changes: Partial<Submission> = {},
): Promise<SubmissionOutcome> {
  const { outcome, server } = await submitTo({ onRequest: (socket) => socket.write(bytes) }, changes);
  expect([server.posts, server.requests.length, server.connections]).toEqual([1, 1, 1]);
  // What is kept of an answer is small, whatever came.
  expect(JSON.stringify(outcome).length).toBeLessThan(700);
  return outcome;
}

const framed = (statusLine: string, body = BODY) =>
  `${statusLine}\r\ncontent-length: ${body.length}\r\n\r\n${body}`;

describe('a status line', () => {
  test.each([
    ['without a reason', 'HTTP/1.1 202'],
    ['with an empty reason', 'HTTP/1.1 202 '],
    ['with a reason that lies', 'HTTP/1.1 202 Bad Gateway'],
    ['of HTTP/1.0', 'HTTP/1.0 202 Accepted'],
    ['after empty lines', '\r\n\r\nHTTP/1.1 202 Accepted'],
  ])('%s is read', async (_title, line) => {
    expect(await answered(framed(line))).toMatchObject(ACCEPTED);
  });

  test.each([
    ['of no HTTP', 'ICY 200 OK'],
    ['in small letters', 'http/1.1 202 Accepted'],
    ['of another version', 'HTTP/9.9 202 Accepted'],
    ['of HTTP/2', 'HTTP/2 202 Accepted'],
    ['with a word as status', 'HTTP/1.1 accepted 202'],
    ['with two digits', 'HTTP/1.1 20 Accepted'],
    ['with four digits', 'HTTP/1.1 2020 Accepted'],
    ['with a negative status', 'HTTP/1.1 -202 Accepted'],
    ['with nothing', 'HTTP/1.1'],
    ['of a request', 'POST /v1/text-to-music HTTP/1.1'],
    ['that is JSON', BODY],
    ['that is HTML', '<!doctype html><title>202 Accepted</title>'],
    ['with a NUL', 'HTTP/1.1 2\u000002 Accepted'],
  ])('%s is no answer', async (_title, line) => {
    const outcome = await answered(framed(line));
    expect(outcome).toMatchObject({ ...TRANSPORT, evidence: { phase: 'sent', httpStatus: null } });
  });

  test.concurrent.each([0, 1, 42, 99, 600, 700, 999])(
    '%i is no status that anybody has reviewed',
    async (status) => {
      const code = `${status}`.padStart(3, '0');
      const outcome = await answered(framed(`HTTP/1.1 ${code} X`), { deadlines: SHORT });
      // Below 200 the client takes it for informational, and the answer never comes.
      expect(outcome).toMatchObject(status < 200 ? TRANSPORT : UNREVIEWED);
      expect(outcome.evidence.headersSent).toBe(true);
    },
  );
});

describe('informational responses', () => {
  const hint = (status: number) => `HTTP/1.1 ${status} X\r\nlink: </x>\r\n\r\n`;

  test.each([102, 103, 110, 199])('%i is passed over, and the answer behind it counts', async (status) => {
    expect(await answered(`${hint(status)}${hint(status)}${framed('HTTP/1.1 202 X')}`)).toMatchObject(
      ACCEPTED,
    );
    expect(await answered(`${hint(status)}${framed('HTTP/1.1 422 X')}`)).toMatchObject({
      certainty: 'refused',
      reason: 'request_refused',
    });
  });

  test.concurrent.each([102, 103, 199])('%i alone is no answer', async (status) => {
    expect(await answered(hint(status), { deadlines: SHORT })).toMatchObject({
      ...TRANSPORT,
      evidence: { httpStatus: null, errorCode: 'first_response_deadline' },
    });
  });
});

describe('a redirect', () => {
  const statuses = Array.from({ length: 100 }, (_, n) => 300 + n);

  test('of any status is not followed, by any method, anywhere', async () => {
    const elsewhere = await rawServer({});
    const places = [
      '/v1/text-to-music',
      `http://127.0.0.1:${elsewhere.port}/v1/text-to-music`,
      '//x',
      '',
      '\\',
    ];
    for (const [n, status] of statuses.entries()) {
      const { outcome, server } = await submitTo({
        onRequest: (socket) =>
          socket.write(response(status, status === 304 ? '' : BODY, [['location', places[n % 5] as string]])),
      });
      expect(outcome, `${status}`).toMatchObject({ ...UNREVIEWED, evidence: { httpStatus: status } });
      expect(server.requests.map(({ line }) => line)).toEqual(['POST /v1/text-to-music']);
    }
    await elsewhere.stop();
    expect(elsewhere.connections).toBe(0);
  }, 30_000);
});

describe('an answer that is cut', () => {
  const FRAMINGS: Readonly<Record<string, Buffer>> = {
    'with its length': Buffer.from(framed('HTTP/1.1 202 Accepted')),
    'in chunks': Buffer.from(
      `HTTP/1.1 202 Accepted\r\ntransfer-encoding: chunked\r\n\r\n${[BODY.slice(0, 20), BODY.slice(20)]
        .map((part) => `${part.length.toString(16)}\r\n${part}\r\n`)
        .join('')}0\r\n\r\n`,
    ),
    'to the end of its connection': Buffer.from(`HTTP/1.1 202 Accepted\r\nconnection: close\r\n\r\n${BODY}`),
  };
  const ENDS: Readonly<Record<string, (socket: Socket, bytes: Buffer) => void>> = {
    closed: (socket, bytes) => socket.end(bytes),
    reset: (socket, bytes) => socket.write(bytes, () => socket.resetAndDestroy()),
  };

  test.each(
    Object.keys(FRAMINGS).flatMap((framing) => Object.keys(ENDS).map((end) => [framing, end] as const)),
  )(
    '%s, at every byte, and then %s, is never an acceptance',
    async (framing, end) => {
      const whole = FRAMINGS[framing] as Buffer;
      const proven = provenOracle();
      let next = 0;
      const server = await rawServer({
        onRequest: (socket, { body }) => {
          next = Number(new URLSearchParams(body).get('prompt'));
          (ENDS[end] as (socket: Socket, bytes: Buffer) => void)(socket, whole.subarray(0, next));
        },
      });
      const base = parseBaseUrl(`http://127.0.0.1:${server.port}`, false);
      const { fields } = submission();
      const cutAt = async (length: number) => {
        const outcome = await submitOnce(
          base,
          submission({ fields: { ...fields, prompt: `${length}` } }),
          proven,
        );
        const { httpStatus, providerTaskId, headersSent } = outcome.evidence;
        expect({ length, httpStatus: httpStatus ?? 202, providerTaskId, headersSent }).toEqual({
          length,
          httpStatus: 202,
          providerTaskId: null,
          headersSent: true,
        });
        expect(outcome, `${length}`).toMatchObject(httpStatus === null ? TRANSPORT : UNIDENTIFIED);
      };
      const lengths = Array.from({ length: whole.length }, (_, length) => length);
      for (let n = 0; n < lengths.length; n += 20) await Promise.all(lengths.slice(n, n + 20).map(cutAt));
      proven.oracle.close();
      await server.stop();
      expect(server.posts).toBe(whole.length);
      expect(server.connections).toBe(whole.length);
    },
    30_000,
  );

  const COMPRESSED: Readonly<Record<string, [string, Buffer]>> = {
    gzip: ['gzip', gzipSync(BODY)],
    brotli: ['br', brotliCompressSync(BODY)],
    deflate: ['deflate', deflateSync(BODY)],
    'bare deflate': ['deflate', deflateRawSync(BODY)],
    'gzip in brotli': ['gzip, br', brotliCompressSync(gzipSync(BODY))],
  };

  test.each(Object.keys(COMPRESSED))(
    'within its %s, at every byte, is never an acceptance',
    async (name) => {
      const [encoding, whole] = COMPRESSED[name] as [string, Buffer];
      const proven = provenOracle();
      const server = await rawServer({
        onRequest: (socket, { body }) => {
          const length = Number(new URLSearchParams(body).get('prompt'));
          socket.write(response(202, whole.subarray(0, length), [['content-encoding', encoding]]));
        },
      });
      const base = parseBaseUrl(`http://127.0.0.1:${server.port}`, false);
      const { fields } = submission();
      const outcomes = await Promise.all(
        Array.from({ length: whole.length + 1 }, (_, length) =>
          submitOnce(base, submission({ fields: { ...fields, prompt: `${length}` } }), proven),
        ),
      );
      proven.oracle.close();
      await server.stop();
      expect(outcomes.pop()).toMatchObject(ACCEPTED);
      for (const outcome of outcomes) expect(outcome).toMatchObject(UNIDENTIFIED);
      expect(server.posts).toBe(whole.length + 1);
    },
    30_000,
  );
});

describe('a body', () => {
  const padded = JSON.stringify({ task_id: 'task-1', x: 'y'.repeat(2_000_000) });
  test.each<[string, Buffer, string]>([
    ['gzip', gzipSync(padded), 'gzip'],
    ['brotli', brotliCompressSync(padded), 'br'],
    ['deflate', deflateSync(padded), 'deflate'],
    ['bare deflate', deflateRawSync(padded), 'deflate'],
    ['gzip in gzip', gzipSync(gzipSync(padded)), 'gzip, gzip'],
  ])('that unpacks beyond the cap, as %s, is no acceptance', async (_title, body, encoding) => {
    const startedAt = performance.now();
    expect(await answered(response(202, body, [['content-encoding', encoding]]))).toMatchObject(UNIDENTIFIED);
    expect(performance.now() - startedAt).toBeLessThan(4_000);
  });

  const PAGE = `<!doctype html><script>${'alert("task_id");'.repeat(20_000)}</script>`;
  test.each([200, 202, 400, 401, 403, 422, 429, 500, 502, 503, 520, 525])(
    'of 300 kB of HTML under %i tells nothing that its status doesn’t',
    async (status) => {
      for (const type of ['text/html', 'application/json', 'application/x-nonsense; charset=\u00ff']) {
        const outcome = await answered(response(status, PAGE, [['content-type', type]]));
        expect(outcome).toMatchObject({
          ...outcomeOfResponse({ status }),
          evidence: { httpStatus: status, errorCode: null, providerTaskId: null },
        });
      }
    },
  );

  test.concurrent.each([200, 202, 400, 401, 422, 429, 500, 503, 520])(
    'that never ends under %i is cut by bytes, and by time, and its status still counts',
    async (status) => {
      const head = `HTTP/1.1 ${status} X\r\nretry-after: 7\r\ntransfer-encoding: chunked\r\n\r\n`;
      const flooding = await submitTo({
        onRequest: (socket) => {
          socket.write(head);
          flood(socket, `4000\r\n${'x'.repeat(16_384)}\r\n`);
        },
      });
      const dripping = await submitTo(
        {
          onRequest: (socket) => {
            socket.write(head);
            const drip = setInterval(() => socket.write('1\r\n{\r\n'), 20);
            socket.once('close', () => clearInterval(drip));
          },
        },
        { deadlines: SHORT },
      );
      const expected = { ...outcomeOfResponse({ status }), retryAfterMs: status === 429 ? 7_000 : null };
      expect(flooding.outcome).toMatchObject({
        ...expected,
        evidence: { httpStatus: status, errorCode: 'answer_too_large', closed: true },
      });
      expect(dripping.outcome).toMatchObject({
        ...expected,
        evidence: { httpStatus: status, errorCode: 'submission_deadline', closed: true },
      });
      expect([flooding.server.posts, dripping.server.posts]).toEqual([1, 1]);
    },
  );

  test.each<[string, string, object]>([
    ['an error', '{"error":{"code":"internal","message":"task_id"}}', UNIDENTIFIED],
    [
      'an error with its code',
      '{"code":"insufficient_balance","message":"no"}',
      { ...UNIDENTIFIED, evidence: { errorCode: 'insufficient_balance' } },
    ],
    ['an error in a list', '[{"code":"x"}]', UNIDENTIFIED],
    ['a list of tasks', `[${BODY},${BODY}]`, UNIDENTIFIED],
    ['a task within', `{"data":${BODY}}`, UNIDENTIFIED],
    ['a task in the prototype', `{"__proto__":${BODY}}`, UNIDENTIFIED],
    ['two documents', `${BODY}${BODY}`, UNIDENTIFIED],
    ['two lines', `${BODY}\n${BODY}\n`, UNIDENTIFIED],
    ['something behind it', `${BODY} ok`, UNIDENTIFIED],
    ['a comment', `/* accepted */ ${BODY}`, UNIDENTIFIED],
    ['NaN', '{"task_id":"task-1","x":NaN}', UNIDENTIFIED],
    ['another case', '{"Task_Id":"task-1"}', UNIDENTIFIED],
    ['a number as id', '{"task_id":1e999}', UNIDENTIFIED],
    ['an empty object as id', '{"task_id":{}}', UNIDENTIFIED],
    ['256 characters', JSON.stringify({ task_id: 'x'.repeat(256) }), UNIDENTIFIED],
    ['a line break in the id', '{"task_id":"task\\n1"}', UNIDENTIFIED],
    ['a DEL in the id', '{"task_id":"task\\u007f"}', UNIDENTIFIED],
    ['a C1 control in the id', '{"task_id":"task\\u0085"}', UNIDENTIFIED],
    ['half a pair in the id', '{"task_id":"\\udc00task"}', UNIDENTIFIED],
    ['an error beside the id', '{"task_id":"task-1","error":{"code":"x"}}', ACCEPTED],
    ['the id twice', '{"task_id":"task-0","task_id":"task-1"}', ACCEPTED],
    ['white space around', `\r\n\t ${BODY}\r\n`, ACCEPTED],
    ['spaces in the id', '{"task_id":" task 1 "}', { ...ACCEPTED, evidence: { providerTaskId: ' task 1 ' } }],
    [
      '255 characters beyond the BMP',
      JSON.stringify({ task_id: '🎵'.repeat(255) }),
      { ...ACCEPTED, evidence: { providerTaskId: '🎵'.repeat(255) } },
    ],
  ])('of a 200 with %s', async (_title, body, expected) => {
    const { outcome, server } = await submitTo({ onRequest: (socket) => socket.write(response(200, body)) });
    expect(outcome).toMatchObject(expected);
    expect(server.posts).toBe(1);
  });

  test.each([
    ['utf-16', Buffer.from(`\ufeff${BODY}`, 'utf16le')],
    ['utf-16 without a mark', Buffer.from(BODY, 'utf16le')],
    ['two byte order marks', Buffer.from(`\ufeff\ufeff${BODY}`)],
    [
      'overlong UTF-8',
      Buffer.concat([Buffer.from('{"task_id":"'), Buffer.from([0xc0, 0x80]), Buffer.from('"}')]),
    ],
  ])('in %s is no acceptance', async (_title, body) => {
    expect(await answered(response(202, body))).toMatchObject(UNIDENTIFIED);
  });
});

describe('framing', () => {
  const head = (lines: string) => `HTTP/1.1 202 Accepted\r\n${lines}\r\n\r\n`;
  const length = BODY.length;

  test.each<[string, string]>([
    ['two answers at once: the first counts', framed('HTTP/1.1 202 X') + framed('HTTP/1.1 422 X', '{}')],
    ['bytes beyond the length', `${framed('HTTP/1.1 202 X')}garbage`],
    [
      'chunks with extensions and trailers',
      `${head('transfer-encoding: chunked')}${length.toString(16)};a=b\r\n${BODY}\r\n0\r\nx: y\r\n\r\n`,
    ],
    [
      'one byte in each chunk',
      `${head('transfer-encoding: chunked')}${[...BODY].map((byte) => `1\r\n${byte}\r\n`).join('')}0\r\n\r\n`,
    ],
    ['the same length twice, in one line', framed('HTTP/1.1 202 X')],
  ])('%s', async (_title, bytes) => {
    expect(await answered(bytes)).toMatchObject({ ...ACCEPTED, evidence: { providerTaskId: 'task-1' } });
  });

  test.concurrent.each<[string, string]>([
    ['a length that is none', `${head('content-length: many')}${BODY}`],
    ['a negative length', `${head('content-length: -1')}${BODY}`],
    ['a length beyond all numbers', `${head('content-length: 99999999999999999999999')}${BODY}`],
    ['two lengths', `${head(`content-length: ${length}\r\ncontent-length: 2`)}${BODY}`],
    ['a length and chunks', `${head(`content-length: ${length}\r\ntransfer-encoding: chunked`)}${BODY}`],
    ['a header without a colon', `${head('nonsense')}${BODY}`],
    ['a header with a space in its name', `${head('task id: x')}${BODY}`],
    ['a NUL in a header', `${head('x: a\u0000b')}${BODY}`],
    ['headers beyond 16 kB', `${head(`x: ${'y'.repeat(17_000)}`)}${BODY}`],
    [
      'a thousand headers',
      `${head(Array.from({ length: 1_000 }, (_, n) => `x-${n}: ${'y'.repeat(20)}`).join('\r\n'))}${BODY}`,
    ],
  ])('%s: nothing is believed', async (_title, bytes) => {
    const outcome = await answered(bytes, {
      deadlines: SHORT,
    });
    expect(outcome.certainty).toBe('unknown');
    expect(outcome.evidence).toMatchObject({ providerTaskId: null, headersSent: true });
  });

  test.concurrent.each<[string, string]>([
    ['a size that is none', 'zz\r\n{}\r\n0\r\n\r\n'],
    ['a size beyond all numbers', 'fffffffffffffffff\r\n{}\r\n'],
    ['a chunk longer than its size', `5\r\n${BODY}\r\n0\r\n\r\n`],
    ['no last chunk', `${length.toString(16)}\r\n${BODY}\r\n`],
    ['trailers without an end', `${length.toString(16)}\r\n${BODY}\r\n0\r\n${'x: y\r\n'.repeat(3_000)}`],
  ])('chunks with %s are no acceptance', async (_title, chunks) => {
    const outcome = await answered(`${head('transfer-encoding: chunked')}${chunks}`, { deadlines: SHORT });
    expect(outcome).toMatchObject({ ...UNIDENTIFIED, evidence: { httpStatus: 202, providerTaskId: null } });
  });

  test('an answer without an end, on a connection that stays open, waits for its deadline', async () => {
    const outcome = await answered(`${head('x: y')}${BODY}`, { deadlines: SHORT });
    expect(outcome).toMatchObject({ ...UNIDENTIFIED, evidence: { errorCode: 'submission_deadline' } });
  });
});

describe('what we send', () => {
  const accept: RawBehaviour = { onRequest: (socket) => socket.write(response(202, BODY)) };

  test.each([
    ['line breaks', 'sk_x\r\nx-injected: 1'],
    ['a line feed', 'sk_x\ny'],
    ['a NUL', 'sk_\u0000'],
    ['other letters', 'sk_ключ'],
  ])('never carries a key with %s', async (_title, apiKey) => {
    const { outcome, server } = await submitTo(accept, { apiKey });
    expect(outcome).toMatchObject({
      certainty: 'unsent',
      reason: 'unsent_own_doing',
      evidence: { headersSent: false },
    });
    expect(server.bytes).toBe(0);
  });

  test('carries a field that looks like HTTP as a field', async () => {
    const prompt =
      'x\r\n\r\nPOST /v1/text-to-music HTTP/1.1\r\nhost: y\r\ncontent-length: 0\r\n\r\n&mode=stream';
    const { server } = await submitTo(accept, { fields: { ...submission().fields, prompt } });
    expect(server.requests).toHaveLength(1);
    const form = new URLSearchParams(server.requests[0]?.body);
    expect([form.get('prompt'), form.getAll('mode')]).toEqual([prompt, ['async']]);
  });
});

describe('a provider that repeats what it was sent', () => {
  const prompt = 'my-unreleased-album, side two';
  const { fields } = submission();

  test.each([
    ['the key', submission().apiKey],
    ['a part of the key', submission().apiKey.slice(3)],
    ['a word of the prompt', 'my-unreleased-album'],
    ['the prompt in a code', 'bad.my-unreleased-album'],
    ['the address', 'video.example.com'],
  ])('as its code, %s, gets nothing of it into what we keep', async (_title, code) => {
    const { outcome } = await submitTo(
      {
        onRequest: (socket) =>
          socket.write(
            response(`400 ${code}`, JSON.stringify({ code, detail: code }), [['x-request-id', code]]),
          ),
      },
      {
        fields: {
          ...fields,
          prompt,
          title: 'my-unreleased-album',
          video_url: 'https://video.example.com/my.mp4',
        },
      },
    );
    expect(outcome).toMatchObject({ reason: 'request_refused', evidence: { errorCode: null } });
    expect(JSON.stringify(outcome)).not.toContain(code);
  });

  test('keeps a code of the contract, which decides what is held, whoever has written it into the prompt', async () => {
    const { outcome } = await submitTo(
      { onRequest: (socket) => socket.write(response(402, '{"code":"trial_exhausted"}')) },
      { fields: { ...fields, prompt: 'trial_exhausted' } },
    );
    expect(outcome.evidence.errorCode).toBe('trial_exhausted');
  });

  test('keeps a code that names one of our settings', async () => {
    const { outcome } = await submitTo({
      onRequest: (socket) => socket.write(response(400, '{"code":"output_format_m4a_unsupported"}')),
    });
    expect(outcome.evidence.errorCode).toBe('output_format_m4a_unsupported');
  });
});
