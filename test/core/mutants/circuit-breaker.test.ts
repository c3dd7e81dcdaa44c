import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { BREAKER_RULES, type BreakerRule, breakerProperty } from '../../support/breaker-rules.ts';
import { foundOut } from '../../support/found-out.ts';
import { answering, applying, leaving } from './circuit-breaker/broken-core.ts';
import { COOLDOWN_MUTANTS, RAMP_MUTANTS } from './circuit-breaker/cooldown-and-ramp.ts';
import { OVERRIDE_MUTANTS, SHADOW_MUTANTS } from './circuit-breaker/override-and-shadow.ts';
import { STATE_MUTANTS } from './circuit-breaker/states.ts';

// A rule that no broken core can fail proves nothing: each mutant breaks one thing, and the rule named
// beside it must find a history that shows it.

const MUTANTS = [
  ...STATE_MUTANTS,
  ...COOLDOWN_MUTANTS,
  ...RAMP_MUTANTS,
  ...OVERRIDE_MUTANTS,
  ...SHADOW_MUTANTS,
];

describe('a broken circuit breaker is found out', () => {
  test.each(MUTANTS)('%s fails "%s"', (_mutant, rule, mutant) => {
    expect(foundOut(breakerProperty(mutant, rule))).toBe(true);
  });

  test.each(Object.keys(BREAKER_RULES) as BreakerRule[])('no wrapper alone fails "%s"', (rule) => {
    for (const whole of [
      answering((answer) => answer),
      applying((outcome, settings) => [outcome, settings]),
      leaving((next) => next),
    ]) {
      fc.assert(breakerProperty(whole, rule), { numRuns: 50 });
    }
  });

  test('each rule has a mutant', () => {
    expect(new Set(MUTANTS.map(([, rule]) => rule))).toEqual(new Set(Object.keys(BREAKER_RULES)));
  });
});
