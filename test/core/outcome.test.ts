import { describe, expect, test } from 'vitest';
import {
  classifyGenerationOutcome,
  isOfStream,
  isUsableTaskId,
  type Outcome,
  outcomeAsTold,
  outcomeOfRepeatedSend,
  outcomeOfResponse,
  outcomeOfStream,
  outcomeOfTransportFailure,
  outcomeOfUnidentified,
  WORKER_LOST,
} from '../../src/core/outcome.ts';

const ACCEPTED: Outcome = { health: 'success', certainty: 'accepted', reason: 'task_accepted', alert: false };
const WITHOUT_ID: Outcome = {
  health: 'unknown_failure',
  certainty: 'unknown',
  reason: 'accepted_without_task_id',
  alert: true,
};
const UNREVIEWED: Outcome = { ...WITHOUT_ID, reason: 'unreviewed_status' };
const REFUSED: Outcome = {
  health: 'request_or_account_failure',
  certainty: 'refused',
  reason: 'request_refused',
  alert: false,
};
const ACCOUNT: Outcome = { ...REFUSED, reason: 'account_refused' };
const RATE: Outcome = {
  health: 'capacity_signal',
  certainty: 'refused',
  reason: 'rate_limited',
  alert: false,
};
const SERVER: Outcome = {
  health: 'dependency_failure',
  certainty: 'unknown',
  reason: 'server_error',
  alert: false,
};

/** Everything that isn't listed here is unreviewed. */
const REVIEWED: Readonly<Record<number, Outcome>> = {
  400: REFUSED,
  413: REFUSED,
  422: REFUSED,
  401: ACCOUNT,
  402: ACCOUNT,
  403: ACCOUNT,
  429: RATE,
  500: SERVER,
  502: SERVER,
  503: SERVER,
  504: SERVER,
};

const STATUSES = Array.from({ length: 500 }, (_, index) => index + 100);

describe('outcomeOfResponse', () => {
  test('takes every 2xx with a usable id for accepted, and without one for frozen', () => {
    for (const status of STATUSES.filter((one) => one >= 200 && one < 300)) {
      expect(outcomeOfResponse({ status, taskId: 'task-1' }), `${status}`).toEqual(ACCEPTED);
      expect(outcomeOfResponse({ status }), `${status}`).toEqual(WITHOUT_ID);
    }
  });

  test('reads each other status from 100 to 599 by the table, whatever id came with it', () => {
    for (const status of STATUSES.filter((one) => one < 200 || one >= 300)) {
      const expected = REVIEWED[status] ?? UNREVIEWED;
      expect(outcomeOfResponse({ status }), `${status}`).toEqual(expected);
      expect(outcomeOfResponse({ status, taskId: 'task-1' }), `${status}`).toEqual(expected);
    }
  });

  test.each([-1, 0, 1, 99, 199.5, 600, 999, 1_000, Number.NaN, Number.POSITIVE_INFINITY])(
    'freezes the odd status %d',
    (status) => {
      expect(outcomeOfResponse({ status, taskId: 'task-1' })).toEqual(UNREVIEWED);
    },
  );

  test.each([
    ['rate', 'rate_limited'],
    ['concurrency', 'concurrency_limited'],
  ] as const)('tells a 429 for %s by its own reason', (capacity, reason) => {
    expect(outcomeOfResponse({ status: 429, capacity })).toEqual({ ...RATE, reason });
  });

  test('takes a 5xx for refused only where the owner says so, and it stays evidence for the breaker', () => {
    const resubmitOn = [502, 503];
    expect(outcomeOfResponse({ status: 503, resubmitOn })).toEqual({
      health: 'dependency_failure',
      certainty: 'refused',
      reason: 'resubmit_permitted',
      alert: false,
    });
    expect(outcomeOfResponse({ status: 500, resubmitOn })).toEqual(SERVER);
    expect(outcomeOfResponse({ status: 502, resubmitOn: [] })).toEqual(SERVER);
  });

  test.each([200, 302, 400, 429, 501, 520, 524])("lets no owner's list reach the status %d", (status) => {
    expect(outcomeOfResponse({ status, resubmitOn: [status] })).toEqual(outcomeOfResponse({ status }));
  });
});

describe('isUsableTaskId', () => {
  test.each([
    ['one character', 'a'],
    ['255 characters', 'a'.repeat(255)],
    ['255 characters outside the basic plane', '🎵'.repeat(255)],
    ['what a path must escape', '../x?y=1#z'],
    ['a blank', ' '],
    ['words that mean something elsewhere', 'null'],
    ['other scripts', 'задача-任务'],
  ])('takes %s', (_title, value) => {
    expect(isUsableTaskId(value)).toBe(true);
    expect(outcomeOfResponse({ status: 202, taskId: value })).toEqual(ACCEPTED);
  });

  test.each([
    ['nothing', undefined],
    ['null', null],
    ['an empty string', ''],
    ['256 characters', 'a'.repeat(256)],
    ['256 characters outside the basic plane', '🎵'.repeat(256)],
    ['a megabyte', 'a'.repeat(1_000_000)],
    ['NUL', 'a\u0000b'],
    ['a line break', 'a\nb'],
    ['DEL', 'a\u007f'],
    ['a C1 control character', 'a\u0085'],
    ['a high surrogate alone', 'a\ud83c'],
    ['a low surrogate alone', '\udfb5a'],
    ['a number', 42],
    ['zero', 0],
    ['NaN', Number.NaN],
    ['a bigint', 42n],
    ['true', true],
    ['false', false],
    ['an array', ['task-1']],
    ['an object', { id: 'task-1' }],
    ['a boxed string', Object('task-1')],
    ['a function', () => 'task-1'],
    ['a symbol', Symbol('task-1')],
  ])('takes no %s, and freezes the request', (_title, value) => {
    expect(isUsableTaskId(value)).toBe(false);
    expect(outcomeOfResponse({ status: 202, taskId: value })).toEqual(WITHOUT_ID);
  });
});

describe('without a usable answer', () => {
  test('freezes a task id that belongs to another request', () => {
    expect(outcomeOfUnidentified('task_id_conflict')).toEqual({ ...WITHOUT_ID, reason: 'task_id_conflict' });
  });

  test('takes a transport failure for unsent on proof only', () => {
    const health = 'dependency_failure';
    expect(outcomeOfTransportFailure({ unsent: true, ownDoing: false })).toEqual({
      health,
      certainty: 'unsent',
      reason: 'unsent',
      alert: false,
    });
    for (const ownDoing of [false, true]) {
      expect(outcomeOfTransportFailure({ unsent: false, ownDoing })).toEqual({
        health,
        certainty: 'unknown',
        reason: 'transport',
        alert: false,
      });
    }
  });

  test('tells nothing about the provider when we sent nothing by our own doing', () => {
    expect(outcomeOfTransportFailure({ unsent: true, ownDoing: true })).toEqual({
      health: 'none',
      certainty: 'unsent',
      reason: 'unsent_own_doing',
      alert: true,
    });
  });

  test('tells nothing about the provider when the worker was lost, and freezes the request', () => {
    expect(WORKER_LOST).toEqual({
      health: 'none',
      certainty: 'unknown',
      reason: 'worker_lost',
      alert: false,
    });
  });
});

describe('outcomeAsTold', () => {
  const unsent = outcomeOfTransportFailure({ unsent: true, ownDoing: false });

  test('believes the live attempt whatever it says', () => {
    for (const outcome of [unsent, WORKER_LOST, outcomeOfResponse({ status: 429 })]) {
      expect(outcomeAsTold(outcome, true)).toBe(outcome);
    }
  });

  test('takes *unsent* from anybody else, or later, for nothing', () => {
    for (const ownDoing of [true, false]) {
      const told = { ...outcomeOfTransportFailure({ unsent: true, ownDoing }), retryAfterMs: null };
      expect(outcomeAsTold(told, false)).toEqual({ ...WORKER_LOST, retryAfterMs: null });
    }
  });

  test('takes every other word from anybody', () => {
    for (const status of [200, 202, 400, 401, 429, 500, 502, 520]) {
      const outcome = outcomeOfResponse({ status, taskId: 'task-1' });
      expect(outcomeAsTold(outcome, false)).toBe(outcome);
    }
  });
});

describe('a stream, by its first event', () => {
  test('is the success of its submission', () => {
    const outcome = outcomeOfStream({ isError: false });
    expect(outcome).toMatchObject({ health: 'success', certainty: 'accepted', reason: 'stream_started' });
    expect(isOfStream(outcome.reason)).toBe(true);
  });

  test('is accepted, and a failure of the provider, where it is an error', () => {
    const outcome = outcomeOfStream({ isError: true });
    expect(outcome).toMatchObject({
      health: 'dependency_failure',
      certainty: 'accepted',
      reason: 'stream_failed',
    });
    expect(isOfStream(outcome.reason)).toBe(true);
    expect(isOfStream('task_accepted')).toBe(false);
  });

  test('says nothing of the provider where the error is about the content', () => {
    expect(outcomeOfStream({ isError: true, isContent: true })).toMatchObject({ health: 'none' });
  });
});

describe('outcomeOfRepeatedSend', () => {
  test('keeps an acceptance, and freezes whatever else was answered', () => {
    const accepted = outcomeOfResponse({ status: 202, taskId: 'task-1' });
    expect(outcomeOfRepeatedSend(accepted)).toEqual({ ...accepted, alert: true });
    for (const status of [202, 400, 401, 429, 500, 503, 520]) {
      expect(outcomeOfRepeatedSend(outcomeOfResponse({ status, resubmitOn: [503] }))).toEqual({
        health: 'none',
        certainty: 'unknown',
        reason: 'repeated_send',
        alert: true,
      });
    }
    const unsent = outcomeOfTransportFailure({ unsent: true, ownDoing: true });
    expect(outcomeOfRepeatedSend(unsent)).toMatchObject({ certainty: 'unknown', reason: 'repeated_send' });
  });
});

describe('classifyGenerationOutcome', () => {
  const neutral = { countsBreaker: false, ambiguousSubmission: false };

  test('knows exactly the statuses of the article, and is neutral about every other', () => {
    for (const status of STATUSES) {
      const { kind } = classifyGenerationOutcome({ status });
      const reviewed = REVIEWED[status]?.health ?? 'unknown_failure';
      expect(kind, `${status}`).toBe(status >= 200 && status < 300 ? 'success' : reviewed);
      const counts = kind === 'dependency_failure';
      expect(classifyGenerationOutcome({ status }), `${status}`).toEqual({
        ...neutral,
        kind,
        countsBreaker: counts,
      });
    }
  });

  test('is neutral about nothing at all', () => {
    const unknown = { ...neutral, kind: 'unknown_failure' };
    expect(classifyGenerationOutcome()).toEqual(unknown);
    expect(classifyGenerationOutcome({})).toEqual(unknown);
  });

  test('puts a transport failure before a stream failure, and both before the status', () => {
    const counted = { kind: 'dependency_failure', countsBreaker: true };
    expect(classifyGenerationOutcome({ status: 200, streamError: true })).toEqual({
      ...counted,
      ambiguousSubmission: false,
    });
    expect(classifyGenerationOutcome({ status: 400, streamError: true, transportError: true })).toEqual({
      ...counted,
      ambiguousSubmission: true,
    });
  });
});
