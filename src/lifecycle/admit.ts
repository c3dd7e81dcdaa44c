import { randomUUID } from 'node:crypto';
import { type AdmissionBlock, decideAdmission } from '../core/admission.ts';
import { type BreakerOverride, decidePermit, overrideAt, type Permit } from '../core/circuit-breaker.ts';
import { stopwatch } from '../core/clock.ts';
import { type Account, lockAccountToAdmit } from '../postgres/accounts.ts';
import {
  breakerName,
  type CircuitBreakerRow,
  countInFlight,
  ensureCircuitBreaker,
  lockCircuitBreaker,
  peekCircuitBreaker,
} from '../postgres/circuit-breakers.ts';
import { readClock } from '../postgres/clock.ts';
import { CommitUnknownError, retryDelayMs, type Sql } from '../postgres/database.ts';
import { countLoad, type Lane, type LaneLoadRow } from '../postgres/lanes.ts';
import { type AdmittedAttempt, findCommittedAttempts } from '../postgres/submission-attempts.ts';
import { announce } from './announce.ts';
import type { SubmissionContext } from './context.ts';
import { pause } from './pause.ts';
import { takeJobs, takeProbe } from './take-jobs.ts';
import { type WrittenIntent, writeIntent } from './write-intent.ts';

export interface AdmittedBatch {
  readonly attempts: readonly AdmittedAttempt[];
  /** False once the send budget is used up, or the request's own deadline has passed: then nothing may be sent. */
  readonly maySend: (attempt: AdmittedAttempt) => boolean;
}

/** `stale_jobs`: jobs were taken, and none of them is of a request that waits; there may be more. */
type Blocked = { readonly blockedBy: AdmissionBlock | 'no_job' | 'stale_jobs' | 'installation' };

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

/**
 * Transaction A: as many permits as account and breaker allow, then as many jobs, then intent, committed
 * durably before anything is sent. It waits for the locks of account and breaker only, and takes jobs and
 * requests with SKIP LOCKED, since settle comes from their side.
 */
export async function admit(ctx: SubmissionContext, lane: Lane, options: AdmitOptions): Promise<AdmitResult> {
  const settings = ctx.settingsOf(lane.operation);
  const budgetMs = settings.leaseMs - settings.deadlines.submissionMs - SEND_MARGIN_MS;
  // Before A's first statement: the lease, which A writes by the database's clock, can only end later.
  const elapsedMs = stopwatch(ctx.clock);
  const mayAsk = () => elapsedMs() < budgetMs;
  // Counted from admission by the database's clock, which is the one that the deadline is held against.
  const maySend = ({ submitBefore, startedAt }: AdmittedAttempt) =>
    mayAsk() && (submitBefore === null || elapsedMs() < submitBefore.getTime() - startedAt.getTime());
  // The ids outlive a retry of the transaction, so that a lost COMMIT can be asked about.
  const attemptIds = Array.from({ length: options.wanted }, () => randomUUID());
  const plan = await commitPlan(ctx, lane, attemptIds, options, mayAsk);
  if ('blockedBy' in plan) return plan;
  // Whether A was committed or not, nothing of it was sent, and nothing will be: so much its worker can settle.
  if (plan.isConfirmed === false) {
    const attempts = plan.attempts.map((attempt) => ({ ...attempt, isUnconfirmed: true }));
    return { attempts, maySend: () => false };
  }
  for (const { attemptId } of plan.attempts.slice(-1)) ctx.guard.committed(attemptId);
  await report(ctx, plan);
  return { attempts: plan.attempts, maySend };
}

/** `isConfirmed` false: nobody could be asked, as long as it mattered. */
type AdmissionPlan = Blocked | (WrittenIntent & { readonly isConfirmed?: false });

async function commitPlan(
  ctx: SubmissionContext,
  lane: Lane,
  attemptIds: readonly string[],
  options: AdmitOptions,
  mayAsk: () => boolean,
): Promise<AdmissionPlan> {
  const tried: { plan?: AdmissionPlan } = {};
  try {
    return await ctx.database.retryingTransaction(async (tx) => {
      delete tried.plan;
      tried.plan = await admitInTransaction(ctx, tx, lane, attemptIds, options);
      return tried.plan;
    }, PATIENCE);
  } catch (error) {
    if (error instanceof BreakerMovedError) return { blockedBy: 'breaker' };
    const { plan } = tried;
    if (!(error instanceof CommitUnknownError) || plan === undefined || 'blockedBy' in plan) throw error;
    const committed = await wasCommitted(ctx, plan.attempts, mayAsk);
    if (committed === undefined) return { ...plan, isConfirmed: false };
    return committed ? plan : { blockedBy: 'no_job' };
  }
}

async function admitInTransaction(
  ctx: SubmissionContext,
  tx: Sql,
  lane: Lane,
  attemptIds: readonly string[],
  options: AdmitOptions,
): Promise<AdmissionPlan> {
  const account = await lockAccountToAdmit(tx, lane.account, ctx.guard.mark);
  if (account === undefined) return { blockedBy: 'no_job' };
  ctx.guard.note(account);
  if (account.trouble !== null) return { blockedBy: 'installation' };
  const name = breakerName(lane.provider, lane.operation);
  const seen = options.probeWith === undefined ? await peekCircuitBreaker(tx, name) : undefined;
  const { now, ...load } = await countLoad(tx, lane.account, lane.operation);
  const terms = { tx, lane, account, load, now, attemptIds };
  return seen !== undefined && isPlain(permitOf(seen, now))
    ? admitUnhindered(ctx, terms, name)
    : admitUnderBreaker(ctx, terms, options.probeWith);
}

/** One transaction A, with its account locked and counted. */
interface Counted {
  readonly tx: Sql;
  readonly lane: Lane;
  readonly account: Account;
  readonly load: Omit<LaneLoadRow, 'now'>;
  readonly now: Date;
  readonly attemptIds: readonly string[];
}

/**
 * The breaker looked closed, so its row is locked last, for the few ms until the commit is on disk, and what
 * was seen is decided again under the lock: accounts of one operation queue up for nothing but that.
 */
async function admitUnhindered(ctx: SubmissionContext, terms: Counted, name: string): Promise<AdmissionPlan> {
  const { tx, lane, account, load, now, attemptIds } = terms;
  const permit: Permit = { permit: 'allow' };
  const admission = decideAdmission(
    account,
    { ...load, pausedUntil: account.pausedUntil, permit },
    attemptIds.length,
    now,
  );
  if ('blockedBy' in admission) return admission;
  const { eligible, taken } = await takeJobs(ctx.queue, tx, lane, admission.permits, now);
  if (eligible.length === 0) return { blockedBy: taken > 0 ? 'stale_jobs' : 'no_job' };
  const row = await lockCircuitBreaker(tx, name, 'wait');
  const lockedAt = row === undefined || row.override === null ? now : await readClock(tx);
  if (row === undefined || !isPlain(permitOf(row, lockedAt))) throw new BreakerMovedError();
  const override = overrideOf(row, lockedAt);
  return writeIntent(ctx, tx, { lane, account, row, override, admission, eligible, attemptIds, now });
}

/** The breaker opened between the look and the lock. Thrown, so that the jobs stay where they were. */
class BreakerMovedError extends Error {
  constructor() {
    super('the breaker moved while jobs were taken');
    this.name = 'BreakerMovedError';
  }
}

/** A probe, or a breaker that counts: its row is locked before anything is taken. */
async function admitUnderBreaker(
  ctx: SubmissionContext,
  terms: Counted,
  probeWith: string | undefined,
): Promise<AdmissionPlan> {
  const { tx, lane, account, attemptIds } = terms;
  const row = await lockBreaker(ctx, tx, lane, probeWith);
  if (row === undefined) return { blockedBy: 'breaker' };
  // Counted again: the wait for the lock may have been long.
  const { now, ...load } = await countLoad(tx, lane.account, lane.operation);
  const permit = permitOf(row, now);
  // Whoever comes for the probe takes it or nothing, and nobody else may.
  if ((permit.permit === 'probe') !== (probeWith !== undefined)) return { blockedBy: 'breaker' };
  const admission = decideAdmission(
    account,
    { ...load, pausedUntil: account.pausedUntil, permit, inFlight: await inFlightOf(tx, row, permit) },
    attemptIds.length,
    now,
  );
  if ('blockedBy' in admission) return admission;

  const { eligible, taken } =
    probeWith === undefined
      ? await takeJobs(ctx.queue, tx, lane, admission.permits, now)
      : { eligible: await takeProbe(ctx.queue, tx, lane, probeWith, now), taken: 0 };
  if (eligible.length === 0) return { blockedBy: taken > 0 ? 'stale_jobs' : 'no_job' };
  const override = overrideOf(row, now);
  return writeIntent(ctx, tx, { lane, account, row, override, admission, eligible, attemptIds, now });
}

function overrideOf(row: CircuitBreakerRow, now: Date): BreakerOverride | null {
  return overrideAt({ override: row.override, expiresAt: row.overrideExpiresAt }, now);
}

function permitOf(row: CircuitBreakerRow, now: Date): Permit {
  return decidePermit(row.breaker, now, { override: overrideOf(row, now), shadow: row.settings.shadow });
}

/** Lets any number through, so that nothing under the breaker's lock has to be counted. */
function isPlain(permit: Permit): boolean {
  return permit.permit === 'allow' && permit.atMost === undefined;
}

/**
 * For a probe the lock is tried without waiting: of all who wake at `retry_at`, one gets it and the others
 * have lost. Else it is waited for.
 */
async function lockBreaker(
  ctx: SubmissionContext,
  tx: Sql,
  lane: Lane,
  probeWith: string | undefined,
): Promise<CircuitBreakerRow | undefined> {
  const name = breakerName(lane.provider, lane.operation);
  if (probeWith !== undefined) return lockCircuitBreaker(tx, name, 'skip');
  const row = await lockCircuitBreaker(tx, name, 'wait');
  if (row !== undefined) return row;
  await ensureCircuitBreaker(tx, name, ctx.settingsOf(lane.operation).breaker);
  return lockCircuitBreaker(tx, name, 'wait');
}

async function inFlightOf(tx: Sql, row: CircuitBreakerRow, permit: Permit): Promise<number> {
  if (permit.permit !== 'allow' || permit.atMost === undefined) return 0;
  return countInFlight(tx, row.name, row.breaker.generation);
}

/** Nothing has been sent yet, so there is time to ask, while anything may be sent. Undefined: not known. */
async function wasCommitted(
  ctx: SubmissionContext,
  attempts: readonly AdmittedAttempt[],
  mayAsk: () => boolean,
): Promise<boolean | undefined> {
  for (let recheck = 1; mayAsk(); recheck++) {
    try {
      const committed = await ctx.database.transaction((tx) => findCommittedAttempts(tx, attempts));
      return committed.length > 0;
    } catch {
      await pause(retryDelayMs(recheck));
    }
  }
  return undefined;
}

async function report(
  ctx: SubmissionContext,
  plan: Extract<AdmissionPlan, { attempts: unknown }>,
): Promise<void> {
  if (plan.transition !== undefined) await announce(ctx, plan.transition);
  for (const { requestId, attemptId, attempt, account, operation } of plan.attempts) {
    const isProbe = attemptId === plan.probeAttemptId;
    ctx.emit('submission:admitted', { requestId, attemptId, attempt, account, operation, isProbe });
  }
}
