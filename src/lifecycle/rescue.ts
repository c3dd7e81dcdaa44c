import { WORKER_LOST } from '../core/outcome.ts';
import type { SubmissionOutcome } from '../core/provider.ts';
import { READER_GRACE_MS } from '../core/stream.ts';
import { listLostReaders, noteMissedReaders } from '../postgres/accepted-streams.ts';
import { listExpiredOverrides, noteExpiredOverride, takeUnannounced } from '../postgres/breaker-history.ts';
import { listOverdueProbes } from '../postgres/circuit-breakers.ts';
import type { Sql } from '../postgres/database.ts';
import { databaseErrorCode, isLostConnection, isPassing } from '../postgres/errors.ts';
import {
  clearJobDue,
  expireOverdue,
  listLanesOfDueJobs,
  listQueued,
  lockJobDue,
  markJobDue,
  type RequestDueForJob,
} from '../postgres/generation-requests.ts';
import { listBreakersWithHealthDue } from '../postgres/health-due.ts';
import { listEndedLeases } from '../postgres/submission-attempts.ts';
import { applyDueHealth, applyHealth, reapLostProbe } from './apply-health.ts';
import type { RescueContext } from './context.ts';
import { recordOutcome, reportRecorded } from './record-outcome.ts';
import { rescueLostReader } from './settle-stream.ts';
import { noteUndelivered, sendDueNotices } from './settled-notices.ts';

// What a process that died has left behind, put right by any process that lives. Each piece is guarded by
// the row's own lock and state, so that two rescuers, or a rescuer and a live worker, do no harm.

const BATCH = 100;
/** Batches of one kind in one round: a great many of them must not keep the other kinds waiting. */
const BATCHES = 10;

/** A row that somebody has locked is left for the next round: one stuck transaction must not stop all rescue. */
const PATIENCE = { lockTimeoutMs: 250, tries: 1 } as const;
const LOCK_NOT_AVAILABLE = '55P03';

/**
 * One round; says how many rows it put right. What fails is told at the end, when everything else has had
 * its turn.
 */
export async function rescue(ctx: RescueContext): Promise<number> {
  const pieces = {
    // First: a breaker must not stay half open for as long as others' locks take.
    lost_probes: reapLostProbes,
    ended_leases: rescueEndedLeases,
    lost_readers: rescueLostReaders,
    transitions: announceTransitions,
    health: finishHealth,
    expired: expireRequests,
    jobs: sendDueJobs,
    notices: (ctx: RescueContext) => inBatches(() => sendDueNotices(ctx, BATCH, PATIENCE)),
    undelivered: (ctx: RescueContext) => noteUndelivered(ctx, BATCH, PATIENCE),
  };
  let total = 0;
  const failures: unknown[] = [];
  for (const [rescued, piece] of Object.entries(pieces)) {
    try {
      const count = await piece(ctx, failures);
      if (count > 0) ctx.emit('rescue:done', { rescued, count });
      total += count;
    } catch (error) {
      if (isLostConnection(error)) throw error;
      failures.push(error);
    }
  }
  if (failures.length > 0) throw failures[0];
  return total;
}

/** Counts the rows that `putRight` says yes to. Only a database that is away ends the list early. */
async function each<Row>(
  rows: readonly Row[],
  failures: unknown[],
  putRight: (row: Row) => Promise<boolean>,
): Promise<number> {
  let count = 0;
  for (const row of rows) {
    try {
      if (await putRight(row)) count++;
    } catch (error) {
      if (isLostConnection(error)) throw error;
      if (databaseErrorCode(error) !== LOCK_NOT_AVAILABLE) failures.push(error);
    }
  }
  return count;
}

const LOST: SubmissionOutcome = {
  ...WORKER_LOST,
  retryAfterMs: null,
  evidence: {
    phase: 'lease_over',
    httpStatus: null,
    errorCode: null,
    providerTaskId: null,
    responseAgeMs: null,
    closed: false,
  },
};

/** The lease is over and nobody told: the outcome is unknown, so the request is frozen. */
async function rescueEndedLeases(ctx: RescueContext, failures: unknown[]): Promise<number> {
  // Rows that can't be put right now must not stand in front of those that can.
  const passedOver: string[] = [];
  return inBatches(async () => {
    const ended = await ctx.database.transaction((tx) => listEndedLeases(tx, BATCH, passedOver));
    let count = 0;
    for (const attempt of ended) {
      const done = await each([attempt], failures, () => rescueEndedLease(ctx, attempt));
      if (done === 0) passedOver.push(attempt.attemptId);
      count += done;
    }
    return { seen: ended.length, count };
  });
}

/** What its stream brought is lost with its reader, so one that is missed has some time left to come back. */
async function rescueLostReaders(ctx: RescueContext, failures: unknown[]): Promise<number> {
  const passedOver: string[] = [];
  return inBatches(async () => {
    const lost = await ctx.database.retryingTransaction(async (tx) => {
      await noteMissedReaders(tx, BATCH, READER_GRACE_MS);
      return listLostReaders(tx, BATCH, passedOver);
    }, PATIENCE);
    let count = 0;
    for (const ids of lost) {
      const done = await each([ids], failures, () => rescueLostReader(ctx, ids, PATIENCE));
      if (done === 0) passedOver.push(ids.requestId);
      count += done;
    }
    return { seen: lost.length, count };
  });
}

/** Until one isn't full. */
async function inBatches(
  batch: () => Promise<{ readonly seen: number; readonly count: number }>,
): Promise<number> {
  let total = 0;
  for (let n = 0; n < BATCHES; n++) {
    const { seen, count } = await batch();
    total += count;
    if (seen < BATCH) break;
  }
  return total;
}

async function rescueEndedLease(
  ctx: RescueContext,
  attempt: { readonly attemptId: string; readonly requestId: string },
): Promise<boolean> {
  const record = (tx: Sql) => recordOutcome(ctx, tx, attempt, LOST, 'rescue');
  const recorded = await ctx.database.retryingTransaction(record, PATIENCE);
  reportRecorded(ctx, recorded);
  if (recorded.healthDue) await applyHealth(ctx, attempt.attemptId, PATIENCE);
  return recorded.events.length > 0;
}

/** Its request first, whose settle opens the breaker by the way; the breaker doesn't wait for one that is locked. */
async function reapLostProbes(ctx: RescueContext, failures: unknown[]): Promise<number> {
  return each(await listOverdueProbes(ctx.database), failures, async ({ name, attemptId, requestId }) => {
    const rescued = await each([{ attemptId, requestId }], failures, (probe) => rescueEndedLease(ctx, probe));
    return (await reapLostProbe(ctx, name, attemptId, PATIENCE)) || rescued > 0;
  });
}

/**
 * An expired override has not been in force since its time was over; this writes it down. Then the events of
 * what SQL functions did to breakers, and of what processes committed that died before they could tell.
 */
async function announceTransitions(ctx: RescueContext, failures: unknown[]): Promise<number> {
  await each(await listExpiredOverrides(ctx.database), failures, async (name) => {
    await ctx.database.retryingTransaction((tx) => noteExpiredOverride(tx, name), PATIENCE);
    return true;
  });
  // Emitted before the commit that says so: rather once more than never.
  const transitions = await ctx.database.retryingTransaction(async (tx) => {
    const taken = await takeUnannounced(tx);
    for (const transition of taken) ctx.emit('breaker:transition', transition);
    return taken;
  }, PATIENCE);
  return transitions.length;
}

/** B2 of workers that died between the money and the health. */
async function finishHealth(ctx: RescueContext, failures: unknown[]): Promise<number> {
  let count = 0;
  await each(await listBreakersWithHealthDue(ctx.database), failures, async (breaker) => {
    count += await applyDueHealth(ctx, breaker, PATIENCE);
    return true;
  });
  return count;
}

async function expireRequests(ctx: RescueContext): Promise<number> {
  return inBatches(async () => {
    const expired = await ctx.database.retryingTransaction((tx) => expireOverdue(tx, BATCH), PATIENCE);
    for (const requestId of expired) ctx.emit('request:expired', { requestId });
    return { seen: expired.length, count: expired.length };
  });
}

/**
 * Rows that want a job: an operator's function re-armed them, or a send failed. Their queues come first, in
 * transactions of their own: one inside the other would wait for a second connection, which a small pool or
 * a pooler may not have.
 */
async function sendDueJobs(ctx: RescueContext): Promise<number> {
  const passedOver: string[] = [];
  return inBatches(() => sendDueBatch(ctx, passedOver));
}

async function sendDueBatch(
  ctx: RescueContext,
  passedOver: string[],
): Promise<{ readonly seen: number; readonly count: number }> {
  for (const { account, operation } of await listLanesOfDueJobs(ctx.database, BATCH, passedOver)) {
    try {
      // A lane that nobody has configured yet has no queue; making one again changes nothing.
      await ctx.database.transaction((tx) => ctx.queue.ensureQueue(account, operation, tx));
    } catch (error) {
      if (isPassing(error)) throw error;
    }
  }
  return ctx.database.retryingTransaction(async (tx) => {
    let count = 0;
    const due = await lockJobDue(tx, BATCH, passedOver);
    for (const request of due) {
      // One row that can't be sent for must not hold up the others.
      await tx.executeSql('savepoint onetake_job');
      try {
        await ctx.queue.send(tx, request, request.notBefore);
        await clearJobDue(tx, request.id);
        count++;
      } catch (error) {
        if (isLostConnection(error)) throw error;
        await tx.executeSql('rollback to savepoint onetake_job');
        passedOver.push(request.id);
      }
      await tx.executeSql('release savepoint onetake_job');
    }
    return { seen: due.length, count };
  });
}

/**
 * The slow sweep: queued rows whose job has vanished (retention, a hand in the queue's tables) or has ended or
 * been taken by somebody's hand. The table is the truth and the queue only a wake-up. Pages by id; call it again with the id that it returns.
 */
export async function sweepVanishedJobs(ctx: RescueContext, afterId: string | null): Promise<string | null> {
  const page = await listQueued(ctx.database, afterId, 1_000);
  const lanes = new Map<string, RequestDueForJob[]>();
  for (const request of page) {
    const lane = `${request.account}/${request.operation}`;
    lanes.set(lane, [...(lanes.get(lane) ?? []), request]);
  }
  let count = 0;
  for (const requests of lanes.values()) {
    const [{ account, operation }] = requests as [RequestDueForJob];
    const ids = requests.map((request) => request.id);
    await ctx.database.retryingTransaction((tx) => ctx.queue.endStray(tx, account, operation, ids));
    const present = await ctx.queue.listJobs(ctx.database, account, operation, ids);
    for (const id of ids.filter((id) => !present.has(id))) {
      await ctx.database.retryingTransaction((tx) => markJobDue(tx, id));
      count++;
    }
  }
  if (count > 0) ctx.emit('rescue:done', { rescued: 'vanished_jobs', count });
  return page.length < 1_000 ? null : (page.at(-1)?.id ?? null);
}
