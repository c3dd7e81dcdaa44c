import {
  chmodSync,
  existsSync,
  lstatSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { findPostmaster, stopPostmaster } from './postmaster.ts';
import { identifyProcess, type ProcessIdentity, processState } from './process-identity.ts';
import type { Notify } from './supervisor-protocol.ts';

const PREFIX = 'onetake-postgres-';
const OWNER_FILE = 'owner.json';

/**
 * A temporary directory that names its supervisor. The data of an ephemeral server lie in it, so whatever a
 * killed supervisor leaves behind is found by the next one.
 */
export function createWorkspace(): string {
  const directory = mkdtempSync(join(tmpdir(), PREFIX));
  writeOwner(directory);
  // The database user must pass through, and nobody else may list what is inside.
  chmodSync(directory, 0o711);
  return directory;
}

export function ephemeralDataDirectory(workspace: string): string {
  return join(workspace, 'data');
}

/** Also while another process removes the same directory, or a last server process still writes into it. */
export function removeDirectory(directory: string): void {
  for (let attempt = 1; attempt <= 10 && existsSync(directory); attempt += 1) {
    rmSync(directory, { recursive: true, force: true, maxRetries: 5, retryDelay: 20 });
  }
}

/** Removes the workspaces of supervisors that are no more, their servers first. Anything else is left alone. */
export async function sweepWorkspaces(notify: Notify): Promise<void> {
  for (const name of readdirSync(tmpdir())) {
    if (!name.startsWith(PREFIX)) continue;
    const directory = join(tmpdir(), name);
    try {
      if (!isOwnDirectory(directory)) continue;
      const owner = readOwner(directory);
      if (owner === undefined || processState(owner) !== 'gone') continue;
      const orphan = findPostmaster(ephemeralDataDirectory(directory));
      if (orphan !== undefined) await stopPostmaster(orphan, 'immediate');
      removeDirectory(directory);
    } catch (error) {
      // Another supervisor may sweep the same directory, and none of this may keep a new server from starting.
      notify(`could not remove ${directory}, left behind by an earlier run: ${(error as Error).message}`);
    }
  }
}

export function writeOwner(directory: string): void {
  writeFileSync(join(directory, OWNER_FILE), JSON.stringify(identifyProcess(process.pid)));
}

export function readOwner(directory: string): ProcessIdentity | undefined {
  try {
    const owner = JSON.parse(
      readFileSync(join(directory, OWNER_FILE), 'utf8'),
    ) as Partial<ProcessIdentity> | null;
    return typeof owner?.pid === 'number' && typeof owner.host === 'string'
      ? (owner as ProcessIdentity)
      : undefined;
  } catch {
    return undefined;
  }
}

export function removeOwner(directory: string): void {
  if (readOwner(directory)?.pid === process.pid) rmSync(join(directory, OWNER_FILE), { force: true });
}

/** A directory, not a link to one, that only this user can have made and written. */
export function isOwnDirectory(directory: string): boolean {
  const entry = lstatSync(directory, { throwIfNoEntry: false });
  if (entry === undefined || !entry.isDirectory()) return false;
  return process.getuid === undefined || (entry.uid === process.getuid() && (entry.mode & 0o022) === 0);
}
