import { randomUUID } from 'node:crypto';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it, vi } from 'vitest';
import type { ResultStorage, StreamFiles } from '../../src/storage/directory-storage.ts';
import type { S3Location } from '../../src/storage/s3-objects.ts';
import { createS3Storage } from '../../src/storage/s3-storage.ts';
import { startChild } from '../support/children.ts';
import { S3_ENVIRONMENT, type S3Server, startS3Server } from '../support/s3-server.ts';
import { sha256, soundOf } from '../support/stream-provider.ts';
import { waitFor } from '../support/wait-for.ts';
import { type Answer, type FileServer, startFileServer, wav } from './file-server.ts';
import { resultFile } from './storage-fixture.ts';

const LARGE = wav(9 * 1024 * 1024);

let s3: S3Server;
let storage: ResultStorage;
let requestId: string;
const servers: FileServer[] = [];
// Megabytes through three processes, on a machine that may be busy.
vi.setConfig({ testTimeout: 60_000 });
beforeAll(async () => {
  for (const [name, value] of Object.entries(S3_ENVIRONMENT)) vi.stubEnv(name, value);
  s3 = await startS3Server();
}, 60_000);
beforeEach(() => {
  requestId = randomUUID();
  storage = open();
});
afterEach(async () => {
  for (const server of servers.splice(0)) await server[Symbol.asyncDispose]();
  await storage.close();
});
afterAll(async () => {
  vi.unstubAllEnvs();
  await s3[Symbol.asyncDispose]();
});

function open(more: Partial<S3Location> = {}): ResultStorage {
  const { bucket, endpoint } = s3;
  const at = { bucket, endpoint, prefix: 'of-tests/', region: null, forcePathStyle: true, ...more };
  return createS3Storage(at, true);
}

async function fetchFrom(answer: Answer, bytes: number | null = null, into = storage) {
  const server = await startFileServer(answer);
  servers.push(server);
  return into.fetchAndStore({ requestId, file: resultFile(server.url, { bytes }), timeoutMs: 20_000 });
}
const read = async (location: string, bytes: number | null) =>
  Buffer.from(await new Response(await storage.open(location, bytes)).arrayBuffer());
const requestsFor = () => s3.requests().filter((request) => request.includes(requestId));

describe('a file', () => {
  it.each([
    ['small', wav(300_000)],
    ['large, in parts', LARGE],
  ])('that is %s is stored whole under the prefix, and reads back', async (_size, file) => {
    const result = await fetchFrom((_request, response) => response.end(file), file.byteLength);
    expect(result).toEqual({
      kind: 'stored',
      location: `${requestId}/0.wav`,
      bytes: file.byteLength,
      sha256: sha256(file),
      contentType: 'audio/wav',
    });
    if (result.kind !== 'stored') return;
    expect((await read(result.location, result.bytes)).equals(file)).toBe(true);
    expect(await storage.has(result.location, result.bytes)).toBe(true);
    expect(await storage.has(result.location, result.bytes + 1)).toBe(false);
    expect(requestsFor().filter((request) => !request.includes('of-tests'))).toEqual([]);
    // Again, by another process perhaps: the same.
    expect(await fetchFrom((_request, response) => response.end(file), file.byteLength)).toEqual(result);
  });

  it.each<[string, number, Answer]>([
    [
      'was cut',
      LARGE.length,
      (_request, response) => {
        response.writeHead(200, { 'content-length': LARGE.length });
        response.write(LARGE.subarray(0, 8.5 * 1024 * 1024), () => response.destroy());
      },
    ],
    [
      'is shorter than stated',
      LARGE.length + 1,
      (_request, response) => void response.write(LARGE, () => response.end()),
    ],
    [
      'is small, and cut',
      1_000,
      (_request, response) => void response.write(wav(500), () => response.destroy()),
    ],
  ])('that %s is not there, and its upload is aborted', async (_what, bytes, answer) => {
    expect(await fetchFrom(answer, bytes)).toMatchObject({ kind: 'failed' });
    expect(await storage.has(`${requestId}/0.wav`, bytes)).toBe(false);
    const begun = requestsFor().filter((request) => /^POST .*\?uploads/.test(request)).length;
    const aborted = () => requestsFor().filter((request) => /^DELETE .*uploadId=/.test(request)).length;
    await waitFor(() => aborted() >= begun, { what: 'its upload to be aborted' });
    expect(
      requestsFor().filter((request) => /^(POST .*uploadId=|PUT [^?]*(\?x-id=PutObject)?$)/.test(request)),
    ).toEqual([]);
  });

  it('is not there before it is whole', async () => {
    const half = Promise.withResolvers<() => void>();
    const stored = fetchFrom((_request, response) => {
      response.write(LARGE.subarray(0, 8.5 * 1024 * 1024), () =>
        half.resolve(() => response.end(LARGE.subarray(8.5 * 1024 * 1024))),
      );
    }, LARGE.length);
    const finish = await half.promise;
    await waitFor(() => requestsFor().some((request) => request.includes('partNumber=1')), {
      what: 'a part to be there',
    });
    await expect(storage.open(`${requestId}/0.wav`, null)).rejects.toMatchObject({ code: 'file_missing' });
    finish();
    expect(await stored).toMatchObject({ kind: 'stored', sha256: sha256(LARGE) });
  });
});

describe('a stream', () => {
  const write = async (files: StreamFiles, index: number, sound: Buffer) => {
    for (let at = 0; at < sound.length; at += 1_000_003)
      expect(await files.write(index, sound.subarray(at, at + 1_000_003))).toBeUndefined();
  };
  const objects = () =>
    requestsFor().filter((request) => /^(PUT [^?]*(\?x-id=PutObject)?$|POST .*uploadId=)/.test(request));

  it('is there byte for byte when it is published, and gone when nobody has recorded it', async () => {
    const files = storage.storeStream(requestId);
    const [large, small] = [soundOf('large', 9 * 1024 * 1024), soundOf('small')];
    await write(files, 0, large);
    await write(files, 1, small);
    expect(objects()).toEqual([]);
    const published = await files.publish();
    expect(published).toMatchObject([
      { index: 0, location: `${requestId}/0.m4a`, bytes: large.length, sha256: sha256(large) },
      { index: 1, location: `${requestId}/1.m4a`, bytes: small.length, sha256: sha256(small) },
    ]);
    expect(sha256(await read(`${requestId}/0.m4a`, large.length))).toBe(sha256(large));
    expect(sha256(await read(`${requestId}/1.m4a`, small.length))).toBe(sha256(small));
    await files.discard();
    expect(await storage.has(`${requestId}/0.m4a`, large.length)).toBe(false);
  });

  it('that is interrupted leaves neither an object nor an upload', async () => {
    const files = storage.storeStream(requestId);
    await write(files, 0, soundOf('large', 20 * 1024 * 1024));
    await write(files, 1, soundOf('small'));
    await waitFor(() => requestsFor().some((request) => request.includes('partNumber=1')), {
      what: 'a part to be there',
    });
    await files.discard();
    // Not in the background, where the end of the process would forget it.
    await storage.check();
    const isHead = (request: string) => request.startsWith('HEAD') && !request.includes(requestId);
    await waitFor(() => isHead(s3.requests().at(-1) ?? ''), { what: 'the last request to be seen' });
    expect(requestsFor().filter((request) => /^DELETE .*uploadId=/.test(request))).toHaveLength(1);
    expect(requestsFor().filter((request) => /^POST .*\?uploads/.test(request))).toHaveLength(1);
    expect(objects()).toEqual([]);
  });
});

describe('what is told', () => {
  it('of a bucket that is missing is its code, and no key, address or credential', async () => {
    const nowhere = open({ bucket: 'nowhere' });
    const failed = await fetchFrom((_request, response) => response.end(wav(100)), null, nowhere);
    expect(failed).toMatchObject({ kind: 'failed', reason: 'storage', errorCode: 'NoSuchBucket' });
    await expect(nowhere.check()).rejects.toThrow();
    await storage.check();
    const away = open({ endpoint: 'http://127.0.0.1:1' });
    const error = await away.open(`${requestId}/0.wav`, null).catch((thrown: Error) => thrown);
    expect(error).toMatchObject({ code: 'storage_unavailable' });
    expect(`${JSON.stringify(failed)}${String(error)}`).not.toMatch(/S3RVER|127\.0\.0\.1|of-tests/);
    await Promise.all([nowhere.close(), away.close()]);
  }, 60_000);

  it.each(['../secret', 'a/0.wav', `${randomUUID()}/../0.wav`])(
    'of a location like %s is refused',
    async (location) => {
      await expect(storage.open(location, null)).rejects.toMatchObject({ code: 'invalid_option' });
    },
  );

  it('without the packages of the SDK is what to install, before anything is polled', async () => {
    const module = `import { registerHooks } from 'node:module';
registerHooks({
  resolve(specifier, context, next) {
    if (specifier.startsWith('@aws-sdk/')) throw Object.assign(new Error('no such package'), { code: 'MODULE_NOT_FOUND' });
    return next(specifier, context);
  },
});
const { createS3Storage } = await import('./src/storage/s3-storage.ts');
const at = { bucket: 'songs', prefix: '', endpoint: null, region: null, forcePathStyle: false };
await createS3Storage(at, false).prepare().catch(({ code, hint }) => console.log(JSON.stringify({ code, hint })));`;
    await using child = startChild({ module });
    expect(
      await child.message<{ code?: string; hint?: string }>((said) => said.code !== undefined, 'the error'),
    ).toEqual({
      code: 'aws_sdk_missing',
      hint: 'npm i @aws-sdk/client-s3 @aws-sdk/lib-storage',
    });
  });
});

it('closes the object when whoever reads it cancels, and reads no faster than it is asked', async () => {
  await fetchFrom((_request, response) => response.end(LARGE), LARGE.length);
  const reader = (await storage.open(`${requestId}/0.wav`, LARGE.length)).getReader();
  expect(requestsFor().filter((request) => request.includes('GetObject'))).toEqual([]);
  expect((await reader.read()).value?.length).toBeGreaterThan(0);
  await reader.cancel();
  // A socket that was held would keep it waiting.
  await storage.close();
});
