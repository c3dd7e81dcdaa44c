import { decideAdmission } from '../core/admission.ts';
import { type CircuitBreaker, decidePermit, type Permit } from '../core/circuit-breaker.ts';
import { type Lane, readLanes } from '../postgres/lanes.ts';
import { type AdmitResult, type AdmittedBatch, admit } from './admit.ts';
import type { SubmissionContext } from './context.ts';
import { orReport } from './lane-trouble.ts';
import { admitProbe, type Reaches } from './probe.ts';

const PAGE = 100;
/** Lanes looked at in one round at most; the next round goes on from there. */
const MAX_PAGES = 20;

export type LaneCursor =
  | (Pick<Lane, 'account' | 'operation'> & {
      /** Every lane before it was looked at a moment ago: the least wait among those that were blocked. */
      readonly swept?: { readonly wakeInMs: number | null };
    })
  | null;

export interface DispatchRound {
  readonly admitted: number;
  /** Ms until the next known instant at which a blocked lane may open; null when none is known. */
  readonly wakeInMs: number | null;
  /** Where the next round begins, so that every lane has its turn. */
  readonly cursor: LaneCursor;
}

export interface DispatchTerms {
  readonly freeSlots: () => number;
  /** False for a lane that this worker can't serve. */
  readonly reaches: Reaches;
}

/**
 * One round: pages over the lanes with queued work, and runs transaction A for each that is not known to be
 * blocked, while slots are free. A blocked lane costs its share of one indexed read and nothing else:
 * no job is fetched, no row written.
 */
export async function dispatch(
  ctx: SubmissionContext,
  from: LaneCursor,
  terms: DispatchTerms,
  start: (lane: Lane, batch: AdmittedBatch) => void,
): Promise<DispatchRound> {
  const { freeSlots } = terms;
  const probed = new Set<string>();
  let admitted = 0;
  const sweepsAll = from === null || from.swept !== undefined;
  let wakeInMs = from?.swept?.wakeInMs ?? null;
  let cursor = from;
  for (let page = 0; page < MAX_PAGES && freeSlots() > 0; page++) {
    const lanes = await readLanes(ctx.database, cursor, PAGE);
    for (const lane of lanes) {
      if (freeSlots() <= 0) return { admitted, wakeInMs, cursor };
      cursor = { account: lane.account, operation: lane.operation };
      if (!terms.reaches(lane)) continue;
      const opening = openingOf(lane);
      if (opening === 'open') {
        const wanted = Math.min(freeSlots(), lane.maxConcurrentGenerations);
        const result = await orReport(ctx, () => admitPastStaleJobs(ctx, lane, wanted));
        if (result === undefined || 'blockedBy' in result) continue;
        admitted += result.attempts.length;
        start(lane, result);
      } else if (opening === 'probe') {
        // Once a round and breaker, whichever lane it was noticed in: the probe is chosen among all.
        const name = `${lane.provider}/${lane.operation}`;
        if (probed.has(name)) continue;
        probed.add(name);
        const probe = await orReport(ctx, () =>
          admitProbe(ctx, lane.provider, lane.operation, terms.reaches),
        );
        if (probe === undefined) continue;
        admitted++;
        start(probe.lane, probe.batch);
      } else if (opening !== undefined) {
        // Instants reach us cut to ms: a timer set to the very ms would come too early.
        const ms = Math.max(1, opening.getTime() - lane.now.getTime() + 1);
        wakeInMs = wakeInMs === null ? ms : Math.min(wakeInMs, ms);
      }
    }
    if (lanes.length < PAGE) {
      // The end of the list. When slots ran out in its middle, the next round begins at its beginning at once.
      return { admitted, wakeInMs: sweepsAll ? wakeInMs : 0, cursor: null };
    }
  }
  if (freeSlots() <= 0) return { admitted, wakeInMs, cursor };
  // Else a list longer than one round, blocked from end to end, would be read without pause.
  const swept = sweepsAll && admitted === 0 && cursor !== null ? { ...cursor, swept: { wakeInMs } } : cursor;
  return { admitted, wakeInMs: 0, cursor: swept };
}

/** Transactions that one lane may spend on jobs of requests that wait no more, in one round. */
const STALE_ROUNDS = 100;

/**
 * Requests that expired or were withdrawn leave their jobs behind. A transaction that met only such has
 * cleared them away and tries again at once, so that they never stand between the lane and its next request.
 */
async function admitPastStaleJobs(ctx: SubmissionContext, lane: Lane, wanted: number): Promise<AdmitResult> {
  for (let round = 1; ; round++) {
    const result = await admit(ctx, lane, { wanted });
    if (!('blockedBy' in result) || result.blockedBy !== 'stale_jobs' || round >= STALE_ROUNDS) return result;
  }
}

/**
 * The same decision that admission makes, on what a plain read saw: only a hint, and it costs nobody a lock.
 * Undefined: blocked until something happens that no instant is known for.
 */
function openingOf(lane: Lane): 'open' | 'probe' | Date | undefined {
  const { now } = lane;
  if (lane.notBefore > now) return lane.notBefore;
  const permit = permitOf(lane);
  const admission = decideAdmission(lane, { ...lane, permit }, 1, now);
  if (!('blockedBy' in admission)) return admission.probe === 'alone' ? 'probe' : 'open';
  switch (admission.blockedBy) {
    case 'paused':
      return lane.pausedUntil ?? undefined;
    case 'breaker':
      return permit.permit === 'refuse' ? permit.retryAt : undefined;
    case 'rate':
      return lane.windowOpensAt ?? undefined;
    case 'held':
    case 'trial':
    case 'ramp':
    case 'concurrency':
      return undefined;
  }
}

function permitOf(lane: Lane): Permit {
  return decidePermit(breakerOf(lane), lane.now, { override: lane.override, shadow: lane.shadow });
}

/** As much of the breaker as the lane's row tells, which is what a permit asks for. */
function breakerOf({ breakerState, retryAt, rampAcceptances }: Lane): CircuitBreaker {
  if (breakerState === 'half_open') {
    return { state: 'half_open', generation: 0, probeAttemptId: '', failedProbes: 0 };
  }
  if (breakerState === 'open' && retryAt !== null) {
    return { state: 'open', generation: 0, openedAt: retryAt, retryAt, failedProbes: 0 };
  }
  return { state: 'closed', generation: 0, consecutiveFailures: 0, rampAcceptances };
}
