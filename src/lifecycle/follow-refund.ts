import { nextPollDelayMs, nextRefundLookMs, REFUND_WATCH_MS } from '../core/poll-schedule.ts';
import type { TaskReading } from '../core/provider.ts';
import {
  claimDueLooks,
  type DueLook,
  type Look,
  type LookClaim,
  noteLook,
  settleAlarm,
} from '../postgres/followed-tasks.ts';
import { lockRequest } from '../postgres/generation-requests.ts';
import { freeSlot, type PollContext } from './poll.ts';
import { noteReadPath } from './read-path.ts';
import { ACCOUNT_TROUBLE, readTask } from './read-task.ts';

// Tasks that were accepted and belong to no request: paid twice, or paid though withdrawn. They are followed for
// their money alone; their files are nobody's.

const CLAIM_MARGIN_MS = 15_000;

/** Claims at most `limit` due looks; each is then made by `followTask`. */
export async function claimLooks(ctx: PollContext, limit: number): Promise<LookClaim> {
  const terms = { limit, leaseMs: ctx.readTimeoutMs + CLAIM_MARGIN_MS, intervalMs: ctx.schedule.intervalMs };
  return ctx.database.retryingTransaction((tx) => claimDueLooks(tx, terms));
}

/** Looks once at a claimed task and writes down what it learns. */
export async function followTask(ctx: PollContext, task: DueLook): Promise<void> {
  const reading = await readTask(ctx, task);
  await noteReadPath(ctx, task, reading);
  if (reading.kind === 'unreadable') {
    const { reason, httpStatus, errorCode } = reading;
    ctx.emit('task:unreadable', { requestId: task.requestId, reason, httpStatus, errorCode });
  }
  const look = lookOf(ctx, task, reading);
  await ctx.database.retryingTransaction(async (tx) => {
    const request = await lockRequest(tx, task.requestId);
    if (request === undefined) return;
    const ended = look.outcome !== null && task.sinceFailureMs === null;
    if (ended) await freeSlot(tx, { id: task.requestId, account: task.account, taskId: task.taskId });
    await noteLook(tx, task, look);
    if (look.refunded === true) await settleAlarm(tx, task.requestId);
  });
  if (look.refunded === true) {
    ctx.emit('task:refunded', { requestId: task.requestId, providerTaskId: task.taskId });
  }
}

function lookOf(ctx: PollContext, task: DueLook, reading: TaskReading): Look {
  const rest = { outcome: null, refunded: null, errors: 0, watchMs: REFUND_WATCH_MS } as const;
  const history = { ageMs: task.ageMs, consecutiveErrors: 0, accountTrouble: false, retryAfterMs: null };
  switch (reading.kind) {
    case 'processing':
      return { ...rest, nextMs: nextPollDelayMs(ctx.schedule, history, ctx.random()) };
    // It was delivered, so its money stays where it is.
    case 'succeeded':
      return { ...rest, outcome: 'succeeded', refunded: false, nextMs: null };
    case 'failed': {
      const nextMs = nextRefundLookMs(ctx.schedule, task.sinceFailureMs ?? 0);
      const { refunded } = reading;
      return { ...rest, outcome: 'failed', refunded, nextMs: refunded === true ? null : nextMs };
    }
    case 'unreadable': {
      const errors = task.errors + 1;
      const { httpStatus, retryAfterMs } = reading;
      const accountTrouble = httpStatus !== null && ACCOUNT_TROUBLE.has(httpStatus);
      const trouble = { ...history, consecutiveErrors: errors, accountTrouble, retryAfterMs };
      return { ...rest, errors, nextMs: nextPollDelayMs(ctx.schedule, trouble, ctx.random()) };
    }
  }
}
