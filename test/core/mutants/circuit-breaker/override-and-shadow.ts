import type { BreakerOverride } from '../../../../src/core/circuit-breaker.ts';
import type { BreakerCore } from '../../../support/breaker-history.ts';
import { answering, applying, type BreakerMutant, core } from './broken-core.ts';

const COUNTS =
  "counts nothing of what was admitted or settles under an override, but the live probe's own outcome";

/** The override's last instant, seen from another one. */
function expiring(byMs: number): BreakerCore {
  return {
    ...core,
    overrideAt: (stored, now) => core.overrideAt(stored, new Date(now.getTime() + byMs)),
  };
}

/** Answers as if nothing lay over the state. */
function ignoring(ignored: BreakerOverride): BreakerCore {
  return answering((answer, breaker, { override, shadow }, now) =>
    override === ignored ? core.decidePermit(breaker, now, { override: null, shadow }) : answer,
  );
}

export const OVERRIDE_MUTANTS: readonly BreakerMutant[] = [
  [
    'a closed breaker that allows while forced open',
    'refuses whoever asks while it is forced open',
    answering((answer, breaker) => (breaker.state === 'closed' ? { permit: 'allow' } : answer)),
  ],
  ['forced open that is ignored', 'refuses whoever asks while it is forced open', ignoring('forced_open')],
  [
    'forced open that allows at the boundary',
    'refuses whoever asks while it is forced open',
    answering((answer, breaker, { override }, now) =>
      override === 'forced_open' && breaker.state === 'open' && now >= breaker.retryAt
        ? { permit: 'allow' }
        : answer,
    ),
  ],
  [
    'forced open that shadow takes back',
    'refuses whoever asks while it is forced open',
    answering((answer, _breaker, { shadow }) => (shadow ? { permit: 'allow' } : answer)),
  ],
  [
    'forced closed that is ignored',
    'allows whoever asks while it is forced closed',
    ignoring('forced_closed'),
  ],
  [
    'forced closed that a live probe keeps shut',
    'allows whoever asks while it is forced closed',
    answering((answer, breaker) =>
      breaker.state === 'half_open' ? { permit: 'refuse', retryAt: undefined } : answer,
    ),
  ],
  ['a probe while forced closed', 'grants no probe under an override', ignoring('forced_closed')],
  ['a probe while forced open', 'grants no probe under an override', ignoring('forced_open')],
  [
    'an override that ends a millisecond early',
    'ends an override at its very instant, noted or not',
    expiring(1),
  ],
  [
    'an override that is still in force at its end',
    'ends an override at its very instant, noted or not',
    expiring(-1),
  ],
  [
    'an override that lasts until somebody notes its end',
    'ends an override at its very instant, noted or not',
    { ...core, overrideAt: ({ override }) => override },
  ],
  [
    'outcomes that count under an override',
    COUNTS,
    applying((outcome, settings) => [{ ...outcome, underOverride: false }, settings]),
  ],
  [
    'failures that count under an override',
    COUNTS,
    applying((outcome, settings) => [
      outcome.health === 'dependency_failure' ? { ...outcome, underOverride: false } : outcome,
      settings,
    ]),
  ],
  [
    'successes that reset or ramp under an override',
    COUNTS,
    applying((outcome, settings) => [
      outcome.health === 'success' ? { ...outcome, underOverride: false } : outcome,
      settings,
    ]),
  ],
  [
    "a live probe's success that is lost under an override",
    "closes on the live probe's own success and on nothing else",
    droppingTheProbe('success'),
  ],
  [
    "a live probe's failure that is lost under an override",
    'opens again when the live probe ends in any other way',
    droppingTheProbe('dependency_failure'),
  ],
  [
    'a probe that is never lost under an override',
    'opens again when the live probe ends in any other way',
    droppingTheProbe('lost'),
  ],
];

function droppingTheProbe(health: string): BreakerCore {
  return {
    ...core,
    applyOutcome: (breaker, outcome, ...rest) =>
      breaker.state === 'half_open' && outcome.underOverride === true && outcome.health === health
        ? { next: breaker, effect: 'under_override' }
        : core.applyOutcome(breaker, outcome, ...rest),
  };
}

export const SHADOW_MUTANTS: readonly BreakerMutant[] = [
  [
    'shadow that refuses until the boundary',
    'refuses nobody in shadow',
    answering((answer, breaker) =>
      breaker.state === 'open' && answer.permit === 'allow'
        ? { permit: 'refuse', retryAt: breaker.retryAt }
        : answer,
    ),
  ],
  [
    'shadow that refuses while its probe lives',
    'refuses nobody in shadow',
    answering((answer, breaker, { shadow }) =>
      shadow && breaker.state === 'half_open' ? { permit: 'refuse', retryAt: undefined } : answer,
    ),
  ],
  [
    'shadow that marks no probe',
    'marks whoever asks first at the boundary as the probe, in shadow too',
    answering((answer) => (answer.permit === 'shadow_probe' ? { permit: 'allow' } : answer)),
  ],
  [
    'shadow whose breaker never opens',
    'opens exactly at the threshold-th failure in a row of one generation',
    {
      ...core,
      applyOutcome: (breaker, outcome, settings, now, random) =>
        settings.shadow
          ? { next: breaker, effect: 'neutral' }
          : core.applyOutcome(breaker, outcome, settings, now, random),
    },
  ],
  [
    'shadow whose probe is never lost',
    'opens again when the live probe ends in any other way',
    {
      ...core,
      applyOutcome: (breaker, outcome, settings, now, random) =>
        settings.shadow && outcome.health === 'lost'
          ? { next: breaker, effect: 'neutral' }
          : core.applyOutcome(breaker, outcome, settings, now, random),
    },
  ],
  [
    "a success of what it would have refused, taken for its probe's",
    'is moved in shadow by nothing that it would have refused',
    applying((outcome, settings, breaker) => [
      settings.shadow && breaker.state === 'half_open'
        ? { ...outcome, attemptId: breaker.probeAttemptId }
        : outcome,
      settings,
    ]),
  ],
];
