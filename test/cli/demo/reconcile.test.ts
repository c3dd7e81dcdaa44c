import { describe, expect, it } from 'vitest';
import type { DatabaseFacts, FileCheck } from '../../../src/cli/demo/facts.ts';
import { type Reconciliation, reconcile } from '../../../src/cli/demo/reconcile.ts';
import type { LedgerForm } from '../../../src/simulator/ledger.ts';
import {
  agreeingBooks,
  answer,
  attempt,
  CHARGED,
  FAILED_ATTEMPT,
  FORMS,
  form,
  ledgerOf,
  OK,
  RESENT,
  request,
} from './books.ts';

function reconcileWith(changes: {
  readonly forms?: readonly LedgerForm[];
  readonly database?: Partial<DatabaseFacts>;
  readonly checks?: readonly FileCheck[];
}): Reconciliation {
  const { songs, ledger, database, checks } = agreeingBooks();
  return reconcile(
    songs,
    changes.forms === undefined ? ledger : ledgerOf(changes.forms),
    { ...database, ...changes.database },
    changes.checks ?? checks,
  );
}

const [okForm, chargedForm, resentForm] = FORMS;
const { requests, transitions } = agreeingBooks().database;
const withRequest = (changed: DatabaseFacts['requests'][number]) => ({
  database: { requests: requests.map((each) => (each.prompt === changed.prompt ? changed : each)) },
});

describe('books that agree', () => {
  it('finds no difference, and the same figure on both sides', () => {
    const { agrees, differences, figures } = reconcileWith({});

    expect(differences).toEqual([]);
    expect(agrees).toBe(true);
    expect(figures).toContainEqual({ name: 'POSTs', provider: 4, database: 4, expected: null });
    expect(figures).toContainEqual({ name: 'charges', provider: 3, database: 3, expected: 3 });
    expect(figures).toContainEqual({ name: 'charged twice', provider: 0, database: 0, expected: 0 });
  });

  it('counts POSTs, charges and frozen songs by phase', () => {
    const { phases } = reconcileWith({});

    expect(phases).toEqual([
      { phase: 'before', posts: 0, charges: 0, accepted: 0, frozen: 0 },
      { phase: 'outage', posts: 2, charges: 1, accepted: 0, frozen: 2 },
      { phase: 'after', posts: 1, charges: 1, accepted: 1, frozen: 0 },
      { phase: 'operator', posts: 1, charges: 1, accepted: 1, frozen: 0 },
    ]);
  });

  it('says how each frozen song was settled', () => {
    const { frozen } = reconcileWith({});

    expect(frozen.map(({ prompt, charged, settledAs }) => ({ prompt, charged, settledAs }))).toEqual([
      { prompt: CHARGED, charged: true, settledAs: 'task_attached' },
      { prompt: RESENT, charged: false, settledAs: 'one_more_post' },
    ]);
  });

  it('takes an answer that the client did not wait for as no answer', () => {
    const late = form(CHARGED, [answer(202, 'task-2', 'client_gone')]);
    const timedOut = request(CHARGED, 'task-2', [attempt({ ...FAILED_ATTEMPT, httpStatus: null })]);

    const { agrees } = reconcileWith({ forms: [okForm, late, resentForm], ...withRequest(timedOut) });

    expect(agrees).toBe(true);
  });

  it('expects no POST for an attempt of which no byte left', () => {
    const unsent = attempt({ httpStatus: null, health: 'dependency_failure', certainty: 'unsent' });
    const again = request(OK, 'task-1', [unsent, attempt({ attempt: 2, generation: 3, isProbe: true })]);

    expect(reconcileWith(withRequest(again)).agrees).toBe(true);
  });
});

describe('books that differ', () => {
  it('reports a song that was charged twice under the same form', () => {
    const twice = form(OK, [answer(202, 'task-1'), answer(202, 'task-9')]);

    const { agrees, differences, phases } = reconcileWith({ forms: [twice, chargedForm, resentForm] });

    expect(agrees).toBe(false);
    expect(differences).toContain('charged twice: the provider says 1, the database says 0, expected 0.');
    expect(differences).toContain(`"${OK}" (id of a ): charges in the ledger 2, not 1.`);
    expect(phases).toContainEqual({ phase: 'unexplained', posts: 1, charges: 1, accepted: 0, frozen: 0 });
  });

  it('reports a song that was charged a second time under another account', () => {
    const elsewhere = form(OK, [answer(202, 'task-9')], 'another');

    const { differences } = reconcileWith({ forms: [...FORMS, elsewhere] });

    expect(differences).toContain('charged twice: the provider says 1, the database says 0, expected 0.');
  });

  it('believes the provider when it says that a form was charged twice', () => {
    const { songs, ledger, database, checks } = agreeingBooks();
    const twice = { ...ledger, totals: { ...ledger.totals, chargedTwice: 1 } };

    const { differences } = reconcile(songs, twice, database, checks);

    expect(differences).toEqual(['charged twice: the provider says 1, the database says 0, expected 0.']);
  });

  it('reports a song that the database itself has paid twice', () => {
    const twice = request(OK, 'task-1', [attempt({}), attempt({ attempt: 2 })]);

    const { differences } = reconcileWith(withRequest(twice));

    expect(differences).toContain('charged twice: the provider says 0, the database says 1, expected 0.');
  });

  it('reports a POST that belongs to no request', () => {
    const { differences } = reconcileWith({ forms: [...FORMS, form('of a stranger', [answer(202, 'x')])] });

    expect(differences).toContain('POSTs in the ledger that belong to no request: 1.');
  });

  it('reports an attempt that the provider never saw', () => {
    const { differences } = reconcileWith({ forms: [okForm, chargedForm] });

    expect(differences).toContain(
      `"${RESENT}" (id of a ): POSTs in the ledger 0, attempts in the database 2.`,
    );
  });

  it('reports an answer that the two sides remember differently', () => {
    const { differences } = reconcileWith({
      forms: [okForm, form(CHARGED, [answer(503, 'task-2')]), resentForm],
    });

    expect(differences).toEqual([
      `"${CHARGED}" (id of a ): the answers in the ledger are not those in the database.`,
    ]);
  });

  it('reports a task that is not the one that was paid for', () => {
    const { differences } = reconcileWith(withRequest(request(OK, 'task-7', requests[0]?.attempts ?? [])));

    expect(differences).toEqual([`"${OK}" (id of a ): its task is not in the ledger.`]);
  });

  it('reports a song that did not succeed', () => {
    const stuck = { ...request(OK, 'task-1', requests[0]?.attempts ?? []), state: 'accepted' };

    const { differences } = reconcileWith(withRequest(stuck));

    expect(differences).toEqual(['succeeded: the database says 2, expected 3.']);
  });

  it('reports a frozen song that nobody settled', () => {
    const { differences, frozen } = reconcileWith({ database: { actions: [] } });

    expect(differences).toEqual(['frozen, settled by the operator: the database says 0, expected 2.']);
    expect(frozen.map(({ settledAs }) => settledAs)).toEqual([null, null]);
  });

  it('reports a file that fails its check', () => {
    const { checks } = agreeingBooks();
    const broken = checks.map((check, index) => (index === 0 ? { ...check, problem: 'cut in half' } : check));

    const { differences } = reconcileWith({ checks: broken });

    expect(differences).toEqual([
      'songs with a verified file: the database says 2, expected 3.',
      `id of ${OK}/0.wav: cut in half.`,
    ]);
  });

  it('reports a gap in the transitions', () => {
    const { differences } = reconcileWith({
      database: { transitions: transitions.filter(({ number }) => number !== 2) },
    });

    expect(differences).toContain("The breaker's transition 2 does not follow from the one before it.");
  });

  it.each([
    ['skips a number', { number: 4 }],
    ['begins in another state than the last one ended in', { previousState: 'open' }],
    ['skips a generation', { generation: 5 }],
  ])('reports a transition that %s', (_title, change) => {
    const changed = transitions.map((each) => (each.number === 3 ? { ...each, ...change } : each));

    const { differences } = reconcileWith({ database: { transitions: changed } });

    expect(differences).toContain("The breaker's transition 3 does not follow from the one before it.");
  });

  it('reports a breaker that is not where its transitions lead', () => {
    const { differences } = reconcileWith({ database: { breakerState: 'open' } });

    expect(differences).toEqual(['The breaker is open, but its last transition says closed.']);
  });

  it('reports a breaker that is still open', () => {
    const { differences } = reconcileWith({
      database: {
        transitions: transitions.slice(0, 1),
        breakerState: 'open',
        requests: requests.map((each) => ({
          ...each,
          attempts: each.attempts.map((made) => ({ ...made, isProbe: false })),
        })),
      },
    });

    expect(differences).toEqual(['The breaker is open at the end.']);
  });
});
