import type { Ledger, LedgerAnswer, LedgerForm } from '../../simulator/ledger.ts';
import {
  type DatabaseFacts,
  type Entry,
  entryOf,
  type FileCheck,
  isAcceptance,
  isDoubtful,
  isResolution,
  type Pair,
  type RequestFacts,
  statusOf,
  wasSent,
} from './facts.ts';
import { type Frozen, frozenOf, type PhaseFigures, phasesOf } from './phases.ts';

// The provider's ledger against the database: pure, so that every way to disagree can be tried.

/** One number as each side has it. Null: that side can't know it. */
export interface Figure {
  readonly name: string;
  readonly provider: number | null;
  readonly database: number | null;
  /** What it must be; null where the outage decides. */
  readonly expected: number | null;
}

export interface Reconciliation {
  readonly agrees: boolean;
  readonly figures: readonly Figure[];
  readonly phases: readonly PhaseFigures[];
  readonly frozen: readonly Frozen[];
  /** One sentence each. */
  readonly differences: readonly string[];
}

/** Compares every figure and every song. `songs` is how many were ordered. */
export function reconcile(
  songs: number,
  ledger: Ledger,
  database: DatabaseFacts,
  checks: readonly FileCheck[],
): Reconciliation {
  const books = Map.groupBy(ledger.forms, (form) => form.prompt);
  const pairs = database.requests.map((request) => ({ request, entry: entryOf(books.get(request.prompt)) }));
  const figures = figuresOf(songs, ledger, books.size, database, pairs, checks);
  const differences = [
    ...figures.flatMap(differenceOf),
    ...pairs.flatMap(({ request, entry }) => songDifferences(request, entry)),
    ...strangers(books, database.requests),
    ...checks.flatMap(({ location, problem }) => (problem === undefined ? [] : [`${location}: ${problem}.`])),
    ...chainDifferences(database),
  ];
  return {
    agrees: differences.length === 0,
    figures,
    phases: phasesOf(pairs, strangerAnswers(books, database.requests)),
    frozen: frozenOf(pairs, database),
    differences,
  };
}

function figuresOf(
  songs: number,
  { totals }: Ledger,
  prompts: number,
  database: DatabaseFacts,
  pairs: readonly Pair[],
  checks: readonly FileCheck[],
): readonly Figure[] {
  const { requests, actions, transitions } = database;
  const answers = pairs.flatMap(({ entry }) => entry.answers);
  const attempts = requests.flatMap((request) => request.attempts).filter(wasSent);
  const count = <T>(list: readonly T[], fits: (item: T) => boolean) => list.filter(fits).length;
  const figure = (name: string, provider: number | null, rows: number | null, expected: number | null) => ({
    name,
    provider,
    database: rows,
    expected,
  });
  const withCertainty = (certainty: string) => count(attempts, (attempt) => attempt.certainty === certainty);
  const paid = (request: RequestFacts) =>
    count(request.attempts, ({ certainty }) => certainty === 'accepted') +
    count(actions, ({ action, subject }) => action === 'resolve_as_accepted' && subject === request.id);
  const reopened = count(transitions, ({ nextState }) => nextState === 'half_open');
  return [
    figure('requests', prompts, requests.length, songs),
    figure('POSTs', totals.posts, attempts.length, null),
    figure('answered with a task', count(answers, isAcceptance), withCertainty('accepted'), null),
    figure('answered 5xx, or too late', count(answers, isDoubtful), withCertainty('unknown'), null),
    figure(
      'charges',
      totals.charges - totals.refunds,
      count(requests, ({ charge }) => charge === 'charged'),
      songs,
    ),
    figure(
      'charged twice',
      Math.max(
        totals.chargedTwice,
        count(pairs, ({ entry }) => entry.charges > 1),
      ),
      count(requests, (request) => paid(request) > 1),
      0,
    ),
    figure('frozen, settled by the operator', null, count(actions, isResolution), withCertainty('unknown')),
    figure(
      'probes',
      null,
      count(attempts, ({ isProbe }) => isProbe),
      reopened,
    ),
    figure(
      'succeeded',
      null,
      count(requests, ({ state }) => state === 'succeeded'),
      songs,
    ),
    figure(
      'songs with a verified file',
      null,
      new Set(checks.filter(({ problem }) => problem === undefined).map(({ requestId }) => requestId)).size,
      songs,
    ),
  ];
}

function differenceOf({ name, provider, database, expected }: Figure): string[] {
  const sides: [string, number | null][] = [
    ['the provider says', provider],
    ['the database says', database],
    ['expected', expected],
  ];
  const known = sides.filter(([, value]) => value !== null);
  if (new Set(known.map(([, value]) => value)).size <= 1) return [];
  return [`${name}: ${known.map(([side, value]) => `${side} ${value}`).join(', ')}.`];
}

function songDifferences({ id, prompt, providerTaskId, attempts }: RequestFacts, entry: Entry): string[] {
  const name = `"${prompt}" (${id.slice(0, 8)})`;
  const sent = attempts.filter(wasSent);
  const found: string[] = [];
  if (entry.posts !== sent.length) {
    found.push(`${name}: POSTs in the ledger ${entry.posts}, attempts in the database ${sent.length}.`);
  } else if (sent.some(({ httpStatus }, index) => httpStatus !== statusOf(entry.answers[index]))) {
    found.push(`${name}: the answers in the ledger are not those in the database.`);
  }
  if (entry.charges !== 1) found.push(`${name}: charges in the ledger ${entry.charges}, not 1.`);
  if (providerTaskId === null || !entry.taskIds.includes(providerTaskId)) {
    found.push(`${name}: its task is not in the ledger.`);
  }
  return found;
}

/** Forms that no request of ours would send. */
function strangers(
  books: ReadonlyMap<string, readonly LedgerForm[]>,
  requests: readonly RequestFacts[],
): string[] {
  const posts = strangerAnswers(books, requests).length;
  return posts === 0 ? [] : [`POSTs in the ledger that belong to no request: ${posts}.`];
}

function strangerAnswers(
  books: ReadonlyMap<string, readonly LedgerForm[]>,
  requests: readonly RequestFacts[],
): readonly LedgerAnswer[] {
  const ours = new Set(requests.map(({ prompt }) => prompt));
  return Array.from(books).flatMap(([prompt, forms]) => (ours.has(prompt) ? [] : entryOf(forms).answers));
}

/** Gap-free, each beginning where the last one ended, and at the end closed, as the breaker's row is. */
function chainDifferences({ transitions, breakerState }: DatabaseFacts): string[] {
  let state = 'closed';
  let generation: number | undefined;
  for (const [index, transition] of transitions.entries()) {
    const follows =
      transition.number === index + 1 &&
      transition.previousState === state &&
      (generation === undefined || transition.generation === generation + 1);
    if (!follows) return [`The breaker's transition ${index + 1} does not follow from the one before it.`];
    state = transition.nextState;
    generation = transition.generation;
  }
  if (state !== breakerState)
    return [`The breaker is ${breakerState}, but its last transition says ${state}.`];
  return state === 'closed' ? [] : [`The breaker is ${state} at the end.`];
}
