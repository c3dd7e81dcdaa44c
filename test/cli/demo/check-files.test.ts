import { createHash } from 'node:crypto';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { checkFiles } from '../../../src/cli/demo/check-files.ts';

let directory: string;

beforeEach(async () => {
  directory = await mkdtemp(join(tmpdir(), 'onetake-check-files-'));
});
afterEach(() => rm(directory, { recursive: true, force: true }));

function wav(): Buffer {
  const content = Buffer.alloc(144, 1);
  content.write('RIFF', 0, 'latin1');
  content.writeUInt32LE(content.length - 8, 4);
  content.write('WAVEfmt ', 8, 'latin1');
  return content;
}

/** The problem of a file whose row was written for `recorded`, while `onDisk` is there. */
async function problemOf(recorded: Buffer, onDisk: Buffer | undefined): Promise<string | undefined> {
  if (onDisk !== undefined) await writeFile(join(directory, '0.wav'), onDisk);
  const sha256 = createHash('sha256').update(recorded).digest('hex');
  const files = [{ location: '0.wav', bytes: recorded.length, sha256 }];
  const [check] = await checkFiles(directory, [{ id: 'one', files }]);
  expect(check).toMatchObject({ requestId: 'one', location: '0.wav' });
  return check?.problem;
}

describe('checkFiles', () => {
  it('finds nothing wrong with a whole WAV file of the recorded digest', async () => {
    expect(await problemOf(wav(), wav())).toBeUndefined();
  });

  it('says so when the file is gone', async () => {
    expect(await problemOf(wav(), undefined)).toBe('the file cannot be read');
  });

  it('says so when bytes are missing', async () => {
    expect(await problemOf(wav(), wav().subarray(0, 100))).toBe('100 bytes on the disk, 144 in the database');
  });

  it('says so when it is no WAV file, even one of the recorded digest', async () => {
    const page = Buffer.alloc(144, '<html>');

    expect(await problemOf(page, page)).toBe('not a whole WAV file');
  });

  it('says so when the header promises more than there is', async () => {
    const cut = wav().subarray(0, 100);

    expect(await problemOf(cut, cut)).toBe('not a whole WAV file');
  });

  it('says so when a byte of the music has changed', async () => {
    const changed = wav();
    changed.writeUInt8(9, 99);

    expect(await problemOf(wav(), changed)).toBe('its SHA-256 is not the one in the database');
  });
});
