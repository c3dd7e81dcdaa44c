import { gzipSync } from 'node:zlib';
import { describe, expect, it } from 'vitest';
import { createDirectoryStorage } from '../../src/storage/directory-storage.ts';
import { type Answer, startFileServer, wav } from './file-server.ts';
import { resultFile, useStorage } from './storage-fixture.ts';

const HTML = '<!DOCTYPE html><html><body>Sign in</body></html>';
const fixture = useStorage();

describe('a file of the wrong length', () => {
  it.each([99, 101])('is refused when %i bytes arrive of 100', async (length) => {
    const result = await fixture.fetchFrom(
      (_request, response) => {
        response.write(wav(length));
        // One byte too many is enough: nobody waits for the end of such a body.
        if (length < 100) response.end();
      },
      { bytes: 100 },
    );
    expect(result).toEqual({ kind: 'failed', reason: 'length_mismatch', httpStatus: 200, errorCode: null });
    expect(await fixture.tree()).toEqual([]);
  });

  it.each([
    ['shorter', 99, 100, 'length_mismatch'],
    ['longer', 101, 100, 'length_mismatch'],
    ['too large', 2 ** 31, null, 'too_large'],
  ])(
    'that its header calls %s is refused and hung up on before its body',
    async (_what, length, bytes, reason) => {
      const { promise: hungUp, resolve } = Promise.withResolvers<void>();
      const result = await fixture.fetchFrom(
        (_request, response) => {
          response.writeHead(200, { 'content-length': length }).flushHeaders();
          response.on('close', resolve);
        },
        { bytes },
      );
      expect(result).toEqual({ kind: 'failed', reason, httpStatus: 200, errorCode: null });
      await hungUp;
    },
  );
});

describe('a broken download', () => {
  it('that is cut leaves nothing behind', async () => {
    const result = await fixture.fetchFrom((_request, response) => {
      response.writeHead(200, { 'content-length': 200_000 });
      response.write(wav(100_000), () => response.socket?.destroy());
    });
    expect(result).toMatchObject({ kind: 'failed', reason: 'transport', httpStatus: 200 });
    expect(await fixture.tree()).toEqual([]);
  });

  it('that is cut in chunked encoding leaves nothing behind', async () => {
    const result = await fixture.fetchFrom((_request, response) => {
      response.write(wav(100_000), () => response.socket?.destroy());
    });
    expect(result).toMatchObject({ kind: 'failed', reason: 'transport', httpStatus: 200 });
    expect(await fixture.tree()).toEqual([]);
  });

  it.each([
    ['before its headers', null],
    ['in its body', 200],
  ])('that stalls %s ends with its time', async (_where, httpStatus) => {
    const stall: Answer = (_request, response) => {
      if (httpStatus !== null) response.writeHead(httpStatus, { 'content-length': 1000 }).write(wav(100));
    };
    const failure = { kind: 'failed', reason: 'transport', httpStatus, errorCode: 'download_timeout' };
    expect(await fixture.fetchFrom(stall, {}, 600)).toEqual(failure);
    expect(await fixture.tree()).toEqual([]);
  });

  it('that drips for ever ends with its time', async () => {
    const result = await fixture.fetchFrom(
      async (_request, response) => {
        response.write(wav(100));
        while (!response.destroyed) {
          response.write('x');
          await new Promise(setImmediate);
        }
      },
      {},
      200,
    );
    expect(result).toMatchObject({
      kind: 'failed',
      reason: 'transport',
      httpStatus: 200,
      errorCode: 'download_timeout',
    });
    expect(await fixture.tree()).toEqual([]);
  });

  it('that nobody answers names the code of the refusal', async () => {
    const gone = await startFileServer(() => undefined);
    await gone[Symbol.asyncDispose]();
    const result = await fixture.storage.fetchAndStore({
      requestId: fixture.requestId,
      file: resultFile(gone.url),
      timeoutMs: 5000,
    });
    expect(result).toEqual({
      kind: 'failed',
      reason: 'transport',
      httpStatus: null,
      errorCode: 'ECONNREFUSED',
    });
  });

  it('whose packed body is cut leaves nothing behind', async () => {
    const packed = gzipSync(wav(100_000));
    const result = await fixture.fetchFrom((_request, response) => {
      response.writeHead(200, { 'content-encoding': 'gzip' }).end(packed.subarray(0, -20));
    });
    expect(result).toMatchObject({ kind: 'failed', reason: 'transport', httpStatus: 200 });
    expect(await fixture.tree()).toEqual([]);
  });
});

describe('an answer that is no file', () => {
  it.each([401, 403, 410])('of status %i means that the URL has expired', async (status) => {
    const result = await fixture.fetchFrom((_request, response) => {
      response
        .writeHead(status, { 'content-type': 'application/xml' })
        .end('<Error><Code>AccessDenied</Code></Error>');
    });
    expect(result).toEqual({ kind: 'failed', reason: 'url_expired', httpStatus: status, errorCode: null });
  });

  it.each([204, 206, 404, 429, 500, 503])('of status %i is named by it', async (status) => {
    const result = await fixture.fetchFrom((_request, response) => response.writeHead(status).end());
    expect(result).toEqual({ kind: 'failed', reason: 'http_status', httpStatus: status, errorCode: null });
  });

  it.each([
    ['HTML', HTML],
    ['XML', '<?xml version="1.0"?><Error/>'],
    ['JSON', '{"detail":"gone"}'],
    ['nothing', ''],
  ])('but %s under an audio type is not media', async (_what, body) => {
    const result = await fixture.fetchFrom((_request, response) => {
      response.writeHead(200, { 'content-type': 'audio/wav' }).end(body);
    });
    expect(result).toEqual({ kind: 'failed', reason: 'not_media', httpStatus: 200, errorCode: null });
    expect(await fixture.tree()).toEqual([]);
  });

  it('but a long page in gzip is not media either, and is left unread', async () => {
    const result = await fixture.fetchFrom((_request, response) => {
      response.writeHead(200, { 'content-encoding': 'gzip' }).write(gzipSync(HTML.repeat(10_000)));
    });
    expect(result).toEqual({ kind: 'failed', reason: 'not_media', httpStatus: 200, errorCode: null });
  });
});

describe('with private hosts forbidden', () => {
  it.each([
    ['http', (port: number) => `http://127.0.0.1:${port}/`, 'insecure_url'],
    ['a loopback address', (port: number) => `https://127.0.0.1:${port}/`, 'private_host'],
    ['an IPv4-mapped address', (port: number) => `https://[::ffff:127.0.0.1]:${port}/`, 'private_host'],
    ['localhost', (port: number) => `https://localhost:${port}/`, 'private_host'],
    ['no URL', () => 'files/0.wav?signature=SECRET', 'insecure_url'],
  ])('%s is refused and nothing connects', async (_what, url, reason) => {
    const server = await fixture.serve((_request, response) => response.end(wav(100)));
    const strict = createDirectoryStorage({ directory: fixture.directory, allowPrivateHosts: false });
    const file = resultFile(url(server.port));
    const result = await strict.fetchAndStore({ requestId: fixture.requestId, file, timeoutMs: 5000 });
    await strict.close();
    expect(result).toMatchObject({ kind: 'failed', reason, httpStatus: null });
    expect(JSON.stringify(result)).not.toContain('SECRET');
    expect(server.connections()).toBe(0);
  });
});
