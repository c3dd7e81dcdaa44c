import { expect, test } from 'vitest';
import {
  applyOutcome,
  type CircuitBreaker,
  decidePermit,
  grantProbe,
} from '../../../src/core/circuit-breaker.ts';
import { SETTINGS } from './fixtures.ts';

const OPENED_AT = new Date('2026-08-18T12:00:00.000Z');
const RETRY_AT = new Date('2026-08-18T12:00:30.000Z');
const SHADOW = { override: null, shadow: true } as const;

const CLOSED: CircuitBreaker = {
  state: 'closed',
  generation: 7,
  consecutiveFailures: 2,
  rampAcceptances: 0,
};
const OPEN: CircuitBreaker = {
  state: 'open',
  generation: 7,
  openedAt: OPENED_AT,
  retryAt: RETRY_AT,
  failedProbes: 1,
};
const HALF_OPEN: CircuitBreaker = {
  state: 'half_open',
  generation: 7,
  probeAttemptId: 'probe',
  failedProbes: 1,
};

test.each([
  ['closed, though it would ramp', CLOSED, RETRY_AT],
  ['open before its boundary', OPEN, new Date(RETRY_AT.getTime() - 1)],
  ['half-open', HALF_OPEN, RETRY_AT],
])('refuses nothing while it is %s', (_title, breaker, now) => {
  expect(decidePermit(breaker, now, SHADOW)).toEqual({ permit: 'allow' });
});

test('marks what would have been the probe, from the boundary on', () => {
  for (const ms of [0, 1, 86_400_000]) {
    expect(decidePermit(OPEN, new Date(RETRY_AT.getTime() + ms), SHADOW)).toEqual({ permit: 'shadow_probe' });
  }
  expect(grantProbe(OPEN, 'attempt-1', RETRY_AT)?.state).toBe('half_open');
});

test.each([
  'success',
  'dependency_failure',
  'capacity_signal',
  'request_or_account_failure',
  'unknown_failure',
  'none',
  'lost',
] as const)('moves at a %s exactly as in earnest', (health) => {
  const shadow = { ...SETTINGS, shadow: true };
  for (const breaker of [CLOSED, OPEN, HALF_OPEN]) {
    for (const attemptId of ['probe', 'other']) {
      const outcome = { attemptId, generation: 7, health };
      expect(applyOutcome(breaker, outcome, shadow, RETRY_AT, 0.5)).toEqual(
        applyOutcome(breaker, outcome, SETTINGS, RETRY_AT, 0.5),
      );
    }
  }
});

test('hears nothing from what it let through while a breaker in earnest would have refused', () => {
  for (const breaker of [OPEN, HALF_OPEN]) {
    for (const health of ['success', 'dependency_failure'] as const) {
      const outcome = { attemptId: 'other', generation: 7, health };
      expect(applyOutcome(breaker, outcome, { ...SETTINGS, shadow: true }, RETRY_AT)).toEqual({
        next: breaker,
        effect: 'stale_generation',
      });
    }
  }
});
