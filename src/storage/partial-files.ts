import { createHash, randomBytes, randomUUID } from 'node:crypto';
import { createReadStream, readFileSync } from 'node:fs';
import { mkdir, open, readdir, rename, rm, rmdir, stat } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { syncDirectory, writeWhole } from './durable-write.ts';
import type { Draft, EarlierPart } from './fetch-result.ts';
import { plainErrorCode, StoreFault } from './store-result.ts';

/** Below the root, and so on one file system with every file's place: only there is a rename atomic. */
const FOLDER = '.partial';
/** Far longer than any download may take: what is older belongs to a run that has died. */
const LEFTOVER_AGE_MS = 86_400_000;
const SWEEP_EVERY_MS = 3_600_000;
/** Of a file whose content the file host doesn't name: begun anew. */
const UNTAGGED = '-';

/** Files on their way into a directory. Nobody sees one under its name before it is whole and on the disk. */
export class PartialFiles {
  readonly #root: string;
  readonly #folder: string;
  #made: Promise<void> | undefined;
  #sweepAt = 0;

  constructor(root: string) {
    this.#root = root;
    this.#folder = join(root, FOLDER);
  }

  /** What a run that died, or gave up, has left of the file; the longest of those that can be gone on with. */
  async find(requestId: string, index: number): Promise<EarlierPart | null> {
    await onDisk(this.#make());
    await this.#sweep();
    const parts = await Promise.all((await this.#partsOf(requestId, index)).map((name) => this.#look(name)));
    const usable = parts.filter((part) => part !== null && part.bytes > 0 && part.tag !== UNTAGGED);
    return usable.sort((a, b) => (b?.bytes ?? 0) - (a?.bytes ?? 0))[0] ?? null;
  }

  /**
   * The name is unique, so two processes that fetch the same file don't write into each other's; one that goes on
   * with another's part copies it, and never writes into it.
   */
  async begin(requestId: string, index: number, tag: string | null): Promise<Draft> {
    await onDisk(this.#make());
    const name = [requestId, index, tag ?? UNTAGGED, randomBytes(8).toString('hex')].join('.');
    const path = join(this.#folder, name);
    const handle = await onDisk(open(path, 'wx', 0o644));
    let settled = false;
    return {
      write: (chunk) => onDisk(writeWhole(handle, chunk)),
      commit: async (location, sha256) => {
        // Content before name before folder: in any other order a power cut leaves a whole name on half a file.
        await onDisk(handle.sync());
        await onDisk(handle.close());
        await onDisk(this.#publish(path, location, sha256));
        settled = true;
        await this.#removeParts(requestId, index);
      },
      discard: async (keep) => {
        if (settled) return;
        settled = true;
        await handle.close().catch(() => undefined);
        if (keep && tag !== null) return;
        await rm(path, { force: true }).catch(() => undefined);
      },
    };
  }

  /** Whether a file could be begun now. */
  async checkWritable(): Promise<void> {
    const draft = await this.begin('check', 0, null);
    await draft.discard(false);
  }

  async unpublish(location: string): Promise<void> {
    await onDisk(rm(join(this.#root, location), { force: true }));
    // Empty again, if nothing else is in it.
    await rmdir(dirname(join(this.#root, location))).catch(() => undefined);
  }

  async #publish(path: string, location: string, sha256: string): Promise<void> {
    const place = join(this.#root, location);
    const folder = dirname(place);
    // Not recursive: a directory that has gone is a disk that is missing, and no place to make a new one.
    await mkdir(folder).catch((error: unknown) => {
      if (plainErrorCode(error) !== 'EEXIST') throw error;
    });
    // Also when somebody else has just made it: their sync may not have happened yet.
    await syncDirectory(this.#root);
    try {
      await rename(path, place);
    } catch (error) {
      // Whoever published the same file first has removed this part as a leftover.
      if (plainErrorCode(error) !== 'ENOENT' || (await digestOf(place)) !== sha256) throw error;
    }
    await syncDirectory(folder);
  }

  /**
   * Once in a process. Later it must be there: a volume that was unmounted meanwhile would else be written to where
   * nobody finds it again.
   */
  #make(): Promise<void> {
    this.#made ??= makeDirectory(this.#folder).catch((error: unknown) => {
      this.#made = undefined;
      throw error;
    });
    return this.#made;
  }

  async #partsOf(requestId: string, index: number): Promise<string[]> {
    const names = await readdir(this.#folder).catch(() => []);
    return names.filter((name) => name.startsWith(`${requestId}.${index}.`));
  }

  async #look(name: string): Promise<EarlierPart | null> {
    const path = join(this.#folder, name);
    const found = await stat(path).catch(() => null);
    if (found === null) return null;
    const bytes = found.size;
    return {
      bytes,
      tag: name.split('.')[2] ?? UNTAGGED,
      // As long as it was: its writer may be alive.
      chunks: () => createReadStream(path, { end: bytes - 1 }),
      remove: () => this.#remove(name),
    };
  }

  /** Of a file that is whole now. Best effort. */
  async #removeParts(requestId: string, index: number): Promise<void> {
    for (const name of await this.#partsOf(requestId, index)) await this.#remove(name);
  }

  /** What runs that have died left: a day old by this machine's clock, or of a file that another run has brought in. */
  async #sweep(): Promise<void> {
    if (performance.now() < this.#sweepAt) return;
    this.#sweepAt = performance.now() + SWEEP_EVERY_MS;
    for (const name of await readdir(this.#folder).catch(() => [])) {
      if ((await this.#isOld(name)) || (await this.#isInPlace(name))) await this.#remove(name);
    }
  }

  async #isOld(name: string): Promise<boolean> {
    const found = await stat(join(this.#folder, name)).catch(() => null);
    return found !== null && Date.now() - found.mtimeMs > LEFTOVER_AGE_MS;
  }

  /** Whoever is still at it will find the same file there. */
  async #isInPlace(name: string): Promise<boolean> {
    const [requestId = '', index = ''] = name.split('.');
    const files = await readdir(join(this.#root, requestId)).catch(() => []);
    return files.some((file) => file.startsWith(`${index}.`));
  }

  #remove(name: string): Promise<void> {
    return rm(join(this.#folder, name), { force: true }).catch(() => undefined);
  }
}

/**
 * Names the content that the file host serves, and this run of the operating system: what its page cache holds
 * after a kill is true, what a disk holds after a power cut may be full of holes.
 */
export function tagOf(etag: string | null): string | null {
  // A weak one says that two contents mean the same, not that they are.
  if (etag === null || !/^"[^"]+"$/.test(etag)) return null;
  return createHash('sha256').update(`${BOOT_ID}\n${etag}`).digest('hex').slice(0, 16);
}

const BOOT_ID = (() => {
  try {
    return readFileSync('/proc/sys/kernel/random/boot_id', 'utf8');
  } catch {
    // Elsewhere only this process knows that the machine hasn't gone down in between.
    return randomUUID();
  }
})();

async function digestOf(path: string): Promise<string | null> {
  const hash = createHash('sha256');
  try {
    for await (const chunk of createReadStream(path)) hash.update(chunk);
    return hash.digest('hex');
  } catch {
    return null;
  }
}

async function onDisk<T>(work: Promise<T>): Promise<T> {
  try {
    return await work;
  } catch (error) {
    throw new StoreFault('storage', plainErrorCode(error));
  }
}

async function makeDirectory(directory: string): Promise<void> {
  const topmost = await mkdir(directory, { recursive: true });
  if (topmost === undefined) return;
  for (let made = directory; made.length >= topmost.length; made = dirname(made))
    await syncDirectory(dirname(made));
}
