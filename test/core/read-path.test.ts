import { describe, expect, test } from 'vitest';
import type { TaskReading } from '../../src/core/provider.ts';
import { nextReadPauseMs, pausesAtOnce, readPathWorks, troubleOf } from '../../src/core/read-path.ts';

type Unreadable = Extract<TaskReading, { kind: 'unreadable' }>;

const unreadable = (
  reason: Unreadable['reason'],
  httpStatus: number | null = null,
  errorCode: string | null = null,
): Unreadable => ({ kind: 'unreadable', reason, httpStatus, errorCode, retryAfterMs: null });

describe('whether the others can be read', () => {
  test.each<[TaskReading, boolean]>([
    [{ kind: 'processing' }, true],
    [{ kind: 'failed', errorCode: null, refunded: null }, true],
    [{ kind: 'succeeded', files: [], document: null, warnings: [] }, true],
    [unreadable('transport', null, 'ECONNRESET'), false],
    [unreadable('body', 200), false],
    [unreadable('body', 200, 'task_id_mismatch'), true],
    [unreadable('unknown_status', 200, 'queued'), true],
    [unreadable('http_status', null), false],
    ...[401, 402, 403, 407, 408, 429, 500, 502, 503, 524].map((status): [TaskReading, boolean] => [
      unreadable('http_status', status),
      false,
    ]),
    ...[201, 302, 400, 404, 410, 422].map((status): [TaskReading, boolean] => [
      unreadable('http_status', status),
      true,
    ]),
  ])('%j: %s', (reading, works) => {
    expect(readPathWorks(reading)).toBe(works);
  });

  test('one 429 is enough to know', () => {
    expect(pausesAtOnce(unreadable('http_status', 429))).toBe(true);
    expect(pausesAtOnce(unreadable('http_status', 500))).toBe(false);
    expect(pausesAtOnce({ kind: 'processing' })).toBe(false);
  });
});

describe('the pause', () => {
  const settings = { intervalMs: 1_000, maxIntervalMs: 20_000 };

  test.each([
    [1, null, 0.5, 2_000],
    [2, null, 0.5, 4_000],
    [2, null, 0, 3_600],
    [4, null, 0.99, 17_568],
    [5, null, 0.99, 20_000],
    [999, null, 0.5, 20_000],
    [1, 1_000, 0.5, 2_000],
    [1, 60_000, 0, 60_000],
    // Nobody may send us away for a day.
    [1, 86_400_000, 0.5, 200_000],
  ])('number %i with Retry-After %s and chance %f is %i ms', (failures, retryAfterMs, random, ms) => {
    expect(nextReadPauseMs(settings, failures, retryAfterMs, random)).toBe(ms);
  });
});

test.each([
  [unreadable('http_status', 404, 'not_found'), 'http_404'],
  [unreadable('unknown_status', 200, 'queued'), 'unknown_status_queued'],
  [unreadable('unknown_status', 200), 'unknown_status'],
  [unreadable('body', 200, 'read_deadline'), 'read_deadline'],
  [unreadable('body', 200), 'body_unusable'],
  [unreadable('transport', null, 'ECONNRESET'), 'ECONNRESET'],
  [unreadable('transport'), 'transport'],
])('%j is told as %s', (reading, trouble) => {
  expect(troubleOf(reading)).toBe(trouble);
});
