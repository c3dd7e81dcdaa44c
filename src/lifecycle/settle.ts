import { RATE_WINDOW_MS } from '../core/admission.ts';
import type { OnetakeEvent } from '../core/events.ts';
import {
  type Attention,
  decideSettlement,
  type RequestState,
  returnDelayMs,
  type Settlement,
} from '../core/generation-request.ts';
import { outcomeAsTold, outcomeOfUnidentified } from '../core/outcome.ts';
import type { SubmissionOutcome, WireEvidence } from '../core/provider.ts';
import { retryDelayMs, type Sql } from '../postgres/database.ts';
import { databaseErrorCode, violatedConstraint } from '../postgres/errors.ts';
import {
  acceptRequest,
  freezeRequest,
  isTaskIdInUse,
  type LockedRequest,
  lockRequest,
  markJobDue,
  noteAttention,
  rejectRequest,
  returnRequest,
} from '../postgres/generation-requests.ts';
import { settleAccepted } from '../postgres/settle-accepted.ts';
import {
  findEarlierAcceptance,
  insertLateEvidence,
  lockAttempt,
  writeOutcome,
} from '../postgres/submission-attempts.ts';
import { applyHealth } from './apply-health.ts';
import type { RescueContext, SubmissionContext } from './context.ts';
import { disciplineAccount, noConsequences } from './discipline-account.ts';
import { pause } from './pause.ts';

/** Tries of B1 before it is left to rescue: about ten minutes of a database that is away. */
const SETTLE_TRIES = 600;

/** Settles one attempt: B1 the money, B2 the health, then the events. */
export async function settle(
  ctx: SubmissionContext,
  attempt: { readonly attemptId: string; readonly requestId: string },
  outcome: SubmissionOutcome,
): Promise<void> {
  const recorded = await recordPatiently(ctx, attempt, outcome);
  if (recorded === undefined) return;
  reportRecorded(ctx, recorded);
  if (!recorded.healthDue) return;
  try {
    await applyHealth(ctx, attempt.attemptId);
  } catch (error) {
    // The evidence is on the attempt; rescue applies it.
    ctx.emit('process:trouble', { role: 'worker', loop: 'health', errorCode: databaseErrorCode(error) });
  }
}

/**
 * The outcome of a paid POST is in hand, so B1 is tried for as long as is sensible; only the transaction is
 * repeated, never the POST. A COMMIT with an unknown outcome is a repeat like any other: under the lock, B1
 * sees that it has happened.
 */
async function recordPatiently(
  ctx: SubmissionContext,
  attempt: { readonly attemptId: string; readonly requestId: string },
  outcome: SubmissionOutcome,
): Promise<Recorded | undefined> {
  for (let tried = 1; ; tried++) {
    try {
      const accepted = tried === 1 ? await recordAcceptance(ctx, attempt, outcome) : undefined;
      if (accepted !== undefined) return accepted;
      return await ctx.database.transaction((tx) => recordOutcome(ctx, tx, attempt, outcome, 'worker'));
    } catch (error) {
      if (tried === 1 || tried === SETTLE_TRIES) {
        // The log line is the second copy: an operator can attach the task id by hand.
        const { requestId, attemptId } = attempt;
        const { providerTaskId } = outcome.evidence;
        const errorCode = databaseErrorCode(error);
        ctx.emit('submission:unsettled', { requestId, attemptId, providerTaskId, errorCode });
      }
      if (tried === SETTLE_TRIES) return undefined;
      await pause(retryDelayMs(tried));
    }
  }
}

/** The common path, in one statement; whatever is out of the ordinary goes the long way. */
async function recordAcceptance(
  ctx: SubmissionContext,
  ids: { readonly attemptId: string; readonly requestId: string },
  outcome: SubmissionOutcome,
): Promise<Recorded | undefined> {
  const { evidence } = outcome;
  if (outcome.reason !== 'task_accepted' || evidence.providerTaskId === null || outcome.alert)
    return undefined;
  let settled: { healthDue: boolean } | undefined;
  try {
    settled = await settleAccepted(ctx.database, ids, {
      taskId: evidence.providerTaskId,
      httpStatus: evidence.httpStatus,
      arrivedBeforeMs: evidence.responseAgeMs,
      windowMs: RATE_WINDOW_MS,
      closed: evidence.closed,
      firstPollMs: ctx.firstPollMs,
      headersSent: evidence.headersSent ?? null,
      headersSentProof: evidence.headersSentProof ?? null,
    });
  } catch (error) {
    // The id is another request's: under the lock, the long way says so.
    if (violatedConstraint(error) === 'generation_requests_task_once') return undefined;
    throw error;
  }
  if (settled === undefined) return undefined;
  const request = { ...ids, state: 'submitting' } as const;
  return { healthDue: settled.healthDue, events: [settledEvent(request, 'accepted', outcome, null)] };
}

/** What one B1 did, for the events after its commit. */
export interface Recorded {
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
 * anything later is evidence.
 */
export async function recordOutcome(
  ctx: Pick<SubmissionContext, 'queue' | 'settingsOf'> & { readonly firstPollMs?: number },
  tx: Sql,
  ids: { readonly attemptId: string; readonly requestId: string },
  observed: SubmissionOutcome,
  teller: Teller,
): Promise<Recorded> {
  const request = await lockRequest(tx, ids.requestId);
  const attempt = await lockAttempt(tx, ids.attemptId);
  const nothing: Recorded = { healthDue: false, events: [] };
  if (request === undefined || attempt === undefined) return nothing;
  if (attempt.settledBy === 'worker') {
    // Our own commit whose answer was lost: the worker settles once.
    return { ...nothing, healthDue: attempt.healthAppliedAt === null };
  }
  const isLate = attempt.settledAt !== null;
  if (teller === 'rescue' && (isLate || !attempt.leaseIsOver)) return nothing;

  const told = outcomeAsTold(observed, teller === 'worker' && !attempt.leaseIsOver);
  const outcome = await withConflictingTask(tx, request, told);
  const { evidence } = outcome;
  let healthDue = false;
  if (isLate) await insertLateEvidence(tx, attempt.id, { ...evidence, certainty: outcome.certainty });
  else {
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
  const { maxSubmissions } = ctx.settingsOf(request.operation);
  const isLastAttempt = attempt.attempt === request.submissions;
  const boughtNothing = outcome.certainty === 'refused' || outcome.certainty === 'unsent';
  const earlierTaskId =
    isLastAttempt && boughtNothing && attempt.attempt > 1
      ? await findEarlierAcceptance(tx, request.id, attempt.attempt)
      : null;
  const settlement = decideSettlement(
    { ...request, isLastAttempt, isLate, maxSubmissions, earlierTaskId },
    { outcome, httpStatus: evidence.httpStatus, providerTaskId: evidence.providerTaskId },
  );
  const consequences = isLate ? noConsequences : await disciplineAccount(tx, request, attempt, outcome);
  await moveRequest(ctx, tx, request, settlement, consequences.notBefore);

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
  if (outcome.alert || attention !== null) {
    const event = { requestId, attemptId, reason: outcome.reason, httpStatus: evidence.httpStatus };
    events.push({ name: 'submission:alert', event });
  }
  return { healthDue, events };
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
  return outcome.certainty === 'unknown' && httpStatus !== null && httpStatus >= 500 && httpStatus <= 599;
}

async function moveRequest(
  ctx: Pick<SubmissionContext, 'queue'> & { readonly firstPollMs?: number },
  tx: Sql,
  request: LockedRequest,
  settlement: Settlement,
  notBefore: Date | null,
): Promise<void> {
  switch (settlement.to) {
    case 'accepted':
      await acceptRequest(tx, request.id, settlement.providerTaskId, ctx.firstPollMs ?? 0);
      break;
    case 'rejected':
      await rejectRequest(tx, request.id, settlement.stateReason);
      break;
    case 'ambiguous':
      await freezeRequest(tx, request.id, settlement.stateReason);
      break;
    case 'queued': {
      const delayMs = returnDelayMs(settlement.stateReason, request.submissions);
      const due = await returnRequest(tx, request.id, settlement.stateReason, delayMs, notBefore);
      await sendJob(ctx, tx, request, due);
      break;
    }
    case 'unchanged':
      break;
  }
}

/** Money that is known to be spent twice comes before a client that tried to. */
function attentionOf(settlement: Settlement, evidence: WireEvidence): Attention | null {
  const attention = 'attention' in settlement ? (settlement.attention ?? null) : null;
  return evidence.repeatedSend === true && attention !== 'possibly_paid_twice' ? 'repeated_send' : attention;
}

/** An outcome is never rolled back on account of a job: what can't be sent here, rescue sends. */
async function sendJob(
  ctx: Pick<SubmissionContext, 'queue'>,
  tx: Sql,
  request: LockedRequest,
  due: Date,
): Promise<void> {
  await tx.executeSql('savepoint onetake_job');
  try {
    await ctx.queue.send(tx, request, due);
  } catch {
    await tx.executeSql('rollback to savepoint onetake_job');
    await markJobDue(tx, request.id);
  }
  await tx.executeSql('release savepoint onetake_job');
}
