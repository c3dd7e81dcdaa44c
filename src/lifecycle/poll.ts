import { deliveryWarnings, runLimitMs } from '../core/delivery.ts';
import {
  nextPollDelayMs,
  nextRefundLookMs,
  REFUND_WATCH_MS,
  RESULT_LOST_AFTER_MS,
} from '../core/poll-schedule.ts';
import type { TaskReading } from '../core/provider.ts';
import { troubleOf } from '../core/read-path.ts';
import {
  type Claim,
  claimDueTasks,
  countEmptyRead,
  type DueTask,
  failRequest,
  insertAssets,
  markProviderFinished,
  type NewAsset,
  noteHandOff,
  noteRefundLook,
  prolongClaim,
  schedulePoll,
  succeedRequest,
} from '../postgres/accepted-tasks.ts';
import { endConcurrencyPause } from '../postgres/accounts.ts';
import type { Database, Sql } from '../postgres/database.ts';
import { noteRefundOfFollowed } from '../postgres/followed-tasks.ts';
import { type LockedRequest, lockRequest, noteAttention } from '../postgres/generation-requests.ts';
import { notify } from '../postgres/notifications.ts';
import { listFiles } from '../postgres/request-overview.ts';
import { freeSlotOfTask, noteRefund } from '../postgres/submission-attempts.ts';
import { type FileProgress, type HandOffContext, handOff } from './hand-off.ts';
import { noteReadPath, type ReadPathContext } from './read-path.ts';
import { ACCOUNT_TROUBLE, type ReadContext, readTask } from './read-task.ts';

// Follows accepted tasks, whatever the submission path is going through: nothing here, and nothing that it
// imports, knows of a breaker.

export interface PollContext extends ReadContext, HandOffContext, ReadPathContext {
  readonly database: Database;
  readonly maxRunMsOf: (operation: string) => number;
}

const CLAIM_MARGIN_MS = 15_000;
/** A claim on a task whose files are being fetched; renewed while that goes on. */
const HAND_OFF_CLAIM_MS = 60_000;
const RENEW_EVERY_MS = 20_000;
const PROGRESS_EVERY_MS = 5_000;
/** Reads in a row that told nothing before a person is asked to look. */
const ATTENTION_AFTER_ERRORS = 10;
/** Finished without media: asked again so many times before it is taken for the truth. */
const EMPTY_READS = 3;

/** Claims at most `limit` due tasks; each is then read and applied by `pollTask`. */
export async function claimTasks(ctx: PollContext, limit: number): Promise<Claim> {
  const terms = { limit, leaseMs: ctx.readTimeoutMs + CLAIM_MARGIN_MS, intervalMs: ctx.schedule.intervalMs };
  // In a transaction that says READ COMMITTED: the role or database may default to something stricter.
  return ctx.database.retryingTransaction((tx) => claimDueTasks(tx, terms));
}

/** Reads one claimed task and applies what it learns. */
export async function pollTask(ctx: PollContext, task: DueTask): Promise<void> {
  if (task.state === 'failed' && task.refundWatchIsOver) {
    await ctx.database.retryingTransaction((tx) => noteRefundLook(tx, task.id, null, null));
    return;
  }
  const reading = await readTask(ctx, task);
  await noteReadPath(ctx, task, reading);
  if (task.state === 'failed') await applyRefundLook(ctx, task, reading);
  else await applyReading(ctx, task, reading);
}

async function applyReading(ctx: PollContext, task: DueTask, reading: TaskReading): Promise<void> {
  switch (reading.kind) {
    case 'processing':
      await reschedule(ctx, task, 0, NO_TROUBLE);
      if (task.ageMs > runLimitMs(task.operation, task.fields, ctx.maxRunMsOf(task.operation))) {
        await raise(ctx, task, 'overdue');
      }
      return;
    case 'failed':
      await applyFailure(ctx, task, reading);
      return;
    case 'succeeded':
      await applySuccess(ctx, task, reading);
      return;
    case 'unreadable':
      ctx.emit('task:unreadable', {
        requestId: task.id,
        reason: reading.reason,
        httpStatus: reading.httpStatus,
        errorCode: reading.errorCode,
      });
      // The task is forgotten, and with it the way to its files.
      if (reading.httpStatus === 404 && (await applyLoss(ctx, task, 'task_gone', []))) return;
      await tryLater(ctx, task, { ...reading, code: troubleOf(reading) });
  }
}

async function applyFailure(
  ctx: PollContext,
  task: DueTask,
  { errorCode: failureCode, refunded }: Extract<TaskReading, { kind: 'failed' }>,
): Promise<void> {
  const applied = await whileAccepted(ctx, task, async (tx) => {
    await freeSlot(tx, task);
    if (refunded === true) await takeRefund(tx, task);
    const watch =
      refunded === true ? null : { forMs: REFUND_WATCH_MS, nextMs: nextRefundLookMs(ctx.schedule, 0) };
    await failRequest(tx, task.id, { failureCode, refunded }, watch);
  });
  if (applied) ctx.emit('task:finished', { requestId: task.id, to: 'failed', failureCode, files: 0 });
}

async function applySuccess(
  ctx: PollContext,
  task: DueTask,
  { files, document, warnings }: Extract<TaskReading, { kind: 'succeeded' }>,
): Promise<void> {
  const isEmpty = files.length === 0 && document === null;
  // The slot is free from here on, however long the files take.
  const mine = await whileAccepted(ctx, task, async (tx) => {
    await freeSlot(tx, task);
    await markProviderFinished(tx, task.id, HAND_OFF_CLAIM_MS);
  });
  if (!mine) return;
  if (
    isEmpty &&
    (await ctx.database.retryingTransaction((tx) => countEmptyRead(tx, task.id))) < EMPTY_READS
  ) {
    await tryLater(ctx, task, { ...NO_TROUBLE, code: 'no_result' });
    return;
  }
  const delivered = await whileRenewing(ctx, task, async (onProgress) =>
    handOff(ctx, {
      requestId: task.id,
      files,
      known: await listFiles(ctx.database, task.id),
      record: (asset) => recordAsset(ctx, task, asset),
      onProgress,
    }),
  );
  if (!delivered.done) {
    if (ctx.giveUp?.aborted === true) await handBack(ctx, task);
    else if (!(delivered.gone && (await applyLoss(ctx, task, delivered.errorCode, warnings))))
      await tryLater(ctx, task, { ...NO_TROUBLE, code: `file_${delivered.errorCode}` });
    return;
  }
  const status = isEmpty ? 'empty' : files.length > 0 && ctx.storage === null ? 'linked' : 'stored';
  const differences = deliveryWarnings(task.operation, task.fields, delivered.assets);
  const told = [...new Set([...warnings, ...differences, ...delivered.warnings])];
  const applied = await whileAccepted(ctx, task, async (tx) => {
    await succeedRequest(tx, task.id, { status, document, warnings: told });
  });
  if (applied) {
    ctx.emit('task:finished', {
      requestId: task.id,
      to: 'succeeded',
      failureCode: null,
      files: files.length,
    });
  }
}

/** At once, so that whoever follows a poller that died goes on behind it. */
function recordAsset(ctx: PollContext, task: DueTask, asset: NewAsset): Promise<boolean> {
  return whileAccepted(ctx, task, (tx) => insertAssets(tx, task.id, [asset]));
}

/**
 * It was made, and for longer than the provider keeps it its files could not be had: an end that an operator sees,
 * and never a new generation. False: it is too early to say so.
 */
async function applyLoss(
  ctx: PollContext,
  task: DueTask,
  errorCode: string,
  warnings: readonly string[],
): Promise<boolean> {
  if ((task.sinceFinishedMs ?? 0) < RESULT_LOST_AFTER_MS) return false;
  const applied = await whileAccepted(ctx, task, (tx) =>
    succeedRequest(tx, task.id, { status: 'lost', document: null, warnings }),
  );
  if (applied) {
    ctx.emit('asset:lost', { requestId: task.id, errorCode });
    ctx.emit('task:finished', { requestId: task.id, to: 'succeeded', failureCode: null, files: 0 });
  }
  return true;
}

/** Keeps the claim while `work` goes on, so that a poller that dies is followed within a minute. */
async function whileRenewing<Result>(
  ctx: PollContext,
  task: DueTask,
  work: (onProgress: (progress: FileProgress) => void) => Promise<Result>,
): Promise<Result> {
  let latest: FileProgress | undefined;
  const telling = setInterval(() => {
    if (latest === undefined) return;
    const told = latest;
    latest = undefined;
    ctx.emit('asset:progress', { requestId: task.id, ...told });
    noteHandOff(ctx.database, task.id, told).catch(() => {});
  }, PROGRESS_EVERY_MS);
  const renewal = setInterval(() => {
    // A renewal that fails costs a second download at the worst, which is harmless.
    const renew = (tx: Sql) => prolongClaim(tx, task.id, HAND_OFF_CLAIM_MS);
    ctx.database.transaction(renew).catch(() => {});
  }, RENEW_EVERY_MS);
  try {
    return await work((progress) => {
      latest = progress;
    });
  } finally {
    clearInterval(telling);
    clearInterval(renewal);
  }
}

/** The provider is done with it: frees the slot (request, attempt, account: the lock order) and wakes those who wait for it. */
export async function freeSlot(
  tx: Sql,
  task: { readonly id: string; readonly account: string; readonly taskId: string },
): Promise<void> {
  if (!(await freeSlotOfTask(tx, task.id, task.taskId))) return;
  await endConcurrencyPause(tx, task.account);
  await notify(tx, 'slot');
}

async function takeRefund(tx: Sql, task: DueTask): Promise<void> {
  await noteRefund(tx, task.id, task.taskId);
  await noteRefundOfFollowed(tx, task.id, task.taskId);
}

async function applyRefundLook(ctx: PollContext, task: DueTask, reading: TaskReading): Promise<void> {
  const refunded = reading.kind === 'failed' ? reading.refunded : null;
  const nextMs = refunded === true ? null : nextRefundLookMs(ctx.schedule, task.sinceFailureMs ?? 0);
  await ctx.database.retryingTransaction(async (tx) => {
    const request = await lockRequest(tx, task.id);
    if (request?.state !== 'failed' || request.providerTaskId !== task.taskId) return;
    if (refunded === true) await takeRefund(tx, task);
    await noteRefundLook(tx, task.id, refunded, nextMs);
  });
  if (refunded === true) ctx.emit('task:refunded', { requestId: task.id, providerTaskId: task.taskId });
}

/**
 * Applies something to the request while it still is this accepted task, under its lock: the first terminal
 * state wins, and an operator who reopened or abandoned it meanwhile is not overruled.
 */
async function whileAccepted(
  ctx: PollContext,
  task: DueTask,
  apply: (tx: Sql, request: LockedRequest) => Promise<void>,
): Promise<boolean> {
  return ctx.database.retryingTransaction(async (tx) => {
    const request = await lockRequest(tx, task.id);
    if (request?.state !== 'accepted' || request.providerTaskId !== task.taskId) return false;
    await apply(tx, request);
    return true;
  });
}

/** Due at once, for another poller. */
async function handBack(ctx: PollContext, task: DueTask): Promise<void> {
  await ctx.database.retryingTransaction((tx) => prolongClaim(tx, task.id, 0));
}

interface Trouble {
  /** What a person is told; null: nothing is the matter. */
  readonly code: string | null;
  readonly httpStatus: number | null;
  readonly retryAfterMs: number | null;
}

const NO_TROUBLE: Trouble = { code: null, httpStatus: null, retryAfterMs: null };

/** A read that told nothing, or a file that is not safe yet: again, later, and in time a person is asked. */
async function tryLater(ctx: PollContext, task: DueTask, trouble: Trouble): Promise<void> {
  const errors = task.pollErrors + 1;
  await reschedule(ctx, task, errors, trouble);
  if (errors >= ATTENTION_AFTER_ERRORS) await raise(ctx, task, 'poll_failing');
}

async function reschedule(
  ctx: PollContext,
  task: DueTask,
  errors: number,
  { code, httpStatus, retryAfterMs }: Trouble,
): Promise<void> {
  const history = {
    ageMs: task.ageMs,
    consecutiveErrors: errors,
    accountTrouble: httpStatus !== null && ACCOUNT_TROUBLE.has(httpStatus),
    retryAfterMs,
  };
  const delayMs = nextPollDelayMs(ctx.schedule, history, ctx.random());
  await ctx.database.retryingTransaction((tx) =>
    schedulePoll(tx, task.id, 'accepted', delayMs, { count: errors, trouble: code }),
  );
}

async function raise(ctx: PollContext, task: DueTask, attention: 'overdue' | 'poll_failing'): Promise<void> {
  await whileAccepted(ctx, task, (tx) => noteAttention(tx, task.id, attention));
}
