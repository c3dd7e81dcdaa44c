import { isOfStream, isUsableTaskId, type Outcome, type OutcomeReason } from './outcome.ts';

export const REQUEST_STATES = [
  'queued',
  'submitting',
  'accepted',
  'succeeded',
  'failed',
  'rejected',
  'ambiguous',
  'cancelled',
  'expired',
] as const;

export type RequestState = (typeof REQUEST_STATES)[number];

/**
 * Every legal move, and nothing else. The trigger on `generation_requests` enforces the same table
 * (`onetake.is_legal_move`); a test holds the two equal.
 */
export const LEGAL_MOVES: Readonly<Record<RequestState, readonly RequestState[]>> = {
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

export function isTerminal(state: RequestState): boolean {
  return LEGAL_MOVES[state].length === 0;
}

export function isLegalMove(from: RequestState, to: RequestState): boolean {
  return LEGAL_MOVES[from].includes(to);
}

/** Why a row wants a person's eyes; stored in `attention`. */
export type Attention =
  | 'possibly_paid_twice'
  | 'paid_though_withdrawn'
  /** Something below us tried to send the POST a second time. */
  | 'repeated_send'
  | 'returned_many_times'
  | 'poll_failing'
  | 'overdue'
  | 'result_empty'
  | 'result_lost'
  /** The app was told of its end as often as is tried, and took it at no time. */
  | 'notice_undelivered';

/** What the settle of one attempt sees of its request, under the request's lock. */
export interface RequestUnderLock {
  readonly state: RequestState;
  /** The evidence comes from the attempt with the highest number. */
  readonly isLastAttempt: boolean;
  /** The attempt has its outcome already: this is late evidence. */
  readonly isLate: boolean;
  readonly providerTaskId: string | null;
  /** Only one that asked for a stream can be accepted without a task. */
  readonly mode?: 'async' | 'stream';
  /** Attempts made so far, this one included. */
  readonly submissions: number;
  readonly maxSubmissions: number;
  /** The database had lost the attempt: whoever looked at the request since then didn't know of it. */
  readonly isLost?: boolean;
  /** A task id that an earlier attempt turned out to have been accepted under, if any did. */
  readonly earlierTaskId?: string | null;
  /** An unknown attempt that the database had lost came to light after this one was admitted. */
  readonly hasUnseenLoss?: boolean;
}

export interface AttemptEvidence {
  readonly outcome: Outcome;
  readonly httpStatus: number | null;
  readonly providerTaskId: string | null;
}

export type Settlement =
  /** Without a task: its answer is a stream. */
  | { readonly to: 'accepted'; readonly providerTaskId: string | null }
  /** Accepted, and failed by the first event of its stream. */
  | { readonly to: 'failed'; readonly failureReason: 'provider' }
  | {
      readonly to: 'rejected';
      readonly stateReason: 'request_refused' | 'max_submissions' | 'account_refused';
    }
  | { readonly to: 'ambiguous'; readonly stateReason: OutcomeReason }
  | { readonly to: 'queued'; readonly stateReason: OutcomeReason; readonly attention?: Attention }
  /** The request stays where it is; the evidence is kept. */
  | { readonly to: 'unchanged'; readonly attention?: Attention };

/** After so many returns to `queued` a person should look; nothing else changes. */
const MANY_SUBMISSIONS = 20;
const DEFINITE_REFUSALS: ReadonlySet<number> = new Set([400, 413, 422]);

/** Moves a request by the evidence of one of its attempts. The only way an outcome reaches a request. */
export function decideSettlement(request: RequestUnderLock, evidence: AttemptEvidence): Settlement {
  if (request.isLost === true && request.state === 'queued') return decideLostIntent(request, evidence);
  if (request.isLastAttempt && request.state === 'submitting' && !request.isLate) {
    return decideFirstSettlement(request, evidence);
  }
  return decideLateEvidence(request, evidence);
}

/**
 * The request is `queued` because the database forgot, not because anybody permitted another POST. Under a
 * later attempt too, an unknown outcome freezes it: the next POST might be paid a second time.
 */
function decideLostIntent(request: RequestUnderLock, evidence: AttemptEvidence): Settlement {
  if (evidence.outcome.certainty === 'unknown') return { to: 'ambiguous', stateReason: 'intent_lost' };
  return request.isLastAttempt
    ? decideFirstSettlement(request, evidence)
    : decideLateEvidence(request, evidence);
}

function decideFirstSettlement(request: RequestUnderLock, evidence: AttemptEvidence): Settlement {
  const { outcome } = evidence;
  switch (outcome.certainty) {
    case 'accepted':
      return acceptanceOf(request, evidence) ?? { to: 'ambiguous', stateReason: 'accepted_without_task_id' };
    case 'unknown':
      return { to: 'ambiguous', stateReason: outcome.reason };
    case 'unsent':
    case 'refused':
      return decideNothingBought(request, outcome.reason);
  }
}

/** Undefined: it names nothing that could be followed or read. */
function acceptanceOf(
  { mode }: RequestUnderLock,
  { outcome, providerTaskId }: AttemptEvidence,
): Settlement | undefined {
  if (outcome.certainty !== 'accepted') return undefined;
  if (isUsableTaskId(providerTaskId)) return { to: 'accepted', providerTaskId };
  if (mode !== 'stream' || !isOfStream(outcome.reason)) return undefined;
  return outcome.reason === 'stream_failed'
    ? { to: 'failed', failureReason: 'provider' }
    : { to: 'accepted', providerTaskId: null };
}

/** This attempt bought nothing. If another one did after all, the intent has its take. */
function decideNothingBought(request: RequestUnderLock, reason: OutcomeReason): Settlement {
  if (isUsableTaskId(request.earlierTaskId)) return { to: 'accepted', providerTaskId: request.earlierTaskId };
  if (request.hasUnseenLoss === true) return { to: 'ambiguous', stateReason: 'intent_lost' };
  if (reason === 'request_refused') return { to: 'rejected', stateReason: 'request_refused' };
  if (reason === 'resubmit_permitted' && request.submissions >= request.maxSubmissions) {
    return { to: 'rejected', stateReason: 'max_submissions' };
  }
  return request.submissions >= MANY_SUBMISSIONS
    ? { to: 'queued', stateReason: reason, attention: 'returned_many_times' }
    : { to: 'queued', stateReason: reason };
}

/**
 * Evidence that comes after somebody else has settled the attempt. It completes a frozen request and
 * withdraws a re-arm before it is paid; where a later attempt exists it can only raise the alarm, unless
 * nothing is on the wire and the next POST would buy a second time what is known to be bought.
 */
function decideLateEvidence(request: RequestUnderLock, evidence: AttemptEvidence): Settlement {
  const { outcome, providerTaskId, httpStatus } = evidence;
  const acceptance = acceptanceOf(request, evidence);
  const movable = request.isLastAttempt && ['submitting', 'ambiguous', 'queued'].includes(request.state);
  if (acceptance !== undefined && (movable || request.state === 'queued')) return acceptance;
  if (
    movable &&
    outcome.certainty === 'refused' &&
    httpStatus !== null &&
    DEFINITE_REFUSALS.has(httpStatus)
  ) {
    return { to: 'rejected', stateReason: 'request_refused' };
  }
  if (acceptance === undefined) return { to: 'unchanged' };
  if (providerTaskId !== null && providerTaskId === request.providerTaskId) return { to: 'unchanged' };
  const withdrawn = request.isLastAttempt && isTerminal(request.state) && request.providerTaskId === null;
  return { to: 'unchanged', attention: withdrawn ? 'paid_though_withdrawn' : 'possibly_paid_twice' };
}

/** How long a request that came back waits before it may go again, in ms. */
export function returnDelayMs(reason: OutcomeReason, submissions: number): number {
  switch (reason) {
    case 'unsent':
    case 'unsent_own_doing':
    case 'resubmit_permitted':
      return Math.min(60_000, 1_000 * 2 ** Math.min(submissions - 1, 6));
    default:
      // Capacity and account refusals wait for the account, not for a timer of their own.
      return 0;
  }
}
