import { expect, test } from 'vitest';
import {
  applyOutcome,
  type CircuitBreaker,
  cooldownOf,
  grantProbe,
  newCircuitBreaker,
} from '../../../src/core/circuit-breaker.ts';
import { SETTINGS } from './fixtures.ts';

const NOW = new Date('2026-08-18T12:00:00.000Z');
const DOUBLING = { ...SETTINGS, cooldownMs: 1_000, cooldownGrowth: 2, maxCooldownMs: 10_000 };

test.each([
  [0, 1_000],
  [1, 2_000],
  [2, 4_000],
  [3, 8_000],
  [4, 10_000],
  [5, 10_000],
  [100_000, 10_000],
])('after %d failed probes in a row is %d ms, doubling up to its cap', (failedProbes, expected) => {
  expect(cooldownOf(DOUBLING, failedProbes, 0)).toBe(expected);
});

test('stays as it is without growth', () => {
  for (const failedProbes of [0, 1, 100_000]) expect(cooldownOf(SETTINGS, failedProbes, 0)).toBe(30_000);
});

test('is whole, whatever it grows by', () => {
  expect(cooldownOf({ ...DOUBLING, cooldownGrowth: 1.2345 }, 1, 0)).toBe(1_235);
  expect(cooldownOf({ ...DOUBLING, jitter: 0.3 }, 0, 0.123_45)).toBe(1_037);
});

test.each([
  [0, 1_000],
  [0.5, 1_250],
  [0.999_999, 1_500],
])('with a jitter of a half, drawn at %d, is %d ms: never shorter than without', (random, expected) => {
  expect(cooldownOf({ ...DOUBLING, jitter: 0.5 }, 0, random)).toBe(expected);
});

test('is capped before it is spread, so that those at the cap are spread too', () => {
  expect(cooldownOf({ ...DOUBLING, jitter: 0.5 }, 9, 0.5)).toBe(12_500);
});

type Health = Parameters<typeof applyOutcome>[1]['health'];

/** Opens, then lets one probe after another end so, each granted exactly at its boundary. */
function cooldownsOf(settings: typeof DOUBLING, healths: readonly Health[], random = 0): number[] {
  let breaker: CircuitBreaker = newCircuitBreaker();
  let now = NOW;
  const lengths: number[] = [];
  const settle = (health: Health) => {
    const { generation } = breaker;
    breaker = applyOutcome(breaker, { attemptId: 'attempt', generation, health }, settings, now, random).next;
    if (breaker.state === 'open') lengths.push(breaker.retryAt.getTime() - now.getTime());
  };
  const open = () => {
    for (let failure = 0; failure < settings.failureThreshold; failure += 1) settle('dependency_failure');
  };
  open();
  for (const health of healths) {
    if (breaker.state === 'closed') open();
    if (breaker.state === 'open') {
      now = breaker.retryAt;
      breaker = grantProbe(breaker, 'attempt', now) ?? breaker;
    }
    settle(health);
  }
  return lengths;
}

test('grows with each probe that fails or is lost', () => {
  expect(cooldownsOf(DOUBLING, ['dependency_failure', 'lost', 'dependency_failure', 'lost'])).toEqual([
    1_000, 2_000, 4_000, 8_000, 10_000,
  ]);
});

test.each<Health>(['capacity_signal', 'request_or_account_failure', 'unknown_failure', 'none'])(
  'stays as grown after a neutral probe (%s), which told nothing',
  (health) => {
    expect(cooldownsOf(DOUBLING, [health, 'dependency_failure', health, health, 'lost'])).toEqual([
      1_000, 1_000, 2_000, 2_000, 2_000, 4_000,
    ]);
  },
);

test('begins again after a close', () => {
  expect(
    cooldownsOf(DOUBLING, ['dependency_failure', 'lost', 'success', 'dependency_failure', 'success', 'none']),
  ).toEqual([1_000, 2_000, 4_000, 1_000, 2_000, 1_000, 1_000]);
});

test('is drawn anew at each opening, and fixed until the next', () => {
  expect(cooldownsOf({ ...DOUBLING, jitter: 0.5 }, ['dependency_failure', 'none'], 0.5)).toEqual([
    1_250, 2_500, 2_500,
  ]);
});

test('is that of the settings at the opening: a later change moves no boundary', () => {
  const open: CircuitBreaker = {
    state: 'open',
    generation: 8,
    openedAt: NOW,
    retryAt: new Date(NOW.getTime() + 1_000),
    failedProbes: 0,
  };
  const late = { attemptId: 'attempt', generation: 7, health: 'dependency_failure' } as const;
  expect(applyOutcome(open, late, { ...DOUBLING, cooldownMs: 5_000 }, NOW).next).toBe(open);
});
