import { expect, test } from 'vitest';
import { applyOutcome, type CircuitBreaker, decidePermit } from '../../../src/core/circuit-breaker.ts';
import { SETTINGS } from './fixtures.ts';

const NOW = new Date('2026-08-18T12:02:00.000Z');

function ramping(rampAcceptances: number | null, consecutiveFailures = 0): CircuitBreaker {
  return { state: 'closed', generation: 10, consecutiveFailures, rampAcceptances };
}

function settle(
  breaker: CircuitBreaker,
  health: Parameters<typeof applyOutcome>[1]['health'],
  generation = 10,
) {
  return applyOutcome(breaker, { attemptId: 'attempt-1', generation, health }, SETTINGS, NOW);
}

test.each([
  [0, 2],
  [1, 4],
  [2, 6],
  [498, 998],
  [499, 1_000],
])('after %d acceptances allows %d in flight together', (acceptances, atMost) => {
  expect(decidePermit(ramping(acceptances), NOW)).toEqual({ permit: 'allow', atMost });
});

test('names no limit once there is no ramp', () => {
  expect(decidePermit(ramping(null), NOW)).toEqual({ permit: 'allow' });
});

test('counts each acceptance, and resets the failures with it', () => {
  expect(settle(ramping(3, 2), 'success')).toEqual({ next: ramping(4), effect: 'ramped' });
});

test('ends with the acceptance that takes it above 1,000, and for good', () => {
  expect(settle(ramping(498), 'success').next).toEqual(ramping(499));
  expect(settle(ramping(499), 'success')).toEqual({ next: ramping(null), effect: 'ramped' });
  expect(settle(ramping(null), 'success')).toEqual({ next: ramping(null), effect: 'nothing_to_apply' });
});

test('is neither widened nor narrowed by a failure', () => {
  expect(settle(ramping(3), 'dependency_failure')).toEqual({ next: ramping(3, 1), effect: 'counted' });
});

test.each(['capacity_signal', 'request_or_account_failure', 'unknown_failure', 'none'] as const)(
  'is left alone by %s',
  (health) => {
    expect(settle(ramping(3, 1), health)).toEqual({ next: ramping(3, 1), effect: 'neutral' });
  },
);

test('opens at the threshold like any closed state', () => {
  expect(settle(ramping(3, 2), 'dependency_failure')).toMatchObject({
    next: { state: 'open', generation: 11, failedProbes: 0 },
    effect: 'opened',
    cause: 'failure_threshold',
  });
});

test('counts no acceptance of an older generation: it was let in before the outage', () => {
  for (const generation of [7, 9]) {
    expect(settle(ramping(3), 'success', generation)).toEqual({
      next: ramping(3),
      effect: 'stale_generation',
    });
  }
});

test('counts no acceptance under an override', () => {
  const outcome = { attemptId: 'a', generation: 10, health: 'success', underOverride: true } as const;
  expect(applyOutcome(ramping(3, 1), outcome, SETTINGS, NOW)).toEqual({
    next: ramping(3, 1),
    effect: 'under_override',
  });
});
