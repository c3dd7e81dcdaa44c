import { readFileSync } from 'node:fs';

/** USER_HZ, which Linux has fixed at 100 for programs. */
const TICKS_PER_S = 100;

/** CPU time that the process has used so far, of its user and system parts. Linux only. */
export function cpuMs(pid: number): number {
  const stat = readFileSync(`/proc/${pid}/stat`, 'utf8');
  const fields = stat.slice(stat.lastIndexOf(')') + 2).split(' ');
  return ((Number(fields[11]) + Number(fields[12])) * 1_000) / TICKS_PER_S;
}
