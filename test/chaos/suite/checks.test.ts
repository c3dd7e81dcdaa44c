import { describe, expect, it } from 'vitest';
import { check, checkConcurrency, checkWindows, checkWords, type Facts, unfinished } from './checks.ts';
import { attemptRow, facts, NOW, paidOnce, post, requestRow } from './example-facts.ts';
import { Ledger } from './ledger.ts';

const rules = (seen: Facts) => check(seen).map(({ rule }) => rule);
const words = (seen: Facts) => checkWords(seen).map(({ rule }) => rule);
const UNKNOWN = { certainty: 'unknown', reason: 'transport', phase: 'sent', httpStatus: null, task: null };
const SECOND = { attempt: 2, startedAt: NOW - 900, settledAt: NOW - 600 };
const REARM = { action: 'resolve_as_not_accepted', subject: 'request 1' };

describe('one order that was paid once', () => {
  it('violates nothing', () => {
    expect(check(facts())).toEqual([]);
  });
});

describe('one take', () => {
  it('is violated by a second POST', () => {
    const ledger = paidOnce();
    post(ledger);
    expect(rules(facts({ attempts: [attemptRow(1), attemptRow(1, SECOND)] }, ledger))).toEqual(['one take']);
  });

  it('is violated by a second POST that was cut in the middle', () => {
    const ledger = paidOnce();
    ledger.enter({ type: 'partial_post', marker: 1, account: 'amber', at: NOW });
    expect(rules(facts({}, ledger))).toContain('one take');
  });

  it.each([400, 401, 402, 403, 413, 422, 429])('allows one more after a definite %i', (status) => {
    const ledger = new Ledger();
    post(ledger, { status });
    post(ledger, { task: 'task 1', status: 202 });
    const attempts = [attemptRow(1, { certainty: 'refused', task: null }), attemptRow(1, SECOND)];
    expect(check(facts({ attempts }, ledger))).toEqual([]);
  });

  it.each([500, 502, 503, 504, 520, 524, 408, 418, 301, 202])('allows none after a %i', (status) => {
    const ledger = new Ledger();
    post(ledger, { status });
    post(ledger, { task: 'task 1', status: 202 });
    const attempts = [attemptRow(1, UNKNOWN), attemptRow(1, SECOND)];
    expect(rules(facts({ attempts }, ledger))).toContain('one take');
  });

  it('allows none after a refusal that never was a whole answer', () => {
    const ledger = new Ledger();
    post(ledger, { behaviour: 'status_429' });
    post(ledger, { task: 'task 1', status: 202 });
    expect(rules(facts({ attempts: [attemptRow(1), attemptRow(1, SECOND)] }, ledger))).toContain('one take');
  });

  it('allows one more for each re-arm, of an attempt that was unknown', () => {
    const ledger = paidOnce();
    post(ledger);
    const attempts = [attemptRow(1, UNKNOWN), attemptRow(1, SECOND)];
    expect(check(facts({ attempts, actions: [REARM] }, ledger))).toEqual([]);
    expect(rules(facts({ attempts, actions: [REARM, REARM] }, ledger))).toEqual([
      'one re-arm per unknown attempt',
    ]);
    post(ledger);
    const three = [...attempts, attemptRow(1, { ...SECOND, attempt: 3, startedAt: NOW - 500 })];
    expect(rules(facts({ attempts: three, actions: [REARM] }, ledger))).toEqual(['one take']);
  });
});

describe('the words of an attempt', () => {
  it('unsent means that nothing came', () => {
    expect(rules(facts({ attempts: [attemptRow(1, { certainty: 'unsent' })] }))).toContain(
      'unsent means unsent',
    );
  });

  it('a POST without an attempt has no intent before it', () => {
    expect(rules(facts({ attempts: [] }))).toContain('unsent means unsent');
  });

  it('refused means that the provider said so', () => {
    const attempts = [attemptRow(1, { certainty: 'refused' })];
    expect(words(facts({ attempts }))).toEqual(['refused means refused']);
    expect(words(facts())).toEqual([]);
  });
});

describe('the lease of an attempt', () => {
  const given = { ...UNKNOWN, phase: 'lease_over', closedAt: null };

  it('ends before anybody gives it up', () => {
    const requests = [requestRow(1, { state: 'ambiguous', task: null, charge: 'possible' })];
    const early = [attemptRow(1, { ...given, leaseExpiresAt: NOW })];
    expect(rules(facts({ requests, attempts: early }))).toEqual(['lease']);
    const inTime = [attemptRow(1, { ...given, leaseExpiresAt: NOW - 1_001 })];
    expect(check(facts({ requests, attempts: inTime }))).toEqual([]);
  });

  it('is followed by nothing while it lasts, nor, unless it is closed, during its quarantine', () => {
    const actions = [REARM];
    const next = attemptRow(1, SECOND);
    expect(rules(facts({ actions, attempts: [attemptRow(1, { settledAt: null }), next] }))).toContain(
      'one at a time',
    );
    const open = attemptRow(1, { ...UNKNOWN, closedAt: null });
    expect(rules(facts({ actions, attempts: [open, next] }))).toEqual(['quarantine']);
    expect(check(facts({ actions, attempts: [attemptRow(1, UNKNOWN), next] }))).toEqual([]);
    expect(check(facts({ actions, attempts: [{ ...open, quarantineUntil: NOW - 950 }, next] }))).toEqual([]);
  });
});

describe('every accepted task', () => {
  const lost = { state: 'rejected', task: null, charge: 'possible' };

  it('is known, or its request is ambiguous', () => {
    const attempts = [attemptRow(1, UNKNOWN)];
    expect(rules(facts({ attempts, requests: [requestRow(1, lost)] }))).toEqual(['every task is known']);
    expect(check(facts({ attempts, requests: [requestRow(1, { ...lost, state: 'ambiguous' })] }))).toEqual(
      [],
    );
  });

  it('is known by late evidence as well', () => {
    const evidence = [{ attemptId: 'attempt 1.1', certainty: 'accepted', task: 'task 1' }];
    const attempts = [attemptRow(1, UNKNOWN)];
    expect(check(facts({ attempts, evidence, requests: [requestRow(1, lost)] }))).toEqual([]);
  });

  it('or its attempt is under way, or an operator has had a word', () => {
    const attempts = [attemptRow(1, { certainty: null, settledAt: null, task: null })];
    const submitting = requestRow(1, { state: 'submitting', task: null, charge: 'none' });
    expect(check(facts({ attempts, requests: [submitting] }))).toEqual([]);
    const actions = [{ action: 'abandon', subject: 'request 1' }];
    const abandoned = requestRow(1, { ...lost, state: 'failed' });
    expect(check(facts({ attempts: [attemptRow(1, UNKNOWN)], actions, requests: [abandoned] }))).toEqual([]);
  });

  it('belongs to its own request', () => {
    expect(words(facts({ requests: [requestRow(1, { task: 'task 2' })] }))).toEqual(['own task']);
  });

  it.each(['none', 'refunded'])('is money: its charge is never %s', (charge) => {
    expect(rules(facts({ requests: [requestRow(1, { charge })] }))).toEqual(['money']);
  });
});

describe('what was ordered', () => {
  const order = (outcome: 'committed' | 'rolled_back' | 'unknown', ...ids: string[]) => ({
    orders: new Map([[1, { outcome, ids: new Set(ids) }]]),
  });
  const nothing = facts({ requests: [], attempts: [] }, new Ledger());

  it('is not lost', () => {
    expect(rules({ ...nothing, ...order('committed') })).toEqual(['nothing lost']);
    expect(check({ ...nothing, ...order('unknown') })).toEqual([]);
  });

  it('has the id that the app was told', () => {
    expect(rules({ ...facts(), ...order('committed', 'another') })).toEqual(['one key, one request']);
  });

  it('and rolled back is not there, nor at the provider', () => {
    expect(rules({ ...facts(), ...order('rolled_back') })).toEqual(['rolled back']);
    expect(check({ ...nothing, ...order('rolled_back') })).toEqual([]);
    expect(rules({ ...nothing, ledger: paidOnce(), ...order('rolled_back') })).toEqual(['no row, no POST']);
  });

  it('does not stay submitting when its lease is long over', () => {
    const attempts = (startedAt: number) => [attemptRow(1, { settledAt: null, certainty: null, startedAt })];
    const requests = [requestRow(1, { state: 'submitting' })];
    expect(check(facts({ requests, attempts: attempts(NOW - 20_000) }))).toEqual([]);
    expect(rules(facts({ requests, attempts: attempts(NOW - 60_000) }))).toEqual(['not stuck']);
  });

  it('has come to its end when the run has', () => {
    const requests = ['queued', 'ambiguous', 'accepted', 'succeeded'].map((state, n) =>
      requestRow(n, { state }),
    );
    expect(unfinished(facts({ requests })).map(({ state }) => state)).toEqual([
      'queued',
      'ambiguous',
      'accepted',
    ]);
  });
});

describe('intent', () => {
  it('is committed before the POST arrives', () => {
    const ledger = paidOnce();
    ledger.enter({ type: 'intent', marker: 1, isCommitted: true });
    expect(check(facts({}, ledger))).toEqual([]);
    ledger.enter({ type: 'intent', marker: 1, isCommitted: false });
    expect(rules(facts({}, ledger))).toEqual(['intent before effect']);
  });
});

describe('the database', () => {
  it('is never taken for another one', () => {
    expect(rules(facts({ doubt: 'intent_lost' }))).toEqual(['database']);
  });
});

describe('secrets and protests', () => {
  it('are told', () => {
    expect(rules(facts({ leaks: ['onetake_queue.job'] }))).toEqual(['no leak']);
    const ledger = paidOnce();
    ledger.enter({ type: 'protest', what: 'the key reached the host of the files' });
    expect(rules(facts({}, ledger))).toEqual(['provider protests']);
  });
});

describe('the limits of an account', () => {
  const limits = { amber: { requestsPerMinute: 3, maxConcurrentGenerations: 2, backlog: 0, weight: 1 } };
  const posted = (...times: number[]) => {
    const ledger = new Ledger();
    for (const [n, at] of times.entries())
      post(ledger, { marker: n, at, task: `task ${n}`, endsAt: at + 10_000 });
    return ledger;
  };

  it('hold in every sliding minute', () => {
    expect(checkWindows(posted(0, 30_000, 59_000, 60_000), 0, limits)).toEqual([]);
    expect(checkWindows(posted(0, 30_000, 59_000, 59_999), 0, limits)).toMatchObject([{ rule: 'rate' }]);
  });

  it('count a POST that was cut in the middle', () => {
    const ledger = posted(0, 1, 2);
    ledger.enter({ type: 'partial_post', marker: null, account: 'amber', at: 3 });
    expect(checkWindows(ledger, 0, limits)).toMatchObject([{ rule: 'rate' }]);
  });

  it('hold for tasks at once', () => {
    const { snapshot } = facts();
    expect(checkConcurrency({ ledger: posted(0, 5_000, 10_000), snapshot }, limits)).toEqual([]);
    const three = { ledger: posted(0, 5_000, 9_999), snapshot };
    expect(checkConcurrency(three, limits)).toMatchObject([{ rule: 'concurrency' }]);
  });

  it('leave out tasks behind a 5xx, and those that an operator disowned', () => {
    const ledger = posted(0, 5_000);
    post(ledger, { marker: 7, at: 6_000, behaviour: 'status_502', task: 'task 7', endsAt: 9_000 });
    const { snapshot } = facts();
    expect(checkConcurrency({ ledger, snapshot }, limits)).toEqual([]);
    post(ledger, { marker: 1, at: 7_000, task: 'task 8', endsAt: 9_000 });
    expect(checkConcurrency({ ledger, snapshot }, limits)).toMatchObject([{ rule: 'concurrency' }]);
    expect(checkConcurrency({ ledger, snapshot: { ...snapshot, actions: [REARM] } }, limits)).toEqual([]);
  });
});
