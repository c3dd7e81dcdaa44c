import {
  type AppliedOutcome,
  applyOutcome,
  type CircuitBreaker,
  overrideAt,
} from '../core/circuit-breaker.ts';
import type { BreakerTransition } from '../core/events.ts';
import {
  type CircuitBreakerRow,
  ensureCircuitBreaker,
  lockCircuitBreaker,
  writeCounts,
  writeTransition,
} from '../postgres/circuit-breakers.ts';
import { readClock } from '../postgres/clock.ts';
import type { Sql } from '../postgres/database.ts';
import {
  type DueHealth,
  findHealthDue,
  type HealthEffectOf,
  takeHealthDue,
  writeHealthEffects,
} from '../postgres/health-due.ts';
import { notify } from '../postgres/notifications.ts';
import { lockAttempt } from '../postgres/submission-attempts.ts';
import { announce } from './announce.ts';
import type { RescueContext } from './context.ts';

/** How long to wait for a lock, and how often; rescue waits less than a settle does. */
type Patience = NonNullable<Parameters<RescueContext['database']['retryingTransaction']>[1]>;

/** Outcomes that one transaction applies at most. */
const BATCH = 500;
const MAX_BATCHES = 100;

/** B2, the health of one settled attempt and of whatever was settled before it. Idempotent. */
export async function applyHealth(
  ctx: RescueContext,
  attemptId: string,
  patience: Patience = {},
): Promise<void> {
  const breaker = await findHealthDue(ctx.database, attemptId);
  if (breaker !== undefined) await applyDueHealth(ctx, breaker, patience);
}

/**
 * Applies every outcome that waits for this breaker, in the order in which they were settled: whoever gets the
 * lock first does it for those who queue behind, since Postgres hands a row's lock on in no fixed order, and
 * for workers that died between the money and the health. Says how many.
 */
export async function applyDueHealth(
  ctx: RescueContext,
  breaker: string,
  patience: Patience = {},
): Promise<number> {
  let total = 0;
  for (let batch = 1; batch <= MAX_BATCHES; batch++) {
    const { count, transitions } = await ctx.database.retryingTransaction(async (tx) => {
      const row = await lockOrMake(ctx, tx, breaker);
      return applyInOrder(tx, row, await takeHealthDue(tx, breaker, BATCH));
    }, patience);
    for (const transition of transitions) await announce(ctx, transition);
    total += count;
    // A full page has an outcome of each of its attempts, or two.
    if (count < BATCH) break;
  }
  return total;
}

/**
 * The reaper: a half-open breaker whose probe's lease is over. Evidence that is on the attempt already is
 * applied first; without any the probe is lost. It never touches the request, which rescue moves by the
 * request's own lease. Whoever is not first at either lock leaves it to the other.
 */
export async function reapLostProbe(
  ctx: RescueContext,
  breaker: string,
  attemptId: string,
  patience: Patience = {},
): Promise<boolean> {
  const transitions = await ctx.database.retryingTransaction(async (tx) => {
    const attempt = await lockAttempt(tx, attemptId);
    const row = await lockCircuitBreaker(tx, breaker, 'skip');
    if (row?.breaker.state !== 'half_open' || row.breaker.probeAttemptId !== attemptId) return [];
    if (attempt !== undefined && attempt.settledAt !== null) {
      return (await applyInOrder(tx, row, [{ attempt, of: 'submission' }])).transitions;
    }
    if (attempt !== undefined && !attempt.leaseIsOver) return [];
    const now = await readClock(tx);
    const lost = { attemptId, generation: row.breaker.generation, health: 'lost' } as const;
    const move = applyOutcome(row.breaker, lost, row.settings, now, Math.random());
    const context = {
      cause: 'probe_lost',
      outcomeKind: null,
      httpStatus: null,
      requestId: attempt?.requestId ?? null,
      providerTaskId: null,
    } as const;
    return [await writeTransition(tx, row, move.next, context, now)];
  }, patience);
  for (const transition of transitions) await announce(ctx, transition);
  return transitions.length > 0;
}

async function lockOrMake(ctx: RescueContext, tx: Sql, name: string): Promise<CircuitBreakerRow> {
  const row = await lockCircuitBreaker(tx, name, 'wait');
  if (row !== undefined) return row;
  const operation = name.slice(name.indexOf('/') + 1);
  await ensureCircuitBreaker(tx, name, ctx.settingsOf(operation).breaker);
  return (await lockCircuitBreaker(tx, name, 'wait')) as CircuitBreakerRow;
}

interface Applied {
  readonly count: number;
  readonly transitions: readonly BreakerTransition[];
}

/** The caller holds the locks of the breaker and of all these attempts. */
async function applyInOrder(tx: Sql, locked: CircuitBreakerRow, due: readonly DueHealth[]): Promise<Applied> {
  if (due.length === 0) return { count: 0, transitions: [] };
  const now = await readClock(tx);
  const transitions: BreakerTransition[] = [];
  const effects: HealthEffectOf[] = [];
  let row = locked;
  let written: CircuitBreaker = row.breaker;
  for (const one of due) {
    const { attempt, of } = one;
    const outcome = of === 'stream' ? outcomeOfStreamEnd(row, one, effects, now) : outcomeOf(row, one, now);
    const move = applyOutcome(row.breaker, outcome, row.settings, now, Math.random());
    effects.push({ attemptId: attempt.id, of, effect: move.effect });
    if (move.cause !== undefined) {
      const { requestId, providerTaskId } = attempt;
      const told =
        of === 'stream'
          ? // The status was that of its beginning.
            { outcomeKind: attempt.streamHealth, httpStatus: null }
          : { outcomeKind: attempt.health, httpStatus: attempt.httpStatus };
      const context = { cause: move.cause, ...told, requestId, providerTaskId };
      transitions.push(await writeTransition(tx, row, move.next, context, now));
      row = { ...row, transitions: row.transitions + 1 };
      written = move.next;
    }
    row = { ...row, breaker: move.next };
  }
  if (row.breaker.state === 'closed' && row.breaker !== written) await writeCounts(tx, row.name, row.breaker);
  await writeHealthEffects(tx, effects);
  // There is room for more in flight now, and most likely in another process.
  if (effects.some(({ effect }) => effect === 'ramped')) await notify(tx, 'slot');
  return { count: due.length, transitions };
}

function outcomeOf(row: CircuitBreakerRow, { attempt }: DueHealth, now: Date): AppliedOutcome {
  return {
    attemptId: attempt.id,
    generation: attempt.generation,
    health: attempt.settledBy === 'rescue' && attempt.isProbe ? 'lost' : (attempt.health ?? 'none'),
    underOverride: (attempt.override ?? attempt.overrideAtSettle ?? overrideNow(row, now)) !== null,
  };
}

/** It counts where its attempt was admitted, or, of a probe that closed the breaker, in what that opened. */
function outcomeOfStreamEnd(
  row: CircuitBreakerRow,
  { attempt }: DueHealth,
  effects: readonly HealthEffectOf[],
  now: Date,
): AppliedOutcome {
  const ofSubmission = effects.find(({ attemptId, of }) => attemptId === attempt.id && of === 'submission');
  const hasClosed = attempt.isProbe && (ofSubmission?.effect ?? attempt.healthEffect) === 'closed';
  return {
    attemptId: attempt.id,
    generation: attempt.generation + (hasClosed ? 1 : 0),
    health: attempt.streamHealth ?? 'none',
    underOverride: (attempt.override ?? attempt.overrideAtStreamEnd ?? overrideNow(row, now)) !== null,
  };
}

function overrideNow(row: CircuitBreakerRow, now: Date) {
  return overrideAt({ override: row.override, expiresAt: row.overrideExpiresAt }, now);
}
