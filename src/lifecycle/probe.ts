import type { Lane } from '../postgres/lanes.ts';
import { listProbeLanes, listProbeRequests } from '../postgres/probe-candidates.ts';
import { type AdmittedBatch, admit } from './admit.ts';
import type { SubmissionContext } from './context.ts';
import { orReport } from './lane-trouble.ts';

/** Whether this worker can serve a lane: it has the account's key, and knows and reaches the provider. */
export type Reaches = (lane: Pick<Lane, 'provider' | 'account' | 'operation'>) => boolean;

export interface AdmittedProbe {
  readonly lane: Lane;
  readonly batch: AdmittedBatch;
}

/** Lanes that are read at once. */
const PAGE = 500;
/** Lanes that are tried for one probe in one round. */
const CANDIDATES = 100;
/** Of these, at most so many that fail: each may have cost a wait for a lock. */
const FAILURES = 5;
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
): Promise<AdmittedProbe | undefined> {
  let [tried, failed] = [0, 0];
  for (const freshOnly of [true, false]) {
    for await (const lane of probeLanes(ctx, provider, operation, freshOnly)) {
      if (!reaches(lane)) continue;
      const result = await orReport(ctx, () => admitProbeOf(ctx, lane, freshOnly));
      if (result === 'breaker') return undefined;
      if (typeof result === 'object') return result;
      tried++;
      if (result === undefined) failed++;
      if (tried >= CANDIDATES || failed >= FAILURES) return undefined;
    }
  }
  return undefined;
}

/** Best first, and all of them: there may be many whose key only others have. */
async function* probeLanes(
  ctx: SubmissionContext,
  provider: string,
  operation: string,
  freshOnly: boolean,
): AsyncGenerator<Lane> {
  for (let offset = 0; ; offset += PAGE) {
    const lanes = await listProbeLanes(ctx.database, provider, operation, freshOnly, { limit: PAGE, offset });
    yield* lanes;
    if (lanes.length < PAGE) return;
  }
}

/** `lane`: nothing of this lane can be the probe now. `breaker`: nobody's can. */
async function admitProbeOf(
  ctx: SubmissionContext,
  lane: Lane,
  freshOnly: boolean,
): Promise<AdmittedProbe | 'lane' | 'breaker'> {
  for (const requestId of await listProbeRequests(ctx.database, lane, freshOnly, REQUESTS)) {
    const result = await admit(ctx, lane, { wanted: 1, probeWith: requestId });
    if (!('blockedBy' in result)) return { lane, batch: result };
    if (result.blockedBy === 'breaker') return 'breaker';
    // The request is somebody else's, so the next one is tried; whatever else is in the way is the lane's.
    if (result.blockedBy !== 'no_job') return 'lane';
  }
  return 'lane';
}
