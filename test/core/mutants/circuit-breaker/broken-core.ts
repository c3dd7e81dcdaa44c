import type {
  AppliedOutcome,
  CircuitBreaker,
  CircuitBreakerSettings,
  Permit,
} from '../../../../src/core/circuit-breaker.ts';
import * as circuitBreaker from '../../../../src/core/circuit-breaker.ts';
import type { BreakerCore } from '../../../support/breaker-history.ts';
import type { BreakerRule } from '../../../support/breaker-rules.ts';

/** What is broken, the rule that must find it, and the broken core. */
export type BreakerMutant = readonly [string, BreakerRule, BreakerCore];

export const core: BreakerCore = circuitBreaker;

type Change = (
  outcome: AppliedOutcome,
  settings: CircuitBreakerSettings,
  breaker: CircuitBreaker,
) => [AppliedOutcome, CircuitBreakerSettings];

/** The core, told something else than what came. */
export function applying(change: Change): BreakerCore {
  return {
    ...core,
    applyOutcome: (breaker, outcome, settings, now, random) =>
      core.applyOutcome(breaker, ...change(outcome, settings, breaker), now, random),
  };
}

export function withHealth(
  change: (health: AppliedOutcome['health']) => AppliedOutcome['health'],
): BreakerCore {
  return applying((outcome, settings) => [{ ...outcome, health: change(outcome.health) }, settings]);
}

export function withSettings(
  change: (settings: CircuitBreakerSettings) => Partial<CircuitBreakerSettings>,
): BreakerCore {
  return applying((outcome, settings) => [outcome, { ...settings, ...change(settings) }]);
}

/** The core, and then another row than it decided. */
export function leaving(
  change: (
    next: CircuitBreaker,
    was: CircuitBreaker,
    outcome: AppliedOutcome,
    settings: CircuitBreakerSettings,
  ) => CircuitBreaker,
): BreakerCore {
  return {
    ...core,
    applyOutcome: (breaker, outcome, settings, now, random) => {
      const move = core.applyOutcome(breaker, outcome, settings, now, random);
      return { ...move, next: change(move.next, breaker, outcome, settings) };
    },
  };
}

/** The core, and then another answer than it gave. */
export function answering(
  change: (answer: Permit, breaker: CircuitBreaker, terms: circuitBreaker.PermitTerms, now: Date) => Permit,
): BreakerCore {
  return {
    ...core,
    decidePermit: (breaker, now, terms) =>
      change(
        core.decidePermit(breaker, now, terms),
        breaker,
        terms ?? { override: null, shadow: false },
        now,
      ),
  };
}

export function closedAfter(breaker: CircuitBreaker): CircuitBreaker {
  const generation = breaker.generation + 1;
  return { state: 'closed', generation, consecutiveFailures: 0, rampAcceptances: 0 };
}

/** An open row with another boundary, in ms from its opening. */
export function openFor(next: CircuitBreaker, ms: number): CircuitBreaker {
  return next.state === 'open' ? { ...next, retryAt: new Date(next.openedAt.getTime() + ms) } : next;
}
