import { randomUUID } from 'node:crypto';
import { mkdtemp, readdir, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect, onTestFinished, test } from 'vitest';
import { createDirectoryStorage } from '../../src/storage/directory-storage.ts';
import { storeStream } from '../../src/storage/store-stream.ts';
import { sha256, soundOf } from '../support/stream-provider.ts';

async function open() {
  const root = await mkdtemp(join(tmpdir(), 'onetake-store-'));
  onTestFinished(() => rm(root, { recursive: true, force: true, maxRetries: 5 }));
  const storage = createDirectoryStorage({ directory: root, allowPrivateHosts: false });
  onTestFinished(() => storage.close());
  const id = randomUUID();
  const files = storage.storeStream(id);
  const names = async (folder = '') => (await readdir(join(root, folder)).catch(() => [])).sort();
  return { root, storage, id, files, names };
}

test('files are there whole and all at once, or not at all', async () => {
  const { root, id, files, names } = await open();
  const [first, second] = [soundOf('first'), soundOf('second', 40)];
  for (const byte of second) expect(await files.write(3, Buffer.of(byte))).toBeUndefined();
  expect(await files.write(0, first.subarray(0, 30))).toBeUndefined();
  expect(await files.write(0, first.subarray(30))).toBeUndefined();
  expect(await names()).toEqual(['.partial']);

  expect(await files.publish()).toEqual([
    {
      kind: 'stored',
      index: 0,
      location: `${id}/0.m4a`,
      bytes: first.length,
      sha256: sha256(first),
      contentType: 'audio/mp4',
    },
    {
      kind: 'stored',
      index: 3,
      location: `${id}/3.m4a`,
      bytes: second.length,
      sha256: sha256(second),
      contentType: 'audio/mp4',
    },
  ]);
  expect(await readFile(join(root, id, '3.m4a'))).toEqual(second);
  expect(await names('.partial')).toEqual([]);

  // Nobody has recorded them.
  await files.discard();
  expect(await names()).toEqual(['.partial']);
});

test('what is thrown away leaves nothing', async () => {
  const { files, names } = await open();
  await files.write(0, soundOf('lost'));
  await files.write(1, Buffer.from('RI'));
  await files.discard();
  await files.discard();
  expect(await names('.partial')).toEqual([]);
});

test('what comes into place after it was given up goes again, and nothing follows it', async () => {
  const [begun, held] = [Promise.withResolvers<void>(), Promise.withResolvers<void>()];
  const shown: string[] = [];
  const draft = (location: string) => ({
    write: async () => {},
    commit: async () => {
      begun.resolve();
      await held.promise;
      shown.push(location);
    },
    discard: async () => {},
  });
  const files = storeStream(
    {
      find: async () => null,
      continues: () => false,
      begin: async ({ location }) => draft(location),
      remove: async (location) => {
        shown.splice(shown.indexOf(location), 1);
      },
    },
    randomUUID(),
  );
  await files.write(0, soundOf('first'));
  await files.write(1, soundOf('second'));
  const publishing = files.publish();
  await begun.promise;
  await files.discard();
  held.resolve();
  expect(await publishing).toMatchObject({ kind: 'failed', reason: 'storage' });
  expect(shown).toEqual([]);
});

test.each([
  ['at its first bytes', '<html>'.repeat(20)],
  ['at its end, when it is short', '{}'],
])('no media is told %s', async (_when, text) => {
  const { files } = await open();
  const told = [await files.write(0, Buffer.from(text)), await files.publish()];
  expect(told).toContainEqual({ kind: 'failed', reason: 'not_media', httpStatus: null, errorCode: null });
});

test('a disk that fails is our own failure', async () => {
  const { root, id, files, names } = await open();
  await files.write(0, soundOf('a'));
  await writeFile(join(root, id), 'in the way');
  expect(await files.publish()).toMatchObject({ kind: 'failed', reason: 'storage', errorCode: 'ENOTDIR' });
  await files.discard();
  expect(await names('.partial')).toEqual([]);

  const broken = createDirectoryStorage({ directory: join(root, id), allowPrivateHosts: false });
  await expect(broken.checkWritable()).rejects.toThrow();
  await broken.close();
});

test('a directory that can be written to is left as it was', async () => {
  const { storage, names } = await open();
  await storage.checkWritable();
  expect(await names('.partial')).toEqual([]);
});
