import fc from 'fast-check';
import type * as generationRequest from '../../src/core/generation-request.ts';
import { LEGAL_MOVES, type RequestState } from '../../src/core/generation-request.ts';
import type * as outcomes from '../../src/core/outcome.ts';
import type { Outcome } from '../../src/core/outcome.ts';

/** What is under test, as a parameter: the rules below must also be seen to fail on a broken one. */
export type RequestCore = Pick<typeof generationRequest, 'decideSettlement'> &
  Pick<typeof outcomes, 'outcomeOfResponse' | 'outcomeOfTransportFailure' | 'WORKER_LOST'>;

/** What really happened to one POST. */
type Wire =
  | { readonly wire: 'status'; readonly status: number; readonly taskId: string | null }
  | { readonly wire: 'unsent'; readonly ownDoing: boolean }
  | { readonly wire: 'reset' }
  | { readonly wire: 'lease_over' };

type Decision = 'rearm' | 'attach' | 'abandon' | 'reopen' | 'cancel' | 'expire' | 'succeed' | 'fail';

export type RequestStep =
  | { readonly step: 'post' }
  /** The attempt's own worker reports, in time or after rescue has settled it, once or again. */
  | { readonly step: 'report'; readonly which: number; readonly wire: Wire }
  | { readonly step: 'rescue' }
  | { readonly step: 'decide'; readonly decision: Decision };

/** The model: a list of POSTs, outcomes and decisions by people, with the moves that came of them. */
export type RequestEntry =
  | { readonly kind: 'post'; readonly attempt: number }
  | { readonly kind: 'rearm' }
  | {
      readonly kind: 'outcome';
      readonly attempt: number;
      readonly wire: Wire;
      readonly late: boolean;
      /** The task id on the row, and whether this outcome raised an alarm. */
      readonly taskIdAfter: string | null;
      readonly alarm: boolean;
    }
  | {
      readonly kind: 'move';
      readonly from: RequestState;
      readonly to: RequestState;
      readonly by: number | null;
    };

/** The owner's list in these histories; a 502 is not on it. */
const RESUBMIT_ON = [503];
const MAX_SUBMISSIONS = 3;

const taskId = fc.constantFrom('task-a', 'task-b', '', null);
const status = fc.oneof(
  { weight: 3, arbitrary: fc.constantFrom(200, 202) },
  { weight: 3, arbitrary: fc.constantFrom(400, 401, 402, 403, 413, 422, 429) },
  { weight: 3, arbitrary: fc.constantFrom(500, 502, 503, 504) },
  { weight: 1, arbitrary: fc.integer({ min: 100, max: 599 }) },
);
const wire: fc.Arbitrary<Wire> = fc.oneof(
  { weight: 5, arbitrary: fc.record({ wire: fc.constant('status' as const), status, taskId }) },
  { weight: 1, arbitrary: fc.record({ wire: fc.constant('unsent' as const), ownDoing: fc.boolean() }) },
  { weight: 2, arbitrary: fc.constant<Wire>({ wire: 'reset' }) },
);

export const requestSteps: fc.Arbitrary<readonly RequestStep[]> = fc.array(
  fc.oneof(
    { weight: 6, arbitrary: fc.constant<RequestStep>({ step: 'post' }) },
    { weight: 8, arbitrary: fc.record({ step: fc.constant('report' as const), which: fc.nat(10), wire }) },
    { weight: 2, arbitrary: fc.constant<RequestStep>({ step: 'rescue' }) },
    { weight: 4, arbitrary: fc.constant<RequestStep>({ step: 'decide', decision: 'rearm' }) },
    {
      weight: 1,
      arbitrary: fc.record({
        step: fc.constant('decide' as const),
        decision: fc.constantFrom<Decision>(
          'attach',
          'abandon',
          'reopen',
          'cancel',
          'expire',
          'succeed',
          'fail',
        ),
      }),
    },
  ),
  { minLength: 1, maxLength: 40, size: 'max' },
);

const DECISIONS: Readonly<Record<Decision, { from: RequestState; to: RequestState }>> = {
  rearm: { from: 'ambiguous', to: 'queued' },
  attach: { from: 'ambiguous', to: 'accepted' },
  abandon: { from: 'ambiguous', to: 'failed' },
  reopen: { from: 'accepted', to: 'ambiguous' },
  cancel: { from: 'queued', to: 'cancelled' },
  expire: { from: 'queued', to: 'expired' },
  succeed: { from: 'accepted', to: 'succeeded' },
  fail: { from: 'accepted', to: 'failed' },
};

/** Plays the steps on one row, as the statements around the core do, and writes down what happened. */
export function recordRequestHistory(
  core: RequestCore,
  steps: readonly RequestStep[],
): readonly RequestEntry[] {
  const history: RequestEntry[] = [];
  const settled: boolean[] = [];
  let state = 'queued' as RequestState;
  let rowTaskId: string | null = null;

  function move(to: RequestState, by: number | null): void {
    history.push({ kind: 'move', from: state, to, by });
    state = to;
  }
  function report(attempt: number, seen: Wire): void {
    const late = settled[attempt] === true;
    settled[attempt] = true;
    const earlier = history.findLast(
      (one) => one.kind === 'outcome' && one.attempt < attempt && bought(one.wire),
    );
    const settlement = core.decideSettlement(
      {
        state,
        isLastAttempt: attempt === settled.length - 1,
        isLate: late,
        providerTaskId: rowTaskId,
        submissions: settled.length,
        maxSubmissions: MAX_SUBMISSIONS,
        earlierTaskId:
          earlier?.kind === 'outcome' && earlier.wire.wire === 'status' ? earlier.wire.taskId : null,
      },
      {
        outcome: outcomeOf(core, seen),
        httpStatus: seen.wire === 'status' ? seen.status : null,
        providerTaskId: seen.wire === 'status' ? seen.taskId : null,
      },
    );
    if (settlement.to === 'accepted') rowTaskId = settlement.providerTaskId;
    const alarm = settlement.to === 'unchanged' && settlement.attention !== undefined;
    history.push({ kind: 'outcome', attempt, wire: seen, late, taskIdAfter: rowTaskId, alarm });
    if (settlement.to !== 'unchanged') move(settlement.to, attempt);
  }

  for (const step of steps) {
    switch (step.step) {
      case 'post':
        if (state !== 'queued') break;
        settled.push(false);
        move('submitting', null);
        history.push({ kind: 'post', attempt: settled.length - 1 });
        break;
      case 'report':
        if (settled.length > 0) report(step.which % settled.length, step.wire);
        break;
      case 'rescue':
        if (state === 'submitting' && settled.at(-1) === false)
          report(settled.length - 1, { wire: 'lease_over' });
        break;
      case 'decide': {
        const { from, to } = DECISIONS[step.decision];
        if (state !== from) break;
        if (step.decision === 'attach') rowTaskId = 'task-by-operator';
        if (step.decision === 'reopen') rowTaskId = null;
        if (step.decision === 'rearm') history.push({ kind: 'rearm' });
        move(to, null);
        break;
      }
    }
  }
  return history;
}

function outcomeOf(core: RequestCore, seen: Wire): Outcome {
  switch (seen.wire) {
    case 'status':
      return core.outcomeOfResponse({ status: seen.status, taskId: seen.taskId, resubmitOn: RESUBMIT_ON });
    case 'unsent':
      return core.outcomeOfTransportFailure({ unsent: true, ownDoing: seen.ownDoing });
    case 'reset':
      return core.outcomeOfTransportFailure({ unsent: false, ownDoing: false });
    case 'lease_over':
      return core.WORKER_LOST;
  }
}

function bought(seen: Wire): boolean {
  return seen.wire === 'status' && seen.status >= 200 && seen.status < 300 && Boolean(seen.taskId);
}

/** Nothing was bought, and the same request may go again. */
function boughtNothing(seen: Wire): boolean {
  return (
    seen.wire === 'unsent' ||
    (seen.wire === 'status' && [401, 402, 403, 429, ...RESUBMIT_ON].includes(seen.status))
  );
}

type Rule = (history: readonly RequestEntry[]) => boolean;

/** Each rule reads the list alone; none knows how the core decides. */
export const REQUEST_RULES = {
  'makes no more POSTs than one, its definite returns and its re-arms': (history) => {
    let permitted = 1;
    return history.every((entry) => {
      if (entry.kind === 'rearm') permitted += 1;
      if (entry.kind === 'outcome' && !entry.late && boughtNothing(entry.wire)) permitted += 1;
      if (entry.kind === 'post') permitted -= 1;
      return permitted >= 0;
    });
  },

  'makes no POST after an unknown outcome until it is re-armed': (history) => {
    let frozen = false;
    return history.every((entry) => {
      if (entry.kind === 'rearm') frozen = false;
      if (entry.kind === 'outcome' && !entry.late && !boughtNothing(entry.wire)) frozen = true;
      return !(entry.kind === 'post' && frozen);
    });
  },

  'makes no POST after an acceptance was seen, of whichever attempt, until it is re-armed': (history) => {
    let seen = false;
    return history.every((entry) => {
      if (entry.kind === 'rearm') seen = false;
      if (entry.kind === 'outcome' && bought(entry.wire)) seen = true;
      return !(entry.kind === 'post' && seen);
    });
  },

  'makes legal moves only': (history) =>
    history.every((entry) => entry.kind !== 'move' || LEGAL_MOVES[entry.from].includes(entry.to)),

  'leaves no terminal state': (history) => {
    const ends: readonly RequestState[] = ['succeeded', 'failed', 'rejected', 'cancelled', 'expired'];
    return history.every((entry) => entry.kind !== 'move' || !ends.includes(entry.from));
  },

  'drops no acceptance: its id is on the row or the alarm is raised': (history) =>
    history.every((entry) => {
      if (entry.kind !== 'outcome' || entry.wire.wire !== 'status' || !bought(entry.wire)) return true;
      return entry.taskIdAfter === entry.wire.taskId || entry.alarm;
    }),

  'is rejected by its last attempt only': (history) => {
    let last = -1;
    return history.every((entry) => {
      if (entry.kind === 'post') last = entry.attempt;
      return entry.kind !== 'move' || entry.to !== 'rejected' || entry.by === last;
    });
  },
} as const satisfies Record<string, Rule>;

export type RequestRule = keyof typeof REQUEST_RULES;

export function requestProperty(core: RequestCore, rule: RequestRule) {
  return fc.property(requestSteps, (steps) => {
    const holds: Rule = REQUEST_RULES[rule];
    return holds(recordRequestHistory(core, steps));
  });
}
