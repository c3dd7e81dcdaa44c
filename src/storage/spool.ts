import { randomBytes } from 'node:crypto';
import { lstat, mkdir, open, readdir, readFile, rename, rm } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import type { SpooledOutcome } from '../core/spooled-outcome.ts';
import { syncDirectory, writeWhole } from './durable-write.ts';
import { decodeSpooled, encodeSpooled, type SpoolReading } from './spool-file.ts';
import { plainErrorCode } from './store-result.ts';

export interface SpoolTrouble {
  readonly action: 'write' | 'list' | 'read';
  /** The file system's code, such as ENOSPC. */
  readonly errorCode: string;
}

export interface SpoolOptions {
  /** Absolute. Made when it is needed, for this user only. */
  readonly directory: string;
  /** Told once, until the same has worked again. Must not throw. */
  readonly onTrouble: (trouble: SpoolTrouble) => void;
}

/** One file of the spool, by the attempt whose outcome it holds. */
export interface SpoolFile {
  readonly name: string;
  readonly attemptId: string;
  /** It has no name yet, and its writer may be at it. */
  readonly isUnnamed?: true;
}

/**
 * Outcomes of paid POSTs that couldn't be committed, one file per attempt. The directory may be shared by
 * processes and machines: every file is whole or not there, and whoever finds one gone has nothing to do.
 * Nothing here throws: an outcome that can't be kept on disk is still in memory and in the log.
 */
export interface Spool {
  /** Makes the directory and tries it; false when it can't be written, which has been told. */
  check(): Promise<boolean>;
  /** On disk, under its name, when it resolves with true. The file is this process's until let go of. */
  keep(spooled: SpooledOutcome): Promise<boolean>;
  /** The outcome of this process's own attempt is committed. Without a file nothing happens. */
  discard(attemptId: string): Promise<void>;
  /** This process settles it no more: the next replay may take it. */
  letGo(attemptId: string): void;
  /** Files that no live attempt of this process is behind, by name. */
  list(): Promise<SpoolFile[]>;
  /** Undefined: it is gone, since somebody else has replayed it, or is being written. */
  read(file: SpoolFile): Promise<SpoolReading | undefined>;
  /** Its outcome is committed: by this replay, or by whoever was faster. */
  remove(file: SpoolFile): Promise<void>;
  /** Puts a file that can't be replayed out of the way, under its name and `.bad`; true when it was there. */
  setAside(file: SpoolFile): Promise<boolean>;
}

/** Far more than ids and codes can take. */
const MAX_BYTES = 16_384;
/** A temporary file this old has no writer any more. */
const ABANDONED_MS = 60_000;
const ID = '[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}';
const NAMED = new RegExp(`^(${ID})\\.json$`);
const TEMPORARY = new RegExp(`^\\.(${ID})\\.[0-9a-f]{16}\\.part$`);

export function createSpool({ directory, onTrouble }: SpoolOptions): Spool {
  const held = new Set<string>();
  const troubled = new Set<string>();
  const pathOf = ({ name }: Pick<SpoolFile, 'name'>) => join(directory, name);

  /** `what` may fail while the rest of the same action works: one file that belongs to another user. */
  const attempt = async <T>(
    action: SpoolTrouble['action'],
    work: () => Promise<T>,
    what: string = action,
  ): Promise<T | undefined> => {
    try {
      const result = await work();
      troubled.delete(what);
      return result;
    } catch (error) {
      const isNews = !troubled.has(what);
      troubled.add(what);
      if (isNews) onTrouble({ action, errorCode: plainErrorCode(error) ?? 'unknown' });
      return undefined;
    }
  };
  // A file that stays is replayed once more, and found settled.
  const remove = (name: string) =>
    attempt('write', () => rm(join(directory, name), { force: true }), 'remove');

  return {
    async check() {
      const tried = await attempt('write', async () => {
        await makeDirectory(directory);
        const probe = join(directory, `.probe.${randomBytes(8).toString('hex')}`);
        try {
          await writeNew(probe, '\n');
        } finally {
          await rm(probe, { force: true }).catch(() => undefined);
        }
        await readdir(directory);
        return true;
      });
      return tried ?? false;
    },

    async keep(spooled) {
      const { attemptId } = spooled.intent;
      held.add(attemptId);
      const kept = await attempt('write', async () => {
        await makeDirectory(directory);
        await writeDurably(directory, attemptId, encodeSpooled(spooled));
        return true;
      });
      return kept ?? false;
    },

    async discard(attemptId) {
      await remove(`${attemptId}.json`);
      held.delete(attemptId);
    },

    letGo: (attemptId) => void held.delete(attemptId),

    async list() {
      const files = await attempt('list', async () => {
        const names = await ifThere(readdir(directory));
        return filesOf((names ?? []).sort());
      });
      return (files ?? []).filter(({ attemptId }) => !held.has(attemptId));
    },

    read: (file) => attempt('read', () => ifThere(readBounded(pathOf(file), file.isUnnamed)), file.name),

    remove: async ({ name }) => void (await remove(name)),

    async setAside(file) {
      // With a random part, so that it never takes the place of one that lies aside already.
      const aside = `${file.attemptId}.${randomBytes(4).toString('hex')}.bad`;
      const moved = await attempt(
        'write',
        () => ifThere(rename(pathOf(file), pathOf({ name: aside })).then(() => true)),
        'set aside',
      );
      return moved ?? false;
    },
  };
}

/** Only the last part is for this user alone: the ones above it may hold what others must reach. */
async function makeDirectory(directory: string): Promise<void> {
  const parent = dirname(directory);
  const topmost = await mkdir(parent, { recursive: true });
  const made = await mkdir(directory, { mode: 0o700 }).then(
    () => true,
    (error: unknown) => {
      if (plainErrorCode(error) === 'EEXIST') return false;
      throw error;
    },
  );
  if (made) await syncDirectory(parent);
  // A power cut must not take the way to the files either.
  for (let at = parent; topmost !== undefined && at.length >= topmost.length; at = dirname(at)) {
    await syncDirectory(dirname(at));
  }
}

/** Content before name before directory: in any other order a power cut leaves a whole name on half a file. */
async function writeDurably(directory: string, attemptId: string, text: string): Promise<void> {
  const temporary = join(directory, `.${attemptId}.${randomBytes(8).toString('hex')}.part`);
  try {
    await writeNew(temporary, text);
    await rename(temporary, join(directory, `${attemptId}.json`));
  } catch (error) {
    await rm(temporary, { force: true }).catch(() => undefined);
    throw error;
  }
  await syncDirectory(directory);
}

async function writeNew(path: string, text: string): Promise<void> {
  const handle = await open(path, 'wx', 0o600);
  try {
    await writeWhole(handle, Buffer.from(text));
    await handle.sync();
  } finally {
    await handle.close();
  }
}

/**
 * Names that aren't ours are somebody else's business. A file without its name is one of a process that died
 * between its last byte and the rename, or is about to rename it: replayed it is harmless in both cases.
 */
function filesOf(names: readonly string[]): SpoolFile[] {
  return names.flatMap((name): SpoolFile[] => {
    const attemptId = NAMED.exec(name)?.[1];
    if (attemptId !== undefined) return [{ name, attemptId }];
    const unnamed = TEMPORARY.exec(name)?.[1];
    return unnamed === undefined ? [] : [{ name, attemptId: unnamed, isUnnamed: true }];
  });
}

async function readBounded(path: string, isUnnamed = false): Promise<SpoolReading | undefined> {
  const found = await lstat(path);
  // Opening a pipe would wait for its other end.
  const isReadable = found.isFile() && found.size <= MAX_BYTES;
  const reading: SpoolReading = isReadable
    ? decodeSpooled(await readFile(path, 'utf8'))
    : { kind: 'damaged' };
  // By this machine's clock, hence the wide margin.
  const mayBeUnfinished = isUnnamed && Date.now() - found.mtimeMs < ABANDONED_MS;
  return reading.kind === 'damaged' && mayBeUnfinished ? undefined : reading;
}

/** ESTALE: another machine has removed it from a directory that both have mounted. */
async function ifThere<T>(work: Promise<T>): Promise<T | undefined> {
  try {
    return await work;
  } catch (error) {
    if (['ENOENT', 'ESTALE'].includes(plainErrorCode(error) ?? '')) return undefined;
    throw error;
  }
}
