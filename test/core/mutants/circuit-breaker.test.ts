import { describe, expect, test } from 'vitest';
import type { AppliedOutcome, CircuitBreakerSettings } from '../../../src/core/circuit-breaker.ts';
import * as circuitBreaker from '../../../src/core/circuit-breaker.ts';
import {
  BREAKER_RULES,
  type BreakerCore,
  type BreakerRule,
  breakerProperty,
} from '../../support/breaker-history.ts';
import { foundOut } from '../../support/found-out.ts';

// A rule that no broken core can fail proves nothing: each mutant breaks one thing, and the rule named
// beside it must find a history that shows it.

const core: BreakerCore = circuitBreaker;

type Change = (
  outcome: AppliedOutcome,
  settings: CircuitBreakerSettings,
) => [AppliedOutcome, CircuitBreakerSettings];

function applying(change: Change): BreakerCore {
  return {
    ...core,
    applyOutcome: (breaker, outcome, settings, now) =>
      core.applyOutcome(breaker, ...change(outcome, settings), now),
  };
}

function withHealth(change: (health: AppliedOutcome['health']) => AppliedOutcome['health']): BreakerCore {
  return applying((outcome, settings) => [{ ...outcome, health: change(outcome.health) }, settings]);
}

function withThreshold(by: number): BreakerCore {
  return applying((outcome, settings) => [
    outcome,
    { ...settings, failureThreshold: settings.failureThreshold + by },
  ]);
}

const BREAKER_MUTANTS: readonly [string, BreakerRule, BreakerCore][] = [
  [
    'a second probe while one is live',
    'never has two live probes',
    {
      ...core,
      grantProbe: (breaker, probeAttemptId, now) =>
        breaker.state === 'half_open'
          ? { ...breaker, probeAttemptId }
          : core.grantProbe(breaker, probeAttemptId, now),
    },
  ],
  [
    'a probe before the boundary',
    'grants a probe only to an open breaker at or after its boundary',
    {
      ...core,
      grantProbe: (breaker, attemptId, now) =>
        core.grantProbe(breaker, attemptId, new Date(now.getTime() + 1)),
    },
  ],
  [
    'the boundary itself taken for too early',
    'answers who asks by state and boundary alone',
    { ...core, decidePermit: (breaker, now) => core.decidePermit(breaker, new Date(now.getTime() - 1)) },
  ],
  [
    'a late failure that moves retry_at',
    'fixes retry_at at the opening for the whole episode',
    {
      ...core,
      applyOutcome: (breaker, outcome, settings, now) => {
        const move = core.applyOutcome(breaker, outcome, settings, now);
        if (move.next.state !== 'open' || outcome.health !== 'dependency_failure') return move;
        return { ...move, next: { ...move.next, retryAt: new Date(now.getTime() + settings.cooldownMs) } };
      },
    },
  ],
  [
    'a refusal that moves retry_at',
    'fixes retry_at at the opening for the whole episode',
    {
      ...core,
      decidePermit: (breaker, now) => {
        const answer = core.decidePermit(breaker, now);
        if (breaker.state === 'open' && answer.permit === 'refuse')
          breaker.retryAt.setTime(now.getTime() + 1_000);
        return answer;
      },
    },
  ],
  [
    'a stale outcome that is applied',
    'ignores outcomes that were admitted under an older generation',
    {
      ...core,
      applyOutcome: (breaker, outcome, settings, now) =>
        core.applyOutcome(breaker, { ...outcome, generation: breaker.generation }, settings, now),
    },
  ],
  [
    'a probe closed by the success of another attempt',
    "closes on the live probe's own success and on nothing else",
    {
      ...core,
      applyOutcome: (breaker, outcome, settings, now) =>
        breaker.state === 'half_open' && outcome.health === 'success'
          ? {
              next: { state: 'closed', generation: breaker.generation + 1, consecutiveFailures: 0 },
              effect: 'closed',
            }
          : core.applyOutcome(breaker, outcome, settings, now),
    },
  ],
  [
    'an open breaker closed by a success',
    "closes on the live probe's own success and on nothing else",
    {
      ...core,
      applyOutcome: (breaker, outcome, settings, now) =>
        breaker.state === 'open' && outcome.health === 'success'
          ? {
              next: { state: 'closed', generation: breaker.generation + 1, consecutiveFailures: 0 },
              effect: 'closed',
            }
          : core.applyOutcome(breaker, outcome, settings, now),
    },
  ],
  [
    'a neutral probe that closes',
    'opens again when the live probe ends in any other way',
    withHealth((health) => (health === 'capacity_signal' ? 'success' : health)),
  ],
  [
    'a lost probe that closes',
    'opens again when the live probe ends in any other way',
    withHealth((health) => (health === 'lost' ? 'success' : health)),
  ],
  [
    'a threshold one too high',
    'opens exactly at the threshold-th failure in a row of one generation',
    withThreshold(1),
  ],
  [
    'a threshold one too low',
    'opens exactly at the threshold-th failure in a row of one generation',
    withThreshold(-1),
  ],
  [
    'a 429 that counts',
    'opens exactly at the threshold-th failure in a row of one generation',
    withHealth((health) => (health === 'capacity_signal' ? 'dependency_failure' : health)),
  ],
  [
    'a neutral outcome that resets',
    'opens exactly at the threshold-th failure in a row of one generation',
    withHealth((health) => (health === 'unknown_failure' ? 'success' : health)),
  ],
  [
    'a success that resets nothing',
    'opens exactly at the threshold-th failure in a row of one generation',
    {
      ...core,
      applyOutcome: (breaker, outcome, settings, now) =>
        breaker.state === 'closed' && outcome.health === 'success'
          ? { next: breaker, effect: 'nothing_to_apply' }
          : core.applyOutcome(breaker, outcome, settings, now),
    },
  ],
  [
    'a grant that keeps the generation',
    'raises the generation by one at each transition and at nothing else',
    {
      ...core,
      grantProbe: (breaker, attemptId, now) => {
        const next = core.grantProbe(breaker, attemptId, now);
        return next && { ...next, generation: breaker.generation };
      },
    },
  ],
];

describe('a broken circuit breaker is found out', () => {
  test.each(BREAKER_MUTANTS)('%s fails "%s"', (_mutant, rule, mutant) => {
    expect(foundOut(breakerProperty(mutant, rule))).toBe(true);
  });

  test('each rule has a mutant', () => {
    expect(new Set(BREAKER_MUTANTS.map(([, rule]) => rule))).toEqual(new Set(Object.keys(BREAKER_RULES)));
  });
});
