import { type FileHandle, open } from 'node:fs/promises';
import { plainErrorCode } from './store-result.ts';

// What a file needs to be there after a power cut.

export async function writeWhole(handle: FileHandle, chunk: Uint8Array): Promise<void> {
  for (let written = 0; written < chunk.byteLength; ) {
    // A full disk first shows as a short write, only the next one fails.
    written += (await handle.write(chunk, written)).bytesWritten;
  }
}

export async function syncDirectory(directory: string): Promise<void> {
  try {
    const handle = await open(directory, 'r');
    try {
      await handle.sync();
    } finally {
      await handle.close();
    }
  } catch (error) {
    // Windows and some network file systems can't sync a folder; they order the rename by themselves.
    if (!['EPERM', 'EISDIR', 'EINVAL', 'ENOTSUP'].includes(plainErrorCode(error) ?? '')) throw error;
  }
}
