import { setMaxListeners } from 'node:events';
import type { SubmissionOutcome } from '../core/provider.ts';
import { CommitUnknownError, retryDelayMs } from '../postgres/database.ts';
import { databaseErrorCode, isPassing } from '../postgres/errors.ts';
import type { AdmittedAttempt } from '../postgres/submission-attempts.ts';
import { applyHealth } from './apply-health.ts';
import type { SubmissionContext } from './context.ts';
import { pause, unlessGivenUp, withDeadline } from './pause.ts';
import { type Recorded, recordAcceptance, recordOutcome, reportRecorded } from './record-outcome.ts';

/** Tries of B1 before it is left to replays: some minutes of a database that is away. */
const SETTLE_TRIES = 600;
/** A commit that takes longer than this may never come back: the outcome is spooled as if it had failed. */
const SPOOL_AFTER_MS = 1_000;
/** A disk that hangs holds nobody up for longer. */
const DISK_PATIENCE_MS = 5_000;

const NEVER = new AbortController().signal;
setMaxListeners(0, NEVER);

/**
 * Settles one attempt: B1 the money, B2 the health, then the events. Once `giveUp` is aborted, an outcome that
 * can't be committed is left to the spool, and to whoever replays it: false.
 */
export async function settle(
  ctx: SubmissionContext,
  attempt: AdmittedAttempt,
  outcome: SubmissionOutcome,
  giveUp: AbortSignal = NEVER,
): Promise<boolean> {
  const copy = new SecondCopy(ctx, attempt, outcome);
  const recorded = await recordPatiently(ctx, attempt, outcome, copy, giveUp);
  if (recorded === undefined) {
    await copy.leave();
    return false;
  }
  reportRecorded(ctx, recorded);
  if (recorded.healthDue) {
    try {
      await unlessGivenUp(giveUp, () => applyHealth(ctx, attempt.attemptId));
    } catch (error) {
      // The evidence is on the attempt; rescue applies it.
      ctx.emit('process:trouble', { role: 'worker', loop: 'health', errorCode: databaseErrorCode(error) });
    }
  }
  if (recorded.kind === 'unknown_request') {
    await copy.strand();
    return false;
  }
  await copy.discard();
  return true;
}

/**
 * The outcome of a paid POST is in hand, so B1 is tried for as long as is sensible; only the transaction is
 * repeated, never the POST. A COMMIT with an unknown outcome is a repeat like any other: under the lock, B1
 * sees that it has happened, and what it would have emitted is emitted then. Undefined: given up.
 */
async function recordPatiently(
  ctx: SubmissionContext,
  attempt: AdmittedAttempt,
  outcome: SubmissionOutcome,
  copy: SecondCopy,
  giveUp: AbortSignal,
): Promise<Recorded | undefined> {
  let unanswered: Recorded | undefined;
  for (let tried = 1; ; tried++) {
    let planned: Recorded | undefined;
    const plan = (recorded: Recorded) => {
      planned = recorded;
    };
    const slow = setTimeout(() => copy.keep(), SPOOL_AFTER_MS);
    try {
      const once = () => recordOnce(ctx, attempt, outcome, tried, plan);
      const recorded = await unlessGivenUp(giveUp, once);
      if (recorded === undefined) return undefined;
      return recorded.kind === 'repeat' && unanswered !== undefined
        ? { ...recorded, events: unanswered.events }
        : recorded;
    } catch (error) {
      if (error instanceof CommitUnknownError) unanswered = planned;
      copy.keep();
      if (tried === 1) copy.say(databaseErrorCode(error));
      // With the outcome in this process's memory alone, a database that is away is waited for.
      if (tried >= SETTLE_TRIES && (copy.isOnDisk || !isPassing(error))) return undefined;
    } finally {
      clearTimeout(slow);
    }
    await pause(retryDelayMs(tried), giveUp);
  }
}

async function recordOnce(
  ctx: SubmissionContext,
  attempt: AdmittedAttempt,
  outcome: SubmissionOutcome,
  tried: number,
  plan: (recorded: Recorded) => void,
): Promise<Recorded> {
  const accepted = tried === 1 ? await recordAcceptance(ctx, attempt, outcome, plan) : undefined;
  if (accepted !== undefined) return accepted;
  return ctx.database.transaction(async (tx) => {
    const { attemptId, requestId } = attempt;
    const recorded = await recordOutcome(ctx, tx, { attemptId, requestId }, outcome, 'worker', attempt);
    plan(recorded);
    return recorded;
  });
}

/** Where an outcome is while the database doesn't have it: on disk, in the log. */
class SecondCopy {
  readonly #ctx: SubmissionContext;
  readonly #attempt: AdmittedAttempt;
  readonly #outcome: SubmissionOutcome;
  #keeping: Promise<boolean> | undefined;
  #isOnDisk = false;

  constructor(ctx: SubmissionContext, attempt: AdmittedAttempt, outcome: SubmissionOutcome) {
    this.#ctx = ctx;
    this.#attempt = attempt;
    this.#outcome = outcome;
  }

  get isOnDisk(): boolean {
    return this.#isOnDisk;
  }

  /** Beside the tries of B1, which don't wait for a disk; again when it couldn't be written. */
  keep(): void {
    this.#keeping ??= this.#ctx.spool.keep({ intent: this.#attempt, outcome: this.#outcome }).then((kept) => {
      this.#isOnDisk = kept;
      if (!kept) this.#keeping = undefined;
      return kept;
    });
  }

  /** The log line is a copy too: an operator can attach the task id by hand. */
  say(errorCode: string): void {
    const { requestId, attemptId } = this.#attempt;
    const { certainty, reason, evidence } = this.#outcome;
    const { httpStatus, providerTaskId } = evidence;
    const event = { requestId, attemptId, providerTaskId, certainty, reason, httpStatus, errorCode };
    this.#ctx.emit('submission:unsettled', event);
  }

  async discard(): Promise<void> {
    if (this.#keeping === undefined) return;
    await this.#written();
    await withDeadline(this.#ctx.spool.discard(this.#attempt.attemptId), DISK_PATIENCE_MS, undefined);
  }

  /** The next replay, of this process or another, takes it. */
  async leave(): Promise<void> {
    this.keep();
    await this.#written();
    this.say('given_up');
    this.#ctx.spool.letGo(this.#attempt.attemptId);
  }

  async strand(): Promise<void> {
    const { requestId, attemptId } = this.#attempt;
    const { providerTaskId } = this.#outcome.evidence;
    this.#ctx.emit('spool:unreplayed', { reason: 'unknown_request', attemptId, requestId, providerTaskId });
    await this.leave();
  }

  async #written(): Promise<void> {
    if (this.#keeping !== undefined) await withDeadline(this.#keeping, DISK_PATIENCE_MS, false);
  }
}
