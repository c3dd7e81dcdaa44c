import fc from 'fast-check';
import type * as circuitBreaker from '../../src/core/circuit-breaker.ts';
import type {
  BreakerOverride,
  CircuitBreaker,
  CircuitBreakerSettings,
} from '../../src/core/circuit-breaker.ts';
import type { Health } from '../../src/core/outcome.ts';

/** What is under test, as a parameter: the rules must also be seen to fail on a broken one. */
export type BreakerCore = Pick<
  typeof circuitBreaker,
  'decidePermit' | 'grantProbe' | 'applyOutcome' | 'overrideAt'
>;

export type BreakerStep =
  | { readonly step: 'ask' }
  /** Somebody who read the row before comes for the probe now. */
  | { readonly step: 'come_for_probe' }
  | { readonly step: 'settle'; readonly which: number; readonly health: Health; readonly random: number }
  | { readonly step: 'lose_probe'; readonly random: number }
  /** `forMs` null: until it is released. */
  | { readonly step: 'override'; readonly override: BreakerOverride; readonly forMs: number | null }
  | { readonly step: 'release' }
  | { readonly step: 'wait'; readonly ms: number }
  | { readonly step: 'wait_for_retry_at'; readonly shortByMs: number }
  | { readonly step: 'wait_for_expiry'; readonly shortByMs: number };

interface Seen {
  readonly state: CircuitBreaker['state'];
  readonly generation: number;
  readonly failures: number | null;
  readonly ramp: number | null;
  readonly failedProbes: number | null;
  readonly retryAt: number | null;
}

type BreakerEvent =
  | {
      readonly kind: 'permit';
      readonly attempt: string;
      readonly generation: number;
      readonly probe: boolean;
      /** So many may be in flight together; null: no ramp was named. */
      readonly atMost: number | null;
    }
  | { readonly kind: 'refused' }
  | { readonly kind: 'settled'; readonly attempt: string; readonly health: Health | 'lost' };

/** As it was laid over the breaker last; whether it is in force is for the reader to say. */
export interface HeldOverride {
  readonly override: BreakerOverride;
  readonly expiresAt: number | null;
}

/** The model: a list of permits, refusals and outcomes, each with what the row showed before and after. */
export interface BreakerEntry {
  readonly at: number;
  readonly event: BreakerEvent;
  readonly held: HeldOverride | null;
  readonly before: Seen;
  readonly after: Seen;
}

const HEALTHS: readonly Health[] = [
  'capacity_signal',
  'request_or_account_failure',
  'unknown_failure',
  'none',
];

const health = fc.oneof(
  { weight: 6, arbitrary: fc.constant<Health>('dependency_failure') },
  { weight: 3, arbitrary: fc.constant<Health>('success') },
  { weight: 2, arbitrary: fc.constantFrom(...HEALTHS) },
);

const random = fc.constantFrom(0, 0.5, 0.999);
const shortByMs = fc.constantFrom(0, 0, 1);

function step<Name extends BreakerStep['step']>(name: Name) {
  return fc.constant(name);
}

export const breakerSteps: fc.Arbitrary<readonly BreakerStep[]> = fc.array(
  fc.oneof<fc.MaybeWeightedArbitrary<BreakerStep>[]>(
    { weight: 12, arbitrary: fc.record({ step: step('ask') }) },
    { weight: 4, arbitrary: fc.record({ step: step('come_for_probe') }) },
    { weight: 16, arbitrary: fc.record({ step: step('settle'), which: fc.nat(20), health, random }) },
    { weight: 2, arbitrary: fc.record({ step: step('lose_probe'), random }) },
    {
      weight: 1,
      arbitrary: fc.record({
        step: step('override'),
        override: fc.constantFrom('forced_open', 'forced_closed'),
        forMs: fc.constantFrom(null, 400, 2_000),
      }),
    },
    { weight: 2, arbitrary: fc.record({ step: step('release') }) },
    { weight: 4, arbitrary: fc.record({ step: step('wait'), ms: fc.nat(900) }) },
    { weight: 8, arbitrary: fc.record({ step: step('wait_for_retry_at'), shortByMs }) },
    { weight: 1, arbitrary: fc.record({ step: step('wait_for_expiry'), shortByMs }) },
  ),
  { minLength: 1, maxLength: 60, size: 'max' },
);

export const breakerSettings: fc.Arbitrary<CircuitBreakerSettings> = fc
  .record({
    failureThreshold: fc.integer({ min: 1, max: 4 }),
    cooldownMs: fc.integer({ min: 100, max: 1_000 }),
    cooldownGrowth: fc.constantFrom(1, 1.5, 2, 10),
    cap: fc.constantFrom(1, 1.7, 4, 60),
    jitter: fc.constantFrom(0, 0, 0.1, 0.5),
    shadow: fc.constantFrom(false, false, true),
  })
  .map(({ cap, ...settings }) => ({
    ...settings,
    maxCooldownMs: Math.ceil(settings.cooldownMs * cap),
  }));

/** Acceptances since a close before the history; null: it was never open, or long ago. */
export const breakerStart: fc.Arbitrary<number | null> = fc.constantFrom(null, null, 0, 497, 499);

interface Outstanding {
  readonly attempt: string;
  readonly generation: number;
  readonly probe: boolean;
  readonly override: BreakerOverride | null;
  lost: boolean;
}

/** Plays the steps on one row and writes down what happened. */
export function recordBreakerHistory(
  core: BreakerCore,
  settings: CircuitBreakerSettings,
  steps: readonly BreakerStep[],
  rampAcceptances: number | null,
): readonly BreakerEntry[] {
  const history: BreakerEntry[] = [];
  const outstanding: Outstanding[] = [];
  let row: CircuitBreaker = { state: 'closed', generation: 1, consecutiveFailures: 0, rampAcceptances };
  let held: HeldOverride | null = null;
  let at = 1_000_000;
  let attempts = 0;

  function record(event: BreakerEvent, before: Seen): void {
    history.push({ at, event, held, before, after: look(row) });
  }
  function inForce(): BreakerOverride | null {
    const { override = null, expiresAt = null } = held ?? {};
    return core.overrideAt(
      { override, expiresAt: expiresAt === null ? null : new Date(expiresAt) },
      new Date(at),
    );
  }
  function admit(before: Seen, probe: boolean, atMost: number | null): void {
    const attempt = `attempt-${attempts}`;
    attempts += 1;
    const { generation } = row;
    outstanding.push({ attempt, generation, probe, override: inForce(), lost: false });
    record({ kind: 'permit', attempt, generation, probe, atMost }, before);
  }
  function comeForProbe(before: Seen): void {
    const next = core.grantProbe(row, `attempt-${attempts}`, new Date(at));
    if (next === undefined) {
      record({ kind: 'refused' }, before);
      return;
    }
    row = next;
    admit(before, true, null);
  }
  function ask(before: Seen): void {
    const answer = core.decidePermit(row, new Date(at), { override: inForce(), shadow: settings.shadow });
    if (answer.permit === 'refuse') record({ kind: 'refused' }, before);
    else if (answer.permit === 'allow') admit(before, false, answer.atMost ?? null);
    else comeForProbe(before);
  }
  function settle(one: Outstanding, outcome: Health | 'lost', drawn: number, before: Seen): void {
    const { attempt: attemptId, generation } = one;
    const underOverride = one.override !== null || inForce() !== null;
    const applied = { attemptId, generation, health: outcome, underOverride };
    row = core.applyOutcome(row, applied, settings, new Date(at), drawn).next;
    record({ kind: 'settled', attempt: attemptId, health: outcome }, before);
  }

  for (const step of steps) {
    const before = look(row);
    switch (step.step) {
      case 'ask':
        ask(before);
        break;
      case 'come_for_probe':
        // Under an override and in shadow nobody comes for the probe without having asked.
        if (row.state !== 'closed' && held === null && !settings.shadow) comeForProbe(before);
        break;
      case 'settle': {
        const [one] = outstanding.splice(step.which % Math.max(1, outstanding.length), 1);
        if (one !== undefined) settle(one, step.health, step.random, before);
        break;
      }
      case 'lose_probe': {
        // The lost one stays outstanding: its own outcome may still come, long after.
        const probe = outstanding.find((one) => one.probe && !one.lost);
        if (probe !== undefined) {
          probe.lost = true;
          settle(probe, 'lost', step.random, before);
        }
        break;
      }
      case 'override':
        held = { override: step.override, expiresAt: step.forMs === null ? null : at + step.forMs };
        break;
      case 'release':
        held = null;
        break;
      case 'wait':
        at += step.ms;
        break;
      case 'wait_for_retry_at':
        at = Math.max(at, (before.retryAt ?? at) - step.shortByMs);
        break;
      case 'wait_for_expiry':
        at = Math.max(at, (heldUntil(held) ?? at) - step.shortByMs);
        break;
    }
  }
  return history;
}

function heldUntil(held: HeldOverride | null): number | null {
  return held?.expiresAt ?? null;
}

function look(row: CircuitBreaker): Seen {
  return {
    state: row.state,
    generation: row.generation,
    failures: row.state === 'closed' ? row.consecutiveFailures : null,
    ramp: row.state === 'closed' ? row.rampAcceptances : null,
    failedProbes: row.state === 'closed' ? null : row.failedProbes,
    retryAt: row.state === 'open' ? row.retryAt.getTime() : null,
  };
}
