import type { Facts } from './checks.ts';
import { Ledger } from './ledger.ts';
import { requestKeyOf } from './settings.ts';
import type { AttemptRow, BreakerRow, RequestRow, Snapshot, TransitionRow } from './snapshot.ts';

// Facts in which all is well, for tests that spoil one of them.

export const NOW = 1_800_000_000_000;
export const BREAKER = 'sonilo/text-to-music';

export function requestRow(marker: number, more: Partial<RequestRow> = {}): RequestRow {
  return {
    id: `request ${marker}`,
    requestKey: requestKeyOf(marker),
    account: 'amber',
    state: 'accepted',
    stateReason: null,
    charge: 'charged',
    task: `task ${marker}`,
    submissions: 1,
    ...more,
  };
}

export function attemptRow(marker: number, more: Partial<AttemptRow> = {}): AttemptRow {
  return {
    id: `attempt ${marker}.${more.attempt ?? 1}`,
    requestId: `request ${marker}`,
    attempt: 1,
    account: 'amber',
    breaker: BREAKER,
    isProbe: false,
    override: null,
    startedAt: NOW - 2_000,
    leaseExpiresAt: NOW + 6_000,
    settledAt: NOW - 1_000,
    closedAt: NOW - 1_000,
    quarantineUntil: NOW + 10_000,
    phase: 'answered',
    httpStatus: 202,
    certainty: 'accepted',
    reason: 'task_accepted',
    task: `task ${marker}`,
    ...more,
  };
}

export function transitionRow(
  number: number,
  previous: string,
  next: string,
  more: Partial<TransitionRow> = {},
) {
  const at = NOW - 100_000 + number * 1_000;
  return {
    breaker: BREAKER,
    layer: 'state',
    number,
    previous,
    next,
    cause: 'x',
    generation: number + 1,
    at,
    ...more,
  } as const;
}

export function breakerRow(more: Partial<BreakerRow> = {}): BreakerRow {
  return {
    name: BREAKER,
    state: 'closed',
    probeAttemptId: null,
    transitions: 0,
    overrideTransitions: 0,
    ...more,
  };
}

export function snapshotOf(more: Partial<Snapshot> = {}): Snapshot {
  return {
    now: NOW,
    requests: [requestRow(1)],
    attempts: [attemptRow(1)],
    evidence: [],
    actions: [],
    transitions: [],
    breakers: [breakerRow()],
    doubt: null,
    leaks: [],
    ...more,
  };
}

export interface PostedBefore {
  readonly marker?: number;
  readonly account?: string;
  readonly behaviour?: string;
  readonly at?: number;
  readonly status?: number;
  readonly task?: string;
  readonly endsAt?: number;
}

let numbers = 0;

export function post(ledger: Ledger, { marker = 1, account = 'amber', ...more }: PostedBefore = {}): void {
  const number = ++numbers;
  const at = more.at ?? NOW - 1_500;
  ledger.enter({ type: 'post', post: number, marker, account, behaviour: more.behaviour ?? 'accept', at });
  if (more.task !== undefined) {
    ledger.enter({
      type: 'charged',
      post: number,
      task: more.task,
      endsAt: more.endsAt ?? at + 3_000,
      fails: false,
    });
  }
  if (more.status !== undefined) ledger.enter({ type: 'answered', post: number, status: more.status, at });
}

/** One order, paid once. */
export function facts(snapshot: Partial<Snapshot> = {}, ledger: Ledger = paidOnce()): Facts {
  return {
    orders: new Map([[1, { outcome: 'committed', ids: new Set(['request 1']) }]]),
    ledger,
    snapshot: snapshotOf(snapshot),
  };
}

export function paidOnce(): Ledger {
  const ledger = new Ledger();
  post(ledger, { task: 'task 1', status: 202 });
  return ledger;
}
