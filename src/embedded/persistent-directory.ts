import { createHash } from 'node:crypto';
import {
  chmodSync,
  existsSync,
  mkdirSync,
  readFileSync,
  realpathSync,
  renameSync,
  statSync,
  writeFileSync,
} from 'node:fs';
import { dirname, join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { OnetakeError } from '../core/errors.ts';
import { canEnter, type DatabaseUser } from './database-user.ts';
import { findPostmaster, stopPostmaster } from './postmaster.ts';
import { processState } from './process-identity.ts';
import type { Notify } from './supervisor-protocol.ts';
import { readOwner, writeOwner } from './workspace.ts';

const SETTINGS_FILE = 'server.json';
/** A supervisor whose parent was just killed still stops its server. */
const OWNER_PATIENCE_MS = 3_000;

/** What restarts must find again: the port, the password, and where the data lie. */
export interface PersistentSettings {
  readonly port: number | null;
  readonly password: string;
  /** Null: in the directory itself. */
  readonly dataDirectory: string | null;
}

export function readSettings(directory: string): PersistentSettings | undefined {
  const file = join(directory, SETTINGS_FILE);
  if (!existsSync(file)) return undefined;
  try {
    return JSON.parse(readFileSync(file, 'utf8')) as PersistentSettings;
  } catch {
    throw new OnetakeError('embedded_postgres_failed', `${file} cannot be read`, {
      hint: startOver(directory),
    });
  }
}

export function writeSettings(directory: string, settings: PersistentSettings): void {
  const file = join(directory, SETTINGS_FILE);
  writeFileSync(`${file}.new`, `${JSON.stringify(settings)}\n`, { mode: 0o600 });
  renameSync(`${file}.new`, file);
}

/**
 * The real path of the directory, now ours. Refuses one that a live supervisor serves.
 */
export async function claimDirectory(asked: string): Promise<string> {
  const isNew = mkdirSync(asked, { recursive: true }) !== undefined;
  const directory = realpathSync(asked);
  // The password lies in it.
  if (isNew) writeFileSync(join(directory, '.gitignore'), '*\n');
  for (const end = performance.now() + OWNER_PATIENCE_MS; ; ) {
    const owner = readOwner(directory);
    if (owner === undefined || processState(owner) === 'gone') break;
    if (performance.now() > end) {
      const where = processState(owner) === 'unknown' ? ` on ${owner.host}` : '';
      throw new OnetakeError(
        'embedded_postgres_failed',
        `${directory} is in use by another embedded PostgreSQL (supervisor ${owner.pid}${where})`,
        { hint: 'Stop that one first, or use another directory.' },
      );
    }
    await delay(50);
  }
  writeOwner(directory);
  return directory;
}

export interface DataPlace {
  readonly dataDirectory: string;
  /** What `server.json` shall say: null inside the directory, so that a moved checkout finds its data. */
  readonly recorded: string | null;
  readonly isInitialised: boolean;
}

/** Where the data are or shall be. A server that a dead supervisor left there is stopped, never adopted. */
export async function prepareDataDirectory(
  directory: string,
  settings: PersistentSettings | undefined,
  user: DatabaseUser | undefined,
  notify: Notify,
): Promise<DataPlace> {
  const inside = join(directory, 'data');
  const chosen = settings?.dataDirectory ?? chooseDataDirectory(inside, user, notify);
  const place = { dataDirectory: chosen, recorded: chosen === inside ? null : chosen };
  const orphan = findPostmaster(chosen);
  if (orphan !== undefined) {
    notify(`stopping PostgreSQL ${orphan.pid}, which an earlier run left behind in ${chosen}`);
    await stopPostmaster(orphan, 'fast');
  }
  if (!existsSync(chosen)) return { ...place, isInitialised: false };
  if (settings === undefined) {
    throw new OnetakeError(
      'embedded_postgres_failed',
      `${chosen} has data, but ${SETTINGS_FILE} is missing`,
      {
        hint: startOver(directory),
      },
    );
  }
  const runsAs = user?.uid ?? process.getuid?.();
  if (runsAs !== undefined && statSync(chosen).uid !== runsAs) {
    throw new OnetakeError(
      'embedded_postgres_failed',
      `the data in ${chosen} belong to another system user`,
      {
        hint: `Run as the user who made them. ${startOver(directory)}`,
      },
    );
  }
  return { ...place, isInitialised: true };
}

function chooseDataDirectory(inside: string, user: DatabaseUser | undefined, notify: Notify): string {
  const directory = dirname(inside);
  if (canEnter(directory, user)) return inside;
  // Only root gets here. The temporary directory would do, but these data are meant to last.
  const name = `postgres-${createHash('sha256').update(directory).digest('hex').slice(0, 16)}`;
  const reachable = join('/var/lib/onetake', name);
  mkdirSync(reachable, { recursive: true });
  chmodSync(reachable, 0o711);
  if (!canEnter(reachable, user)) {
    throw new OnetakeError(
      'embedded_postgres_failed',
      `the system user postgres can enter neither ${directory} nor ${reachable}`,
      { hint: 'Use a directory that every user can enter, or do not run as root.' },
    );
  }
  notify(`keeping the data in ${reachable}, since the database user cannot enter ${directory}`);
  return join(reachable, 'data');
}

function startOver(directory: string): string {
  return `To start over with an empty database, remove ${directory}.`;
}
