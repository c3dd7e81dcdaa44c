import type { Sql } from '../postgres/database.ts';
import {
  type AdmissibleRequest,
  listStillQueued,
  lockForAdmission,
} from '../postgres/generation-requests.ts';
import type { Lane } from '../postgres/lanes.ts';
import type { JobQueue, WaitingJob } from '../queue/boss.ts';

/** A request that somebody else has locked is looked at again after this. */
const LOCKED_DELAY_MS = 1_000;

const UUID = /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/i;

type LaneName = Pick<Lane, 'account' | 'operation'>;

/**
 * Fetches at most `limit` jobs of the lane, completes them, sends again those whose time has not come, and
 * says which requests are locked and may be admitted. All in the caller's transaction: a job lives until
 * its permit.
 */
export async function takeJobs(
  queue: JobQueue,
  tx: Sql,
  lane: LaneName,
  limit: number,
  now: Date,
): Promise<{ readonly eligible: readonly string[]; readonly taken: number }> {
  const jobs = await queue.fetch(tx, lane.account, lane.operation, limit);
  if (jobs.length === 0) return { eligible: [], taken: 0 };
  // A job that somebody made by hand may hold anything; only ids are asked for, and only this lane's answer.
  // Two jobs that name one request are one.
  const named = jobs.map((job: WaitingJob) => job.data?.requestId).filter((id) => UUID.test(id));
  const ids = [...new Set(named)];
  const locked = new Map((await lockForAdmission(tx, ids, lane)).map((request) => [request.id, request]));
  const eligible: string[] = [];
  const later: { id: string; jobPriority: number; at: Date }[] = [];
  for (const id of ids) {
    const request = locked.get(id);
    if (request?.state !== 'queued') continue;
    const { jobPriority, notBefore } = request;
    if (notBefore > now) later.push({ id, jobPriority, at: notBefore });
    // One past its deadline loses its job here and is expired by rescue.
    else if (!isPastDeadline(request, now)) eligible.push(id);
  }
  const unseen = ids.filter((id) => !locked.has(id));
  if (unseen.length > 0) {
    const at = new Date(now.getTime() + LOCKED_DELAY_MS);
    for (const queued of await listStillQueued(tx, unseen, lane)) later.push({ ...queued, at });
  }
  await queue.complete(tx, lane.account, lane.operation, jobs);
  for (const { at, ...request } of later) {
    await queue.send(tx, { ...request, account: lane.account, operation: lane.operation }, at);
  }
  return { eligible, taken: jobs.length };
}

/**
 * Takes the one request that was chosen as the probe, and its job without fetching any other. Empty when
 * somebody has it locked or its time is over; then nothing was touched.
 */
export async function takeProbe(
  queue: JobQueue,
  tx: Sql,
  lane: LaneName,
  requestId: string,
  now: Date,
): Promise<string[]> {
  const [request] = await lockForAdmission(tx, [requestId], lane);
  if (request?.state !== 'queued' || request.notBefore > now || isPastDeadline(request, now)) return [];
  await queue.completeWaiting(tx, lane.account, lane.operation, requestId);
  return [requestId];
}

function isPastDeadline(request: AdmissibleRequest, now: Date): boolean {
  return request.submitBefore !== null && request.submitBefore <= now;
}
