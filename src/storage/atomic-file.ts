import { randomBytes } from 'node:crypto';
import { type FileHandle, mkdir, open, readdir, rename, rm, stat } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { plainErrorCode, StoreFault } from './store-result.ts';

/** Far longer than any download may take: what is older belongs to a run that has died. */
const LEFTOVER_AGE_MS = 3_600_000;

/** A file that nobody sees until it is whole and on the disk. */
export interface AtomicFile {
  write(chunk: Uint8Array): Promise<void>;
  /** Durable under its name when it resolves. A second run that does the same replaces it by the same bytes. */
  commit(name: string): Promise<void>;
  /** After `commit`, or a second time, it does nothing. Never throws. */
  discard(): Promise<void>;
}

/**
 * The temporary name is unique, so two processes that fetch the same file don't write into each other's.
 * It lies in the final folder, because a rename is atomic only within one file system.
 */
export async function createAtomicFile(root: string, folder: string, stem: string): Promise<AtomicFile> {
  const directory = join(root, folder);
  await onDisk(makeDirectory(root, directory));
  await sweepLeftovers(directory, stem);
  const temporary = join(directory, `.${stem}.${randomBytes(8).toString('hex')}.part`);
  const handle = await onDisk(open(temporary, 'wx', 0o644));
  let settled = false;

  return {
    write: (chunk) => onDisk(writeWhole(handle, chunk)),
    async commit(name) {
      // Content before name before folder: in any other order a power cut leaves a whole name on half a file.
      await onDisk(handle.sync());
      await onDisk(handle.close());
      await onDisk(rename(temporary, join(directory, name)));
      settled = true;
      await onDisk(syncDirectory(directory));
    },
    async discard() {
      if (settled) return;
      settled = true;
      await handle.close().catch(() => undefined);
      await rm(temporary, { force: true }).catch(() => undefined);
    },
  };
}

async function onDisk<T>(work: Promise<T>): Promise<T> {
  try {
    return await work;
  } catch (error) {
    throw new StoreFault('storage', plainErrorCode(error));
  }
}

export async function writeWhole(handle: FileHandle, chunk: Uint8Array): Promise<void> {
  for (let written = 0; written < chunk.byteLength; ) {
    // A full disk first shows as a short write, only the next one fails.
    written += (await handle.write(chunk, written)).bytesWritten;
  }
}

async function makeDirectory(root: string, directory: string): Promise<void> {
  const topmost = await mkdir(directory, { recursive: true });
  // The entry in `root` also when somebody else has just made it: their sync may not have happened yet.
  await syncDirectory(root);
  if (topmost === undefined) return;
  for (let made = root; made.length >= topmost.length; made = dirname(made))
    await syncDirectory(dirname(made));
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

/** Best effort, of this one file only. The age is by this machine's clock, hence the wide margin. */
async function sweepLeftovers(directory: string, stem: string): Promise<void> {
  const leftover = new RegExp(`^\\.${stem}\\.[0-9a-f]{16}\\.part$`);
  const names = await readdir(directory).catch(() => []);
  for (const name of names.filter((candidate) => leftover.test(candidate))) {
    const path = join(directory, name);
    const modifiedAt = await stat(path)
      .then((found) => found.mtimeMs)
      .catch(() => null);
    if (modifiedAt !== null && Date.now() - modifiedAt > LEFTOVER_AGE_MS) {
      await rm(path, { force: true }).catch(() => undefined);
    }
  }
}
