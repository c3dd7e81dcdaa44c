import { markerOf, type Violation } from './checks.ts';
import { isDefiniteRefusal, type Ledger } from './ledger.ts';
import type { MemoryUse } from './memory.ts';
import type { Snapshot } from './snapshot.ts';

/** The figures of one run, as `--json` prints them. */
export interface ChaosReport {
  readonly seed: string;
  readonly minutes: number;
  readonly ordersPerMinute: number;
  readonly seconds: number;
  /** Ended by a signal, before everything could come to its end. */
  readonly interrupted: boolean;
  readonly requests: number;
  readonly posts: number;
  readonly charged: number;
  /** POSTs at whose arrival the database was asked for their committed intent. */
  readonly intentsAsked: number;
  readonly states: Readonly<Record<string, number>>;
  /** Requests that were paid more often than by an operator's word. */
  readonly duplicates: number;
  /** Paid again because an operator said so, wrongly or too early. */
  readonly paidAgainByWord: number;
  readonly lost: number;
  /** Attempts with an unknown outcome, by reason. */
  readonly ambiguous: Readonly<Record<string, number>>;
  readonly incidents: Readonly<Record<string, number>>;
  readonly faults: Readonly<Record<string, number>>;
  readonly operator: Readonly<Record<string, number>>;
  readonly breakerTransitions: number;
  readonly lateAnswers: number;
  readonly longestIdleMs: number;
  readonly longestDisturbedIdleMs: number;
  readonly mostSockets: number;
  readonly memory: readonly MemoryUse[];
  readonly violations: readonly Violation[];
  readonly timeline: string;
}

export function moneyOf(ledger: Ledger, snapshot: Snapshot) {
  let [charged, paidAgainByWord, duplicates] = [0, 0, 0];
  const rearms = Map.groupBy(
    snapshot.actions.filter(({ action }) => action === 'resolve_as_not_accepted'),
    ({ subject }) => subject,
  );
  for (const request of snapshot.requests) {
    const marker = markerOf(request);
    const tasks = ledger.tasksOf(marker).length;
    charged += tasks;
    const words = rearms.get(request.id)?.length ?? 0;
    if (tasks > 1 + words) duplicates++;
    else if (tasks > 1) paidAgainByWord++;
  }
  return { charged, paidAgainByWord, duplicates };
}

export function countBy<T>(items: Iterable<T>, name: (item: T) => string | null): Record<string, number> {
  const counts: Record<string, number> = {};
  for (const item of items) {
    const key = name(item);
    if (key !== null) counts[key] = (counts[key] ?? 0) + 1;
  }
  return counts;
}

export function refusalsOf(ledger: Ledger): number {
  return [...ledger.posts.values()].filter(isDefiniteRefusal).length;
}

const WIDTH = 78;

/** For a person, in 80 columns. */
export function reportText(report: ChaosReport): string {
  const line = (name: string, value: unknown) => `${name.padEnd(26)}${String(value)}`;
  const kills = (report.incidents['sigkill'] ?? 0) + (report.incidents['sigterm'] ?? 0);
  return [
    '',
    `Chaos, seed ${report.seed}: ${verdictOf(report)}`,
    '─'.repeat(WIDTH),
    line('time', `${report.minutes} min of faults, ${Math.round(report.seconds)} s in all`),
    line('requests', report.requests),
    line('POSTs at the provider', `${report.posts}, of which charged ${report.charged}`),
    line('intent committed before', `${report.intentsAsked} POSTs, asked as they arrived`),
    line('paid twice', report.duplicates),
    line('paid again by word', `${report.paidAgainByWord} (an operator re-armed what was paid)`),
    line('lost', report.lost),
    line(
      'processes ended',
      `${kills} (${report.incidents['sigkill'] ?? 0} SIGKILL, ${report.incidents['sigterm'] ?? 0} SIGTERM)`,
    ),
    line('processes stopped', report.incidents['sigstop'] ?? 0),
    line('PostgreSQL restarts', report.incidents['postgres'] ?? 0),
    line('breaker transitions', report.breakerTransitions),
    line('late answers kept', report.lateAnswers),
    line(
      'idle in transaction',
      `${Math.round(report.longestIdleMs)} ms at most; ${Math.round(report.longestDisturbedIdleMs)} ms when stopped or cut off`,
    ),
    line('sockets of one process', `${report.mostSockets} at most`),
    ...report.memory.map(({ name, plateauMb, lastMb }) =>
      line(`memory of ${name}`, `${plateauMb.toFixed(0)} MB, later ${lastMb.toFixed(0)} MB`),
    ),
    ...list('states at the end', report.states),
    ...list('unknown outcomes', report.ambiguous),
    ...list('incidents', report.incidents),
    ...list('provider', report.faults),
    ...list('operators', report.operator),
    '─'.repeat(WIDTH),
    `timeline: ${report.timeline}`,
    '',
  ].join('\n');
}

function verdictOf({ violations, interrupted }: ChaosReport): string {
  if (violations.length > 0) return `${violations.length} VIOLATION${violations.length === 1 ? '' : 'S'}`;
  return interrupted ? 'interrupted; nothing was violated' : 'nothing was violated';
}

function list(title: string, counts: Readonly<Record<string, number>>): string[] {
  const items = Object.entries(counts).sort(([, a], [, b]) => b - a);
  const lines: string[] = [];
  let text = '';
  for (const [name, count] of items) {
    const item = `${name.replaceAll('_', ' ')} ${count}`;
    if (text !== '' && text.length + item.length + 2 > WIDTH - 4) {
      lines.push(`    ${text},`);
      text = '';
    }
    text += `${text === '' ? '' : ', '}${item}`;
  }
  return items.length === 0 ? [] : [title, ...lines, `    ${text}`];
}
