import type { Health } from './outcome.ts';

/**
 * One breaker, as its row stores it. `generation` grows at every transition; a permit carries the
 * generation that it was given in, and an outcome that comes back under another one moves nothing.
 */
export type CircuitBreaker =
  | {
      readonly state: 'closed';
      readonly generation: number;
      readonly consecutiveFailures: number;
      /** Acceptances since the last close, while the ramp lasts; null: no ramp. */
      readonly rampAcceptances: number | null;
    }
  | {
      readonly state: 'open';
      readonly generation: number;
      readonly openedAt: Date;
      readonly retryAt: Date;
      /** Probes in a row that failed or were lost: what the cooldown has grown by. */
      readonly failedProbes: number;
    }
  | {
      readonly state: 'half_open';
      readonly generation: number;
      readonly probeAttemptId: string;
      readonly failedProbes: number;
    };

export type CircuitBreakerState = CircuitBreaker['state'];

export interface CircuitBreakerSettings {
  /** Consecutive dependency failures that open it. 1 to 1,000. */
  readonly failureThreshold: number;
  /** From opening to the first moment at which a probe may go. 100 to 86,400,000. */
  readonly cooldownMs: number;
  /** What the cooldown is multiplied by after each failed or lost probe in a row. 1 to 10. */
  readonly cooldownGrowth: number;
  /** The grown cooldown's cap, before jitter. `cooldownMs` to 86,400,000. */
  readonly maxCooldownMs: number;
  /** Lengthens each cooldown by up to this part of itself, drawn once at the opening. 0 to 0.5. */
  readonly jitter: number;
  /** Records what it would have done, and refuses nothing. */
  readonly shadow: boolean;
}

/** Held over the state by an operator. Underneath, only a live probe goes on. */
export type BreakerOverride = 'forced_open' | 'forced_closed';

/** Why a transition happened; stored with it. */
export type TransitionCause =
  | 'failure_threshold'
  | 'probe_granted'
  | 'probe_succeeded'
  | 'probe_failed'
  | 'probe_neutral'
  | 'probe_lost'
  | 'operator'
  | 'override_expired';

/** What became of an outcome's health under the breaker's lock; stored on its attempt. */
export type HealthEffect =
  | 'counted'
  | 'reset'
  | 'ramped'
  | 'nothing_to_apply'
  | 'neutral'
  | 'opened'
  | 'closed'
  | 'reopened'
  | 'stale_generation'
  | 'under_override';

export type Permit =
  /** Submit as many as admission allows; after a close, no more than `atMost` in flight together. */
  | { readonly permit: 'allow'; readonly atMost?: number }
  /** Submit exactly one, as the probe. */
  | { readonly permit: 'probe' }
  /** Shadow: submit what admission allows, and mark the first as what would have been the probe. */
  | { readonly permit: 'shadow_probe' }
  /** Submit nothing. `retryAt` is known only while open. */
  | { readonly permit: 'refuse'; readonly retryAt: Date | undefined };

/** The first setting that makes no sense, or undefined. */
export function invalidBreakerSetting(
  settings: CircuitBreakerSettings,
): keyof CircuitBreakerSettings | undefined {
  const { failureThreshold, cooldownMs, cooldownGrowth, maxCooldownMs, jitter } = settings;
  if (!isWhole(failureThreshold, 1, 1_000)) return 'failureThreshold';
  if (!isWhole(cooldownMs, 100, ONE_DAY_MS)) return 'cooldownMs';
  if (!isNumber(cooldownGrowth, 1, 10)) return 'cooldownGrowth';
  if (!isWhole(maxCooldownMs, cooldownMs, ONE_DAY_MS)) return 'maxCooldownMs';
  if (!isNumber(jitter, 0, 0.5)) return 'jitter';
  if (typeof settings.shadow !== 'boolean') return 'shadow';
  return undefined;
}

const ONE_DAY_MS = 86_400_000;

function isWhole(value: number, min: number, max: number): boolean {
  return Number.isInteger(value) && isNumber(value, min, max);
}

/** By type too: a text or null would pass the comparisons alone. */
function isNumber(value: number, min: number, max: number): boolean {
  return typeof value === 'number' && value >= min && value <= max;
}

export function newCircuitBreaker(): CircuitBreaker {
  return { state: 'closed', generation: 1, consecutiveFailures: 0, rampAcceptances: null };
}

/** What lies over the state when a permit is asked for. */
export interface PermitTerms {
  readonly override: BreakerOverride | null;
  readonly shadow: boolean;
}

const PLAIN: PermitTerms = { override: null, shadow: false };

/** May something be submitted? Refusing changes nothing, so that waiting never moves `retryAt`. */
export function decidePermit(breaker: CircuitBreaker, now: Date, terms: PermitTerms = PLAIN): Permit {
  if (terms.override === 'forced_open') return { permit: 'refuse', retryAt: undefined };
  if (terms.override === 'forced_closed') return { permit: 'allow' };
  if (terms.shadow) {
    return breaker.state === 'open' && now >= breaker.retryAt
      ? { permit: 'shadow_probe' }
      : { permit: 'allow' };
  }
  switch (breaker.state) {
    case 'closed':
      return breaker.rampAcceptances === null
        ? { permit: 'allow' }
        : { permit: 'allow', atMost: rampLimit(breaker.rampAcceptances) };
    case 'half_open':
      return { permit: 'refuse', retryAt: undefined };
    case 'open':
      return now >= breaker.retryAt ? { permit: 'probe' } : { permit: 'refuse', retryAt: breaker.retryAt };
  }
}

const RAMP_ENDS_ABOVE = 1_000;

/** After a close: two at first, and two more for each acceptance since. */
function rampLimit(acceptances: number): number {
  return 2 + 2 * acceptances;
}

/** The override that is in force at `now`: one that has expired is not, whether or not anybody noted it. */
export function overrideAt(
  stored: { readonly override: BreakerOverride | null; readonly expiresAt: Date | null },
  now: Date,
): BreakerOverride | null {
  return stored.expiresAt !== null && now >= stored.expiresAt ? null : stored.override;
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
  if (breaker.state !== 'open' || now < breaker.retryAt) return undefined;
  const { generation, failedProbes } = breaker;
  return { state: 'half_open', generation: generation + 1, probeAttemptId: attemptId, failedProbes };
}

export interface AppliedOutcome {
  readonly attemptId: string;
  /** The generation that the attempt was admitted in. */
  readonly generation: number;
  /** `lost`: a probe's lease ended and no evidence came. */
  readonly health: Health | 'lost';
  /** In force when the attempt was admitted, or is now: either way the outcome counts for nothing. */
  readonly underOverride?: boolean;
}

/**
 * Applies one settled attempt's health. `now` is the database's clock, read under the breaker's lock;
 * `random` is in [0, 1) and spreads the cooldown if this opens the breaker.
 */
export function applyOutcome(
  breaker: CircuitBreaker,
  outcome: AppliedOutcome,
  settings: CircuitBreakerSettings,
  now: Date,
  random = 0,
): BreakerMove {
  if (outcome.generation !== breaker.generation) return { next: breaker, effect: 'stale_generation' };
  // An override lies over the state; the probe that was in flight goes on underneath.
  if (breaker.state === 'half_open' && breaker.probeAttemptId === outcome.attemptId) {
    return applyProbe(breaker, outcome.health, settings, now, random);
  }
  if (outcome.underOverride === true) return { next: breaker, effect: 'under_override' };
  return breaker.state === 'closed'
    ? applyWhileClosed(breaker, outcome.health, settings, now, random)
    : { next: breaker, effect: 'stale_generation' };
}

function applyWhileClosed(
  breaker: Extract<CircuitBreaker, { state: 'closed' }>,
  health: AppliedOutcome['health'],
  settings: CircuitBreakerSettings,
  now: Date,
  random: number,
): BreakerMove {
  if (health === 'success') return applySuccess(breaker);
  if (health !== 'dependency_failure') return { next: breaker, effect: 'neutral' };
  const failures = breaker.consecutiveFailures + 1;
  // At or past: the threshold may have been lowered since the count was made.
  if (failures >= settings.failureThreshold) {
    const next = opened(breaker.generation + 1, 0, settings, now, random);
    return { next, effect: 'opened', cause: 'failure_threshold' };
  }
  return { next: { ...breaker, consecutiveFailures: failures }, effect: 'counted' };
}

function applySuccess(breaker: Extract<CircuitBreaker, { state: 'closed' }>): BreakerMove {
  const { consecutiveFailures, rampAcceptances } = breaker;
  if (rampAcceptances === null) {
    if (consecutiveFailures === 0) return { next: breaker, effect: 'nothing_to_apply' };
    return { next: { ...breaker, consecutiveFailures: 0 }, effect: 'reset' };
  }
  const acceptances = rampAcceptances + 1;
  const ramp = rampLimit(acceptances) > RAMP_ENDS_ABOVE ? null : acceptances;
  return { next: { ...breaker, consecutiveFailures: 0, rampAcceptances: ramp }, effect: 'ramped' };
}

function applyProbe(
  breaker: Extract<CircuitBreaker, { state: 'half_open' }>,
  health: AppliedOutcome['health'],
  settings: CircuitBreakerSettings,
  now: Date,
  random: number,
): BreakerMove {
  const generation = breaker.generation + 1;
  if (health === 'success') {
    const next: CircuitBreaker = { state: 'closed', generation, consecutiveFailures: 0, rampAcceptances: 0 };
    return { next, effect: 'closed', cause: 'probe_succeeded' };
  }
  const cause = causeOfReopening(health);
  // A neutral probe told nothing, so it is no reason to wait longer than before.
  const failedProbes = cause === 'probe_neutral' ? breaker.failedProbes : breaker.failedProbes + 1;
  return { next: opened(generation, failedProbes, settings, now, random), effect: 'reopened', cause };
}

function causeOfReopening(health: AppliedOutcome['health']): TransitionCause {
  if (health === 'lost') return 'probe_lost';
  return health === 'dependency_failure' ? 'probe_failed' : 'probe_neutral';
}

/** The boundary is fixed here, once: nothing that happens later moves it. */
function opened(
  generation: number,
  failedProbes: number,
  settings: CircuitBreakerSettings,
  now: Date,
  random: number,
): CircuitBreaker {
  const retryAt = new Date(now.getTime() + cooldownOf(settings, failedProbes, random));
  return { state: 'open', generation, openedAt: now, retryAt, failedProbes };
}

/** Grown, capped, then jittered: never shorter than without jitter, so that nobody probes too early. */
export function cooldownOf(settings: CircuitBreakerSettings, failedProbes: number, random: number): number {
  const { cooldownMs, cooldownGrowth, maxCooldownMs, jitter } = settings;
  const grown = Math.min(maxCooldownMs, cooldownMs * cooldownGrowth ** failedProbes);
  return Math.round(grown * (1 + jitter * random));
}
