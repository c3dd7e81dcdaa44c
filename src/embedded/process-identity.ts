import { execFileSync } from 'node:child_process';
import { readFileSync, readlinkSync } from 'node:fs';
import { hostname } from 'node:os';

/**
 * A process that can be recognised later. The pid alone can't: it is recycled, and a container that shares
 * the temporary directory counts its own pids.
 */
export interface ProcessIdentity {
  readonly pid: number;
  readonly host: string;
  readonly boot: string | null;
  readonly pidNamespace: string | null;
  readonly startedAt: string | null;
}

export function identifyProcess(pid: number): ProcessIdentity {
  return { pid, host: hostname(), boot: bootId(), pidNamespace: pidNamespace(), startedAt: startTime(pid) };
}

/** `unknown` when this process can't tell: the identity is from another host or pid namespace. */
export function processState(identity: ProcessIdentity): 'running' | 'gone' | 'unknown' {
  if (identity.host !== hostname()) return 'unknown';
  if (identity.boot !== bootId()) return 'gone';
  if (identity.pidNamespace !== pidNamespace()) return 'unknown';
  if (!answersSignals(identity.pid)) return 'gone';
  const startedAt = startTime(identity.pid);
  return startedAt !== null && startedAt === identity.startedAt ? 'running' : 'gone';
}

/** True for a zombie too: enough for a child of ours, which is reaped. */
export function answersSignals(pid: number): boolean {
  try {
    process.kill(pid, 0);
    return true;
  } catch (error) {
    return (error as NodeJS.ErrnoException).code === 'EPERM';
  }
}

/** Null for a process that is no more; a zombie is no more, although signals still reach it. */
function startTime(pid: number): string | null {
  if (process.platform === 'linux') {
    // The command name may hold spaces and parentheses: the fields begin after the last one.
    const fields = readText(`/proc/${pid}/stat`)
      ?.replace(/^.*\) /s, '')
      .split(' ');
    return fields?.[0] === undefined || fields[0] === 'Z' || fields[0] === 'X' ? null : (fields[19] ?? null);
  }
  if (process.platform === 'win32') return answersSignals(pid) ? 'running' : null;
  try {
    const printed = execFileSync('ps', ['-o', 'stat=,lstart=', '-p', String(pid)], {
      encoding: 'utf8',
    }).trim();
    return printed === '' || printed.startsWith('Z') ? null : printed.replace(/^\S+\s+/, '');
  } catch {
    return null;
  }
}

function bootId(): string | null {
  return readText('/proc/sys/kernel/random/boot_id')?.trim() ?? null;
}

function pidNamespace(): string | null {
  try {
    return readlinkSync('/proc/self/ns/pid');
  } catch {
    return null;
  }
}

function readText(file: string): string | undefined {
  try {
    return readFileSync(file, 'utf8');
  } catch {
    return undefined;
  }
}
