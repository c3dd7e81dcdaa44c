import { expect, test } from 'vitest';
import {
  applyOutcome,
  type CircuitBreaker,
  decidePermit,
  grantProbe,
} from '../../../src/core/circuit-breaker.ts';
import { SETTINGS } from './fixtures.ts';

const NOW = new Date('2026-08-18T12:01:00.000Z');
const HALF_OPEN: CircuitBreaker = {
  state: 'half_open',
  generation: 9,
  probeAttemptId: 'probe',
  failedProbes: 2,
};
type Health = Parameters<typeof applyOutcome>[1]['health'];

function settle(health: Health, attemptId = 'probe', generation = 9) {
  return applyOutcome(HALF_OPEN, { attemptId, generation, health }, SETTINGS, NOW);
}

test.each([0, 1, 86_400_000])('refuses everybody while its probe lives, however long (%d ms)', (ms) => {
  const now = new Date(NOW.getTime() + ms);
  expect(decidePermit(HALF_OPEN, now)).toEqual({ permit: 'refuse', retryAt: undefined });
  expect(grantProbe(HALF_OPEN, 'second', now)).toBeUndefined();
});

test("closes and resets on the probe's own success, and begins the ramp", () => {
  expect(settle('success')).toEqual({
    next: { state: 'closed', generation: 10, consecutiveFailures: 0, rampAcceptances: 0 },
    effect: 'closed',
    cause: 'probe_succeeded',
  });
});

test.each<[Health, string, number]>([
  ['dependency_failure', 'probe_failed', 3],
  ['capacity_signal', 'probe_neutral', 2],
  ['request_or_account_failure', 'probe_neutral', 2],
  ['unknown_failure', 'probe_neutral', 2],
  ['none', 'probe_neutral', 2],
  ['lost', 'probe_lost', 3],
])('opens for one more cooldown when the probe ends in %s', (health, cause, failedProbes) => {
  expect(settle(health)).toEqual({
    next: {
      state: 'open',
      generation: 10,
      openedAt: NOW,
      retryAt: new Date('2026-08-18T12:01:30.000Z'),
      failedProbes,
    },
    effect: 'reopened',
    cause,
  });
});

test.each<Health>(['success', 'dependency_failure', 'capacity_signal', 'lost'])(
  'ignores a %s of any other attempt or generation',
  (health) => {
    for (const [attemptId, generation] of [
      ['older', 7],
      ['older', 9],
      ['probe', 8],
      ['probe', 10],
    ] as const) {
      expect(settle(health, attemptId, generation)).toEqual({ next: HALF_OPEN, effect: 'stale_generation' });
    }
  },
);
