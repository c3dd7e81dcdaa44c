import { execFileSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { identifyProcess, type ProcessIdentity, processState } from './process-identity.ts';

const STOP_STEPS_MS = { fast: 5_000, immediate: 3_000, kill: 2_000 } as const;

/** The live postmaster of this data directory, by its `postmaster.pid`, or undefined. */
export function findPostmaster(dataDirectory: string): ProcessIdentity | undefined {
  const pid = readPostmasterPid(dataDirectory);
  if (pid === undefined) return undefined;
  const identity = identifyProcess(pid);
  return processState(identity) === 'running' && servesDirectory(pid, dataDirectory) ? identity : undefined;
}

/**
 * `fast` ends sessions and writes a checkpoint, so that the next start needs no recovery; `immediate` is for
 * data that nobody will read again. Escalates, and returns within ten seconds.
 */
export async function stopPostmaster(
  postmaster: ProcessIdentity,
  manner: 'fast' | 'immediate',
): Promise<void> {
  if (manner === 'fast' && (await signalAndWait(postmaster, 'SIGINT', STOP_STEPS_MS.fast))) return;
  if (await signalAndWait(postmaster, 'SIGQUIT', STOP_STEPS_MS.immediate)) return;
  await signalAndWait(postmaster, 'SIGKILL', STOP_STEPS_MS.kill);
}

async function signalAndWait(
  postmaster: ProcessIdentity,
  signal: NodeJS.Signals,
  limitMs: number,
): Promise<boolean> {
  try {
    process.kill(postmaster.pid, signal);
  } catch {
    return true;
  }
  for (const end = performance.now() + limitMs; performance.now() < end; ) {
    if (processState(postmaster) !== 'running') return true;
    await delay(10);
  }
  return processState(postmaster) !== 'running';
}

function readPostmasterPid(dataDirectory: string): number | undefined {
  try {
    const pid = Number.parseInt(readFileSync(join(dataDirectory, 'postmaster.pid'), 'utf8'), 10);
    return pid > 1 ? pid : undefined;
  } catch {
    return undefined;
  }
}

/** A stale `postmaster.pid` may name a process that has nothing to do with us: never signal one unproven. */
function servesDirectory(pid: number, dataDirectory: string): boolean {
  if (process.platform === 'win32') return true;
  try {
    // Not /proc/…/cwd, which root in a container without CAP_SYS_PTRACE may not read.
    if (process.platform === 'linux') {
      return readFileSync(`/proc/${pid}/cmdline`, 'utf8').split('\0').includes(dataDirectory);
    }
    return execFileSync('ps', ['-ww', '-o', 'command=', '-p', String(pid)], { encoding: 'utf8' }).includes(
      dataDirectory,
    );
  } catch {
    return false;
  }
}
