import {
  answering,
  applying,
  type BreakerMutant,
  closedAfter,
  core,
  leaving,
  withHealth,
  withSettings,
} from './broken-core.ts';

export const STATE_MUTANTS: readonly BreakerMutant[] = [
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
    {
      ...core,
      decidePermit: (breaker, now, terms) => core.decidePermit(breaker, new Date(now.getTime() - 1), terms),
    },
  ],
  [
    'a half-open breaker that allows',
    'answers who asks by state and boundary alone',
    answering((answer, breaker) => (breaker.state === 'half_open' ? { permit: 'allow' } : answer)),
  ],
  [
    'a late failure that moves retry_at',
    'fixes retry_at at the opening for the whole episode',
    {
      ...core,
      applyOutcome: (breaker, outcome, settings, now, random) => {
        const move = core.applyOutcome(breaker, outcome, settings, now, random);
        if (move.next.state !== 'open' || outcome.health !== 'dependency_failure') return move;
        return { ...move, next: { ...move.next, retryAt: new Date(now.getTime() + settings.cooldownMs) } };
      },
    },
  ],
  [
    'a refusal that moves retry_at',
    'fixes retry_at at the opening for the whole episode',
    answering((answer, breaker, _terms, now) => {
      if (breaker.state === 'open' && answer.permit === 'refuse')
        breaker.retryAt.setTime(now.getTime() + 1_000);
      return answer;
    }),
  ],
  [
    'an override that stops the cooldown',
    'fixes retry_at at the opening for the whole episode',
    answering((answer, breaker, { override }) => {
      if (breaker.state === 'open' && override !== null)
        breaker.retryAt.setTime(breaker.retryAt.getTime() + 1);
      return answer;
    }),
  ],
  [
    'a stale outcome that is applied',
    'ignores outcomes that were admitted under an older generation',
    applying((outcome, settings, breaker) => [{ ...outcome, generation: breaker.generation }, settings]),
  ],
  [
    'an acceptance of an older generation that widens the ramp',
    'ignores outcomes that were admitted under an older generation',
    leaving((next, was, outcome) =>
      next === was && was.state === 'closed' && was.rampAcceptances !== null && outcome.health === 'success'
        ? { ...was, rampAcceptances: was.rampAcceptances + 1 }
        : next,
    ),
  ],
  [
    'a probe closed by the success of another attempt',
    "closes on the live probe's own success and on nothing else",
    leaving((next, was, { health }) =>
      was.state === 'half_open' && health === 'success' ? closedAfter(was) : next,
    ),
  ],
  [
    'an open breaker closed by a success',
    "closes on the live probe's own success and on nothing else",
    leaving((next, was, { health }) =>
      was.state === 'open' && health === 'success' ? closedAfter(was) : next,
    ),
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
    withSettings(({ failureThreshold }) => ({ failureThreshold: failureThreshold + 1 })),
  ],
  [
    'a threshold one too low',
    'opens exactly at the threshold-th failure in a row of one generation',
    withSettings(({ failureThreshold }) => ({ failureThreshold: failureThreshold - 1 })),
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
    leaving((next, was, { health }) => (was.state === 'closed' && health === 'success' ? was : next)),
  ],
  [
    'a ramp whose acceptances reset nothing',
    'opens exactly at the threshold-th failure in a row of one generation',
    leaving((next, was) =>
      next.state === 'closed' && was.state === 'closed' && next.rampAcceptances !== was.rampAcceptances
        ? { ...next, consecutiveFailures: was.consecutiveFailures }
        : next,
    ),
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
  [
    'a close that keeps the generation',
    'raises the generation by one at each transition and at nothing else',
    leaving((next, was) =>
      next.state === 'closed' && was.state !== 'closed' ? { ...next, generation: was.generation } : next,
    ),
  ],
];
