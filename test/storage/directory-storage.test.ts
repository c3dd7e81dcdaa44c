import { createHash, randomUUID } from 'node:crypto';
import { once } from 'node:events';
import { mkdir, readdir, readFile, rename, rmdir, stat, utimes, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import { describe, expect, it } from 'vitest';
import { createDirectoryStorage } from '../../src/storage/directory-storage.ts';
import { type Answer, wav } from './file-server.ts';
import { resultFile, useStorage } from './storage-fixture.ts';

const fixture = useStorage();
const sha256 = (bytes: Buffer) => createHash('sha256').update(bytes).digest('hex');

/** Of buffers, after a collection: what is still held, not what is yet to be swept. */
function memoryInUse(): number {
  setFlagsFromString('--expose-gc');
  (runInNewContext('gc') as () => void)();
  return process.memoryUsage().arrayBuffers;
}

describe('a good file', () => {
  it('is stored whole, with its length and digest', async () => {
    const file = wav(300_000);
    const result = await fixture.fetchFrom((_request, response) => response.end(file), {
      index: 2,
      bytes: file.byteLength,
    });
    expect(result).toEqual({
      kind: 'stored',
      location: `${fixture.requestId}/2.wav`,
      bytes: 300_000,
      sha256: sha256(file),
      contentType: 'audio/wav',
    });
    expect((await readFile(join(fixture.directory, fixture.requestId, '2.wav'))).equals(file)).toBe(true);
    expect(await fixture.tree()).toEqual(['2.wav']);
  });

  it('reads back through its location', async () => {
    const file = wav(200_000);
    const result = await fixture.fetchFrom((_request, response) => response.end(file));
    if (result.kind !== 'stored') throw new Error(result.reason);
    expect(
      Buffer.from(
        await new Response(await fixture.storage.open(result.location, result.bytes)).arrayBuffer(),
      ).equals(file),
    ).toBe(true);
    const has = (location: string, bytes: number) => fixture.storage.has(location, bytes);
    expect(await has(result.location, result.bytes)).toBe(true);
    expect(await has(result.location, result.bytes + 1)).toBe(false);
    expect(await has(`${randomUUID()}/0.wav`, result.bytes)).toBe(false);
  });

  it('is asked for without Authorization', async () => {
    const server = await fixture.serve((_request, response) => response.end(wav(100)));
    const { requestId } = fixture;
    await fixture.storage.fetchAndStore({ requestId, file: resultFile(server.url), timeoutMs: 5000 });
    expect(server.requests.map(({ headers }) => headers.authorization)).toEqual([undefined]);
  });

  it('is stored where the provider states a length of 0, which means none', async () => {
    expect(
      await fixture.fetchFrom((_request, response) => response.end(wav(100)), { bytes: 0 }),
    ).toMatchObject({
      bytes: 100,
    });
  });

  it('comes through in single bytes', async () => {
    const file = wav(90);
    const result = await fixture.fetchFrom(async (_request, response) => {
      response.writeHead(200);
      for (const byte of file) {
        response.write(Buffer.of(byte));
        // A turn of the event loop for the reader, or the bytes arrive as one chunk.
        await new Promise(setImmediate);
      }
      response.end();
    });
    expect(result).toMatchObject({ kind: 'stored', sha256: sha256(file) });
  });

  it('is stored once when two runs store it at the same time', async () => {
    const file = wav(400_000);
    const server = await fixture.serve((_request, response) => response.end(file));
    const other = createDirectoryStorage({ directory: fixture.directory, allowPrivateHosts: true });
    const request = { requestId: fixture.requestId, file: resultFile(server.url), timeoutMs: 10_000 };
    const results = await Promise.all([fixture.storage.fetchAndStore(request), other.fetchAndStore(request)]);
    await other.close();
    expect(results[0]).toMatchObject({ kind: 'stored', sha256: sha256(file) });
    expect(results[1]).toEqual(results[0]);
    expect(await fixture.tree()).toEqual(['0.wav']);
    expect((await readFile(join(fixture.directory, fixture.requestId, '0.wav'))).equals(file)).toBe(true);
  });

  it('replaces itself when it is stored again', async () => {
    const server = await fixture.serve((_request, response) => response.end(wav(1000)));
    const request = { requestId: fixture.requestId, file: resultFile(server.url), timeoutMs: 10_000 };
    const first = await fixture.storage.fetchAndStore(request);
    expect(await fixture.storage.fetchAndStore(request)).toEqual(first);
    expect(await fixture.tree()).toEqual(['0.wav']);
  });

  it('takes little memory, however large it is', async () => {
    const size = 300 * 1024 * 1024;
    const part = Buffer.alloc(1024 * 1024, 7);
    const start = wav(part.byteLength);
    const baseline = memoryInUse();
    let peak = 0;
    const result = await fixture.fetchFrom(
      async (_request, response) => {
        response.writeHead(200, { 'content-length': size });
        for (let sent = 0; sent < size; sent += part.byteLength) {
          if (!response.write(sent === 0 ? start : part)) await once(response, 'drain');
          if (sent % (10 * part.byteLength) === 0) peak = Math.max(peak, memoryInUse() - baseline);
        }
        response.end();
      },
      { bytes: size },
      60_000,
    );
    expect(result).toMatchObject({ kind: 'stored', bytes: size });
    expect((await stat(join(fixture.directory, fixture.requestId, '0.wav'))).size).toBe(size);
    expect(peak).toBeLessThan(50 * 1024 * 1024);
  }, 60_000);
});

describe('another format than announced', () => {
  it('is stored as what it is, with a warning', async () => {
    const result = await fixture.fetchFrom((_request, response) => response.end(wav(100)), {
      contentType: 'audio/mp4',
    });
    expect(result).toMatchObject({
      kind: 'stored',
      location: `${fixture.requestId}/0.wav`,
      contentType: 'audio/wav',
      warning: 'format_differs',
    });
  });

  it('counts by the header where the task says nothing', async () => {
    const result = await fixture.fetchFrom(
      (_request, response) => response.writeHead(200, { 'content-type': 'audio/mpeg' }).end(wav(100)),
      { contentType: null },
    );
    expect(result).toMatchObject({ kind: 'stored', contentType: 'audio/wav', warning: 'format_differs' });
  });
});

describe('the disk', () => {
  it('that refuses is a failure of storage', async () => {
    await writeFile(join(fixture.directory, fixture.requestId), 'a file where the folder would be');
    const result = await fixture.fetchFrom((_request, response) => response.end(wav(100)));
    expect(result).toEqual({ kind: 'failed', reason: 'storage', httpStatus: 200, errorCode: 'ENOTDIR' });
  });

  it('is rid of what earlier runs left of a file once it is whole, whoever brought it in, and of what is a day old', async () => {
    const folder = join(fixture.directory, '.partial');
    const left = (index: number, random: string) => `${fixture.requestId}.${index}.-.${random}`;
    const [same, old, live, late] = [left(0, 'aa'), left(1, 'bb'), left(2, 'cc'), left(3, 'dd')];
    await mkdir(folder);
    for (const name of [same, old, live, late]) await writeFile(join(folder, name), 'half');
    await mkdir(join(fixture.directory, fixture.requestId));
    await writeFile(join(fixture.directory, fixture.requestId, '3.wav'), 'whole');
    const longAgo = new Date(Date.now() - 86_500_000);
    await utimes(join(folder, old), longAgo, longAgo);
    await fixture.fetchFrom((_request, response) => response.end(wav(100)));
    expect((await fixture.tree()).sort()).toEqual([live, '0.wav', '3.wav'].sort());
  });

  it('that goes away while the process runs is not made anew elsewhere, and is used again when it is back', async () => {
    const answer: Answer = (_request, response) => response.end(wav(100));
    expect(await fixture.fetchFrom(answer)).toMatchObject({ kind: 'stored' });
    await rename(fixture.directory, `${fixture.directory}-away`);
    const refused = { kind: 'failed', reason: 'storage', httpStatus: 200, errorCode: 'ENOENT' };
    expect(await fixture.fetchFrom(answer)).toEqual(refused);
    await expect(stat(fixture.directory)).rejects.toMatchObject({ code: 'ENOENT' });
    // What a volume leaves behind when it is unmounted.
    await mkdir(fixture.directory);
    expect(await fixture.fetchFrom(answer)).toEqual(refused);
    await rmdir(fixture.directory);
    await rename(`${fixture.directory}-away`, fixture.directory);
    expect(await fixture.fetchFrom(answer)).toMatchObject({ kind: 'stored' });
  });

  it('gets a directory that is not there yet, at any depth', async () => {
    const server = await fixture.serve((_request, response) => response.end(wav(100)));
    const deep = createDirectoryStorage({
      directory: join(fixture.directory, 'a', 'b'),
      allowPrivateHosts: true,
    });
    const result = await deep.fetchAndStore({
      requestId: fixture.requestId,
      file: resultFile(server.url),
      timeoutMs: 5000,
    });
    await deep.close();
    expect(result).toMatchObject({ kind: 'stored' });
    expect(await readdir(join(fixture.directory, 'a', 'b', fixture.requestId))).toEqual(['0.wav']);
  });
});

describe('names', () => {
  it.each(['../../etc', '..', '', 'a/b', '0197C0DE-0000-7000-8000-000000000000', `${'0'.repeat(36)}`])(
    'of a request like %j never reach the disk or the network',
    async (requestId) => {
      const server = await fixture.serve((_request, response) => response.end(wav(100)));
      const file = resultFile(server.url);
      const result = await fixture.storage.fetchAndStore({ requestId, file, timeoutMs: 5000 });
      expect(result).toMatchObject({ kind: 'failed', reason: 'storage', errorCode: 'invalid_request_id' });
      expect(server.requests).toHaveLength(0);
      expect(await fixture.tree()).toEqual([]);
    },
  );

  it.each([-1, 0.5, Number.NaN, 10_000])('of a file like %d are refused', async (index) => {
    const result = await fixture.fetchFrom((_request, response) => response.end(wav(100)), { index });
    expect(result).toMatchObject({ kind: 'failed', reason: 'storage', errorCode: 'invalid_index' });
  });

  it.each([
    '../secret',
    '/etc/passwd',
    'a/0.wav',
    `${randomUUID()}/../0.wav`,
    `${randomUUID()}/.0.0123.part`,
  ])('of a location like %s are refused by open', async (location) => {
    await expect(fixture.storage.open(location, null)).rejects.toMatchObject({ code: 'invalid_option' });
  });

  it('of a file that is gone, or not whole, are told before a stream is given, without a path', async () => {
    const location = `${fixture.requestId}/0.wav`;
    const open = (bytes: number | null) =>
      fixture.storage.open(location, bytes).catch((error: Error) => error);
    expect(await open(null)).toMatchObject({ code: 'file_missing' });
    await fixture.fetchFrom((_request, response) => response.end(wav(100)));
    expect(await open(null)).toBeInstanceOf(ReadableStream);
    const cut = await open(101);
    expect(cut).toMatchObject({ code: 'file_missing' });
    expect(String((cut as Error).stack)).not.toContain(fixture.directory);
  });
});
