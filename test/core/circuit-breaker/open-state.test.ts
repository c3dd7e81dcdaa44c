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
const OPEN: CircuitBreaker = {
  state: 'open',
  generation: 8,
  openedAt: OPENED_AT,
  retryAt: RETRY_AT,
  failedProbes: 2,
};

function sinceRetryAt(ms: number): Date {
  return new Date(RETRY_AT.getTime() + ms);
}

test.each([OPENED_AT, sinceRetryAt(-1)])('refuses until the boundary and tells it (%#)', (now) => {
  expect(decidePermit(OPEN, now)).toEqual({ permit: 'refuse', retryAt: RETRY_AT });
  expect(grantProbe(OPEN, 'attempt-1', now)).toBeUndefined();
});

test.each([RETRY_AT, sinceRetryAt(1), sinceRetryAt(86_400_000)])(
  'permits a probe from the boundary on (%#)',
  (now) => {
    expect(decidePermit(OPEN, now)).toEqual({ permit: 'probe' });
  },
);

test('marks the probe by its attempt, in a new generation, and remembers those that failed', () => {
  expect(grantProbe(OPEN, 'attempt-1', RETRY_AT)).toEqual({
    state: 'half_open',
    generation: 9,
    probeAttemptId: 'attempt-1',
    failedProbes: 2,
  });
});

test('refuses a clock that says nothing', () => {
  expect(decidePermit(OPEN, new Date(Number.NaN)).permit).toBe('refuse');
});

test('keeps its boundary through any number of refusals', () => {
  const before = structuredClone(OPEN);
  for (let ms = -30_000; ms < 0; ms += 100) decidePermit(OPEN, sinceRetryAt(ms));
  expect(OPEN).toEqual(before);
});

test.each([
  'success',
  'dependency_failure',
  'capacity_signal',
  'request_or_account_failure',
  'unknown_failure',
  'none',
  'lost',
] as const)('keeps its boundary when a late %s arrives', (health) => {
  for (const generation of [7, 8, 9]) {
    for (const now of [OPENED_AT, RETRY_AT, sinceRetryAt(60_000)]) {
      const move = applyOutcome(OPEN, { attemptId: 'attempt-0', generation, health }, SETTINGS, now);
      expect(move).toEqual({ next: OPEN, effect: 'stale_generation' });
      expect(move.next).toBe(OPEN);
    }
  }
});
