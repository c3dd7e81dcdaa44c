import { describe, expect, test } from 'vitest';
import { decideSettlement, type RequestUnderLock } from '../../../src/core/generation-request.ts';
import {
  type Outcome,
  outcomeOfResponse,
  outcomeOfTransportFailure,
  WORKER_LOST,
} from '../../../src/core/outcome.ts';
import { foundOut } from '../../support/found-out.ts';
import {
  REQUEST_RULES,
  type RequestCore,
  type RequestRule,
  requestProperty,
} from '../../support/request-history.ts';

// A rule that no broken core can fail proves nothing: each mutant breaks one thing, and the rule named
// beside it must find a history that shows it.

const request: RequestCore = { decideSettlement, outcomeOfResponse, outcomeOfTransportFailure, WORKER_LOST };

function underLock(
  change: (request: RequestUnderLock, outcome: Outcome) => Partial<RequestUnderLock>,
): RequestCore {
  return {
    ...request,
    decideSettlement: (row, evidence) =>
      decideSettlement({ ...row, ...change(row, evidence.outcome) }, evidence),
  };
}

const ONE_POST_EACH: RequestRule = 'makes no more POSTs than one, its definite returns and its re-arms';
const FROZEN: RequestRule = 'makes no POST after an unknown outcome until it is re-armed';
const BOUGHT: RequestRule =
  'makes no POST after an acceptance was seen, of whichever attempt, until it is re-armed';

const resendUnknown: RequestCore = {
  ...request,
  decideSettlement: (row, evidence) => {
    const settlement = decideSettlement(row, evidence);
    return settlement.to === 'ambiguous' ? { ...settlement, to: 'queued' } : settlement;
  },
};

const unfrozenByLateNews: RequestCore = {
  ...request,
  decideSettlement: (row, evidence) =>
    row.state === 'ambiguous' && evidence.outcome.certainty === 'unsent'
      ? { to: 'queued', stateReason: 'unsent' }
      : decideSettlement(row, evidence),
};

const REQUEST_MUTANTS: readonly [string, RequestRule, RequestCore][] = [
  ['a re-send of an unknown outcome', ONE_POST_EACH, resendUnknown],
  ['a re-send of an unknown outcome', FROZEN, resendUnknown],
  ['a re-send by late news', ONE_POST_EACH, unfrozenByLateNews],
  [
    "a 502 re-sent without the owner's word",
    FROZEN,
    {
      ...request,
      outcomeOfResponse: (response) => outcomeOfResponse({ ...response, resubmitOn: [500, 502, 503, 504] }),
    },
  ],
  [
    'a reset taken for unsent',
    FROZEN,
    {
      ...request,
      outcomeOfTransportFailure: ({ ownDoing }) => outcomeOfTransportFailure({ unsent: true, ownDoing }),
    },
  ],
  [
    'a lost worker taken for unsent',
    FROZEN,
    { ...request, WORKER_LOST: { ...WORKER_LOST, certainty: 'unsent' } },
  ],
  [
    'a 2xx without a usable id taken for nothing',
    FROZEN,
    {
      ...request,
      outcomeOfResponse: (response) => {
        const outcome = outcomeOfResponse(response);
        return outcome.reason === 'accepted_without_task_id' ? { ...outcome, certainty: 'refused' } : outcome;
      },
    },
  ],
  [
    'a re-arm that a late acceptance does not withdraw',
    BOUGHT,
    {
      ...request,
      decideSettlement: (row, evidence) =>
        row.state === 'queued' ? { to: 'unchanged' } : decideSettlement(row, evidence),
    },
  ],
  [
    'an earlier acceptance forgotten when the re-armed attempt returns',
    BOUGHT,
    underLock(() => ({ earlierTaskId: null })),
  ],
  [
    'a late acceptance moves what has ended',
    'leaves no terminal state',
    underLock((row, outcome) =>
      outcome.certainty === 'accepted' && row.isLate ? { state: 'ambiguous' } : {},
    ),
  ],
  [
    'a withdrawn request that is re-queued',
    'makes legal moves only',
    underLock((row) => (row.state === 'cancelled' ? { state: 'submitting', isLate: false } : {})),
  ],
  [
    'an acceptance under a later attempt passed over in silence',
    'drops no acceptance: its id is on the row or the alarm is raised',
    {
      ...request,
      decideSettlement: (row, evidence) => {
        const settlement = decideSettlement(row, evidence);
        return settlement.to === 'unchanged' ? { to: 'unchanged' } : settlement;
      },
    },
  ],
  [
    'a late refusal of an earlier attempt that rejects',
    'is rejected by its last attempt only',
    underLock(() => ({ isLastAttempt: true })),
  ],
];

describe('a broken request machine is found out', () => {
  test.each(REQUEST_MUTANTS)('%s fails "%s"', (_mutant, rule, mutant) => {
    expect(foundOut(requestProperty(mutant, rule))).toBe(true);
  });

  test('each rule has a mutant', () => {
    expect(new Set(REQUEST_MUTANTS.map(([, rule]) => rule))).toEqual(new Set(Object.keys(REQUEST_RULES)));
  });
});
