import type { SubmissionOutcome } from '../core/provider.ts';
import { READER_LEASE_MS } from '../core/stream.ts';
import { renewReader } from '../postgres/accepted-streams.ts';
import type { AdmittedAttempt } from '../postgres/submission-attempts.ts';
import type { SubmissionContext } from './context.ts';
import { recordOutcome, reportRecorded } from './record-outcome.ts';

/** An attempt whose stream this process reads, and what its start was recorded as. */
export interface StreamReader {
  readonly attempt: AdmittedAttempt;
  readonly outcome: SubmissionOutcome;
}

/** What renewing needs. */
export type RenewContext = Pick<SubmissionContext, 'database' | 'queue' | 'settingsOf' | 'emit'>;

/**
 * Whether the request is this reader's still, for one lease more. A database that was put back to before the stream's
 * start, and frozen perhaps by an operator who couldn't know of it, is told of it once more: B1 itself, harmless twice.
 * Rejects when the database is away.
 */
export async function renewLease(
  ctx: RenewContext,
  { attempt, outcome }: StreamReader,
  bytes: number,
): Promise<boolean> {
  const renewal = { leaseMs: READER_LEASE_MS, bytes };
  if (await renewReader(ctx.database, attempt, renewal)) return true;
  const { fields, mode, submitBefore, ...intent } = attempt;
  const recorded = await ctx.database.retryingTransaction((tx) =>
    recordOutcome(ctx, tx, intent, outcome, 'worker', intent),
  );
  reportRecorded(ctx, recorded);
  return recorded.kind === 'recorded' && (await renewReader(ctx.database, attempt, renewal));
}
