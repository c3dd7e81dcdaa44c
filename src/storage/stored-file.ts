import { open as openFile, stat } from 'node:fs/promises';
import { join } from 'node:path';
import { OnetakeError } from '../core/errors.ts';

const LOCATION = /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\/\d{1,4}\.[a-z0-9]{1,5}$/;
const READ_BYTES = 64 * 1024;

/** @throws OnetakeError `invalid_option` for what is no location of a storage of ours */
export function requireLocation(location: string): void {
  if (LOCATION.test(location)) return;
  throw new OnetakeError('invalid_option', 'The location is not one of a stored file.', {
    hint: 'Pass a location as onetake.assets holds it.',
  });
}

/** The messages hold no path: it may end up in a log. */
export function fileMissing(cause?: unknown): OnetakeError {
  return new OnetakeError('file_missing', 'The stored file is not in this storage any more, or not whole.', {
    hint: 'Every poller and every reader must have the same storage (storage.directory, storage.s3).',
    ...(cause === undefined ? {} : { cause }),
  });
}

/**
 * A stored file, read no faster than its consumer takes it. It is opened at the first read and closed at the end,
 * at an error or when the consumer cancels; a stream that nobody reads holds nothing open.
 * @throws OnetakeError `file_missing` when it isn't there, or has another length than `bytes`
 */
export async function openStoredFile(
  root: string,
  location: string,
  bytes: number | null,
): Promise<ReadableStream<Uint8Array>> {
  requireLocation(location);
  const path = join(root, location);
  const found = await stat(path).catch(() => undefined);
  if (found === undefined || (bytes !== null && found.size !== bytes)) throw fileMissing();
  return ReadableStream.from(readFile(path));
}

/** False when it is gone, or of another length; a storage that can't be asked is another matter. */
export async function hasStoredFile(root: string, location: string, bytes: number): Promise<boolean> {
  requireLocation(location);
  const found = await stat(join(root, location)).catch((error: NodeJS.ErrnoException) => {
    if (error.code === 'ENOENT' || error.code === 'ENOTDIR') return undefined;
    throw error;
  });
  return found?.size === bytes;
}

async function* readFile(path: string): AsyncGenerator<Uint8Array, void> {
  const handle = await openFile(path, 'r').catch(() => {
    throw fileMissing();
  });
  try {
    for (;;) {
      // A fresh buffer each time: the consumer may keep what it was given.
      const { bytesRead, buffer } = await handle.read(new Uint8Array(READ_BYTES), 0, READ_BYTES);
      if (bytesRead === 0) return;
      yield buffer.subarray(0, bytesRead);
    }
  } finally {
    await handle.close();
  }
}
