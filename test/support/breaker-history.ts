import fc from 'fast-check';
import type * as circuitBreaker from '../../src/core/circuit-breaker.ts';
import type { CircuitBreaker, CircuitBreakerSettings } from '../../src/core/circuit-breaker.ts';
import type { Health } from '../../src/core/outcome.ts';

/** What is under test, as a parameter: the rules below must also be seen to fail on a broken one. */
export type BreakerCore = Pick<typeof circuitBreaker, 'decidePermit' | 'grantProbe' | 'applyOutcome'>;

export type BreakerStep =
  | { readonly step: 'ask' }
  /** Somebody who read the row before comes for the probe now. */
  | { readonly step: 'come_for_probe' }
  | { readonly step: 'settle'; readonly which: number; readonly health: Health }
  | { readonly step: 'lose_probe' }
  | { readonly step: 'wait'; readonly ms: number }
  | { readonly step: 'wait_for_retry_at'; readonly shortByMs: number };

interface Seen {
  readonly state: CircuitBreaker['state'];
  readonly generation: number;
  readonly failures: number | null;
  readonly retryAt: number | null;
}

type BreakerEvent =
  | {
      readonly kind: 'permit';
      readonly attempt: string;
      readonly generation: number;
      readonly probe: boolean;
    }
  | { readonly kind: 'refused' }
  | { readonly kind: 'settled'; readonly attempt: string; readonly health: Health | 'lost' };

/** The model: a list of permits, refusals and outcomes, each with what the row showed before and after. */
export interface BreakerEntry {
  readonly at: number;
  readonly event: BreakerEvent;
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
  { weight: 2, arbitrary: fc.constant<Health>('success') },
  { weight: 1, arbitrary: fc.constantFrom(...HEALTHS) },
);

export const breakerSteps: fc.Arbitrary<readonly BreakerStep[]> = fc.array(
  fc.oneof(
    { weight: 6, arbitrary: fc.constant<BreakerStep>({ step: 'ask' }) },
    { weight: 2, arbitrary: fc.constant<BreakerStep>({ step: 'come_for_probe' }) },
    {
      weight: 8,
      arbitrary: fc.record({ step: fc.constant('settle' as const), which: fc.nat(20), health }),
    },
    { weight: 1, arbitrary: fc.constant<BreakerStep>({ step: 'lose_probe' }) },
    { weight: 2, arbitrary: fc.record({ step: fc.constant('wait' as const), ms: fc.nat(900) }) },
    {
      weight: 3,
      arbitrary: fc.record({
        step: fc.constant('wait_for_retry_at' as const),
        shortByMs: fc.constantFrom(0, 0, 1),
      }),
    },
  ),
  { minLength: 1, maxLength: 60, size: 'max' },
);

export const breakerSettings: fc.Arbitrary<CircuitBreakerSettings> = fc.record({
  failureThreshold: fc.integer({ min: 1, max: 4 }),
  cooldownMs: fc.integer({ min: 100, max: 1_000 }),
});

/** Plays the steps on one row and writes down what happened. */
export function recordBreakerHistory(
  core: BreakerCore,
  settings: CircuitBreakerSettings,
  steps: readonly BreakerStep[],
): readonly BreakerEntry[] {
  const history: BreakerEntry[] = [];
  const outstanding: { attempt: string; generation: number; probe: boolean; lost: boolean }[] = [];
  let row: CircuitBreaker = { state: 'closed', generation: 1, consecutiveFailures: 0 };
  let at = 1_000_000;
  let attempts = 0;

  function record(event: BreakerEvent, before: Seen): void {
    history.push({ at, event, before, after: look(row) });
  }
  function admit(before: Seen, probe: boolean): void {
    const attempt = `attempt-${attempts}`;
    attempts += 1;
    outstanding.push({ attempt, generation: row.generation, probe, lost: false });
    record({ kind: 'permit', attempt, generation: row.generation, probe }, before);
  }
  function comeForProbe(before: Seen): void {
    const next = core.grantProbe(row, `attempt-${attempts}`, new Date(at));
    if (next === undefined) {
      record({ kind: 'refused' }, before);
      return;
    }
    row = next;
    admit(before, true);
  }
  function settle(attempt: string, generation: number, outcome: Health | 'lost', before: Seen): void {
    row = core.applyOutcome(
      row,
      { attemptId: attempt, generation, health: outcome },
      settings,
      new Date(at),
    ).next;
    record({ kind: 'settled', attempt, health: outcome }, before);
  }

  for (const step of steps) {
    const before = look(row);
    switch (step.step) {
      case 'ask': {
        const { permit } = core.decidePermit(row, new Date(at));
        if (permit === 'allow') admit(before, false);
        else if (permit === 'probe') comeForProbe(before);
        else record({ kind: 'refused' }, before);
        break;
      }
      case 'come_for_probe':
        if (row.state !== 'closed') comeForProbe(before);
        break;
      case 'settle': {
        const [one] = outstanding.splice(step.which % Math.max(1, outstanding.length), 1);
        if (one !== undefined) settle(one.attempt, one.generation, step.health, before);
        break;
      }
      case 'lose_probe': {
        // The lost one stays outstanding: its own outcome may still come, long after.
        const probe = outstanding.find((one) => one.probe && !one.lost);
        if (probe !== undefined) {
          probe.lost = true;
          settle(probe.attempt, probe.generation, 'lost', before);
        }
        break;
      }
      case 'wait':
        at += step.ms;
        break;
      case 'wait_for_retry_at':
        at = Math.max(at, (before.retryAt ?? at) - step.shortByMs);
        break;
    }
  }
  return history;
}

function look(row: CircuitBreaker): Seen {
  return {
    state: row.state,
    generation: row.generation,
    failures: row.state === 'closed' ? row.consecutiveFailures : null,
    retryAt: row.state === 'open' ? row.retryAt.getTime() : null,
  };
}

type Rule = (history: readonly BreakerEntry[], settings: CircuitBreakerSettings) => boolean;

/** Each rule reads the list alone; none knows how the core decides. */
export const BREAKER_RULES = {
  'never has two live probes': (history) =>
    history.every((_, index) => liveProbes(history, index).length <= 1),

  'grants a probe only to an open breaker at or after its boundary': (history) =>
    history.every(({ event, before, at }) => {
      if (event.kind !== 'permit' || !event.probe) return true;
      return before.state === 'open' && before.retryAt !== null && at >= before.retryAt;
    }),

  'answers who asks by state and boundary alone': (history) =>
    history.every(({ event, before, at }) => {
      if (event.kind === 'settled') return true;
      const due = before.state === 'closed' || (before.retryAt !== null && at >= before.retryAt);
      return due === (event.kind === 'permit');
    }),

  'fixes retry_at at the opening for the whole episode': (history, { cooldownMs }) => {
    let boundary: number | null = null;
    return history.every(({ at, before, after }) => {
      if (after.state !== 'open') return true;
      if (before.state !== 'open') boundary = at + cooldownMs;
      return before.state === 'open' && before.retryAt !== boundary ? false : after.retryAt === boundary;
    });
  },

  'ignores outcomes that were admitted under an older generation': (history) =>
    history.every(({ event, before, after }) => {
      if (event.kind !== 'settled' || admittedIn(history, event.attempt) >= before.generation) return true;
      return JSON.stringify(before) === JSON.stringify(after);
    }),

  'opens exactly at the threshold-th failure in a row of one generation': (history, { failureThreshold }) =>
    history.every(({ before, after }, index) => {
      if (before.state !== 'closed') return true;
      const opened = after.state === 'open';
      return opened === (streakAt(history, index, before.generation) === failureThreshold);
    }),

  'raises the generation by one at each transition and at nothing else': (history) =>
    history.every(
      ({ before, after }) => after.generation - before.generation === (before.state === after.state ? 0 : 1),
    ),

  "closes on the live probe's own success and on nothing else": (history) =>
    history.every(({ event, before, after }, index) => {
      const closed = before.state !== 'closed' && after.state === 'closed';
      const probes = liveProbes(history, index - 1);
      const own = event.kind === 'settled' && event.health === 'success' && probes.includes(event.attempt);
      return closed === own;
    }),

  'opens again when the live probe ends in any other way': (history) =>
    history.every(({ event, after }, index) => {
      if (event.kind !== 'settled' || event.health === 'success') return true;
      return !liveProbes(history, index - 1).includes(event.attempt) || after.state === 'open';
    }),
} as const satisfies Record<string, Rule>;

export type BreakerRule = keyof typeof BREAKER_RULES;

export function breakerProperty(core: BreakerCore, rule: BreakerRule) {
  return fc.property(breakerSettings, breakerSteps, (settings, steps) => {
    const holds: Rule = BREAKER_RULES[rule];
    return holds(recordBreakerHistory(core, settings, steps), settings);
  });
}

function liveProbes(history: readonly BreakerEntry[], upTo: number): readonly string[] {
  const live = new Set<string>();
  for (const { event } of history.slice(0, upTo + 1)) {
    if (event.kind === 'permit' && event.probe) live.add(event.attempt);
    if (event.kind === 'settled') live.delete(event.attempt);
  }
  return [...live];
}

function admittedIn(history: readonly BreakerEntry[], attempt: string): number {
  for (const { event } of history) {
    if (event.kind === 'permit' && event.attempt === attempt) return event.generation;
  }
  throw new Error(`no permit for ${attempt}`);
}

/** Failures since the last success among this generation's outcomes, or 0 where the entry is no such failure. */
function streakAt(history: readonly BreakerEntry[], index: number, generation: number): number {
  const outcomes = history.slice(0, index + 1).flatMap(({ event }) => {
    if (event.kind !== 'settled' || admittedIn(history, event.attempt) !== generation) return [];
    return [event.health];
  });
  const { event } = history[index] as BreakerEntry;
  if (event.kind !== 'settled' || event.health !== 'dependency_failure') return 0;
  if (admittedIn(history, event.attempt) !== generation) return 0;
  return outcomes.slice(outcomes.lastIndexOf('success') + 1).filter((one) => one === 'dependency_failure')
    .length;
}
