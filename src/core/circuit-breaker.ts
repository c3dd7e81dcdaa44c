import type { Health } from './outcome.ts';

/**
 * One breaker, as its row stores it. `generation` grows at every transition; a permit carries the
 * generation that it was given in, and an outcome that comes back under another one moves nothing.
 */
export type CircuitBreaker =
  | { readonly state: 'closed'; readonly generation: number; readonly consecutiveFailures: number }
  | { readonly state: 'open'; readonly generation: number; readonly openedAt: Date; readonly retryAt: Date }
  | { readonly state: 'half_open'; readonly generation: number; readonly probeAttemptId: string };

export type CircuitBreakerState = CircuitBreaker['state'];

export interface CircuitBreakerSettings {
  /** Consecutive dependency failures that open it. */
  readonly failureThreshold: number;
  /** From opening to the first moment at which a probe may go. */
  readonly cooldownMs: number;
}

/** Why a transition happened; stored with it. */
export type TransitionCause =
  | 'failure_threshold'
  | 'probe_granted'
  | 'probe_succeeded'
  | 'probe_failed'
  | 'probe_neutral'
  | 'probe_lost';

/** What became of an outcome's health under the breaker's lock; stored on its attempt. */
export type HealthEffect =
  | 'counted'
  | 'reset'
  | 'nothing_to_apply'
  | 'neutral'
  | 'opened'
  | 'closed'
  | 'reopened'
  | 'stale_generation';

export type Permit =
  /** Submit as many as admission allows. */
  | { readonly permit: 'allow' }
  /** Submit exactly one, as the probe. */
  | { readonly permit: 'probe' }
  /** Submit nothing. `retryAt` is known only while open. */
  | { readonly permit: 'refuse'; readonly retryAt: Date | undefined };

/** Threshold and cooldown that make sense, or the name of the setting that doesn't. */
export function invalidBreakerSetting(
  settings: CircuitBreakerSettings,
): keyof CircuitBreakerSettings | undefined {
  const { failureThreshold, cooldownMs } = settings;
  if (!Number.isInteger(failureThreshold) || failureThreshold < 1 || failureThreshold > 1_000) {
    return 'failureThreshold';
  }
  if (!Number.isInteger(cooldownMs) || cooldownMs < 100 || cooldownMs > 86_400_000) return 'cooldownMs';
  return undefined;
}

export function newCircuitBreaker(): CircuitBreaker {
  return { state: 'closed', generation: 1, consecutiveFailures: 0 };
}

/** May something be submitted? Refusing changes nothing, so that waiting never moves `retryAt`. */
export function decidePermit(breaker: CircuitBreaker, now: Date): Permit {
  switch (breaker.state) {
    case 'closed':
      return { permit: 'allow' };
    case 'half_open':
      return { permit: 'refuse', retryAt: undefined };
    case 'open':
      return now >= breaker.retryAt ? { permit: 'probe' } : { permit: 'refuse', retryAt: breaker.retryAt };
  }
}

export interface BreakerMove {
  readonly next: CircuitBreaker;
  readonly effect: HealthEffect;
  /** Set when the state changed: write one transition row. */
  readonly cause?: TransitionCause;
}

/** Marks `attemptId` as the probe. Only from an open breaker whose cooldown is over. */
export function grantProbe(
  breaker: CircuitBreaker,
  attemptId: string,
  now: Date,
): CircuitBreaker | undefined {
  if (decidePermit(breaker, now).permit !== 'probe') return undefined;
  return { state: 'half_open', generation: breaker.generation + 1, probeAttemptId: attemptId };
}

export interface AppliedOutcome {
  readonly attemptId: string;
  /** The generation that the attempt was admitted in. */
  readonly generation: number;
  /** `lost`: a probe's lease ended and no evidence came. */
  readonly health: Health | 'lost';
}

/** Applies one settled attempt's health. `now` is the database's clock, read under the breaker's lock. */
export function applyOutcome(
  breaker: CircuitBreaker,
  outcome: AppliedOutcome,
  settings: CircuitBreakerSettings,
  now: Date,
): BreakerMove {
  if (outcome.generation !== breaker.generation) return { next: breaker, effect: 'stale_generation' };
  switch (breaker.state) {
    case 'closed':
      return applyWhileClosed(breaker, outcome.health, settings, now);
    case 'half_open':
      return breaker.probeAttemptId === outcome.attemptId
        ? applyProbe(breaker.generation, outcome.health, settings, now)
        : { next: breaker, effect: 'stale_generation' };
    case 'open':
      return { next: breaker, effect: 'stale_generation' };
  }
}

function applyWhileClosed(
  breaker: Extract<CircuitBreaker, { state: 'closed' }>,
  health: AppliedOutcome['health'],
  settings: CircuitBreakerSettings,
  now: Date,
): BreakerMove {
  const { generation, consecutiveFailures } = breaker;
  if (health === 'success') {
    if (consecutiveFailures === 0) return { next: breaker, effect: 'nothing_to_apply' };
    return { next: { state: 'closed', generation, consecutiveFailures: 0 }, effect: 'reset' };
  }
  if (health !== 'dependency_failure') return { next: breaker, effect: 'neutral' };
  const failures = consecutiveFailures + 1;
  // At or past: the threshold may have been lowered since the count was made.
  if (failures >= settings.failureThreshold) {
    return { next: opened(generation + 1, settings, now), effect: 'opened', cause: 'failure_threshold' };
  }
  return { next: { state: 'closed', generation, consecutiveFailures: failures }, effect: 'counted' };
}

function applyProbe(
  generation: number,
  health: AppliedOutcome['health'],
  settings: CircuitBreakerSettings,
  now: Date,
): BreakerMove {
  if (health === 'success') {
    const next: CircuitBreaker = { state: 'closed', generation: generation + 1, consecutiveFailures: 0 };
    return { next, effect: 'closed', cause: 'probe_succeeded' };
  }
  return { next: opened(generation + 1, settings, now), effect: 'reopened', cause: causeOfReopening(health) };
}

function causeOfReopening(health: AppliedOutcome['health']): TransitionCause {
  if (health === 'lost') return 'probe_lost';
  return health === 'dependency_failure' ? 'probe_failed' : 'probe_neutral';
}

/** The boundary is fixed here, once: nothing that happens later moves it. */
function opened(generation: number, settings: CircuitBreakerSettings, now: Date): CircuitBreaker {
  const retryAt = new Date(now.getTime() + settings.cooldownMs);
  return { state: 'open', generation, openedAt: now, retryAt };
}
