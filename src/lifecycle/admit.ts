import { randomUUID } from 'node:crypto';
import { type AdmissionBlock, decideAdmission, RATE_WINDOW_MS } from '../core/admission.ts';
import { decidePermit, grantProbe } from '../core/circuit-breaker.ts';
import { elapsedMs, startOf } from '../core/clock.ts';
import type { BreakerTransition } from '../core/events.ts';
import { lockAccount } from '../postgres/accounts.ts';
import {
  breakerName,
  type CircuitBreakerRow,
  ensureCircuitBreaker,
  lockCircuitBreaker,
  writeTransition,
} from '../postgres/circuit-breakers.ts';
import { CommitUnknownError, retryDelayMs, type Sql } from '../postgres/database.ts';
import { listStillQueued, lockForAdmission } from '../postgres/generation-requests.ts';
import { countLoad, type Lane } from '../postgres/lanes.ts';
import {
  type Admission,
  type AdmittedAttempt,
  admitRequests,
  findCommittedAttempts,
} from '../postgres/submission-attempts.ts';
import type { WaitingJob } from '../queue/boss.ts';
import type { SubmissionContext } from './context.ts';
import { pause } from './pause.ts';

export interface AdmittedBatch {
  readonly attempts: readonly AdmittedAttempt[];
  /** False once the send budget is used up: after that, nothing of these attempts may be sent. */
  readonly maySend: () => boolean;
}

export type AdmitResult = AdmittedBatch | { readonly blockedBy: AdmissionBlock | 'no_job' };

/** Kept free at the end of the lease, for what lies between the last check and the first byte. */
const SEND_MARGIN_MS = 1_000;
/** A request that somebody else has locked is looked at again after this. */
const LOCKED_DELAY_MS = 1_000;
const COMMIT_RECHECKS = 40;

/**
 * Transaction A: as many permits as account and breaker allow, then as many jobs, then intent, committed
 * durably before anything is sent. It waits for the locks of account and breaker, in this order, and takes
 * jobs and requests with SKIP LOCKED, since settle comes from their side.
 */
export async function admit(ctx: SubmissionContext, lane: Lane, wanted: number): Promise<AdmitResult> {
  const settings = ctx.settingsOf(lane.operation);
  const budgetMs = settings.leaseMs - settings.deadlines.submissionMs - SEND_MARGIN_MS;
  // Before A's first statement: the lease, which A writes by the database's clock, can only end later.
  const start = startOf(ctx.clock);
  const maySend = () => elapsedMs(ctx.clock, start) < budgetMs;
  // The ids outlive a retry of the transaction, so that a lost COMMIT can be asked about.
  const attemptIds = Array.from({ length: wanted }, () => randomUUID());
  const plan = await commitPlan(ctx, lane, attemptIds);
  if ('blockedBy' in plan) return plan;
  report(ctx, plan);
  return { attempts: plan.attempts, maySend };
}

async function commitPlan(
  ctx: SubmissionContext,
  lane: Lane,
  attemptIds: readonly string[],
): Promise<AdmissionPlan> {
  const tried: { plan?: AdmissionPlan } = {};
  try {
    return await ctx.database.retryingTransaction(
      async (tx) => {
        delete tried.plan;
        tried.plan = await admitInTransaction(ctx, tx, lane, attemptIds);
        return tried.plan;
      },
      { tries: 3 },
    );
  } catch (error) {
    const { plan } = tried;
    if (!(error instanceof CommitUnknownError) || plan === undefined || 'blockedBy' in plan) throw error;
    return (await wasCommitted(ctx, plan.attempts)) ? plan : { blockedBy: 'no_job' };
  }
}

type AdmissionPlan =
  | { readonly blockedBy: AdmissionBlock | 'no_job' }
  | {
      readonly attempts: readonly AdmittedAttempt[];
      readonly isProbe: boolean;
      readonly transition: BreakerTransition | undefined;
    };

async function admitInTransaction(
  ctx: SubmissionContext,
  tx: Sql,
  lane: Lane,
  attemptIds: readonly string[],
): Promise<AdmissionPlan> {
  const account = await lockAccount(tx, lane.account);
  if (account === undefined) return { blockedBy: 'no_job' };
  const row = await lockBreaker(ctx, tx, lane);
  if (row === undefined) return { blockedBy: 'breaker' };
  const { now, ...load } = await countLoad(tx, lane.account, lane.operation);
  const permit = decidePermit(row.breaker, now);
  const admission = decideAdmission(
    account,
    { ...load, pausedUntil: account.pausedUntil, permit },
    attemptIds.length,
    now,
  );
  if ('blockedBy' in admission) return admission;

  const jobs = await ctx.queue.fetch(tx, lane.account, lane.operation, admission.permits);
  if (jobs.length === 0) return { blockedBy: 'no_job' };
  const eligible = await settleJobs(ctx, tx, lane, jobs, now);
  if (eligible.length === 0) return { blockedBy: 'no_job' };

  const admissions = eligible.map(
    (requestId, i): Admission => ({ requestId, attemptId: attemptIds[i] as string }),
  );
  const next = admission.probe ? grantProbe(row.breaker, attemptIds[0] as string, now) : undefined;
  const attempts = await admitRequests(tx, admissions, {
    ...termsOf(ctx, lane, now),
    generation: next?.generation ?? row.breaker.generation,
    holdEpoch: account.holdEpoch,
    isProbe: admission.probe,
  });
  const transition =
    next === undefined
      ? undefined
      : await writeTransition(
          tx,
          row,
          next,
          {
            cause: 'probe_granted',
            outcomeKind: null,
            httpStatus: null,
            requestId: eligible[0] as string,
            providerTaskId: null,
          },
          now,
        );
  return { attempts, isProbe: admission.probe, transition };
}

/**
 * A breaker that looked open is tried for without waiting: of all who wake at `retry_at`, one gets the lock
 * and the others have lost. A closed one is waited for.
 */
async function lockBreaker(
  ctx: SubmissionContext,
  tx: Sql,
  lane: Lane,
): Promise<CircuitBreakerRow | undefined> {
  const name = breakerName(lane.provider, lane.operation);
  if (lane.breakerState !== null && lane.breakerState !== 'closed')
    return lockCircuitBreaker(tx, name, 'skip');
  const row = await lockCircuitBreaker(tx, name, 'wait');
  if (row !== undefined) return row;
  await ensureCircuitBreaker(tx, name, ctx.settingsOf(lane.operation).breaker);
  return lockCircuitBreaker(tx, name, 'wait');
}

/** Completes the fetched jobs, sends again those whose time has not come, and says which may be admitted. */
async function settleJobs(
  ctx: SubmissionContext,
  tx: Sql,
  lane: Lane,
  jobs: readonly WaitingJob[],
  now: Date,
): Promise<string[]> {
  const ids = jobs.map((job) => job.data.requestId);
  const locked = new Map((await lockForAdmission(tx, ids)).map((request) => [request.id, request]));
  const eligible: string[] = [];
  const later: { id: string; at: Date }[] = [];
  for (const id of ids) {
    const request = locked.get(id);
    if (request?.state !== 'queued') continue;
    if (request.notBefore > now) later.push({ id, at: request.notBefore });
    // One past its deadline loses its job here and is expired by rescue.
    else if (request.submitBefore === null || request.submitBefore > now) eligible.push(id);
  }
  const unseen = ids.filter((id) => !locked.has(id));
  if (unseen.length > 0) {
    const at = new Date(now.getTime() + LOCKED_DELAY_MS);
    for (const id of await listStillQueued(tx, unseen)) later.push({ id, at });
  }
  await ctx.queue.complete(tx, lane.account, lane.operation, jobs);
  for (const { id, at } of later) {
    await ctx.queue.send(tx, { id, account: lane.account, operation: lane.operation }, at);
  }
  return eligible;
}

function termsOf(ctx: SubmissionContext, lane: Lane, now: Date) {
  const settings = ctx.settingsOf(lane.operation);
  const leaseEnd = now.getTime() + settings.leaseMs;
  return {
    breakerName: breakerName(lane.provider, lane.operation),
    worker: ctx.worker,
    startedAt: now,
    leaseExpiresAt: new Date(leaseEnd),
    windowUntil: new Date(leaseEnd + RATE_WINDOW_MS),
    slotUntil: new Date(leaseEnd + settings.maxRunMs),
    quarantineUntil: new Date(leaseEnd + settings.rearmQuarantineMs),
  };
}

/** Nothing has been sent yet, so there is time to ask; past the send budget the attempts settle as unsent. */
async function wasCommitted(ctx: SubmissionContext, attempts: readonly AdmittedAttempt[]): Promise<boolean> {
  for (let recheck = 1; ; recheck++) {
    try {
      const committed = await ctx.database.transaction((tx) => findCommittedAttempts(tx, attempts));
      return committed.length > 0;
    } catch (error) {
      if (recheck >= COMMIT_RECHECKS) throw error;
      await pause(retryDelayMs(recheck));
    }
  }
}

function report(ctx: SubmissionContext, plan: Extract<AdmissionPlan, { attempts: unknown }>): void {
  if (plan.transition !== undefined) ctx.emit('breaker:transition', plan.transition);
  for (const { requestId, attemptId, attempt, account, operation } of plan.attempts) {
    ctx.emit('submission:admitted', {
      requestId,
      attemptId,
      attempt,
      account,
      operation,
      isProbe: plan.isProbe,
    });
  }
}
