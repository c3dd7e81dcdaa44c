import type { CircuitBreaker } from '../../../../src/core/circuit-breaker.ts';
import {
  answering,
  type BreakerMutant,
  closedAfter,
  leaving,
  openFor,
  withHealth,
  withSettings,
} from './broken-core.ts';

const GROWTH = 'grows the cooldown by failed and lost probes in a row alone, from one close to the next';
const LENGTH = 'opens for no less than cooldownMs, and for no more than the cap and its jitter';
const RAMP = 'after a close allows two, and two more for each acceptance since, until that exceeds 1,000';

/** The closed row after this one, of the same generation. */
function ramped(
  next: CircuitBreaker,
  was: CircuitBreaker,
  change: (acceptances: number | null, before: number | null) => number | null,
): CircuitBreaker {
  if (next.state !== 'closed' || was.state !== 'closed') return next;
  return { ...next, rampAcceptances: change(next.rampAcceptances, was.rampAcceptances) };
}

export const COOLDOWN_MUTANTS: readonly BreakerMutant[] = [
  ['growth after a neutral probe', GROWTH, withHealth((health) => (isNeutral(health) ? 'lost' : health))],
  ['no growth after a lost probe', GROWTH, withHealth((health) => (health === 'lost' ? 'none' : health))],
  [
    'no growth after a failed probe',
    GROWTH,
    leaving((next, was) => {
      return next.state === 'open' && was.state === 'half_open'
        ? { ...next, failedProbes: was.failedProbes }
        : next;
    }),
  ],
  [
    'a neutral probe that resets the growth',
    GROWTH,
    leaving((next, was) => {
      const neutral =
        next.state === 'open' && was.state === 'half_open' && next.failedProbes === was.failedProbes;
      return neutral ? { ...next, failedProbes: 0 } : next;
    }),
  ],
  [
    'growth that outlives the close',
    GROWTH,
    // A row that once opened opens with one failed probe from then on.
    leaving((next, was) =>
      next.state === 'open' && was.state === 'closed' && was.generation > 1
        ? { ...next, failedProbes: 1 }
        : next,
    ),
  ],
  ['growth that is added up', GROWTH, withSettings(linear)],
  ['a growth that is never applied', GROWTH, withSettings(() => ({ cooldownGrowth: 1 }))],
  ['a cap that is not applied', LENGTH, withSettings(() => ({ maxCooldownMs: 86_400_000 }))],
  ['a cap that is applied to the first cooldown too low', LENGTH, withSettings(halfCap)],
  ['jitter that shortens', LENGTH, withSettings(({ jitter }) => ({ jitter: -jitter }))],
  ['jitter beyond its setting', LENGTH, withSettings(({ jitter }) => ({ jitter: jitter * 2 }))],
  [
    'a cooldown of nothing after a lost probe',
    LENGTH,
    leaving((next, was, { health }) => {
      return health === 'lost' && was.state === 'half_open' ? openFor(next, 0) : next;
    }),
  ],
];

export const RAMP_MUTANTS: readonly BreakerMutant[] = [
  [
    'everything allowed at once after a close',
    RAMP,
    leaving((next, was) => {
      return next.state === 'closed' && was.state !== 'closed' ? { ...next, rampAcceptances: null } : next;
    }),
  ],
  [
    'a close whose own probe counts as an acceptance since',
    RAMP,
    leaving((next, was) => {
      return next.state === 'closed' && was.state !== 'closed' ? { ...next, rampAcceptances: 1 } : next;
    }),
  ],
  [
    'a ramp that grows by one',
    RAMP,
    answering((answer, breaker) =>
      answer.permit === 'allow' && breaker.state === 'closed' && breaker.rampAcceptances !== null
        ? { ...answer, atMost: 2 + breaker.rampAcceptances }
        : answer,
    ),
  ],
  [
    'a ramp that a failure widens',
    RAMP,
    leaving((next, was, { health }) =>
      health === 'dependency_failure'
        ? ramped(next, was, (acceptances) => (acceptances === null ? null : acceptances + 1))
        : next,
    ),
  ],
  [
    'a ramp that stands still',
    RAMP,
    leaving((next, was) => ramped(next, was, (_acceptances, before) => before)),
  ],
  [
    'a ramp that ends at 1,000',
    RAMP,
    leaving((next, was) => ramped(next, was, (acceptances) => (acceptances === 499 ? null : acceptances))),
  ],
  [
    'a ramp that never ends',
    RAMP,
    leaving((next, was) =>
      ramped(next, was, (acceptances, before) => (before === null ? null : (acceptances ?? before + 1))),
    ),
  ],
  [
    'a ramp that begins again at a failure',
    RAMP,
    leaving((next, was, { health }) =>
      health === 'dependency_failure'
        ? ramped(next, was, (acceptances) => (acceptances === null ? null : 0))
        : next,
    ),
  ],
  [
    'a ramp that is asked of shadow too',
    RAMP,
    answering((answer, breaker, { shadow }) =>
      shadow && answer.permit === 'allow' && breaker.state === 'closed' && breaker.rampAcceptances !== null
        ? { permit: 'allow', atMost: 2 + 2 * breaker.rampAcceptances }
        : answer,
    ),
  ],
  [
    'a close that leaves an earlier ramp behind',
    RAMP,
    leaving((next, was, outcome) =>
      was.state === 'half_open' && outcome.health === 'success' && next.state === 'closed'
        ? { ...(closedAfter(was) as typeof next), rampAcceptances: was.failedProbes === 0 ? 0 : 3 }
        : next,
    ),
  ],
];

function isNeutral(health: string): boolean {
  return health !== 'success' && health !== 'dependency_failure' && health !== 'lost';
}

function linear({ cooldownGrowth }: { cooldownGrowth: number }) {
  return { cooldownGrowth: 1 + (cooldownGrowth - 1) / 2 };
}

function halfCap({ maxCooldownMs }: { maxCooldownMs: number }) {
  return { maxCooldownMs: maxCooldownMs / 2 };
}
