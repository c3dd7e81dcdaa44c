import { describe, expect, test } from 'vitest';
import {
  type AttemptEvidence,
  decideSettlement,
  isLegalMove,
  isTerminal,
  LEGAL_MOVES,
  REQUEST_STATES,
  type RequestState,
  type RequestUnderLock,
  returnDelayMs,
  type Settlement,
} from '../../src/core/generation-request.ts';
import {
  outcomeOfResponse,
  outcomeOfStream,
  outcomeOfTransportFailure,
  outcomeOfUnidentified,
  WORKER_LOST,
} from '../../src/core/outcome.ts';

const SUBMITTING: RequestUnderLock = {
  state: 'submitting',
  isLastAttempt: true,
  isLate: false,
  providerTaskId: null,
  submissions: 1,
  maxSubmissions: 3,
};

function answered(status: number, providerTaskId: string | null = null): AttemptEvidence {
  return {
    outcome: outcomeOfResponse({ status, taskId: providerTaskId }),
    httpStatus: status,
    providerTaskId,
  };
}

function unanswered(outcome: AttemptEvidence['outcome']): AttemptEvidence {
  return { outcome, httpStatus: null, providerTaskId: null };
}

const ACCEPTANCE = answered(202, 'task-1');
const RESET = unanswered(outcomeOfTransportFailure({ unsent: false, ownDoing: false }));
const UNSENT = unanswered(outcomeOfTransportFailure({ unsent: true, ownDoing: false }));
const OWN_DOING = unanswered(outcomeOfTransportFailure({ unsent: true, ownDoing: true }));
const RESUBMIT: AttemptEvidence = {
  outcome: outcomeOfResponse({ status: 503, resubmitOn: [503] }),
  httpStatus: 503,
  providerTaskId: null,
};

describe('the moves of a request', () => {
  const table: Record<RequestState, RequestState[]> = {
    queued: ['submitting', 'cancelled', 'expired', 'accepted', 'rejected', 'ambiguous'],
    submitting: ['accepted', 'queued', 'rejected', 'ambiguous'],
    ambiguous: ['queued', 'accepted', 'rejected', 'cancelled', 'failed'],
    accepted: ['succeeded', 'failed', 'ambiguous'],
    succeeded: [],
    failed: [],
    rejected: [],
    cancelled: [],
    expired: [],
  };

  test('are these and no others', () => {
    for (const from of REQUEST_STATES) {
      for (const to of REQUEST_STATES)
        expect(isLegalMove(from, to), `${from} to ${to}`).toBe(table[from].includes(to));
    }
    expect(Object.keys(LEGAL_MOVES).sort()).toEqual([...REQUEST_STATES].sort());
  });

  test('end in five states', () => {
    expect(REQUEST_STATES.filter(isTerminal)).toEqual([
      'succeeded',
      'failed',
      'rejected',
      'cancelled',
      'expired',
    ]);
  });
});

describe('the first outcome of the attempt on the wire', () => {
  const cases: [string, AttemptEvidence, Settlement][] = [
    ['a task id', ACCEPTANCE, { to: 'accepted', providerTaskId: 'task-1' }],
    [
      'a 2xx without a usable id',
      answered(200, ''),
      { to: 'ambiguous', stateReason: 'accepted_without_task_id' },
    ],
    [
      'the task id of another request',
      { ...ACCEPTANCE, outcome: outcomeOfUnidentified('task_id_conflict') },
      { to: 'ambiguous', stateReason: 'task_id_conflict' },
    ],
    ...[400, 413, 422].map((status): [string, AttemptEvidence, Settlement] => [
      `a ${status}`,
      answered(status),
      { to: 'rejected', stateReason: 'request_refused' },
    ]),
    ...[401, 402, 403].map((status): [string, AttemptEvidence, Settlement] => [
      `a ${status}`,
      answered(status),
      { to: 'queued', stateReason: 'account_refused' },
    ]),
    ['a 429', answered(429), { to: 'queued', stateReason: 'rate_limited' }],
    ...[500, 502, 503, 504].map((status): [string, AttemptEvidence, Settlement] => [
      `a ${status}`,
      answered(status),
      { to: 'ambiguous', stateReason: 'server_error' },
    ]),
    ['a 503 that the owner lets go again', RESUBMIT, { to: 'queued', stateReason: 'resubmit_permitted' }],
    ['a redirect', answered(302), { to: 'ambiguous', stateReason: 'unreviewed_status' }],
    ['a 524', answered(524), { to: 'ambiguous', stateReason: 'unreviewed_status' }],
    ['a reset', RESET, { to: 'ambiguous', stateReason: 'transport' }],
    ['proof that nothing was sent', UNSENT, { to: 'queued', stateReason: 'unsent' }],
    ['nothing sent by our own doing', OWN_DOING, { to: 'queued', stateReason: 'unsent_own_doing' }],
    ['a lost worker', unanswered(WORKER_LOST), { to: 'ambiguous', stateReason: 'worker_lost' }],
  ];

  test.each(cases)('settles the request: %s', (_title, evidence, expected) => {
    expect(decideSettlement(SUBMITTING, evidence)).toEqual(expected);
  });

  test.each([null, '', 'a\u0000b', 'a'.repeat(256)])(
    'freezes an acceptance whose id is no use (%#)',
    (providerTaskId) => {
      expect(decideSettlement(SUBMITTING, { ...ACCEPTANCE, providerTaskId })).toEqual({
        to: 'ambiguous',
        stateReason: 'accepted_without_task_id',
      });
    },
  );

  test("rejects at the last of the owner's re-submissions, and not before", () => {
    expect(decideSettlement({ ...SUBMITTING, submissions: 2 }, RESUBMIT).to).toBe('queued');
    for (const submissions of [3, 4]) {
      expect(decideSettlement({ ...SUBMITTING, submissions }, RESUBMIT)).toEqual({
        to: 'rejected',
        stateReason: 'max_submissions',
      });
    }
  });

  test.each([
    ['unsent', UNSENT],
    ['429', answered(429)],
    ['402', answered(402)],
  ])('returns without end after %s, and asks for eyes from the 20th on', (_title, evidence) => {
    const settle = (submissions: number) => decideSettlement({ ...SUBMITTING, submissions }, evidence);
    expect(settle(19)).not.toHaveProperty('attention');
    expect(settle(20)).toMatchObject({ to: 'queued', attention: 'returned_many_times' });
    expect(settle(5_000)).toMatchObject({ to: 'queued', attention: 'returned_many_times' });
  });
});

describe('an answer that is a stream', () => {
  const STARTED: AttemptEvidence = {
    outcome: outcomeOfStream({ isError: false }),
    httpStatus: 200,
    providerTaskId: null,
  };
  const FAILED: AttemptEvidence = { ...STARTED, outcome: outcomeOfStream({ isError: true }) };
  const streaming: RequestUnderLock = { ...SUBMITTING, mode: 'stream' };
  const late = { ...streaming, isLate: true };

  test.each<[string, RequestUnderLock, AttemptEvidence, Settlement]>([
    ['is accepted without a task', streaming, STARTED, { to: 'accepted', providerTaskId: null }],
    ['fails by its first event', streaming, FAILED, { to: 'failed', failureReason: 'provider' }],
    [
      'names nothing where no stream was asked for',
      SUBMITTING,
      STARTED,
      { to: 'ambiguous', stateReason: 'accepted_without_task_id' },
    ],
    [
      'is a task where it names one',
      streaming,
      { ...STARTED, providerTaskId: 'task-1' },
      { to: 'accepted', providerTaskId: 'task-1' },
    ],
    [
      'is unidentified without an event',
      streaming,
      answered(200),
      { to: 'ambiguous', stateReason: 'accepted_without_task_id' },
    ],
    [
      'completes a frozen request',
      { ...late, state: 'ambiguous' },
      STARTED,
      { to: 'accepted', providerTaskId: null },
    ],
    ['withdraws a re-arm', { ...late, state: 'queued' }, FAILED, { to: 'failed', failureReason: 'provider' }],
    [
      'was paid though it had ended',
      { ...late, state: 'cancelled' },
      STARTED,
      { to: 'unchanged', attention: 'paid_though_withdrawn' },
    ],
    [
      'was paid twice under a later attempt',
      { ...late, state: 'accepted', isLastAttempt: false },
      STARTED,
      { to: 'unchanged', attention: 'possibly_paid_twice' },
    ],
  ])('%s', (_name, request, evidence, settlement) => {
    expect(decideSettlement(request, evidence)).toEqual(settlement);
  });
});

describe('when an earlier attempt turned out to be accepted', () => {
  const bought: RequestUnderLock = { ...SUBMITTING, submissions: 2, earlierTaskId: 'task-0' };

  test.each([
    ['unsent', UNSENT],
    ['429', answered(429)],
    ['401', answered(401)],
    ['422', answered(422)],
    ['a 503 that the owner lets go again', RESUBMIT],
  ])('%s of the later one ends with the first task instead of another POST', (_title, evidence) => {
    expect(decideSettlement(bought, evidence)).toEqual({ to: 'accepted', providerTaskId: 'task-0' });
  });

  test.each([
    ['an unknown outcome', RESET, { to: 'ambiguous', stateReason: 'transport' }],
    ['an acceptance', ACCEPTANCE, { to: 'accepted', providerTaskId: 'task-1' }],
  ])('%s of the later one counts as ever', (_title, evidence, expected) => {
    expect(decideSettlement(bought, evidence)).toEqual(expected);
  });

  test('no known id means no such acceptance', () => {
    const settlement = decideSettlement({ ...bought, earlierTaskId: null }, answered(429));
    expect(settlement).toEqual({ to: 'queued', stateReason: 'rate_limited' });
  });
});

describe('when the database had lost the attempt', () => {
  const lost: RequestUnderLock = { ...SUBMITTING, state: 'queued', isLost: true };
  const frozen: Settlement = { to: 'ambiguous', stateReason: 'intent_lost' };

  test.each([
    ['a reset', RESET, frozen],
    ['a 502', answered(502), frozen],
    ['a 2xx without a usable id', answered(200, ''), frozen],
    ['a lost worker', unanswered(WORKER_LOST), frozen],
    ['a task id', ACCEPTANCE, { to: 'accepted', providerTaskId: 'task-1' }],
    ['a 422', answered(422), { to: 'rejected', stateReason: 'request_refused' }],
    ['a 429', answered(429), { to: 'queued', stateReason: 'rate_limited' }],
    ['a 401', answered(401), { to: 'queued', stateReason: 'account_refused' }],
  ] as [string, AttemptEvidence, Settlement][])(
    'its queued request is settled as if it were submitting, never as a re-arm: %s',
    (_title, evidence, expected) => {
      expect(decideSettlement(lost, evidence)).toEqual(expected);
    },
  );

  test.each([
    ['an unknown outcome freezes it: the next POST may be the second paid one', RESET, frozen],
    ['an acceptance is its take', ACCEPTANCE, { to: 'accepted', providerTaskId: 'task-1' }],
    ['a refusal is evidence only', answered(422), { to: 'unchanged' }],
    ['a 429 is evidence only', answered(429), { to: 'unchanged' }],
  ] as [string, AttemptEvidence, Settlement][])(
    'and a later one has left the request queued: %s',
    (_title, evidence, expected) => {
      expect(decideSettlement({ ...lost, isLastAttempt: false }, evidence)).toEqual(expected);
    },
  );

  test.each([
    ['submitting', 'possibly_paid_twice'],
    ['accepted', 'possibly_paid_twice'],
    ['cancelled', 'paid_though_withdrawn'],
  ] as const)('its acceptance moves no request that is %s, and says so', (state, attention) => {
    const request = { ...lost, state, isLastAttempt: state === 'cancelled', providerTaskId: null };
    expect(decideSettlement(request, ACCEPTANCE)).toEqual({ to: 'unchanged', attention });
    expect(decideSettlement(request, RESET)).toEqual({ to: 'unchanged' });
  });

  test('its acceptance completes a request that is ambiguous by an earlier attempt', () => {
    expect(decideSettlement({ ...lost, state: 'ambiguous' }, ACCEPTANCE)).toEqual({
      to: 'accepted',
      providerTaskId: 'task-1',
    });
  });

  test.each([
    ['unsent', UNSENT],
    ['429', answered(429)],
    ['422', answered(422)],
    ['a 503 that the owner lets go again', RESUBMIT],
  ])('and is unknown, %s of the attempt after it freezes the request', (_title, evidence) => {
    const later: RequestUnderLock = { ...SUBMITTING, hasUnseenLoss: true };
    expect(decideSettlement(later, evidence)).toEqual(frozen);
    expect(decideSettlement({ ...later, earlierTaskId: 'task-0' }, evidence)).toEqual({
      to: 'accepted',
      providerTaskId: 'task-0',
    });
  });
});

describe('the evidence table', () => {
  const TERMINAL = REQUEST_STATES.filter(isTerminal);
  const definite = [400, 413, 422].map((status) => answered(status));
  const other = [
    ...[401, 402, 403, 429, 500, 502, 503, 504, 302, 524, 200].map((status) => answered(status)),
    RESET,
    UNSENT,
    OWN_DOING,
    RESUBMIT,
    unanswered(WORKER_LOST),
    { ...ACCEPTANCE, providerTaskId: null },
    // A refusal that comes without its status proves nothing.
    { ...answered(400), httpStatus: null },
  ];
  const accepted: Settlement = { to: 'accepted', providerTaskId: 'task-1' };
  const rejected: Settlement = { to: 'rejected', stateReason: 'request_refused' };
  const twice: Settlement = { to: 'unchanged', attention: 'possibly_paid_twice' };
  const withdrawn: Settlement = { to: 'unchanged', attention: 'paid_though_withdrawn' };
  const nothing: Settlement = { to: 'unchanged' };

  interface Row {
    readonly state: RequestState;
    readonly isLastAttempt: boolean;
    readonly acceptance: Settlement;
    readonly refusal: Settlement;
  }
  const rows: Row[] = [
    { state: 'submitting', isLastAttempt: true, acceptance: accepted, refusal: rejected },
    { state: 'ambiguous', isLastAttempt: true, acceptance: accepted, refusal: rejected },
    { state: 'queued', isLastAttempt: true, acceptance: accepted, refusal: rejected },
    { state: 'accepted', isLastAttempt: true, acceptance: twice, refusal: nothing },
    ...TERMINAL.map(
      (state): Row => ({ state, isLastAttempt: true, acceptance: withdrawn, refusal: nothing }),
    ),
    // Nothing is on the wire and the next POST would buy again: the only row where an earlier attempt moves it.
    { state: 'queued', isLastAttempt: false, acceptance: accepted, refusal: nothing },
    ...(['submitting', 'ambiguous', 'accepted', ...TERMINAL] as const).map(
      (state): Row => ({ state, isLastAttempt: false, acceptance: twice, refusal: nothing }),
    ),
  ];

  test('has a row for each state, with and without a later attempt', () => {
    expect(new Set(rows.map(({ state, isLastAttempt }) => `${state} ${isLastAttempt}`)).size).toBe(
      REQUEST_STATES.length * 2,
    );
  });

  describe.each(rows)(
    '$state, last attempt: $isLastAttempt',
    ({ state, isLastAttempt, acceptance, refusal }) => {
      // Only an attempt whose request waits for it can be in time: everywhere else evidence is late by nature.
      const lateness = state === 'submitting' && isLastAttempt ? [true] : [true, false];
      const row = { ...SUBMITTING, state, isLastAttempt };

      test.each(lateness)('late: %s', (isLate) => {
        expect(decideSettlement({ ...row, isLate }, ACCEPTANCE)).toEqual(acceptance);
        for (const evidence of definite)
          expect(decideSettlement({ ...row, isLate }, evidence)).toEqual(refusal);
        for (const evidence of other) expect(decideSettlement({ ...row, isLate }, evidence)).toEqual(nothing);
      });

      test('every move is a legal one', () => {
        for (const isLate of [true, false]) {
          for (const evidence of [ACCEPTANCE, ...definite, ...other]) {
            const { to } = decideSettlement({ ...row, isLate }, evidence);
            expect(to === 'unchanged' || isLegalMove(state, to), `${state} to ${to}`).toBe(true);
          }
        }
      });
    },
  );

  test.each(['accepted', 'succeeded', 'failed'] as const)(
    '%s: the same id again says nothing new',
    (state) => {
      for (const isLastAttempt of [true, false]) {
        const row = { ...SUBMITTING, state, isLastAttempt, isLate: true, providerTaskId: 'task-1' };
        expect(decideSettlement(row, ACCEPTANCE)).toEqual(nothing);
      }
    },
  );

  test.each(['accepted', 'succeeded', 'failed'] as const)(
    '%s: another id means possibly paid twice',
    (state) => {
      const row = { ...SUBMITTING, state, isLate: true, providerTaskId: 'task-0' };
      expect(decideSettlement(row, ACCEPTANCE)).toEqual(twice);
    },
  );
});

describe('the wait after a return', () => {
  test.each([
    [1, 1_000],
    [2, 2_000],
    [6, 32_000],
    [7, 60_000],
    [5_000, 60_000],
  ])('doubles with the attempts: %d, %d ms', (submissions, expected) => {
    for (const reason of ['unsent', 'unsent_own_doing', 'resubmit_permitted'] as const) {
      expect(returnDelayMs(reason, submissions)).toBe(expected);
    }
  });

  test.each(['rate_limited', 'concurrency_limited', 'account_refused'] as const)(
    'is the account’s own after %s',
    (reason) => {
      expect(returnDelayMs(reason, 9)).toBe(0);
    },
  );
});
