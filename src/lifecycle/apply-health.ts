import { type AppliedOutcome, applyOutcome, overrideAt } from '../core/circuit-breaker.ts';
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
import { notify } from '../postgres/notifications.ts';
import { type LockedAttempt, lockAttempt, writeHealthEffect } from '../postgres/submission-attempts.ts';
import { announce } from './announce.ts';
import type { RescueContext } from './context.ts';

/** How long to wait for a lock, and how often; rescue waits less than a settle does. */
type Patience = NonNullable<Parameters<RescueContext['database']['retryingTransaction']>[1]>;

/**
 * B2, the health of one settled attempt: attempt, then breaker. Idempotent, so that rescue can finish it
 * for a worker that died between the money and the health. Outcomes count in the order in which they get
 * the breaker's lock.
 */
export async function applyHealth(
  ctx: RescueContext,
  attemptId: string,
  patience: Patience = {},
): Promise<void> {
  const transition = await ctx.database.retryingTransaction(async (tx) => {
    const attempt = await lockAttempt(tx, attemptId);
    if (attempt === undefined || attempt.settledAt === null || attempt.healthAppliedAt !== null)
      return undefined;
    const row = await lockBreakerOf(ctx, tx, attempt);
    return applyTo(tx, row, attempt);
  }, patience);
  if (transition !== undefined) await announce(ctx, transition);
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
  const transition = await ctx.database.retryingTransaction(async (tx) => {
    const attempt = await lockAttempt(tx, attemptId);
    const row = await lockCircuitBreaker(tx, breaker, 'skip');
    if (row?.breaker.state !== 'half_open' || row.breaker.probeAttemptId !== attemptId) return undefined;
    if (attempt !== undefined && attempt.settledAt !== null) return applyTo(tx, row, attempt);
    if (attempt !== undefined && !attempt.leaseIsOver) return undefined;
    const now = await readClock(tx);
    const lost = { attemptId, generation: row.breaker.generation, health: 'lost' } as const;
    const move = applyOutcome(row.breaker, lost, row.settings, now, Math.random());
    return writeTransition(
      tx,
      row,
      move.next,
      {
        cause: 'probe_lost',
        outcomeKind: null,
        httpStatus: null,
        requestId: attempt?.requestId ?? null,
        providerTaskId: null,
      },
      now,
    );
  }, patience);
  if (transition === undefined) return false;
  await announce(ctx, transition);
  return true;
}

async function lockBreakerOf(
  ctx: RescueContext,
  tx: Sql,
  attempt: LockedAttempt,
): Promise<CircuitBreakerRow> {
  const name = attempt.breakerName;
  const row = await lockCircuitBreaker(tx, name, 'wait');
  if (row !== undefined) return row;
  const operation = name.slice(name.indexOf('/') + 1);
  await ensureCircuitBreaker(tx, name, ctx.settingsOf(operation).breaker);
  return (await lockCircuitBreaker(tx, name, 'wait')) as CircuitBreakerRow;
}

async function applyTo(
  tx: Sql,
  row: CircuitBreakerRow,
  attempt: LockedAttempt,
): Promise<BreakerTransition | undefined> {
  const now = await readClock(tx);
  const health = attempt.settledBy === 'rescue' && attempt.isProbe ? 'lost' : (attempt.health ?? 'none');
  const override = overrideAt({ override: row.override, expiresAt: row.overrideExpiresAt }, now);
  const outcome: AppliedOutcome = {
    attemptId: attempt.id,
    generation: attempt.generation,
    health,
    underOverride: (attempt.override ?? attempt.overrideAtSettle ?? override) !== null,
  };
  const move = applyOutcome(row.breaker, outcome, row.settings, now, Math.random());
  await writeHealthEffect(tx, attempt.id, move.effect);
  if (move.cause !== undefined) {
    const context = {
      cause: move.cause,
      outcomeKind: attempt.health,
      httpStatus: attempt.httpStatus,
      requestId: attempt.requestId,
      providerTaskId: attempt.providerTaskId,
    };
    return writeTransition(tx, row, move.next, context, now);
  }
  if (move.next.state === 'closed' && move.next !== row.breaker) {
    await writeCounts(tx, row.name, move.next);
    // There is room for more in flight now, and most likely in another process.
    if (move.effect === 'ramped') await notify(tx, 'slot');
  }
  return undefined;
}
