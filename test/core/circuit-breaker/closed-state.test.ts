import { expect, test } from 'vitest';
import {
  applyOutcome,
  type CircuitBreaker,
  decidePermit,
  grantProbe,
  newCircuitBreaker,
} from '../../../src/core/circuit-breaker.ts';
import { SETTINGS } from './fixtures.ts';

const NOW = new Date('2026-08-18T12:00:00.000Z');

function closed(consecutiveFailures: number): CircuitBreaker {
  return { state: 'closed', generation: 7, consecutiveFailures, rampAcceptances: null };
}

function settle(
  breaker: CircuitBreaker,
  health: Parameters<typeof applyOutcome>[1]['health'],
  generation = 7,
  settings = SETTINGS,
) {
  return applyOutcome(breaker, { attemptId: 'attempt-1', generation, health }, settings, NOW);
}

test('a new breaker is closed, in its first generation, with no failures and no ramp', () => {
  expect(newCircuitBreaker()).toEqual({
    state: 'closed',
    generation: 1,
    consecutiveFailures: 0,
    rampAcceptances: null,
  });
});

test('allows whoever asks, however many failures it has counted', () => {
  expect(decidePermit(closed(0), NOW)).toEqual({ permit: 'allow' });
  expect(decidePermit(closed(2), NOW)).toEqual({ permit: 'allow' });
});

test('grants no probe', () => {
  expect(grantProbe(closed(2), 'attempt-1', NOW)).toBeUndefined();
});

test('counts a dependency failure', () => {
  expect(settle(closed(1), 'dependency_failure')).toEqual({ next: closed(2), effect: 'counted' });
});

test('opens at the threshold: a new generation, and the boundary fixed', () => {
  expect(settle(closed(2), 'dependency_failure')).toEqual({
    next: {
      state: 'open',
      generation: 8,
      openedAt: NOW,
      retryAt: new Date('2026-08-18T12:00:30.000Z'),
      failedProbes: 0,
    },
    effect: 'opened',
    cause: 'failure_threshold',
  });
});

test('opens at the first failure when the threshold is one', () => {
  expect(settle(closed(0), 'dependency_failure', 7, { ...SETTINGS, failureThreshold: 1 }).effect).toBe(
    'opened',
  );
});

test('opens at the next failure when the threshold was lowered below its count', () => {
  expect(settle(closed(9), 'dependency_failure').effect).toBe('opened');
});

test('resets its count at a success', () => {
  expect(settle(closed(2), 'success')).toEqual({ next: closed(0), effect: 'reset' });
});

test('has nothing to write for a success when it has counted nothing', () => {
  const breaker = closed(0);
  const move = settle(breaker, 'success');
  expect(move).toEqual({ next: breaker, effect: 'nothing_to_apply' });
  expect(move.next).toBe(breaker);
});

test.each(['capacity_signal', 'request_or_account_failure', 'unknown_failure', 'none', 'lost'] as const)(
  'neither counts nor resets at %s',
  (health) => {
    const breaker = closed(2);
    const move = settle(breaker, health);
    expect(move).toEqual({ next: breaker, effect: 'neutral' });
    expect(move.next).toBe(breaker);
  },
);

test.each(['success', 'dependency_failure'] as const)('ignores a %s of another generation', (health) => {
  const breaker = closed(2);
  for (const generation of [6, 8]) {
    expect(settle(breaker, health, generation)).toEqual({ next: breaker, effect: 'stale_generation' });
  }
});
