import type { TransactionOptions } from '../postgres/database.ts';
import { lockRequest, noteAttention } from '../postgres/generation-requests.ts';
import { notify } from '../postgres/notifications.ts';
import { hasConsumer, takeDueNotices } from '../postgres/settled-notices.ts';
import { NoticeQueue } from '../queue/notices.ts';
import type { RescueContext } from './context.ts';

type Patience = TransactionOptions & { readonly tries?: number };

/** Sends the notices of requests that have ended, each with the mark that it was due, or neither. */
export async function sendDueNotices(
  ctx: RescueContext,
  limit: number,
  patience: Patience,
): Promise<{ readonly seen: number; readonly count: number }> {
  const count = await ctx.database.retryingTransaction(async (tx) => {
    const due = await takeDueNotices(tx, limit);
    if (due.length === 0) return 0;
    await new NoticeQueue(ctx.queue).send(tx, due);
    await notify(tx, 'notice');
    return due.length;
  }, patience);
  return { seen: count, count };
}

/** A notice that the app's handler took at no time is a matter for a person: the request itself has ended well or not. */
export async function noteUndelivered(
  ctx: RescueContext,
  limit: number,
  patience: Patience,
): Promise<number> {
  if (!(await hasConsumer(ctx.database))) return 0;
  return ctx.database.retryingTransaction(async (tx) => {
    const requestIds = await new NoticeQueue(ctx.queue).takeUndelivered(tx, limit);
    // In one order, so that two rescuers don't wait for each other.
    for (const id of requestIds.sort()) {
      const request = await lockRequest(tx, id);
      if (request !== undefined) await noteAttention(tx, id, 'notice_undelivered');
    }
    return requestIds.length;
  }, patience);
}
