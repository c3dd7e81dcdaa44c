import type { Order } from './app.ts';
import { isDefiniteRefusal, type Ledger } from './ledger.ts';
import { ACCOUNTS, type AccountLimits, LEASE_MS, requestKeyOf } from './settings.ts';
import type { AttemptRow, RequestRow, Snapshot } from './snapshot.ts';

// What must be true at every moment, of facts that were read from the outside: the app's own journal and the
// provider's books first, then the database, so that the database can only know more.

export interface Violation {
  readonly rule: string;
  readonly what: string;
  /** Whose rows tell more. */
  readonly marker?: number;
}

export interface Facts {
  /** As it was when the reading began. */
  readonly orders: ReadonlyMap<number, Pick<Order, 'outcome' | 'ids'>>;
  readonly ledger: Ledger;
  readonly snapshot: Snapshot;
}

/** What is older has been looked at before. */
const LOOKS_BACK_MS = 300_000;
/** How long after its end a lease may wait for rescue: databases that are down, busy machines. */
const RESCUE_LIMIT_MS = 30_000;
const TERMINAL: ReadonlySet<string> = new Set(['succeeded', 'failed', 'rejected', 'cancelled', 'expired']);

interface Case {
  readonly marker: number;
  readonly request: RequestRow;
  readonly attempts: readonly AttemptRow[];
  readonly rearms: number;
  readonly wasResolved: boolean;
}

export function check(facts: Facts): Violation[] {
  const cases = casesOf(facts);
  return [
    ...cases.flatMap((one) => checkPosts(one, facts)),
    ...cases.flatMap(checkLeases),
    ...cases.flatMap((one) => checkTasks(one, facts)),
    ...cases.flatMap((one) => checkMoney(one, facts)),
    ...cases.flatMap((one) => checkNotStuck(one, facts)),
    ...checkOrders(facts, new Map(cases.map((one) => [one.marker, one]))),
    ...checkDoubt(facts),
    ...facts.snapshot.leaks.map((place) => ({ rule: 'no leak', what: `a canary in ${place}` })),
    ...facts.ledger.withoutIntent.map((marker) => ({
      rule: 'intent before effect',
      what: `a POST of order ${marker} arrived before its intent was committed`,
      marker,
    })),
    ...facts.ledger.protests.map((what) => ({ rule: 'provider protests', what })),
  ];
}

function casesOf({ snapshot }: Pick<Facts, 'snapshot'>): Case[] {
  const attempts = Map.groupBy(snapshot.attempts, ({ requestId }) => requestId);
  const actions = Map.groupBy(snapshot.actions, ({ subject }) => subject);
  return snapshot.requests.map((request) => {
    const own = actions.get(request.id) ?? [];
    return {
      marker: markerOf(request),
      request,
      attempts: attempts.get(request.id) ?? [],
      rearms: own.filter(({ action }) => action === 'resolve_as_not_accepted').length,
      wasResolved: own.some(({ action }) => action !== 'cancel_request'),
    };
  });
}

export function markerOf({ requestKey }: Pick<RequestRow, 'requestKey'>): number {
  return Number(requestKey.replace(requestKeyOf(0).replace('0', ''), ''));
}

/**
 * The other way round: what the database says of the provider is in the books. They are told a little later, so
 * `snapshot` is the one before.
 */
export function checkWords({ ledger, snapshot }: Pick<Facts, 'ledger' | 'snapshot'>): Violation[] {
  return casesOf({ snapshot }).flatMap(({ marker, request, attempts }) => {
    const found: Violation[] = [];
    const say = (rule: string, what: string) => found.push({ rule, what: `${request.id}: ${what}`, marker });
    const refusals = ledger.postsOf(marker).filter(isDefiniteRefusal).length;
    const refused = attempts.filter(({ certainty }) => certainty === 'refused').length;
    if (refused > refusals) {
      say('refused means refused', `${refused} attempts are stored as refused, and ${refusals} were`);
    }
    if (request.task !== null && !ledger.tasksOf(marker).some(({ id }) => id === request.task)) {
      say('own task', 'its task is another request’s, or nobody’s');
    }
    return found;
  });
}

/** I1: one POST, and one more for each definite refusal and each re-arm. */
function checkPosts({ marker, request, attempts, rearms }: Case, { ledger }: Facts): Violation[] {
  const found: Violation[] = [];
  const posts = ledger.postsOf(marker);
  const sent = posts.length + ledger.partials.filter((partial) => partial.marker === marker).length;
  const refusals = posts.filter(isDefiniteRefusal).length;
  const say = (rule: string, what: string) => found.push({ rule, what: `${request.id}: ${what}`, marker });
  if (sent > 1 + refusals + rearms) {
    say(
      'one take',
      `${sent} POSTs, and ${refusals} refusals and ${rearms} re-arms permit ${1 + refusals + rearms}`,
    );
  }
  const maySend = attempts.filter(({ certainty }) => certainty !== 'unsent').length;
  if (sent > maySend) {
    say('unsent means unsent', `${sent} POSTs, and ${maySend} attempts that are not stored as unsent`);
  }
  const unknown = attempts.filter(({ certainty }) => certainty === 'unknown').length;
  if (rearms > unknown)
    say('one re-arm per unknown attempt', `${rearms} re-arms of ${unknown} unknown attempts`);
  return found;
}

/** Only the end of its lease takes an attempt from its worker, and nothing follows one that may still arrive. */
function checkLeases({ marker, request, attempts }: Case): Violation[] {
  return attempts.flatMap((attempt, n) => {
    const found: Violation[] = [];
    const { settledAt, leaseExpiresAt, phase, certainty, closedAt, quarantineUntil } = attempt;
    const of = `${request.id}: attempt ${attempt.attempt}`;
    if (phase === 'lease_over' && settledAt !== null && settledAt < leaseExpiresAt) {
      const early = Math.round(leaseExpiresAt - settledAt);
      found.push({ rule: 'lease', what: `${of} was given up ${early} ms before its lease ended`, marker });
    }
    const next = attempts[n + 1];
    if (next === undefined) return found;
    if (settledAt === null || next.startedAt < settledAt) {
      found.push({ rule: 'one at a time', what: `${of} was not settled when the next began`, marker });
    }
    if (certainty === 'unknown' && closedAt === null && next.startedAt < quarantineUntil) {
      found.push({ rule: 'quarantine', what: `${of} may still arrive, and the next has begun`, marker });
    }
    return found;
  });
}

/** Every task that was charged is known, or its request is frozen, or an operator has had a word. */
function checkTasks(
  { marker, request, attempts, wasResolved }: Case,
  { ledger, snapshot }: Facts,
): Violation[] {
  const tasks = ledger.tasksOf(marker);
  const found: Violation[] = [];
  if (wasResolved || tasks.length === 0) return found;
  const isOpen = request.state === 'ambiguous' || attempts.some(({ settledAt }) => settledAt === null);
  if (isOpen) return found;
  const attemptIds = new Set(attempts.map(({ id }) => id));
  const known = new Set([
    request.task,
    ...attempts.map(({ task }) => task),
    ...snapshot.evidence.filter(({ attemptId }) => attemptIds.has(attemptId)).map(({ task }) => task),
  ]);
  for (const { id } of tasks) {
    if (known.has(id)) continue;
    found.push({
      rule: 'every task is known',
      what: `${request.id} is ${request.state}, unaware of ${id}`,
      marker,
    });
  }
  return found;
}

/** What the books say was paid and not given back is never `none`. */
function checkMoney({ marker, request, attempts }: Case, { ledger }: Facts): Violation[] {
  const isPaid = ledger.tasksOf(marker).some(({ fails }) => !fails);
  const isOpen = attempts.some(({ settledAt }) => settledAt === null);
  if (!isPaid || isOpen || request.charge === 'charged' || request.charge === 'possible') return [];
  return [{ rule: 'money', what: `${request.id} was paid for, and charge says ${request.charge}`, marker }];
}

function checkNotStuck({ marker, request, attempts }: Case, { snapshot }: Facts): Violation[] {
  const last = attempts.at(-1);
  if (request.state !== 'submitting') return [];
  if (last === undefined)
    return [{ rule: 'intent', what: `${request.id} is submitting, with no attempt`, marker }];
  const overdueMs = snapshot.now - last.startedAt - LEASE_MS;
  if (overdueMs < RESCUE_LIMIT_MS) return [];
  return [
    {
      rule: 'not stuck',
      what: `${request.id} submitting, its lease over for ${Math.round(overdueMs)} ms`,
      marker,
    },
  ];
}

/** It is always the same database here, and it keeps what it has confirmed. */
function checkDoubt({ snapshot: { doubt } }: Facts): Violation[] {
  return doubt === null ? [] : [{ rule: 'database', what: `onetake no longer trusts it: ${doubt}` }];
}

/** What was committed is there, what was rolled back is not, and neither there nor at the provider. */
function checkOrders({ orders, ledger }: Facts, cases: ReadonlyMap<number, Case>): Violation[] {
  const found: Violation[] = [];
  for (const [marker, { outcome, ids }] of orders) {
    const row = cases.get(marker);
    const say = (rule: string, what: string) =>
      found.push({ rule, what: `order ${marker}: ${what}`, marker });
    if (outcome === 'committed' && row === undefined)
      say('nothing lost', 'committed, and there is no request');
    if (outcome === 'committed' && row !== undefined && ids.size > 0 && !ids.has(row.request.id)) {
      say('one key, one request', 'the app was told another id');
    }
    if (outcome === 'rolled_back' && row !== undefined)
      say('rolled back', 'its transaction ended, its request is there');
    if (row === undefined && ledger.postsOf(marker).length > 0 && outcome !== 'pending') {
      say('no row, no POST', `${ledger.postsOf(marker).length} POSTs`);
    }
  }
  return found;
}

/** At the end, when everything is healed and every operator has had their say. */
export function unfinished({ snapshot }: Pick<Facts, 'snapshot'>): RequestRow[] {
  return snapshot.requests.filter(({ state }) => !TERMINAL.has(state));
}

/** No sliding minute of the provider's clock holds more POSTs than the account may make. */
export function checkWindows(
  ledger: Ledger,
  sinceMs = 0,
  accounts: Readonly<Record<string, AccountLimits>> = ACCOUNTS,
): Violation[] {
  const posts = [...ledger.posts.values(), ...ledger.partials].filter(({ at }) => at >= sinceMs);
  return Object.entries(accounts).flatMap(([name, { requestsPerMinute }]) => {
    const times = posts.filter(({ account }) => account === name).map(({ at }) => at);
    times.sort((a, b) => a - b);
    const worst = times.findIndex(
      (at, n) => (times[n + requestsPerMinute] ?? Number.POSITIVE_INFINITY) - at < 60_000,
    );
    if (worst < 0) return [];
    const within = times.slice(worst).filter((at) => at - (times[worst] as number) < 60_000).length;
    return [
      { rule: 'rate', what: `${within} POSTs of "${name}" in one minute, allowed ${requestsPerMinute}` },
    ];
  });
}

/**
 * Never more tasks at once than the account may run. Apart from those whose POST was answered with a 5xx,
 * which gives its slot back, and those of which an operator said that they don't exist.
 */
export function checkConcurrency(
  { ledger, snapshot }: Pick<Facts, 'ledger' | 'snapshot'>,
  accounts: Readonly<Record<string, AccountLimits>> = ACCOUNTS,
): Violation[] {
  const idOf = new Map(snapshot.requests.map((request) => [markerOf(request), request.id]));
  const disowned = new Set(
    snapshot.actions
      .filter(({ action }) => action.startsWith('resolve_as_not'))
      .map(({ subject }) => subject),
  );
  const tasks = [...ledger.tasks.values()];
  const since = Math.max(0, ...tasks.slice(-1).map(({ startedAt }) => startedAt)) - LOOKS_BACK_MS;
  const counted = tasks.filter(
    ({ post, marker, startedAt }) =>
      startedAt >= since &&
      !/^(status_5|endless_500)/.test(post.behaviour) &&
      !disowned.has(idOf.get(marker) ?? ''),
  );
  return Object.entries(accounts).flatMap(([name, { maxConcurrentGenerations: limit }]) => {
    const own = counted.filter(({ account }) => account === name);
    const most = Math.max(0, ...own.map(({ startedAt: at }) => runningAt(own, at)));
    if (most <= limit) return [];
    return [{ rule: 'concurrency', what: `${most} tasks of "${name}" at once, allowed ${limit}` }];
  });
}

function runningAt(tasks: readonly { startedAt: number; endsAt: number }[], at: number): number {
  return tasks.filter(({ startedAt, endsAt }) => startedAt <= at && at < endsAt).length;
}
