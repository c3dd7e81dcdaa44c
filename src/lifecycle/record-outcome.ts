import { RATE_WINDOW_MS } from '../core/admission.ts';
import type { OnetakeEvent } from '../core/events.ts';
import {
  type Attention,
  decideSettlement,
  type RequestState,
  type Settlement,
} from '../core/generation-request.ts';
import { outcomeAsTold, outcomeOfUnidentified } from '../core/outcome.ts';
import type { SubmissionOutcome, WireEvidence } from '../core/provider.ts';
import type { AttemptIntent } from '../core/spooled-outcome.ts';
import { READER_LEASE_MS } from '../core/stream.ts';
import { noteUnclaimedStream } from '../postgres/accepted-streams.ts';
import { CommitUnknownError, type Sql } from '../postgres/database.ts';
import { isAnswered, violatedConstraint } from '../postgres/errors.ts';
import { followOtherTasks } from '../postgres/followed-tasks.ts';
import {
  isTaskIdInUse,
  type LockedRequest,
  lockRequest,
  noteAttention,
  updateCharge,
} from '../postgres/generation-requests.ts';
import { writeHealthEffects } from '../postgres/health-due.ts';
import { doubtInstallation } from '../postgres/installation.ts';
import { findOtherTakes, INTENT_LOST, insertLostAttempt } from '../postgres/lost-attempts.ts';
import { settleAccepted } from '../postgres/settle-accepted.ts';
import {
  insertLateEvidence,
  type LockedAttempt,
  lockAttempt,
  writeOutcome,
} from '../postgres/submission-attempts.ts';
import type { RescueContext, SubmissionContext } from './context.ts';
import { disciplineAccount, noConsequences } from './discipline-account.ts';
import { moveRequest } from './move-request.ts';

export interface AttemptIds {
  readonly attemptId: string;
  readonly requestId: string;
}

/** What one B1 did, for the events after its commit. */
export interface Recorded {
  readonly kind:
    | 'recorded'
    /** It was recorded before: by a commit whose answer was lost, a replay, or another machine. */
    | 'repeat'
    /** There was nothing to record. */
    | 'nothing'
    /** It is its live worker's turn, which may still come. */
    | 'wait'
    /** The database has no such request: it is another one, or has lost it. */
    | 'unknown_request';
  readonly healthDue: boolean;
  readonly events: readonly OnetakeEvent[];
}

/** Emits what was committed; call it after the commit only. */
export function reportRecorded(ctx: Pick<RescueContext, 'emit'>, recorded: Recorded): void {
  for (const { name, event } of recorded.events) ctx.emit(name, event as never);
}

/** `replay`: an outcome that was kept on disk, by a process that may not be the one that sent the POST. */
export type Teller = 'worker' | 'replay' | 'rescue';

/**
 * B1: request, attempt, and the account when it is paused or held, locked in this order; then state,
 * evidence, task id and next job. Harmless twice. Outcomes are written once, by whoever settles first;
 * anything later is evidence. With `intent`, an attempt that the database doesn't know is written again.
 */
export async function recordOutcome(
  ctx: Pick<SubmissionContext, 'queue' | 'settingsOf'> & { readonly firstPollMs?: number },
  tx: Sql,
  ids: AttemptIds,
  observed: SubmissionOutcome,
  teller: Teller,
  intent?: AttemptIntent,
): Promise<Recorded> {
  const wasUnsent =
    observed.certainty === 'unsent' && (teller === 'worker' || intent?.isUnconfirmed === true);
  const found = await lockBoth(tx, ids, intent, wasUnsent);
  if ('kind' in found) return found;
  const { request, attempt, isLost } = found;
  if (attempt.settledBy === 'worker') {
    return { ...nothing('repeat'), healthDue: attempt.healthAppliedAt === null };
  }
  const isLate = attempt.settledAt !== null;
  if (teller === 'rescue' && (isLate || !attempt.leaseIsOver)) return nothing('nothing');
  // Its worker may live, and its word would free the request; from a file it proves nothing.
  const isForLiveAttempt = observed.certainty === 'unsent' && !isLate && !isLost && !attempt.leaseIsOver;
  if (teller === 'replay' && isForLiveAttempt) return nothing('wait');

  const told = outcomeAsTold(observed, teller === 'worker' && !attempt.leaseIsOver);
  const outcome = await withConflictingTask(tx, request, told);
  const { evidence } = outcome;
  let healthDue = false;
  if (isLate) {
    const isNew = await insertLateEvidence(tx, attempt.id, { ...evidence, certainty: outcome.certainty });
    if (!isNew) return nothing('repeat');
  } else {
    ({ healthDue } = await writeOutcome(tx, attempt.id, {
      ...evidence,
      headersSent: evidence.headersSent ?? null,
      headersSentProof: evidence.headersSentProof ?? null,
      settledBy: teller === 'rescue' ? 'rescue' : 'worker',
      health: outcome.health,
      certainty: outcome.certainty,
      reason: outcome.reason,
      arrivedBeforeMs: evidence.responseAgeMs,
      windowMs: RATE_WINDOW_MS,
      freesSlot: freesSlot(outcome),
    }));
  }
  if (isLost) {
    await writeHealthEffects(tx, [{ attemptId: attempt.id, effect: INTENT_LOST }]);
    healthDue = false;
  }
  const { maxSubmissions } = ctx.settingsOf(request.operation);
  const isLastAttempt = attempt.attempt === request.submissions;
  const boughtNothing = outcome.certainty === 'refused' || outcome.certainty === 'unsent';
  const others =
    isLastAttempt && boughtNothing ? await findOtherTakes(tx, request.id, attempt.id) : NO_OTHER_TAKES;
  const decided = decideSettlement(
    { ...request, isLastAttempt, isLate, isLost, maxSubmissions, ...others },
    { outcome, httpStatus: evidence.httpStatus, providerTaskId: evidence.providerTaskId },
  );
  const consequences = isLate ? noConsequences : await disciplineAccount(tx, request, attempt, outcome);
  const settlement: Settlement =
    consequences.rejects === true && decided.to === 'queued'
      ? { to: 'rejected', stateReason: 'account_refused' }
      : decided;
  // An acceptance that moves nothing is money without a request: a task is followed from now on. Before the request
  // is touched, whose charge counts each task for itself.
  const isStray = outcome.certainty === 'accepted' && settlement.to === 'unchanged';
  if (isStray && evidence.providerTaskId === null) await noteUnclaimedStream(tx, attempt.id);
  else if (isStray && evidence.providerTaskId !== request.providerTaskId) {
    await followOtherTasks(tx, request.id);
  }
  const { errorCode } = evidence;
  await moveRequest(ctx, tx, request, settlement, { ...ids, errorCode, notBefore: consequences.notBefore });
  // Of a request that stays where it is, too.
  if (isLost) await updateCharge(tx, request.id);
  // What has lost one confirmed attempt may have lost others, whose workers are gone.
  if (isLost && intent) await doubtInstallation(tx, 'intent_lost', intent.worker, intent.startedAt);

  const attention = attentionOf(settlement, evidence);
  if (attention !== null) await noteAttention(tx, request.id, attention);
  const to = settlement.to === 'unchanged' ? request.state : settlement.to;
  const events = [
    settledEvent({ ...ids, state: request.state }, to, outcome, attention),
    ...consequences.events,
  ];
  const { requestId, attemptId } = ids;
  if (evidence.repeatedSend === true) {
    events.push({ name: 'submission:repeated', event: { requestId, attemptId } });
  }
  if (outcome.alert || attention !== null || isLost) {
    const reason = isLost ? 'intent_lost' : outcome.reason;
    const event = { requestId, attemptId, reason, httpStatus: evidence.httpStatus };
    events.push({ name: 'submission:alert', event });
  }
  return { kind: 'recorded', healthDue, events };
}

const NO_OTHER_TAKES = { earlierTaskId: null, hasUnseenLoss: false } as const;

function nothing(kind: Exclude<Recorded['kind'], 'recorded'>): Recorded {
  return { kind, healthDue: false, events: [] };
}

interface UnderLock {
  readonly request: LockedRequest;
  readonly attempt: LockedAttempt;
  /** The database had lost the attempt, and has its row again. */
  readonly isLost: boolean;
}

/**
 * `wasUnsent`: a database that knows nothing of the attempt is right. Its worker says so itself, or has never known
 * the attempt to be committed; under the request's lock it isn't, and never will be.
 */
async function lockBoth(
  tx: Sql,
  ids: AttemptIds,
  intent: AttemptIntent | undefined,
  wasUnsent: boolean,
): Promise<UnderLock | Recorded> {
  const request = await lockRequest(tx, ids.requestId);
  const attempt = request && (await lockAttempt(tx, ids.attemptId));
  if (request !== undefined && attempt !== undefined) return { request, attempt, isLost: false };
  if (intent === undefined || wasUnsent) return nothing('nothing');
  if (request === undefined) return nothing('unknown_request');
  await insertLostAttempt(tx, intent);
  return {
    request: (await lockRequest(tx, ids.requestId)) as LockedRequest,
    attempt: (await lockAttempt(tx, ids.attemptId)) as LockedAttempt,
    isLost: true,
  };
}

/**
 * The common path, in one statement; undefined: something is out of the ordinary, and goes the long way. `plan`
 * is told what a statement whose answer was lost would have recorded.
 */
export async function recordAcceptance(
  ctx: SubmissionContext,
  ids: AttemptIds,
  outcome: SubmissionOutcome,
  plan: (recorded: Recorded) => void,
): Promise<Recorded | undefined> {
  const { evidence, reason } = outcome;
  const isPlain = reason === 'task_accepted' ? evidence.providerTaskId !== null : reason === 'stream_started';
  if (!isPlain || outcome.alert) return undefined;
  const request = { ...ids, state: 'submitting' } as const;
  const events = [settledEvent(request, 'accepted', outcome, null)];
  let settled: { healthDue: boolean } | undefined;
  try {
    settled = await settleAccepted(ctx.database, ids, {
      taskId: evidence.providerTaskId,
      reason,
      phase: evidence.phase,
      httpStatus: evidence.httpStatus,
      arrivedBeforeMs: evidence.responseAgeMs,
      windowMs: RATE_WINDOW_MS,
      closed: evidence.closed,
      firstPollMs: ctx.firstPollMs,
      readerLeaseMs: READER_LEASE_MS,
      headersSent: evidence.headersSent ?? null,
      headersSentProof: evidence.headersSentProof ?? null,
    });
  } catch (error) {
    // The id is another request's: under the lock, the long way says so.
    if (violatedConstraint(error) === 'generation_requests_task_once') return undefined;
    // One statement is its own commit.
    if (!isAnswered(error)) plan({ kind: 'recorded', healthDue: true, events });
    throw isAnswered(error) ? error : new CommitUnknownError(error);
  }
  return settled && { kind: 'recorded', healthDue: settled.healthDue, events };
}

/** Its fields are named one by one: what the caller hands in may carry the prompt. */
function settledEvent(
  request: { readonly requestId: string; readonly attemptId: string; readonly state: RequestState },
  to: RequestState,
  outcome: SubmissionOutcome,
  attention: Attention | null,
): OnetakeEvent {
  const { evidence } = outcome;
  return {
    name: 'submission:settled',
    event: {
      requestId: request.requestId,
      attemptId: request.attemptId,
      from: request.state,
      to,
      reason: outcome.reason,
      health: outcome.health,
      certainty: outcome.certainty,
      phase: evidence.phase,
      httpStatus: evidence.httpStatus,
      errorCode: evidence.errorCode,
      providerTaskId: evidence.providerTaskId,
      attention,
    },
  };
}

/** A 2xx with the id of another request of the account names no task of ours. */
async function withConflictingTask(
  tx: Sql,
  request: LockedRequest,
  outcome: SubmissionOutcome,
): Promise<SubmissionOutcome> {
  const { providerTaskId } = outcome.evidence;
  if (outcome.certainty !== 'accepted' || providerTaskId === null) return outcome;
  if (!(await isTaskIdInUse(tx, request.account, providerTaskId, request.id))) return outcome;
  return { ...outcome, ...outcomeOfUnidentified('task_id_conflict') };
}

/** The provider runs nothing for this attempt: it refused, got nothing, or answered that it failed. */
function freesSlot(outcome: SubmissionOutcome): boolean {
  const { httpStatus } = outcome.evidence;
  if (outcome.certainty === 'refused' || outcome.certainty === 'unsent') return true;
  if (outcome.reason === 'stream_failed') return true;
  return outcome.certainty === 'unknown' && httpStatus !== null && httpStatus >= 500 && httpStatus <= 599;
}

/** Money that is known to be spent twice comes before a client that tried to. */
function attentionOf(settlement: Settlement, evidence: WireEvidence): Attention | null {
  const attention = 'attention' in settlement ? (settlement.attention ?? null) : null;
  return evidence.repeatedSend === true && attention !== 'possibly_paid_twice' ? 'repeated_send' : attention;
}
