import { describe, expect, test } from 'vitest';
import {
  nextPollDelayMs,
  nextRefundLookMs,
  type PollHistory,
  REFUND_WATCH_MS,
} from '../../src/core/poll-schedule.ts';

const SETTINGS = { intervalMs: 3_000, maxIntervalMs: 30_000 };
const MIDDLE = 0.5;

function delay(history: Partial<PollHistory>, random = MIDDLE): number {
  const quiet = { ageMs: 0, consecutiveErrors: 0, accountTrouble: false, retryAfterMs: null };
  return nextPollDelayMs(SETTINGS, { ...quiet, ...history }, random);
}

describe('the next read of a task', () => {
  test.each([
    ['a new task waits one interval', { ageMs: 0 }, 3_000],
    ['an age below zero (two clocks) counts as new', { ageMs: -60_000 }, 3_000],
    ['a task of 30 s still waits one interval', { ageMs: 30_000 }, 3_000],
    ['an older task waits a tenth of its age', { ageMs: 120_000 }, 12_000],
    ['the wait ends at the longest interval', { ageMs: 86_400_000 }, 30_000],
    ['each error doubles it', { consecutiveErrors: 1 }, 6_000],
    ['two errors', { consecutiveErrors: 2 }, 12_000],
    ['errors end at the longest interval', { consecutiveErrors: 9 }, 30_000],
    [
      'trouble with the account ends at ten times it',
      { consecutiveErrors: 9, accountTrouble: true },
      300_000,
    ],
    ['any number of errors stays finite', { consecutiveErrors: 1e9, accountTrouble: true }, 300_000],
    ['Retry-After is waited out', { retryAfterMs: 20_000 }, 20_000],
    ['a shorter Retry-After than our own wait changes nothing', { retryAfterMs: 1 }, 3_000],
    ['Retry-After ends at the longest interval', { retryAfterMs: 86_400_000 }, 30_000],
    ['a 429 may ask for ten times it', { retryAfterMs: 86_400_000, accountTrouble: true }, 300_000],
  ])('%s', (_title, history, expected) => {
    expect(delay(history)).toBe(expected);
  });

  test('spreads our own wait by a tenth to both sides', () => {
    expect(delay({}, 0)).toBe(2_700);
    expect(delay({}, 0.999_999)).toBe(3_300);
  });

  test('spreads neither past the longest interval nor before what the provider asked for', () => {
    expect(delay({ ageMs: 86_400_000 }, 0.999_999)).toBe(30_000);
    expect(delay({ ageMs: 86_400_000 }, 0)).toBe(27_000);
    expect(delay({ retryAfterMs: 20_000 }, 0)).toBe(20_000);
  });
});

describe('the next look for a refund', () => {
  test.each([
    ['at the interval at first', 0, 3_000],
    ['at the interval with a clock that went back', -1, 3_000],
    ['at a tenth of the time since', 300_000, 30_000],
    ['at most a minute later', REFUND_WATCH_MS, 60_000],
  ])('comes %s', (_title, since, expected) => {
    expect(nextRefundLookMs(SETTINGS, since)).toBe(expected);
  });

  test('is taken for an hour', () => {
    expect(REFUND_WATCH_MS).toBe(60 * 60 * 1_000);
  });

  test('comes no more often than a slow poller polls', () => {
    expect(nextRefundLookMs({ intervalMs: 600_000, maxIntervalMs: 600_000 }, REFUND_WATCH_MS)).toBe(600_000);
  });
});
