import { expect, it } from 'vitest';
import { attemptRow, paidOnce, post, requestRow, snapshotOf } from './example-facts.ts';
import { Ledger } from './ledger.ts';
import { POST_BEHAVIOUR_NAMES } from './provider/faults.ts';
import { type ChaosReport, moneyOf, reportText } from './report.ts';

const many = (names: readonly string[]) => Object.fromEntries(names.map((name) => [name, 123_456]));

const REPORT: ChaosReport = {
  seed: 'a-seed-that-is-as-long-as-a-seed-can-be-x',
  minutes: 600,
  ordersPerMinute: 2_000,
  seconds: 36_123.4,
  interrupted: false,
  requests: 1_234_567,
  posts: 1_234_567,
  charged: 1_234_567,
  intentsAsked: 1_234_567,
  states: many(['succeeded', 'failed', 'rejected', 'cancelled', 'expired']),
  duplicates: 0,
  paidAgainByWord: 12_345,
  lost: 0,
  ambiguous: many([
    'transport',
    'server_error',
    'worker_lost',
    'accepted_without_task_id',
    'unreviewed_status',
  ]),
  incidents: many(['sigkill', 'sigterm', 'sigstop', 'postgres', 'database_cut_at', 'provider_refuse']),
  faults: many(POST_BEHAVIOUR_NAMES.map((name) => `post:${name}`)),
  operator: many(['resolve_as_accepted', 'resolve_as_not_accepted', 'refused']),
  breakerTransitions: 123_456,
  lateAnswers: 123_456,
  longestIdleMs: 12_345.678,
  longestDisturbedIdleMs: 15_123.456,
  mostSockets: 45,
  memory: [{ name: 'worker-1', plateauMb: 150.4, lastMb: 151.2, isFlat: true, livedMs: 600_000 }],
  violations: [],
  timeline: '/tmp/x.log',
};

it('fits 80 columns, however much happened', () => {
  for (const line of reportText(REPORT).split('\n')) expect(line.length).toBeLessThanOrEqual(80);
});

it('tells violations from their absence in its first line', () => {
  expect(reportText(REPORT)).toContain('nothing was violated');
  const violated = { ...REPORT, violations: [{ rule: 'one take', what: 'two POSTs' }] };
  expect(reportText(violated)).toContain('1 VIOLATION\n');
  expect(reportText({ ...REPORT, interrupted: true })).toContain('interrupted');
});

it('tells what was paid twice from what an operator had paid again', () => {
  const ledger = paidOnce();
  const snapshot = snapshotOf({ requests: [requestRow(1)], attempts: [attemptRow(1)] });
  expect(moneyOf(ledger, snapshot)).toEqual({ charged: 1, paidAgainByWord: 0, duplicates: 0 });
  post(ledger, { task: 'task 1b' });
  expect(moneyOf(ledger, snapshot)).toEqual({ charged: 2, paidAgainByWord: 0, duplicates: 1 });
  const rearmed = { ...snapshot, actions: [{ action: 'resolve_as_not_accepted', subject: 'request 1' }] };
  expect(moneyOf(ledger, rearmed)).toEqual({ charged: 2, paidAgainByWord: 1, duplicates: 0 });
});

it('is made of books that later entries do not change', () => {
  const ledger = new Ledger();
  post(ledger, { task: 'task 1' });
  const copy = ledger.copy();
  post(ledger, { task: 'task 2', marker: 1 });
  expect(copy.postsOf(1)).toHaveLength(1);
  expect(copy.tasksOf(1).map(({ id }) => id)).toEqual(['task 1']);
});
