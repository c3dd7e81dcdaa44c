import { describe, expect, test } from 'vitest';
import {
  applyOutcome,
  type CircuitBreaker,
  decidePermit,
  overrideAt,
} from '../../../src/core/circuit-breaker.ts';
import { SETTINGS } from './fixtures.ts';

const OPENED_AT = new Date('2026-08-18T12:00:00.000Z');
const RETRY_AT = new Date('2026-08-18T12:00:30.000Z');
const LATER = new Date('2026-08-18T13:00:00.000Z');

const CLOSED: CircuitBreaker = {
  state: 'closed',
  generation: 7,
  consecutiveFailures: 2,
  rampAcceptances: null,
};
const RAMPING: CircuitBreaker = { ...CLOSED, rampAcceptances: 0 };
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
const STATES = [
  ['closed', CLOSED],
  ['closed and ramping', RAMPING],
  ['open', OPEN],
  ['half-open', HALF_OPEN],
] as const;
const INSTANTS = [OPENED_AT, RETRY_AT, LATER];

describe.each(STATES)('over a breaker that is %s', (_title, breaker) => {
  test.each([true, false])('forced open refuses always, and names no boundary (shadow %s)', (shadow) => {
    for (const now of INSTANTS) {
      expect(decidePermit(breaker, now, { override: 'forced_open', shadow })).toEqual({
        permit: 'refuse',
        retryAt: undefined,
      });
    }
  });

  test.each([true, false])('forced closed allows always, without ramp or probe (shadow %s)', (shadow) => {
    for (const now of INSTANTS) {
      expect(decidePermit(breaker, now, { override: 'forced_closed', shadow })).toEqual({ permit: 'allow' });
    }
  });

  test.each(['success', 'dependency_failure', 'capacity_signal', 'none'] as const)(
    'counts no %s that belongs to it',
    (health) => {
      const outcome = { attemptId: 'other', generation: 7, health, underOverride: true };
      const move = applyOutcome(breaker, outcome, { ...SETTINGS, failureThreshold: 1 }, LATER);
      expect(move).toEqual({ next: breaker, effect: 'under_override' });
      expect(move.next).toBe(breaker);
    },
  );

  test('calls an outcome of another generation stale, as ever', () => {
    for (const generation of [6, 8]) {
      const outcome = { attemptId: 'probe', generation, health: 'success', underOverride: true } as const;
      expect(applyOutcome(breaker, outcome, SETTINGS, LATER)).toEqual({
        next: breaker,
        effect: 'stale_generation',
      });
    }
  });
});

test.each([
  ['success', 'closed', 'probe_succeeded'],
  ['dependency_failure', 'open', 'probe_failed'],
  ['capacity_signal', 'open', 'probe_neutral'],
  ['lost', 'open', 'probe_lost'],
] as const)("the live probe's own %s goes on underneath: %s", (health, state, cause) => {
  const outcome = { attemptId: 'probe', generation: 7, health, underOverride: true };
  expect(applyOutcome(HALF_OPEN, outcome, SETTINGS, LATER)).toMatchObject({
    next: { state, generation: 8 },
    cause,
  });
});

test('shows what is underneath once it is released, with its remaining cooldown', () => {
  const early = new Date(RETRY_AT.getTime() - 1);
  expect(decidePermit(OPEN, early)).toEqual({ permit: 'refuse', retryAt: RETRY_AT });
  expect(decidePermit(OPEN, RETRY_AT)).toEqual({ permit: 'probe' });
});

describe('overrideAt', () => {
  const FORCED = { override: 'forced_open', expiresAt: RETRY_AT } as const;

  test.each([
    [-1, 'forced_open'],
    [0, null],
    [1, null],
  ])('%d ms from the expiry is %s', (ms, expected) => {
    expect(overrideAt(FORCED, new Date(RETRY_AT.getTime() + ms))).toBe(expected);
  });

  test('lasts without an expiry', () => {
    expect(overrideAt({ override: 'forced_closed', expiresAt: null }, LATER)).toBe('forced_closed');
  });

  test('is nothing where nothing is stored', () => {
    expect(overrideAt({ override: null, expiresAt: null }, LATER)).toBeNull();
  });
});
