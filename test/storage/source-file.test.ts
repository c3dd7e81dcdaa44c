import { execFileSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import { appendFileSync, mkdirSync, renameSync, rmSync, truncateSync, writeFileSync } from 'node:fs';
import { open } from 'node:fs/promises';
import { join, relative } from 'node:path';
import { describe, expect, it, onTestFinished, vi } from 'vitest';
import { FIELD_LIMITS, type MediaLimit } from '../../src/core/field-limits.ts';
import { decodeMedia, type MediaReference } from '../../src/core/media.ts';
import { readMediaInfo } from '../../src/storage/media-info.ts';
import { inspectSourceFile, type OpenSource, openSourceFile } from '../../src/storage/source-file.ts';
import { type VideoOptions, videoBytes } from '../support/video-bytes.ts';
import { temporaryDirectory, videoFile } from '../support/video-file.ts';

const LIMIT = FIELD_LIMITS['video-to-music']['video'] as MediaLimit;
const sha256 = (bytes: Buffer) => createHash('sha256').update(bytes).digest('hex');

async function codesOf(path: string, limit: Partial<MediaLimit> = {}): Promise<string[]> {
  const seen = await inspectSourceFile('video', path, { ...LIMIT, ...limit });
  if ('text' in seen) return [];
  const said = JSON.stringify(seen);
  expect(said).not.toContain(path);
  expect(said).not.toContain('holiday');
  return seen.problems.map(({ code }) => code);
}

describe('a file at enqueue', () => {
  it('becomes a reference to its content, and nothing is fetched for it', async () => {
    const fetched = vi.spyOn(globalThis, 'fetch');
    onTestFinished(() => fetched.mockRestore());
    const { path, content } = await videoFile();
    const seen = await inspectSourceFile('video', path, LIMIT);
    expect(decodeMedia('text' in seen ? seen.text : '')).toEqual({
      file: path,
      bytes: content.length,
      sha256: sha256(content),
      container: 'mp4',
    });
    expect(fetched).not.toHaveBeenCalled();
  });

  it.each<[VideoOptions, Partial<MediaLimit>, string[]]>([
    [{}, {}, []],
    [{ seconds: 360 }, {}, []],
    [{ seconds: 361 }, {}, ['media_too_long']],
    [{ seconds: 361, codec: 'mp4v' }, {}, ['media_codec', 'media_too_long']],
    [{ seconds: 361, claimsSeconds: 10 }, {}, ['media_too_long']],
    [{ codec: 'hvc1' }, {}, []],
    [{ codec: 'av01' }, {}, []],
    [{ brand: 'qt  ' }, {}, []],
    [{ brand: 'qt  ' }, { containers: ['mp4'] }, ['media_container']],
    [{ brand: 'M4V ' }, { containers: ['m4v'] }, []],
    [{ codec: null }, {}, ['media_unreadable']],
    [{ bytes: 1_000_000 }, { maxBytes: 1_000_000 }, ['media_too_large']],
  ])('%j within %j: %j', async (video, limit, codes) => {
    expect(await codesOf((await videoFile(video)).path, limit)).toEqual(codes);
  });

  it('is told by its content, not by its name', async () => {
    const path = join(await temporaryDirectory(), 'their holiday.mp4');
    writeFileSync(path, 'a letter, not a video '.repeat(100));
    expect(await codesOf(path)).toEqual(['media_unreadable']);
    writeFileSync(path, '');
    expect(await codesOf(path)).toEqual(['media_empty']);
    rmSync(path);
    expect(await codesOf(path)).toEqual(['media_missing']);
    mkdirSync(path);
    expect(await codesOf(path)).toEqual(['media_unreadable']);
    expect(await codesOf(join(path, 'inner.mp4'))).toEqual(['media_missing']);
  });

  it('that sends MediaInfo to and fro is given up, however its parts point at each other', async () => {
    const { path, content } = await videoFile({ bytes: 700_000 });
    const handle = await open(path);
    onTestFinished(() => handle.close());
    await expect(readMediaInfo(handle, content.length, 0)).rejects.toThrow('the file has no end');
  });

  it('that is a pipe without a writer is refused, not waited for', async () => {
    const path = join(await temporaryDirectory(), 'pipe.mp4');
    execFileSync('mkfifo', [path]);
    expect(await codesOf(path)).toEqual(['media_unreadable']);
  });

  it('is only measured by its content where its limits are lifted', async () => {
    const path = join(await temporaryDirectory(), 'a.bin');
    writeFileSync(path, 'anything');
    expect(await inspectSourceFile('video', path, undefined)).toHaveProperty('text');
    writeFileSync(path, '');
    expect(await inspectSourceFile('video', path, undefined)).toMatchObject({
      problems: [{ code: 'media_empty' }],
    });
  });

  it('is kept by its absolute path: the worker runs somewhere else', async () => {
    const { path } = await videoFile();
    const seen = await inspectSourceFile('video', relative(process.cwd(), path), LIMIT);
    expect(decodeMedia('text' in seen ? seen.text : '').file).toBe(path);
  });
});

async function enqueued(
  bytes = 700_000,
): Promise<{ reference: MediaReference; path: string; content: Buffer }> {
  const { path, content } = await videoFile({ bytes });
  const seen = await inspectSourceFile('video', path, LIMIT);
  return { reference: decodeMedia('text' in seen ? seen.text : ''), path, content };
}

async function opened(reference: MediaReference): Promise<OpenSource> {
  const source = await openSourceFile(reference);
  if (typeof source === 'string') throw new Error(source);
  onTestFinished(() => source.close());
  return source;
}

async function read(source: OpenSource): Promise<Buffer> {
  const chunks: Uint8Array[] = [];
  for await (const chunk of source.chunks()) chunks.push(chunk);
  return Buffer.concat(chunks);
}

describe('a file at its submission', () => {
  it('is read once, whole, and never again', async () => {
    const { reference, content } = await enqueued();
    const source = await opened(reference);
    expect((await read(source)).equals(content)).toBe(true);
    await expect(read(source)).rejects.toMatchObject({ code: 'media_sent_before' });
  });

  it.each<[string, (path: string, content: Buffer) => void, string]>([
    ['is gone', (path) => rmSync(path), 'media_missing'],
    ['has grown', (path) => appendFileSync(path, 'x'), 'media_changed'],
    ['is shorter', (path, { length }) => truncateSync(path, length - 1), 'media_changed'],
    [
      'has another last byte',
      (path, content) => writeFileSync(path, Buffer.concat([content.subarray(0, -1), Buffer.from('x')])),
      'media_changed',
    ],
    ['is another one', (path) => writeFileSync(path, videoBytes({ bytes: 700_000 })), 'media_changed'],
    [
      'is a directory now',
      (path) => {
        rmSync(path);
        mkdirSync(path);
      },
      'media_unreadable',
    ],
  ])('that %s is not opened', async (_what, change, fault) => {
    const { reference, path, content } = await enqueued();
    change(path, content);
    expect(await openSourceFile(reference)).toBe(fault);
  });

  it('that another one replaced since it was opened is sent as it was', async () => {
    const { reference, path, content } = await enqueued();
    const source = await opened(reference);
    writeFileSync(`${path}.new`, videoBytes({ bytes: 700_000 }));
    renameSync(`${path}.new`, path);
    expect((await read(source)).equals(content)).toBe(true);
  });

  it.each<[string, (path: string, content: Buffer) => void]>([
    ['written to', (path, content) => writeFileSync(path, Buffer.alloc(content.length))],
    ['cut short', (path) => truncateSync(path, 300_000)],
    ['emptied', (path) => truncateSync(path, 0)],
  ])('that is %s while it is sent breaks off before its last piece', async (_what, change) => {
    const { reference, path, content } = await enqueued();
    const source = await opened(reference);
    const chunks = source.chunks()[Symbol.asyncIterator]();
    let sent = (await chunks.next()).value?.length ?? 0;
    change(path, content);
    const rest = async () => {
      for (let next = await chunks.next(); next.done !== true; next = await chunks.next())
        sent += next.value.length;
    };
    await expect(rest()).rejects.toMatchObject({ code: 'media_changed' });
    expect(sent).toBeLessThan(content.length);
  });
});
