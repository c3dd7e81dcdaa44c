import type { BreakerHistoryRow, BreakerStatus } from '../postgres/breaker-history.ts';
import type { Terminal } from './output.ts';
import type { Format } from './style.ts';
import { duration, instant, shortId } from './text.ts';

// Breakers and their history, for people and for programs.

export function statusJson(row: BreakerStatus) {
  const { name, state, effectiveState, why, since, consecutiveFailures } = row;
  const { openedAt, retryAt, retryInMs, override, probeRequestId, shadow, notClosedSince } = row;
  const { overrideActor, overrideReason, overrideExpiresAt } = row;
  const { failureThreshold, cooldownMs, cooldownGrowth, maxCooldownMs, jitter } = row;
  return {
    name,
    state,
    effectiveState,
    why,
    since,
    consecutiveFailures,
    openedAt,
    retryAt,
    retryInMs,
    override,
    overrideActor,
    overrideReason,
    overrideExpiresAt,
    probeRequestId,
    shadow,
    notClosedSince,
    failureThreshold,
    cooldownMs,
    cooldownGrowth,
    maxCooldownMs,
    jitter,
  };
}

export function historyJson(row: BreakerHistoryRow) {
  const { at, number, layer, breakerName, previousState, nextState, cause, outcomeKind, httpStatus } = row;
  const { openedAt, retryAt, requestId, providerTaskId, generation, actor, shadow } = row;
  return {
    at,
    number,
    layer,
    breakerName,
    previousState,
    nextState,
    cause,
    outcomeKind,
    httpStatus,
    openedAt,
    retryAt,
    requestId,
    providerTaskId,
    generation,
    actor,
    shadow,
  };
}

const FORMAT: Readonly<Record<string, Format>> = {
  closed: 'green',
  open: 'red',
  half_open: 'yellow',
  probe_due: 'yellow',
  probe_overdue: 'red',
  forced_open: 'red',
  forced_closed: 'yellow',
};

export function showList(terminal: Terminal, rows: readonly BreakerStatus[]): void {
  if (rows.length === 0) {
    terminal.note('There are no breakers yet: run `onetake migrate`.');
    return;
  }
  terminal.table<BreakerStatus>(rows, [
    { title: 'name', value: (row) => row.name, flexible: true },
    {
      title: 'state',
      value: (row) => row.effectiveState.replaceAll('_', ' '),
      format: (row) => FORMAT[row.effectiveState],
    },
    {
      title: 'why',
      value: (row) => row.why.replace(/^(closed|open|half open)( since [^:]*:[^:]*:[^:]*)?: /, ''),
      flexible: 'wrap',
    },
  ]);
}

export function showOne(terminal: Terminal, row: BreakerStatus, isNext: boolean): void {
  if (isNext) terminal.print('');
  terminal.block([
    ['name', row.name],
    ['state', row.effectiveState.replaceAll('_', ' ')],
    ['why', row.why],
    ['since', instant(row.since)],
    [
      'failures',
      row.state === 'closed' ? `${row.consecutiveFailures} in a row; ${row.failureThreshold} open it` : null,
    ],
    ['not closed since', row.notClosedSince === null ? null : instant(row.notClosedSince)],
    ['cooldown', cooldown(row)],
    ['opened', row.openedAt === null ? null : instant(row.openedAt)],
    ['next probe', row.retryAt === null ? null : nextProbe(row.retryAt, row.retryInMs)],
    ['probe', row.probeRequestId === null ? null : `request ${shortId(row.probeRequestId)}`],
    ['override', row.override?.replaceAll('_', ' ') ?? null],
    ['by', row.overrideActor],
    ['reason', row.overrideReason],
    ['until', row.overrideExpiresAt === null ? null : instant(row.overrideExpiresAt)],
    ['shadow', row.shadow ? 'yes: it records, and refuses nothing' : null],
  ]);
}

function cooldown({ cooldownMs, cooldownGrowth, maxCooldownMs, jitter }: BreakerStatus): string {
  const grows =
    cooldownGrowth > 1 ? `, × ${cooldownGrowth} a failed probe, at most ${duration(maxCooldownMs)}` : '';
  const spread = jitter > 0 ? `, up to ${Math.round(jitter * 100)} % more` : '';
  return `${duration(cooldownMs)}${grows}${spread}`;
}

function nextProbe(at: Date, inMs: number | null): string {
  return inMs === null || inMs <= 0 ? 'due now' : `in ${duration(inMs)}, at ${instant(at)}`;
}

export function showHistory(terminal: Terminal, rows: readonly BreakerHistoryRow[]): void {
  if (rows.length === 0) {
    terminal.note('There was no transition yet.');
    return;
  }
  const several = rows.some((row) => row.breakerName !== rows[0]?.breakerName);
  terminal.table<BreakerHistoryRow>(rows, [
    ...(several
      ? [{ title: 'breaker', value: (row: BreakerHistoryRow) => row.breakerName, flexible: true as const }]
      : []),
    { title: 'at', value: (row) => instant(row.at) },
    // One column: beside overrides, two would leave the cause no room.
    {
      title: 'transition',
      value: (row) => `${row.previousState} -> ${row.nextState}`.replaceAll('_', ' '),
      format: (row) => FORMAT[row.nextState],
    },
    {
      title: 'cause',
      value: (row) => row.cause.replaceAll('_', ' ') + (row.actor === null ? '' : ` by ${row.actor}`),
      flexible: 'wrap',
    },
    {
      title: 'answer',
      // Without an answer, at least what that was taken for.
      value: (row) => row.httpStatus ?? row.outcomeKind?.replaceAll('_', ' ') ?? null,
      flexible: 'wrap',
    },
    { title: 'request', value: (row) => (row.requestId === null ? null : shortId(row.requestId)) },
  ]);
}
