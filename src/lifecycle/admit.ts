import { randomUUID } from 'node:crypto';
import {
  type AdmissionBlock,
  type Admission as Decision,
  decideAdmission,
  RATE_WINDOW_MS,
} from '../core/admission.ts';
import {
  type BreakerOverride,
  decidePermit,
  grantProbe,
  overrideAt,
  type Permit,
} from '../core/circuit-breaker.ts';
import { elapsedMs, startOf } from '../core/clock.ts';
import type { BreakerTransition } from '../core/events.ts';
import { type Account, lockAccount } from '../postgres/accounts.ts';
import {
  breakerName,
  type CircuitBreakerRow,
  countInFlight,
  ensureCircuitBreaker,
  lockCircuitBreaker,
  writeTransition,
} from '../postgres/circuit-breakers.ts';
import { CommitUnknownError, retryDelayMs, type Sql } from '../postgres/database.ts';
import { countLoad, type Lane } from '../postgres/lanes.ts';
import {
  type AdmittedAttempt,
  type AttemptTerms,
  admitRequests,
  findCommittedAttempts,
} from '../postgres/submission-attempts.ts';
import type { SubmissionContext } from './context.ts';
import { pause } from './pause.ts';
import { takeJobs, takeProbe } from './take-jobs.ts';

export interface AdmittedBatch {
  readonly attempts: readonly AdmittedAttempt[];
  /** False once the send budget is used up: after that, nothing of these attempts may be sent. */
  readonly maySend: () => boolean;
}

/** `stale_jobs`: jobs were taken, and none of them is of a request that waits; there may be more. */
type Blocked = { readonly blockedBy: AdmissionBlock | 'no_job' | 'stale_jobs' };

export type AdmitResult = AdmittedBatch | Blocked;

export interface AdmitOptions {
  /** At most so many. */
  readonly wanted: number;
  /** Set: only as the probe, and with this request. Else never as the probe of a breaker that refuses. */
  readonly probeWith?: string;
}

/** Kept free at the end of the lease, for what lies between the last check and the first byte. */
const SEND_MARGIN_MS = 1_000;
/**
 * An account or breaker that somebody has locked costs the other lanes this long; fleets hold these locks for
 * a few ms. The next round tries again.
 */
const PATIENCE = { lockTimeoutMs: 1_500, tries: 1 } as const;
const COMMIT_RECHECKS = 40;

/**
 * Transaction A: as many permits as account and breaker allow, then as many jobs, then intent, committed
 * durably before anything is sent. It waits for the locks of account and breaker, in this order, and takes
 * jobs and requests with SKIP LOCKED, since settle comes from their side.
 */
export async function admit(ctx: SubmissionContext, lane: Lane, options: AdmitOptions): Promise<AdmitResult> {
  const settings = ctx.settingsOf(lane.operation);
  const budgetMs = settings.leaseMs - settings.deadlines.submissionMs - SEND_MARGIN_MS;
  // Before A's first statement: the lease, which A writes by the database's clock, can only end later.
  const start = startOf(ctx.clock);
  const maySend = () => elapsedMs(ctx.clock, start) < budgetMs;
  // The ids outlive a retry of the transaction, so that a lost COMMIT can be asked about.
  const attemptIds = Array.from({ length: options.wanted }, () => randomUUID());
  const plan = await commitPlan(ctx, lane, attemptIds, options);
  if ('blockedBy' in plan) return plan;
  report(ctx, plan);
  return { attempts: plan.attempts, maySend };
}

type AdmissionPlan =
  | Blocked
  | {
      readonly attempts: readonly AdmittedAttempt[];
      readonly probeAttemptId: string | undefined;
      readonly transition: BreakerTransition | undefined;
    };

async function commitPlan(
  ctx: SubmissionContext,
  lane: Lane,
  attemptIds: readonly string[],
  options: AdmitOptions,
): Promise<AdmissionPlan> {
  const tried: { plan?: AdmissionPlan } = {};
  try {
    return await ctx.database.retryingTransaction(async (tx) => {
      delete tried.plan;
      tried.plan = await admitInTransaction(ctx, tx, lane, attemptIds, options);
      return tried.plan;
    }, PATIENCE);
  } catch (error) {
    const { plan } = tried;
    if (!(error instanceof CommitUnknownError) || plan === undefined || 'blockedBy' in plan) throw error;
    return (await wasCommitted(ctx, plan.attempts)) ? plan : { blockedBy: 'no_job' };
  }
}

async function admitInTransaction(
  ctx: SubmissionContext,
  tx: Sql,
  lane: Lane,
  attemptIds: readonly string[],
  options: AdmitOptions,
): Promise<AdmissionPlan> {
  const account = await lockAccount(tx, lane.account);
  if (account === undefined) return { blockedBy: 'no_job' };
  const row = await lockBreaker(ctx, tx, lane, options);
  if (row === undefined) return { blockedBy: 'breaker' };
  const { now, ...load } = await countLoad(tx, lane.account, lane.operation);
  const override = overrideAt({ override: row.override, expiresAt: row.overrideExpiresAt }, now);
  const permit = decidePermit(row.breaker, now, { override, shadow: row.settings.shadow });
  // Whoever comes for the probe takes it or nothing, and nobody else may.
  if ((permit.permit === 'probe') !== (options.probeWith !== undefined)) return { blockedBy: 'breaker' };
  const admission = decideAdmission(
    account,
    { ...load, pausedUntil: account.pausedUntil, permit, inFlight: await inFlightOf(tx, row, permit) },
    attemptIds.length,
    now,
  );
  if ('blockedBy' in admission) return admission;

  const { eligible, taken } =
    options.probeWith === undefined
      ? await takeJobs(ctx.queue, tx, lane, admission.permits, now)
      : { eligible: await takeProbe(ctx.queue, tx, lane, options.probeWith, now), taken: 0 };
  if (eligible.length === 0) return { blockedBy: taken > 0 ? 'stale_jobs' : 'no_job' };
  return writeIntent(ctx, tx, { lane, account, row, override, admission, eligible, attemptIds, now });
}

interface Intent {
  readonly lane: Lane;
  readonly account: Account;
  readonly row: CircuitBreakerRow;
  readonly override: BreakerOverride | null;
  readonly admission: Extract<Decision, { probe: unknown }>;
  /** Locked, queued and due. */
  readonly eligible: readonly string[];
  readonly attemptIds: readonly string[];
  readonly now: Date;
}

/** Attempts, requests and, for a probe, the breaker: one transaction, before the network. */
async function writeIntent(ctx: SubmissionContext, tx: Sql, intent: Intent): Promise<AdmissionPlan> {
  const { lane, row, admission, eligible, attemptIds, now } = intent;
  const admissions = eligible.map((requestId, i) => ({ requestId, attemptId: attemptIds[i] as string }));
  const probeAttemptId = admission.probe === 'none' ? undefined : (attemptIds[0] as string);
  const next = probeAttemptId === undefined ? undefined : grantProbe(row.breaker, probeAttemptId, now);
  const terms: Omit<AttemptTerms, 'isProbe'> = {
    ...leaseTerms(ctx, lane, now),
    generation: next?.generation ?? row.breaker.generation,
    holdEpoch: intent.account.holdEpoch,
    override: intent.override,
  };
  const probes = next === undefined ? [] : admissions.slice(0, 1);
  const others = admissions.slice(probes.length);
  const attempts = [
    ...(probes.length === 0 ? [] : await admitRequests(tx, probes, { ...terms, isProbe: true })),
    ...(others.length === 0 ? [] : await admitRequests(tx, others, { ...terms, isProbe: false })),
  ];
  if (next === undefined) return { attempts, probeAttemptId: undefined, transition: undefined };
  const context = {
    cause: 'probe_granted',
    outcomeKind: null,
    httpStatus: null,
    requestId: eligible[0] as string,
    providerTaskId: null,
  } as const;
  return { attempts, probeAttemptId, transition: await writeTransition(tx, row, next, context, now) };
}

/**
 * For a probe the lock is tried without waiting: of all who wake at `retry_at`, one gets it and the others
 * have lost. Else it is waited for.
 */
async function lockBreaker(
  ctx: SubmissionContext,
  tx: Sql,
  lane: Lane,
  options: AdmitOptions,
): Promise<CircuitBreakerRow | undefined> {
  const name = breakerName(lane.provider, lane.operation);
  if (options.probeWith !== undefined) return lockCircuitBreaker(tx, name, 'skip');
  const row = await lockCircuitBreaker(tx, name, 'wait');
  if (row !== undefined) return row;
  await ensureCircuitBreaker(tx, name, ctx.settingsOf(lane.operation).breaker);
  return lockCircuitBreaker(tx, name, 'wait');
}

async function inFlightOf(tx: Sql, row: CircuitBreakerRow, permit: Permit): Promise<number> {
  if (permit.permit !== 'allow' || permit.atMost === undefined) return 0;
  return countInFlight(tx, row.name, row.breaker.generation);
}

function leaseTerms(ctx: SubmissionContext, lane: Lane, now: Date) {
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
    const isProbe = attemptId === plan.probeAttemptId;
    ctx.emit('submission:admitted', { requestId, attemptId, attempt, account, operation, isProbe });
  }
}
