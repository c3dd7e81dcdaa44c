import fc from 'fast-check';
import type { BreakerOverride, CircuitBreakerSettings } from '../../src/core/circuit-breaker.ts';
import {
  type BreakerCore,
  type BreakerEntry,
  breakerSettings,
  breakerStart,
  breakerSteps,
  type HeldOverride,
  recordBreakerHistory,
} from './breaker-history.ts';

type Rule = (history: readonly BreakerEntry[], settings: CircuitBreakerSettings) => boolean;

/** Each rule reads the list alone; none knows how the core decides. */
export const BREAKER_RULES = {
  'never has two live probes': (history) =>
    history.every((_, index) => liveProbes(history, index).length <= 1),

  'grants a probe only to an open breaker at or after its boundary': (history) =>
    history.every(({ event, before, at }) => event.kind !== 'permit' || !event.probe || isDue(before, at)),

  'answers who asks by state and boundary alone': (history, { shadow }) =>
    history.every((entry) => {
      if (shadow || entry.event.kind === 'settled' || entry.held !== null) return true;
      return answersAsUsual(entry);
    }),

  'fixes retry_at at the opening for the whole episode': (history) => {
    let boundary: number | null = null;
    return history.every(({ before, after }) => {
      if (before.state === 'open' && before.retryAt !== boundary) return false;
      if (before.state !== 'open') boundary = after.retryAt;
      return after.state !== 'open' || after.retryAt === boundary;
    });
  },

  'opens for no less than cooldownMs, and for no more than the cap and its jitter': (history, settings) =>
    openings(history).every(({ ms }) => {
      return ms >= settings.cooldownMs && ms <= Math.round(settings.maxCooldownMs * (1 + settings.jitter));
    }),

  'grows the cooldown by failed and lost probes in a row alone, from one close to the next': (
    history,
    { cooldownMs, cooldownGrowth, maxCooldownMs, jitter },
  ) =>
    openings(history).every(({ ms, failedProbes }) => {
      const grown = Math.min(maxCooldownMs, cooldownMs * cooldownGrowth ** failedProbes);
      return ms >= Math.round(grown) && ms <= Math.round(grown * (1 + jitter));
    }),

  'ignores outcomes that were admitted under an older generation': (history) =>
    history.every((entry) => {
      const { event, before } = entry;
      if (event.kind !== 'settled' || admissionOf(history, event.attempt).generation >= before.generation)
        return true;
      return movedNothing(entry);
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

  'after a close allows two, and two more for each acceptance since, until that exceeds 1,000': (
    history,
    { shadow },
  ) =>
    history.every(({ event, held, before, at }, index) => {
      if (event.kind !== 'permit' || before.state !== 'closed') return true;
      if (shadow || inForce(held, at) !== null) return event.atMost === null;
      return event.atMost === rampAt(history, index);
    }),

  'refuses whoever asks while it is forced open': (history) =>
    history.every(({ event, held, at }) => {
      return event.kind === 'settled' || inForce(held, at) !== 'forced_open' || event.kind === 'refused';
    }),

  'allows whoever asks while it is forced closed': (history) =>
    history.every(({ event, held, at }) => {
      return event.kind === 'settled' || inForce(held, at) !== 'forced_closed' || event.kind === 'permit';
    }),

  'grants no probe under an override': (history) =>
    history.every(({ event, held, at }) => {
      return event.kind !== 'permit' || !event.probe || inForce(held, at) === null;
    }),

  'ends an override at its very instant, noted or not': (history, { shadow }) =>
    history.every((entry) => {
      const { event, held, at } = entry;
      if (event.kind === 'settled' || held === null || held.expiresAt === null) return true;
      if (at < held.expiresAt) return (event.kind === 'permit') === (held.override === 'forced_closed');
      return shadow ? event.kind === 'permit' : answersAsUsual(entry);
    }),

  "counts nothing of what was admitted or settles under an override, but the live probe's own outcome": (
    history,
  ) =>
    history.every((entry, index) => {
      const { event } = entry;
      if (event.kind !== 'settled' || !wasUnderOverride(history, entry)) return true;
      return liveProbes(history, index - 1).includes(event.attempt) || movedNothing(entry);
    }),

  'refuses nobody in shadow': (history, { shadow }) =>
    history.every(({ event, held, at }) => {
      return !shadow || inForce(held, at) !== null || event.kind !== 'refused';
    }),

  'marks whoever asks first at the boundary as the probe, in shadow too': (history) =>
    history.every(({ event, held, before, at }) => {
      if (event.kind === 'settled' || inForce(held, at) !== null || !isDue(before, at)) return true;
      return event.kind === 'permit' && event.probe;
    }),

  'is moved in shadow by nothing that it would have refused': (history, { shadow }) =>
    history.every((entry) => {
      const { event } = entry;
      if (!shadow || event.kind !== 'settled') return true;
      const { probe, admittedWhile } = admissionOf(history, event.attempt);
      return probe || admittedWhile === 'closed' || movedNothing(entry);
    }),
} as const satisfies Record<string, Rule>;

export type BreakerRule = keyof typeof BREAKER_RULES;

export function breakerProperty(core: BreakerCore, rule: BreakerRule) {
  return fc.property(breakerSettings, breakerSteps, breakerStart, (settings, steps, start) => {
    const holds: Rule = BREAKER_RULES[rule];
    return holds(recordBreakerHistory(core, settings, steps, start), settings);
  });
}

function inForce(held: HeldOverride | null, at: number): BreakerOverride | null {
  if (held === null || (held.expiresAt !== null && at >= held.expiresAt)) return null;
  return held.override;
}

function isDue({ state, retryAt }: BreakerEntry['before'], at: number): boolean {
  return state === 'open' && retryAt !== null && at >= retryAt;
}

/** With nothing laid over the state, and in earnest. */
function answersAsUsual({ event, before, at }: BreakerEntry): boolean {
  return (before.state === 'closed' || isDue(before, at)) === (event.kind === 'permit');
}

function movedNothing({ before, after }: BreakerEntry): boolean {
  return JSON.stringify(before) === JSON.stringify(after);
}

function liveProbes(history: readonly BreakerEntry[], upTo: number): readonly string[] {
  const live = new Set<string>();
  for (const { event } of history.slice(0, upTo + 1)) {
    if (event.kind === 'permit' && event.probe) live.add(event.attempt);
    if (event.kind === 'settled') live.delete(event.attempt);
  }
  return [...live];
}

function admissionOf(history: readonly BreakerEntry[], attempt: string) {
  for (const { event, held, at, before } of history) {
    if (event.kind !== 'permit' || event.attempt !== attempt) continue;
    const { generation, probe } = event;
    return { generation, probe, underOverride: inForce(held, at) !== null, admittedWhile: before.state };
  }
  throw new Error(`no permit for ${attempt}`);
}

function wasUnderOverride(history: readonly BreakerEntry[], { event, held, at }: BreakerEntry): boolean {
  if (inForce(held, at) !== null) return true;
  return event.kind === 'settled' && admissionOf(history, event.attempt).underOverride;
}

/** Whether this is an outcome that a closed breaker of this generation must take note of. */
function counts(history: readonly BreakerEntry[], entry: BreakerEntry, generation: number): boolean {
  if (entry.event.kind !== 'settled' || wasUnderOverride(history, entry)) return false;
  return admissionOf(history, entry.event.attempt).generation === generation;
}

function outcomesOf(history: readonly BreakerEntry[], upTo: number, generation: number): readonly string[] {
  return history.slice(0, upTo).flatMap((entry) => {
    return entry.event.kind === 'settled' && counts(history, entry, generation) ? [entry.event.health] : [];
  });
}

/** Failures since the last success among this generation's outcomes, or 0 where the entry is no such failure. */
function streakAt(history: readonly BreakerEntry[], index: number, generation: number): number {
  const entry = history[index] as BreakerEntry;
  if (!counts(history, entry, generation)) return 0;
  const outcomes = outcomesOf(history, index + 1, generation);
  if (outcomes.at(-1) !== 'dependency_failure') return 0;
  return outcomes.slice(outcomes.lastIndexOf('success') + 1).filter((one) => one === 'dependency_failure')
    .length;
}

/** How many may be in flight together by what came before this entry; null: as many as admission allows. */
function rampAt(history: readonly BreakerEntry[], index: number): number | null {
  const { generation } = (history[index] as BreakerEntry).before;
  const first = (history[0] as BreakerEntry).before;
  const atStart = generation === first.generation ? first.ramp : 0;
  if (atStart === null) return null;
  const since = outcomesOf(history, index, generation).filter((health) => health === 'success').length;
  const limit = 2 + 2 * (atStart + since);
  return limit > 1_000 ? null : limit;
}

/** Each opening: for how long, and after how many failed or lost probes since the last close. */
function openings(history: readonly BreakerEntry[]): readonly { ms: number; failedProbes: number }[] {
  let failedProbes = 0;
  return history.flatMap(({ at, event, before, after }) => {
    if (after.state === 'closed') failedProbes = 0;
    if (before.state === 'open' || after.retryAt === null || event.kind !== 'settled') return [];
    const failed = event.health === 'dependency_failure' || event.health === 'lost';
    if (before.state === 'half_open' && failed) failedProbes += 1;
    return [{ ms: after.retryAt - at, failedProbes }];
  });
}
