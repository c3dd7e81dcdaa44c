import { gzipSync } from 'node:zlib';
import { describe, expect, test } from 'vitest';
import { createSoniloProvider } from '../../../src/provider/sonilo/client.ts';
import { unusedPort } from '../../support/unused-port.ts';
import { API_KEY, READ, readFrom } from './fixtures.ts';
import { flood, rawServer, response } from './raw-server.ts';

const URL_0 = 'https://files.example.com/0.m4a?sig=x';

const reads = (body: unknown) =>
  readFrom({ onRequest: (socket) => socket.write(response(200, JSON.stringify(body))) }).then(
    ({ reading }) => reading,
  );
const file = (index: number, url: string, changes: object = {}) => ({
  index,
  kind: 'audio',
  variant: index,
  label: null,
  url,
  contentType: null,
  bytes: null,
  ...changes,
});
const unreadable = (reason: string, changes: object = {}) => ({
  kind: 'unreadable',
  reason,
  httpStatus: 200,
  errorCode: null,
  retryAfterMs: null,
  ...changes,
});

describe('the request', () => {
  test.each([
    ['task-1', '/v1/tasks/task-1'],
    ['a/b?c=d#e é', '/v1/tasks/a%2Fb%3Fc%3Dd%23e%20%C3%A9'],
    ['..', '/v1/tasks/%2E%2E'],
  ])('for %s is one GET of one path segment', async (taskId, path) => {
    const { server } = await readFrom(
      { onRequest: (socket) => socket.write(response(200, '{"status":"processing"}')) },
      { taskId },
    );
    expect(server.requests.map(({ line }) => line)).toEqual([`GET ${path}`]);
    expect(server.requests[0]?.headers).toMatchObject({ authorization: `Bearer ${API_KEY}` });
  });

  test('keeps its connection for the next one', async () => {
    const server = await rawServer({
      onRequest: (socket) => socket.write(response(200, '{"status":"processing"}')),
    });
    const provider = createSoniloProvider({ baseUrl: `http://127.0.0.1:${server.port}` });
    const read = READ;
    for (let time = 0; time < 10; time += 1)
      expect(await provider.readTask(read)).toEqual({ kind: 'processing' });
    await provider.close();
    await server.stop();
    // Two: a read that starts in the turn in which another ends finds its connection not free yet.
    expect(server.connections).toBeLessThanOrEqual(2);
    expect(server.requests).toHaveLength(10);
  });
});

describe('the status', () => {
  test.each(['processing', 'PROCESSING', ' Processing '])('"%s" is processing', async (status) => {
    expect(await reads({ task_id: 'task-1', status })).toEqual({ kind: 'processing' });
  });

  test.each(['succeeded', 'Succeeded', 'completed'])('"%s" is succeeded', async (status) => {
    expect(await reads({ status, audio: { url: URL_0 } })).toEqual({
      kind: 'succeeded',
      files: [file(0, URL_0)],
      document: null,
      warnings: [],
    });
  });

  test.each<[string, unknown, unknown, string | null, boolean | null]>([
    ['failed', { code: 'internal_error', message: 'x y' }, true, 'internal_error', true],
    ['FAILED', 'internal_error', false, 'internal_error', false],
    ['failed', 'It went wrong', 'false', null, null],
    ['failed', null, null, null, null],
    ['failed', { message: 'x' }, 1, null, null],
    ['failed', { code: 'not plain' }, undefined, null, null],
    ['canceled', null, true, 'canceled', true],
    ['cancelled', { code: 'x' }, undefined, 'canceled', null],
  ])('"%s" with error %j and refunded %j is failed', async (status, error, refunded, errorCode, expected) => {
    expect(await reads({ status, error, refunded })).toEqual({
      kind: 'failed',
      errorCode,
      refunded: expected,
    });
  });

  test.each([['Rain'], ['refused_harbour-at-dawn'], [API_KEY], [API_KEY.slice(0, 8)]])(
    'tells no code %s, which repeats what was sent',
    async (code) => {
      const fields = { prompt: 'Rain', more: ' harbour-at-dawn ' };
      const told = (body: object, status = 200) =>
        readFrom(
          { onRequest: (socket) => socket.write(response(status, JSON.stringify(body))) },
          { fields },
        ).then(({ reading }) => reading);
      for (const error of [code, { code }])
        expect(await told({ status: 'failed', error })).toMatchObject({ kind: 'failed', errorCode: null });
      expect(await told({ status: code })).toEqual(unreadable('unknown_status'));
      expect(await told({ code }, 500)).toEqual(unreadable('http_status', { httpStatus: 500 }));
    },
  );

  test('of another name says nothing of the task', async () => {
    expect(await reads({ status: 'queued' })).toEqual(unreadable('unknown_status', { errorCode: 'queued' }));
    expect(await reads({ status: 'in the queue' })).toEqual(unreadable('unknown_status'));
  });

  test.each([
    [[]],
    [null],
    ['processing'],
    [{}],
    [{ status: null }],
    [{ status: 1 }],
    [{ status: ['processing'] }],
  ])('missing, as in %j, is an unreadable body', async (body) => {
    expect(await reads(body)).toEqual(unreadable('body'));
  });

  test('of another task is not taken for ours', async () => {
    const body = { task_id: 'task-2', status: 'succeeded', audio: [{ stream_index: 0, url: URL_0 }] };
    expect(await reads(body)).toEqual(unreadable('body', { errorCode: 'task_id_mismatch' }));
  });
});

describe('what can’t be read', () => {
  test.each([201, 202, 204, 301, 307, 401, 402, 403, 404, 429, 500, 502, 503])(
    '%i is its status, and not followed',
    async (status) => {
      const { reading, server } = await readFrom({
        onRequest: (socket) =>
          socket.write(
            response(status, status === 204 ? '' : '{"code":"not_found","status":"failed"}', [
              ['location', '/v1/elsewhere'],
              ['retry-after', '3'],
            ]),
          ),
      });
      expect(reading).toEqual({
        kind: 'unreadable',
        reason: 'http_status',
        httpStatus: status,
        errorCode: status === 204 ? null : 'not_found',
        retryAfterMs: 3_000,
      });
      expect(server.requests).toHaveLength(1);
    },
  );

  const transport = (errorCode: string) => unreadable('transport', { httpStatus: null, errorCode });

  test('a refused connection', async () => {
    const provider = createSoniloProvider({ baseUrl: `http://127.0.0.1:${await unusedPort()}` });
    const reading = await provider.readTask(READ);
    await provider.close();
    expect(reading).toEqual(transport('ECONNREFUSED'));
  });

  test('silence, and a close instead of an answer', async () => {
    const silent = await readFrom({}, { timeoutMs: 150 });
    expect(silent.reading).toEqual(transport('read_deadline'));
    const closed = await readFrom({ onRequest: (socket) => socket.end() });
    expect(closed.reading).toEqual(transport('UND_ERR_SOCKET'));
    expect([silent.server.requests.length, closed.server.requests.length]).toEqual([1, 1]);
  });

  test('a connection that never comes about', async () => {
    const server = await rawServer({});
    const provider = createSoniloProvider({ baseUrl: `https://127.0.0.1:${server.port}` });
    const reading = await provider.readTask({ ...READ, timeoutMs: 150 });
    expect(reading).toEqual(transport('read_deadline'));
  });

  test('a body that is cut, stalls, is endless, or unpacks beyond the cap', async () => {
    const cut = await readFrom({
      onRequest: (socket) => socket.end('HTTP/1.1 200 X\r\ncontent-length: 60\r\n\r\n{"status":"succ'),
    });
    expect(cut.reading).toEqual(unreadable('body', { errorCode: 'UND_ERR_SOCKET' }));
    const stalled = await readFrom(
      { onRequest: (socket) => socket.write('HTTP/1.1 200 X\r\ncontent-length: 60\r\n\r\n{"status":"succ') },
      { timeoutMs: 150 },
    );
    expect(stalled.reading).toEqual(unreadable('body', { errorCode: 'read_deadline' }));
    const endless = await readFrom({
      onRequest: (socket) => {
        socket.write('HTTP/1.1 200 X\r\n\r\n{"status":"succeeded","x":"');
        flood(socket, 'y'.repeat(65_536));
      },
    });
    expect(endless.reading).toEqual(unreadable('body', { errorCode: 'answer_too_large' }));
    const bomb = gzipSync(JSON.stringify({ status: 'failed', x: 'y'.repeat(5_000_000) }));
    const unpacked = await readFrom({
      onRequest: (socket) => socket.write(response(200, bomb, [['content-encoding', 'gzip']])),
    });
    expect(unpacked.reading).toEqual(unreadable('body'));
  });

  test('after close', async () => {
    const provider = createSoniloProvider({ baseUrl: 'http://127.0.0.1:9' });
    await provider.close();
    await provider.close();
    const reading = await provider.readTask({ ...READ, timeoutMs: 150 });
    expect(reading).toMatchObject({ kind: 'unreadable', reason: 'transport' });
  });
});
