import { WORKER_LOST } from '../core/outcome.ts';
import type { SubmissionOutcome } from '../core/provider.ts';
import { listOverdueProbes } from '../postgres/circuit-breakers.ts';
import { isLostConnection } from '../postgres/errors.ts';
import {
  clearJobDue,
  expireOverdue,
  listQueued,
  lockJobDue,
  markJobDue,
  type RequestDueForJob,
} from '../postgres/generation-requests.ts';
import { listEndedLeases, listHealthDue } from '../postgres/submission-attempts.ts';
import { applyHealth, reapLostProbe } from './apply-health.ts';
import type { RescueContext } from './context.ts';
import { recordOutcome, reportRecorded } from './settle.ts';

// What a process that died has left behind, put right by any process that lives. Each piece is guarded by
// the row's own lock and state, so that two rescuers, or a rescuer and a live worker, do no harm.

const BATCH = 100;

/** One round; says how many rows it put right. */
export async function rescue(ctx: RescueContext): Promise<number> {
  const counts = {
    ended_leases: await rescueEndedLeases(ctx),
    lost_probes: await reapLostProbes(ctx),
    health: await applyDueHealth(ctx),
    expired: await expireRequests(ctx),
    jobs: await sendDueJobs(ctx),
  };
  let total = 0;
  for (const [rescued, count] of Object.entries(counts)) {
    if (count > 0) ctx.emit('rescue:done', { rescued, count });
    total += count;
  }
  return total;
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
async function rescueEndedLeases(ctx: RescueContext): Promise<number> {
  let count = 0;
  for (const attempt of await listEndedLeases(ctx.database, BATCH)) {
    const recorded = await ctx.database.retryingTransaction((tx) =>
      recordOutcome(ctx, tx, attempt, LOST, 'rescue'),
    );
    reportRecorded(ctx, recorded);
    if (recorded.events.length > 0) count++;
    if (recorded.healthDue) await applyHealth(ctx, attempt.attemptId);
  }
  return count;
}

async function reapLostProbes(ctx: RescueContext): Promise<number> {
  let count = 0;
  for (const { name, attemptId } of await listOverdueProbes(ctx.database)) {
    if (await reapLostProbe(ctx, name, attemptId)) count++;
  }
  return count;
}

/** B2 of workers that died between the money and the health. */
async function applyDueHealth(ctx: RescueContext): Promise<number> {
  const due = await listHealthDue(ctx.database, BATCH);
  for (const attemptId of due) await applyHealth(ctx, attemptId);
  return due.length;
}

async function expireRequests(ctx: RescueContext): Promise<number> {
  const expired = await expireOverdue(ctx.database, BATCH);
  for (const requestId of expired) ctx.emit('request:expired', { requestId });
  return expired.length;
}

/** Rows that want a job: an operator's function re-armed them, or a send failed. */
async function sendDueJobs(ctx: RescueContext): Promise<number> {
  return ctx.database.retryingTransaction(async (tx) => {
    let sent = 0;
    for (const request of await lockJobDue(tx, BATCH)) {
      // One row that can't be sent for must not hold up the others.
      await tx.executeSql('savepoint onetake_job');
      try {
        // A lane that nobody has configured yet has no queue; making one again changes nothing.
        await ctx.queue.ensureQueue(request.account, request.operation);
        await ctx.queue.send(tx, request, request.notBefore);
        await clearJobDue(tx, request.id);
        sent++;
      } catch (error) {
        if (isLostConnection(error)) throw error;
        await tx.executeSql('rollback to savepoint onetake_job');
      }
      await tx.executeSql('release savepoint onetake_job');
    }
    return sent;
  });
}

/**
 * The slow sweep: queued rows whose job has vanished (retention, a hand in the queue's tables). The table is
 * the truth and the queue only a wake-up. Pages by id; call it again with the id that it returns.
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
    const present = await ctx.queue.listJobs(ctx.database, account, operation, ids);
    for (const id of ids.filter((id) => !present.has(id))) {
      await markJobDue(ctx.database, id);
      count++;
    }
  }
  if (count > 0) ctx.emit('rescue:done', { rescued: 'vanished_jobs', count });
  return page.length < 1_000 ? null : (page.at(-1)?.id ?? null);
}
