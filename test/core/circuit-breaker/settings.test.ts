import { describe, expect, test } from 'vitest';
import { invalidBreakerSetting } from '../../../src/core/circuit-breaker.ts';
import { SETTINGS } from './fixtures.ts';

const DAY_MS = 86_400_000;
/** Texts and null compare like numbers, and are none. */
const NO_NUMBERS = [
  -1,
  Number.NaN,
  Number.POSITIVE_INFINITY,
  '3',
  '0.2',
  null,
  true,
  undefined,
] as unknown[] as number[];

describe('invalidBreakerSetting', () => {
  test.each([
    {},
    { failureThreshold: 1, cooldownMs: 100, maxCooldownMs: 100 },
    { failureThreshold: 1_000, cooldownMs: DAY_MS, maxCooldownMs: DAY_MS },
    { cooldownGrowth: 1, jitter: 0 },
    { cooldownGrowth: 10, jitter: 0.5 },
    { cooldownGrowth: 1.05, jitter: 0.001 },
    { maxCooldownMs: 30_000 },
    { shadow: true },
  ])('takes %o', (changes) => {
    expect(invalidBreakerSetting({ ...SETTINGS, ...changes })).toBeUndefined();
  });

  test.each([0, 1.5, 1_001, ...NO_NUMBERS])('names the threshold %s', (failureThreshold) => {
    expect(invalidBreakerSetting({ ...SETTINGS, failureThreshold })).toBe('failureThreshold');
  });

  test.each([0, 99, 100.5, DAY_MS + 1, ...NO_NUMBERS])('names the cooldown %s', (cooldownMs) => {
    expect(invalidBreakerSetting({ ...SETTINGS, cooldownMs })).toBe('cooldownMs');
  });

  test.each([0, 0.999, 10.001, ...NO_NUMBERS])('names the growth %s', (cooldownGrowth) => {
    expect(invalidBreakerSetting({ ...SETTINGS, cooldownGrowth })).toBe('cooldownGrowth');
  });

  test.each([0, 29_999, 30_000.5, DAY_MS + 1, ...NO_NUMBERS])('names the cap %s', (maxCooldownMs) => {
    expect(invalidBreakerSetting({ ...SETTINGS, maxCooldownMs })).toBe('maxCooldownMs');
  });

  test.each([0.501, 1, ...NO_NUMBERS])('names the jitter %s', (jitter) => {
    expect(invalidBreakerSetting({ ...SETTINGS, jitter })).toBe('jitter');
  });

  test.each(['true', 1, 0, null, undefined])('names the shadow %s', (shadow) => {
    expect(invalidBreakerSetting({ ...SETTINGS, shadow: shadow as unknown as boolean })).toBe('shadow');
  });
});
