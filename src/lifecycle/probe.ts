import type { Lane } from '../postgres/lanes.ts';
import { listProbeLanes, listProbeRequests } from '../postgres/probe-candidates.ts';
import { type AdmittedBatch, admit } from './admit.ts';
import type { SubmissionContext } from './context.ts';

/** Whether this worker can serve a lane: it has the account's key and gets through to the provider. */
export type Reaches = (lane: Pick<Lane, 'provider' | 'account'>) => boolean;

/** Lanes that are tried for one probe in one round. */
const CANDIDATES = 20;
/** Requests that are tried in each of them. */
const REQUESTS = 3;

/**
 * Chooses the probe of a breaker whose cooldown is over: a real, already authorized, queued request. First
 * one that never had an unknown attempt, of an account with a recent acceptance, in rotation; a re-armed
 * one only when nothing else is due. Undefined: nobody is eligible, or another process was faster; the
 * breaker stays as it is.
 */
export async function admitProbe(
  ctx: SubmissionContext,
  provider: string,
  operation: string,
  reaches: Reaches = () => true,
): Promise<{ readonly lane: Lane; readonly batch: AdmittedBatch } | undefined> {
  for (const freshOnly of [true, false]) {
    for (const lane of await listProbeLanes(ctx.database, provider, operation, freshOnly, CANDIDATES)) {
      if (!reaches(lane)) continue;
      for (const requestId of await listProbeRequests(ctx.database, lane, freshOnly, REQUESTS)) {
        const result = await admit(ctx, lane, { wanted: 1, probeWith: requestId });
        if (!('blockedBy' in result)) return { lane, batch: result };
        if (result.blockedBy === 'breaker') return undefined;
        // The request is somebody else's, so the next one is tried; whatever else is in the way is the lane's.
        if (result.blockedBy !== 'no_job') break;
      }
    }
  }
  return undefined;
}
