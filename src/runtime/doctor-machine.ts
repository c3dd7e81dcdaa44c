import { randomBytes } from 'node:crypto';
import { access, constants, readdir, rm, stat, writeFile } from 'node:fs/promises';
import { dirname, join, resolve } from 'node:path';
import { OnetakeError } from '../core/errors.ts';
import { OPERATION_NAMES } from '../core/operations.ts';
import type { ResultStorage } from '../storage/directory-storage.ts';
import { createS3Storage } from '../storage/s3-storage.ts';
import { createSpool } from '../storage/spool.ts';
import { plainErrorCode } from '../storage/store-result.ts';
import { type Check, fail, ok, warn } from './doctor-check.ts';
import type { ResolvedConfig, ResolvedStorage } from './options.ts';

/** The directories that this machine's processes write to. Makes none of them. */
export async function examineMachine(config: ResolvedConfig): Promise<Check[]> {
  const streams = OPERATION_NAMES.some((name) => config.operations[name].mode === 'stream');
  return [await ofSpool(resolve(config.worker.spoolDirectory)), await ofStorage(config.storage, streams)];
}

async function ofSpool(directory: string): Promise<Check> {
  const problem = await problemOf(directory);
  if (problem !== undefined) {
    return fail(
      'spool',
      `worker.spoolDirectory can't be written (${problem})`,
      "Outcomes that can't be committed would be in memory and in the log alone.",
    );
  }
  const waiting = (await createSpool({ directory, onTrouble: () => {} }).list()).length;
  const bad = (await namesIn(directory)).filter((name) => name.endsWith('.bad')).length;
  if (waiting + bad === 0) return ok('spool', 'writable, and empty');
  const aside = bad === 0 ? '' : `, ${bad} set aside as damaged`;
  return warn(
    'spool',
    `${waiting} outcome${waiting === 1 ? '' : 's'} not committed yet${aside}`,
    'A worker on this directory replays them; see The spool in docs/operations.md.',
  );
}

async function ofStorage(
  { directory, s3, allowPrivateHosts }: ResolvedStorage,
  streams: boolean,
): Promise<Check> {
  if (s3 !== null) return ofBucket(createS3Storage(s3, allowPrivateHosts));
  if (directory === null && streams) {
    return fail('storage', 'none, and a configured mode asks for streams', 'They are stored as they come.');
  }
  if (directory === null) return ok('storage', 'none: only the temporary addresses of files are kept');
  const problem = await problemOf(resolve(directory));
  if (problem === undefined) return ok('storage', 'writable');
  return fail(
    'storage',
    `storage.directory can't be written (${problem})`,
    'Pollers keep no file until it can.',
  );
}

async function ofBucket(storage: ResultStorage): Promise<Check> {
  try {
    await storage.check();
    return ok('storage', 'the bucket is there');
  } catch (error) {
    if (error instanceof OnetakeError) return fail('storage', error.message, error.hint ?? '');
    const code = plainErrorCode(error) ?? 'unknown';
    return fail('storage', `storage.s3 can't be reached (${code})`, 'Pollers keep no file until it can.');
  } finally {
    await storage.close();
  }
}

/** The system's code; undefined when the directory can be written, or made. */
async function problemOf(directory: string): Promise<string | undefined> {
  try {
    const found = await existing(directory);
    if (found !== directory) {
      await access(found, constants.W_OK | constants.X_OK);
      return undefined;
    }
    if (!(await stat(found)).isDirectory()) return 'ENOTDIR';
    const probe = join(found, `.doctor.${randomBytes(8).toString('hex')}`);
    try {
      await writeFile(probe, '\n', { flag: 'wx', mode: 0o600 });
    } finally {
      await rm(probe, { force: true });
    }
    return undefined;
  } catch (error) {
    return codeOf(error);
  }
}

/** The nearest directory above that is there. */
async function existing(path: string): Promise<string> {
  for (let at = path; ; at = dirname(at)) {
    try {
      await stat(at);
      return at;
    } catch (error) {
      if (codeOf(error) !== 'ENOENT' || at === dirname(at)) throw error;
    }
  }
}

async function namesIn(directory: string): Promise<string[]> {
  return readdir(directory).catch(() => []);
}

function codeOf(error: unknown): string {
  const { code } = error as NodeJS.ErrnoException;
  return typeof code === 'string' ? code : 'unknown';
}
