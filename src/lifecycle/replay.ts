import type { SpooledOutcome } from '../core/spooled-outcome.ts';
import { CommitUnknownError } from '../postgres/database.ts';
import { databaseErrorCode, isLostConnection } from '../postgres/errors.ts';
import type { SpoolFile } from '../storage/spool.ts';
import { applyHealth } from './apply-health.ts';
import type { SubmissionContext } from './context.ts';
import { type Recorded, recordOutcome, reportRecorded } from './record-outcome.ts';

/** A row that somebody has locked is left for the next round. */
const PATIENCE = { lockTimeoutMs: 1_000, tries: 2 } as const;

/**
 * Replays the spool: B1 itself, once for each file that no live attempt of this process is behind. Harmless
 * twice, on two machines at once, and beside the worker that is still trying. Returns one round, which says how
 * many outcomes it recorded, ends early when `mayGoOn` says no, and rejects when the database is away.
 */
export function createReplay(ctx: SubmissionContext, mayGoOn: () => boolean): () => Promise<number> {
  const told = new Set<string>();
  /** By attempt: what a COMMIT would have emitted whose answer was lost. */
  const unanswered = new Map<string, Recorded>();

  const replayFile = async (file: SpoolFile): Promise<boolean> => {
    const reading = await ctx.spool.read(file);
    if (reading === undefined) return false;
    if (reading.kind === 'damaged') {
      if (await ctx.spool.setAside(file)) tell(file.attemptId, 'damaged');
      return false;
    }
    if (reading.kind === 'newer') {
      tell(file.attemptId, 'newer');
      return false;
    }
    const recorded = await record(reading.spooled);
    reportRecorded(ctx, recorded);
    if (recorded.kind === 'unknown_request') tell(file.attemptId, 'unknown_request', reading.spooled);
    if (recorded.healthDue) await applyHealth(ctx, reading.spooled.intent.attemptId, PATIENCE);
    if (recorded.kind !== 'wait' && recorded.kind !== 'unknown_request') await ctx.spool.remove(file);
    return recorded.kind === 'recorded';
  };

  const record = async ({ intent, outcome }: SpooledOutcome): Promise<Recorded> => {
    const { attemptId } = intent;
    let planned: Recorded | undefined;
    try {
      const recorded = await ctx.database.retryingTransaction(async (tx) => {
        planned = await recordOutcome(ctx, tx, intent, outcome, 'replay', intent);
        return planned;
      }, PATIENCE);
      const before = recorded.kind === 'repeat' ? unanswered.get(attemptId) : undefined;
      unanswered.delete(attemptId);
      return before === undefined ? recorded : { ...recorded, events: before.events };
    } catch (error) {
      if (error instanceof CommitUnknownError && planned !== undefined) unanswered.set(attemptId, planned);
      throw error;
    }
  };

  const tell = (
    attemptId: string,
    reason: 'damaged' | 'newer' | 'unknown_request',
    spooled?: SpooledOutcome,
  ): void => {
    if (told.has(attemptId)) return;
    told.add(attemptId);
    const requestId = spooled?.intent.requestId ?? null;
    const providerTaskId = spooled?.outcome.evidence.providerTaskId ?? null;
    ctx.emit('spool:unreplayed', { reason, attemptId, requestId, providerTaskId });
  };

  return async () => {
    let count = 0;
    for (const file of await ctx.spool.list()) {
      if (!mayGoOn()) break;
      try {
        if (await replayFile(file)) count++;
      } catch (error) {
        if (isLostConnection(error)) throw error;
        // One outcome that can't be recorded must not hold up the others; its file is tried again.
        ctx.emit('process:trouble', { role: 'worker', loop: 'replay', errorCode: databaseErrorCode(error) });
      }
    }
    if (count > 0) ctx.emit('rescue:done', { rescued: 'spooled_outcomes', count });
    return count;
  };
}
