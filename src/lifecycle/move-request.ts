import { returnDelayMs, type Settlement } from '../core/generation-request.ts';
import { READER_LEASE_MS } from '../core/stream.ts';
import { acceptStream, failStream } from '../postgres/accepted-streams.ts';
import type { Sql } from '../postgres/database.ts';
import {
  acceptRequest,
  freezeRequest,
  type LockedRequest,
  markJobDue,
  rejectRequest,
  returnRequest,
} from '../postgres/generation-requests.ts';
import type { SubmissionContext } from './context.ts';

export interface MoveTerms {
  /** Whose outcome moves it. */
  readonly attemptId: string;
  readonly errorCode: string | null;
  /** Of its next job. */
  readonly notBefore: Date | null;
}

/** Carries a settlement out, under the request's lock and after the outcome was written; with its next job. */
export async function moveRequest(
  ctx: Pick<SubmissionContext, 'queue'> & { readonly firstPollMs?: number },
  tx: Sql,
  request: LockedRequest,
  settlement: Settlement,
  { attemptId, errorCode, notBefore }: MoveTerms,
): Promise<void> {
  switch (settlement.to) {
    case 'accepted':
      // Where its reader is gone already, the lease ends as any other that nobody renews.
      if (settlement.providerTaskId === null) await acceptStream(tx, request.id, attemptId, READER_LEASE_MS);
      else await acceptRequest(tx, request.id, settlement.providerTaskId, ctx.firstPollMs ?? 0);
      break;
    case 'failed':
      await acceptStream(tx, request.id, attemptId, READER_LEASE_MS);
      await failStream(tx, request.id, { failureReason: settlement.failureReason, code: errorCode });
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
