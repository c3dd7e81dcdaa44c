import type { Clock } from '../core/clock.ts';
import type { SubmissionOutcome } from '../core/provider.ts';
import type { AttemptIntent } from '../core/spooled-outcome.ts';
import type { Sql } from '../postgres/database.ts';
import { doubtInstallation } from '../postgres/installation.ts';
import { listForgottenAttempts } from '../postgres/lost-attempts.ts';
import type { SubmissionContext } from './context.ts';
import { reassertAttempt } from './reassert-attempt.ts';
import { recordOutcome, reportRecorded } from './record-outcome.ts';
import { type Ending, recordEndAgain } from './settle-stream.ts';

/** A standby that takes over lacks seconds; who restores a backup has stopped the workers. */
const REMEMBERED_MS = 300_000;
const MOST_REMEMBERED = 1_000;

interface Settled {
  readonly intent: AttemptIntent;
  readonly outcome: SubmissionOutcome;
  readonly at: number;
  /** The outcome was a stream, and is remembered for as long as that is read. */
  readonly isRead: boolean;
  /** How that ended. */
  readonly ending?: Ending;
}

/**
 * What this process knows of its attempts without asking the database: those on the wire, and the outcomes that were
 * committed a short while ago. A database that has forgotten one of them is told again.
 */
export class KnownAttempts {
  readonly #clock: Clock;
  readonly #inFlight = new Map<string, AttemptIntent>();
  /** By age. */
  readonly #settled = new Map<string, Settled>();

  constructor(clock: Clock) {
    this.#clock = clock;
  }

  admitted(intent: AttemptIntent): void {
    this.#inFlight.set(intent.attemptId, intent);
  }

  /**
   * Its outcome is committed, or this process can do no more about it (undefined). `isRead`: its stream is read from now
   * on, until `streamEnded`.
   */
  ended(attemptId: string, outcome: SubmissionOutcome | undefined, isRead = false): void {
    const intent = this.#inFlight.get(attemptId);
    this.#inFlight.delete(attemptId);
    if (intent === undefined || outcome === undefined) return;
    this.#settled.set(attemptId, { intent, outcome, at: this.#clock.monotonic(), isRead });
    this.#forgetOld();
  }

  /** The end of its stream is committed, or this process can do no more about it (undefined). */
  streamEnded(attemptId: string, ending: Ending | undefined): void {
    const settled = this.#settled.get(attemptId);
    if (settled === undefined) return;
    this.#settled.delete(attemptId);
    const { intent, outcome } = settled;
    const at = this.#clock.monotonic();
    this.#settled.set(attemptId, { intent, outcome, at, isRead: false, ...(ending && { ending }) });
    this.#forgetOld();
  }

  /**
   * Tells the database again what it has forgotten, which is also the proof that it has lost what it had confirmed.
   * What is on the wire is `submitting` again, so that nobody submits it; an outcome is settled again, by B1 itself.
   */
  async reassert(ctx: SubmissionContext): Promise<void> {
    this.#forgetOld();
    const inFlight = [...this.#inFlight.values()];
    const settled = [...this.#settled.values()];
    if (inFlight.length + settled.length === 0) return;
    const idsOf = (intents: readonly AttemptIntent[]) => intents.map(({ attemptId }) => attemptId);
    const forgotten = new Set(
      await listForgottenAttempts(ctx.database, {
        unsettled: idsOf(inFlight),
        settled: idsOf(settled.map(({ intent }) => intent)),
        ended: idsOf(settled.filter(({ ending }) => ending !== undefined).map(({ intent }) => intent)),
      }),
    );
    for (const intent of inFlight.filter(({ attemptId }) => forgotten.has(attemptId))) {
      const wasLost = await ctx.database.retryingTransaction(async (tx) => {
        const lost = await reassertAttempt(tx, intent);
        if (lost) await doubt(tx, intent);
        return lost;
      });
      const { requestId, attemptId } = intent;
      if (!wasLost) continue;
      ctx.emit('submission:alert', { requestId, attemptId, reason: 'intent_lost', httpStatus: null });
    }
    for (const { intent, outcome, ending } of settled) {
      if (!forgotten.has(intent.attemptId)) continue;
      // As from the spool: a later attempt, of another process, may have been forgotten as well.
      const recorded = await ctx.database.retryingTransaction(async (tx) => {
        const told = await recordOutcome(ctx, tx, intent, outcome, 'replay', intent);
        if (told.kind === 'recorded') await doubt(tx, intent);
        return told;
      });
      reportRecorded(ctx, recorded);
      if (ending === undefined || !(await recordEndAgain(ctx, intent, ending))) continue;
      await doubt(ctx.database, intent);
    }
  }

  #forgetOld(): void {
    const since = this.#clock.monotonic() - REMEMBERED_MS;
    for (const [attemptId, { at, isRead }] of this.#settled) {
      if (isRead) continue;
      if (at >= since && this.#settled.size <= MOST_REMEMBERED) return;
      this.#settled.delete(attemptId);
    }
  }
}

async function doubt(tx: Sql, intent: AttemptIntent): Promise<void> {
  await doubtInstallation(tx, 'intent_lost', intent.worker, intent.startedAt);
}
