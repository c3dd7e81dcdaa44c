import { createHash } from 'node:crypto';
import { readdir, readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import type { StoreResult } from '../../src/storage/directory-storage.ts';
import { type Answer, wav } from './file-server.ts';
import { resultFile, useStorage } from './storage-fixture.ts';

const fixture = useStorage();
const FILE = wav(300_000);
const digest = createHash('sha256').update(FILE).digest('hex');

/** A host as object stores are: a strong ETag, ranges, and at first a connection that is cut. */
function host(options: { etag?: string; cutAt?: number; file?: Buffer; ranges?: boolean } = {}): Answer {
  const { etag = '"one"', cutAt, file = FILE, ranges = true } = options;
  return (request, response) => {
    const asked = /^bytes=(\d+)-$/.exec(request.headers.range ?? '')?.[1];
    const from = asked === undefined || !ranges ? 0 : Number(asked);
    if (from >= file.length) {
      response.writeHead(416).end();
      return;
    }
    response.writeHead(from === 0 ? 200 : 206, {
      'content-length': file.length - from,
      ...(etag === '' ? {} : { etag }),
      ...(from === 0 ? {} : { 'content-range': `bytes ${from}-${file.length - 1}/${file.length}` }),
    });
    if (cutAt === undefined) response.end(file.subarray(from));
    else response.write(file.subarray(from, cutAt), () => response.socket?.destroy());
  };
}

async function fetchThrough(
  answers: readonly Answer[],
): Promise<{ results: StoreResult[]; ranges: unknown[] }> {
  let call = 0;
  const server = await fixture.serve((request, response) => answers[call]?.(request, response));
  const results: StoreResult[] = [];
  for (; call < answers.length; ) {
    const { requestId } = fixture;
    const file = resultFile(server.url, { bytes: FILE.length });
    results.push(await fixture.storage.fetchAndStore({ requestId, file, timeoutMs: 10_000 }));
    call += 1;
  }
  return { results, ranges: server.requests.map(({ headers }) => headers.range) };
}
const parts = () => readdir(join(fixture.directory, '.partial'));
const stored = () => readFile(join(fixture.directory, fixture.requestId, '0.wav'));

describe('a download that was cut', () => {
  it('goes on from where it was, from cut to cut, and is held to its whole length and digest', async () => {
    const { results, ranges } = await fetchThrough([
      host({ cutAt: 100_000 }),
      host({ cutAt: 200_000 }),
      host(),
    ]);
    expect(results.map(({ kind }) => kind)).toEqual(['failed', 'failed', 'stored']);
    expect(results[2]).toMatchObject({ bytes: FILE.length, sha256: digest });
    const froms = ranges.map((range) => Number(/\d+/.exec(String(range ?? '0'))?.[0]));
    expect(froms[0]).toBe(0);
    expect(froms[1]).toBeGreaterThan(60_000);
    expect(froms[2]).toBeGreaterThan(froms[1] as number);
    expect((await stored()).equals(FILE)).toBe(true);
    expect(await parts()).toEqual([]);
  });

  it('keeps no more than one part meanwhile', async () => {
    await fetchThrough([host({ cutAt: 100_000 }), host({ cutAt: 200_000 })]);
    expect(await parts()).toHaveLength(1);
    expect(await fixture.tree()).not.toContain('0.wav');
  });

  it.each<[string, Answer[]]>([
    ['serves other content under the URL', [host({ etag: '"two"' }), host({ etag: '"two"' })]],
    ['knows no ranges', [host({ ranges: false })]],
    ['has less than there is already', [(_request, response) => void response.writeHead(416).end(), host()]],
    [
      'sends another part than was asked for',
      [
        (_request, response) =>
          void response
            .writeHead(206, { etag: '"one"', 'content-range': `bytes 0-9/${FILE.length}` })
            .end(FILE.subarray(0, 10)),
        host(),
      ],
    ],
  ])('is begun anew where the host %s', async (_what, later) => {
    let call = 0;
    const answers = [
      host({ cutAt: 100_000, file: Buffer.alloc(FILE.length, FILE.subarray(0, 64)) }),
      ...later,
    ];
    const server = await fixture.serve((request, response) => answers[call++]?.(request, response));
    const { requestId } = fixture;
    const request = { requestId, file: resultFile(server.url, { bytes: FILE.length }), timeoutMs: 10_000 };
    expect(await fixture.storage.fetchAndStore(request)).toMatchObject({
      kind: 'failed',
      reason: 'transport',
    });
    expect(await parts()).toHaveLength(1);
    expect(await fixture.storage.fetchAndStore(request)).toMatchObject({ kind: 'stored', sha256: digest });
    expect(await parts()).toEqual([]);
  });

  it.each([
    ['no ETag', ''],
    ['a weak one', 'W/"one"'],
  ])('of a host that gives %s is begun anew, and leaves nothing', async (_what, etag) => {
    const { results, ranges } = await fetchThrough([host({ cutAt: 100_000, etag }), host({ etag })]);
    expect(results[1]).toMatchObject({ kind: 'stored', sha256: digest });
    expect(ranges).toEqual([undefined, undefined]);
  });

  it('is begun anew after what was kept of it turned out to be no media', async () => {
    await fetchThrough([host({ cutAt: 100_000 })]);
    const [part = ''] = await parts();
    await writeFile(join(fixture.directory, '.partial', part), Buffer.alloc(50_000, 'x'));
    const { results } = await fetchThrough([host(), host()]);
    expect(results).toMatchObject([{ reason: 'not_media' }, { kind: 'stored', sha256: digest }]);
  });

  it('tells how much of it is there, what was kept included', async () => {
    await fetchThrough([host({ cutAt: 100_000 })]);
    const server = await fixture.serve(host());
    const told: [number, number | null][] = [];
    await fixture.storage.fetchAndStore({
      requestId: fixture.requestId,
      file: resultFile(server.url, { bytes: FILE.length }),
      timeoutMs: 10_000,
      onProgress: (bytes, total) => void told.push([bytes, total]),
    });
    expect(told[0]?.[1]).toBe(FILE.length);
    expect(told.at(-1)).toEqual([FILE.length, FILE.length]);
    expect(told.map(([bytes]) => bytes)).toEqual(told.map(([bytes]) => bytes).sort((a, b) => a - b));
  });
});
