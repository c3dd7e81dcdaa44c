import { decideAdmission } from '../core/admission.ts';
import { decidePermit, newCircuitBreaker, type Permit } from '../core/circuit-breaker.ts';
import { databaseErrorCode, isPassing, isRetryable } from '../postgres/errors.ts';
import { type Lane, readLanes } from '../postgres/lanes.ts';
import { type AdmitResult, type AdmittedBatch, admit } from './admit.ts';
import type { SubmissionContext } from './context.ts';

const PAGE = 100;
/** Lanes looked at in one round at most; the next round goes on from there. */
const MAX_PAGES = 20;

export type LaneCursor = Pick<Lane, 'account' | 'operation'> | null;

export interface DispatchRound {
  readonly admitted: number;
  /** Ms until the next known instant at which a blocked lane may open; null when none is known. */
  readonly wakeInMs: number | null;
  /** Where the next round begins, so that every lane has its turn. */
  readonly cursor: LaneCursor;
}

/**
 * One round: pages over the lanes with queued work, and runs transaction A for each that is not known to be
 * blocked, while `freeSlots()` lasts. A blocked lane costs its share of one indexed read and nothing else:
 * no job is fetched, no row written.
 */
export async function dispatch(
  ctx: SubmissionContext,
  from: LaneCursor,
  freeSlots: () => number,
  start: (lane: Lane, batch: AdmittedBatch) => void,
): Promise<DispatchRound> {
  let admitted = 0;
  let wakeInMs: number | null = null;
  let cursor = from;
  for (let page = 0; page < MAX_PAGES && freeSlots() > 0; page++) {
    const lanes = await readLanes(ctx.database, cursor, PAGE);
    for (const lane of lanes) {
      if (freeSlots() <= 0) return { admitted, wakeInMs, cursor };
      cursor = { account: lane.account, operation: lane.operation };
      const opensAt = blockedUntil(lane);
      if (opensAt === 'open') {
        const result = await admitOrReport(ctx, lane, Math.min(freeSlots(), lane.maxConcurrentGenerations));
        if (result === undefined || 'blockedBy' in result) continue;
        admitted += result.attempts.length;
        start(lane, result);
      } else if (opensAt !== undefined) {
        // Instants reach us cut to ms: a timer set to the very ms would come too early.
        const ms = Math.max(1, opensAt.getTime() - lane.now.getTime() + 1);
        wakeInMs = wakeInMs === null ? ms : Math.min(wakeInMs, ms);
      }
    }
    if (lanes.length < PAGE) {
      // The end of the list. A round that began in its middle is followed at once by one from its beginning.
      return { admitted, wakeInMs: from === null ? wakeInMs : 0, cursor: null };
    }
  }
  return { admitted, wakeInMs: freeSlots() > 0 ? 0 : wakeInMs, cursor };
}

/** A lane that fails by itself, such as one whose queue nobody has made yet, must not keep the others waiting. */
async function admitOrReport(
  ctx: SubmissionContext,
  lane: Lane,
  wanted: number,
): Promise<AdmitResult | undefined> {
  try {
    return await admit(ctx, lane, wanted);
  } catch (error) {
    if (isPassing(error) && !isRetryable(error)) throw error;
    ctx.emit('process:trouble', { role: 'worker', loop: 'admission', errorCode: databaseErrorCode(error) });
    return undefined;
  }
}

/**
 * The same decision that admission makes, on what a plain read saw: only a hint, and it costs nobody a lock.
 * Undefined: blocked until something happens that no instant is known for.
 */
function blockedUntil(lane: Lane): 'open' | Date | undefined {
  const { now } = lane;
  if (lane.notBefore > now) return lane.notBefore;
  const admission = decideAdmission(lane, { ...lane, permit: permitOf(lane) }, 1, now);
  if (!('blockedBy' in admission)) return 'open';
  switch (admission.blockedBy) {
    case 'paused':
      return lane.pausedUntil ?? undefined;
    case 'breaker':
      return lane.retryAt ?? undefined;
    case 'rate':
      return lane.windowOpensAt ?? undefined;
    case 'held':
    case 'concurrency':
      return undefined;
  }
}

function permitOf(lane: Lane): Permit {
  if (lane.breakerState === 'half_open') return { permit: 'refuse', retryAt: undefined };
  if (lane.breakerState !== 'open' || lane.retryAt === null)
    return decidePermit(newCircuitBreaker(), lane.now);
  return decidePermit(
    { state: 'open', generation: 0, openedAt: lane.retryAt, retryAt: lane.retryAt },
    lane.now,
  );
}
