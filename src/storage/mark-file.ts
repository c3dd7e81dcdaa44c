import { randomBytes } from 'node:crypto';
import { readFile, rename, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import type { InstallationMark } from '../core/installation.ts';

/** What this machine's workers remember of databases, for the time after a restart. */
export interface MarkFile {
  /** Empty when there is no file, or none that can be read: then nothing is remembered. */
  load(): Promise<InstallationMark[]>;
  /** Never rejects: what can't be kept is only not remembered. */
  keep(mark: InstallationMark): Promise<void>;
}

const NAME = 'installations.json';
/** Of databases that come and go, such as those of tests. */
const MOST = 8;

/**
 * One small file in the spool directory. Not synced: a power cut costs what was remembered, and a lost or an older
 * mark proves less, never something false. So do two processes that write at once.
 */
export function createMarkFile(directory: string): MarkFile {
  const path = join(directory, NAME);
  const load = async (): Promise<InstallationMark[]> => {
    try {
      const found: unknown = JSON.parse(await readFile(path, 'utf8'));
      return Array.isArray(found) ? found.filter(isMark).slice(0, MOST) : [];
    } catch {
      return [];
    }
  };
  return {
    load,
    async keep(mark) {
      const temporary = join(directory, `.${NAME}.${randomBytes(8).toString('hex')}.part`);
      try {
        const others = (await load()).filter(({ installation }) => installation !== mark.installation);
        const marks = [mark, ...others].slice(0, MOST);
        await writeFile(temporary, `${JSON.stringify(marks)}\n`, { mode: 0o600, flag: 'wx' });
        await rename(temporary, path);
      } catch {
        await rm(temporary, { force: true }).catch(() => undefined);
      }
    },
  };
}

const UUID = /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/;
const LSN = /^[0-9A-F]{1,8}\/[0-9A-F]{1,8}$/;

/** It goes into a statement, where anything else would be an error at every look. */
function isMark(value: unknown): value is InstallationMark {
  if (typeof value !== 'object' || value === null) return false;
  const { installation, revision, flushed, attemptId } = value as Record<keyof InstallationMark, unknown>;
  return (
    typeof installation === 'string' &&
    UUID.test(installation) &&
    Number.isSafeInteger(revision) &&
    (flushed === null || (typeof flushed === 'string' && LSN.test(flushed))) &&
    (attemptId === null || (typeof attemptId === 'string' && UUID.test(attemptId)))
  );
}
