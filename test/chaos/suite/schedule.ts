import { POST_BEHAVIOUR_NAMES, type Weather } from './provider/faults.ts';
import { type Random, randomOf } from './random.ts';
import { BREAKERS, LEASE_MS } from './settings.ts';

// The plan of one run: what, when and to whom, from the seed alone. A longer run begins like a shorter one.

export type Manner = 'kill' | 'immediate' | 'fast';
export type Statement = 'commit' | 'intent' | 'outcome' | 'settle' | 'job';

export type Deed =
  | { readonly kind: 'sigkill'; readonly target: string; readonly downMs: number }
  | { readonly kind: 'sigstop'; readonly target: string; readonly forMs: number }
  | {
      readonly kind: 'sigterm';
      readonly target: string;
      readonly times: number;
      readonly killAfterMs: number | null;
    }
  | { readonly kind: 'postgres'; readonly how: Manner; readonly downMs: number }
  | { readonly kind: 'database_cut'; readonly target: string; readonly manner: 'reset' | 'end' }
  | { readonly kind: 'database_refuse'; readonly target: string; readonly forMs: number }
  | {
      readonly kind: 'database_stall';
      readonly target: string;
      readonly forMs: number;
      readonly then: 'deliver' | 'lose';
    }
  | {
      readonly kind: 'database_cut_at';
      readonly target: string;
      readonly statement: Statement;
      readonly when: 'before' | 'forwarded' | 'answered';
    }
  | { readonly kind: 'provider_cut'; readonly manner: 'reset' | 'end' }
  | { readonly kind: 'provider_refuse'; readonly forMs: number }
  | { readonly kind: 'provider_stall'; readonly forMs: number; readonly then: 'deliver' | 'lose' }
  | { readonly kind: 'weather'; readonly weather: Weather; readonly forMs: number }
  | {
      readonly kind: 'override';
      readonly breaker: string;
      readonly mode: 'forced_open' | 'forced_closed';
      readonly forMs: number;
      /** Ends by itself; else an operator releases it. */
      readonly expires: boolean;
    }
  | { readonly kind: 'release_holds' };

export type DeedKind = Deed['kind'];

export interface Incident {
  readonly number: number;
  /** ms from the start of the run. */
  readonly atMs: number;
  /** Until then nothing else happens to the same. */
  readonly untilMs: number;
  readonly deed: Deed;
}

export interface Targets {
  /** May be killed and restarted. */
  readonly mortal: readonly string[];
  /** Are only stopped, cut and stalled. */
  readonly steady: readonly string[];
  /** Their ways to the database are broken as well. */
  readonly clients: readonly string[];
}

const MEAN_GAP_MS = 1_300;
const FIRST_MS = 3_000;
const POSTGRES_EVERY_MS = 20_000;
/** Each process needs a moment of its own after a start. */
const RECOVERY_MS = 3_000;
/** Bytes that a stalled network holds back come within the deadline of their POST, or never. */
const MAX_PROVIDER_STALL_MS = 2_500;

const WEIGHTS: Readonly<Record<DeedKind, number>> = {
  sigkill: 14,
  sigstop: 11,
  sigterm: 6,
  postgres: 4,
  database_cut: 10,
  database_refuse: 5,
  database_stall: 8,
  database_cut_at: 18,
  provider_cut: 6,
  provider_refuse: 3,
  provider_stall: 5,
  weather: 7,
  override: 3,
  release_holds: 6,
};

export function planIncidents(seed: string, durationMs: number, targets: Targets): Incident[] {
  const random = randomOf(seed, 'schedule');
  const incidents: Incident[] = [];
  const busyUntil = new Map<string, number>();
  for (let atMs = FIRST_MS, number = 1; ; ) {
    atMs += Math.round(random.gap(MEAN_GAP_MS));
    if (atMs >= durationMs) return incidents;
    const kind = random.weighted(WEIGHTS);
    const free = (names: readonly string[]) => names.filter((name) => (busyUntil.get(name) ?? 0) <= atMs);
    const planned = planDeed(kind, random, targets, free);
    if (planned === undefined) continue;
    const untilMs = atMs + planned.lastsMs;
    busyUntil.set(planned.resource, untilMs + planned.restMs);
    incidents.push({ number: number++, atMs, untilMs, deed: planned.deed });
  }
}

interface PlannedDeed {
  readonly deed: Deed;
  /** What it keeps busy. */
  readonly resource: string;
  readonly lastsMs: number;
  readonly restMs: number;
}

/** Undefined when everything that it could happen to is busy. */
function planDeed(
  kind: DeedKind,
  random: Random,
  targets: Targets,
  free: (names: readonly string[]) => string[],
): PlannedDeed | undefined {
  const one = (names: readonly string[]) => {
    const left = free(names);
    return left.length === 0 ? undefined : random.pick(left);
  };
  const ms = (min: number, max: number) => Math.round(random.between(min, max));
  switch (kind) {
    case 'sigkill':
    case 'sigterm':
    case 'sigstop':
      return planSignal(kind, random, targets, one);
    case 'postgres': {
      if (one(['postgres']) === undefined) return undefined;
      const downMs = random.chance(0.5) ? 0 : ms(200, 4_000);
      const how = random.pick(['kill', 'immediate', 'fast'] as const);
      return {
        deed: { kind, how, downMs },
        resource: 'postgres',
        lastsMs: downMs,
        restMs: POSTGRES_EVERY_MS,
      };
    }
    case 'database_cut':
    case 'database_refuse':
    case 'database_stall':
    case 'database_cut_at':
      return planDatabaseTrouble(kind, random, targets, free);
    case 'provider_cut':
      if (one(['provider']) === undefined) return undefined;
      return {
        deed: { kind, manner: random.pick(['reset', 'end']) },
        resource: 'provider',
        lastsMs: 0,
        restMs: 500,
      };
    case 'provider_refuse': {
      if (one(['provider']) === undefined) return undefined;
      const forMs = ms(300, 3_000);
      return { deed: { kind, forMs }, resource: 'provider', lastsMs: forMs, restMs: 2_000 };
    }
    case 'provider_stall': {
      if (one(['provider']) === undefined) return undefined;
      const then = random.pick(['deliver', 'lose'] as const);
      const forMs = then === 'deliver' ? ms(300, MAX_PROVIDER_STALL_MS) : ms(1_000, 6_000);
      return { deed: { kind, forMs, then }, resource: 'provider', lastsMs: forMs, restMs: 2_000 };
    }
    case 'weather': {
      if (one(['weather']) === undefined) return undefined;
      const behaviour = random.chance(0.15) ? ('reset_on_connect' as const) : random.pick(STORMS);
      const forMs = ms(2_000, 9_000);
      const weather: Weather = { behaviour, share: random.pick([0.5, 0.9, 1]) };
      return { deed: { kind, weather, forMs }, resource: 'weather', lastsMs: forMs, restMs: 4_000 };
    }
    case 'override': {
      const breaker = one(BREAKERS);
      if (breaker === undefined) return undefined;
      const forMs = ms(1_000, 4_000);
      const mode = random.pick(['forced_open', 'forced_closed'] as const);
      const expires = random.chance(0.4);
      return {
        deed: { kind, breaker, mode, forMs, expires },
        resource: breaker,
        lastsMs: forMs,
        restMs: 10_000,
      };
    }
    case 'release_holds':
      return { deed: { kind }, resource: 'holds', lastsMs: 0, restMs: 0 };
  }
}

/** A minute of rate refusals would silence every account for the rest of a short run. */
const STORMS = POST_BEHAVIOUR_NAMES.filter(
  (name) => !/^(accept|rate_429|status_4(0[0123]|13|22))/.test(name),
);

function planSignal(
  kind: 'sigkill' | 'sigterm' | 'sigstop',
  random: Random,
  targets: Targets,
  one: (names: readonly string[]) => string | undefined,
): PlannedDeed | undefined {
  const target = one(kind === 'sigstop' ? [...targets.mortal, ...targets.steady] : targets.mortal);
  if (target === undefined) return undefined;
  const ms = (min: number, max: number) => Math.round(random.between(min, max));
  switch (kind) {
    case 'sigkill': {
      const downMs = ms(0, 2_500);
      return { deed: { kind, target, downMs }, resource: target, lastsMs: downMs, restMs: RECOVERY_MS };
    }
    case 'sigstop': {
      const forMs = random.chance(0.5) ? ms(200, 3_500) : ms(LEASE_MS + 500, LEASE_MS + 5_000);
      return { deed: { kind, target, forMs }, resource: target, lastsMs: forMs, restMs: RECOVERY_MS };
    }
    case 'sigterm': {
      const killAfterMs = random.chance(0.25) ? ms(50, 2_000) : null;
      const times = random.integer(1, 3);
      const lastsMs = killAfterMs ?? LEASE_MS;
      return { deed: { kind, target, times, killAfterMs }, resource: target, lastsMs, restMs: RECOVERY_MS };
    }
  }
}

const STATEMENTS = ['commit', 'commit', 'job'] as const;
const WORKER_STATEMENTS = ['commit', 'intent', 'intent', 'outcome', 'settle', 'settle', 'job'] as const;

function planDatabaseTrouble(
  kind: 'database_cut' | 'database_refuse' | 'database_stall' | 'database_cut_at',
  random: Random,
  targets: Targets,
  free: (names: readonly string[]) => string[],
): PlannedDeed | undefined {
  const prefixed = targets.clients.map((name) => `way of ${name}`);
  const left = free(prefixed);
  // What a worker commits is dearest.
  const ofWorkers = left.filter((name) => name.includes('worker'));
  const prefersWorkers = kind === 'database_cut_at' && random.chance(0.7) && ofWorkers.length > 0;
  if (left.length === 0) return undefined;
  const resource = random.pick(prefersWorkers ? ofWorkers : left);
  const target = resource.slice('way of '.length);
  const ms = (min: number, max: number) => Math.round(random.between(min, max));
  switch (kind) {
    case 'database_cut':
      return {
        deed: { kind, target, manner: random.pick(['reset', 'end']) },
        resource,
        lastsMs: 0,
        restMs: 500,
      };
    case 'database_refuse': {
      const forMs = ms(300, 5_000);
      return { deed: { kind, target, forMs }, resource, lastsMs: forMs, restMs: 1_000 };
    }
    case 'database_stall': {
      const then = random.pick(['deliver', 'lose'] as const);
      // Now and then longer than a lease, so that rescue and the late answer meet.
      const forMs = random.chance(0.7) ? ms(300, 5_000) : ms(LEASE_MS, LEASE_MS + 4_000);
      return { deed: { kind, target, forMs, then }, resource, lastsMs: forMs, restMs: 2_000 };
    }
    case 'database_cut_at': {
      const statement = random.pick(target.startsWith('worker') ? WORKER_STATEMENTS : STATEMENTS);
      const when = random.pick(['before', 'forwarded', 'answered'] as const);
      return { deed: { kind, target, statement, when }, resource, lastsMs: 0, restMs: 1_000 };
    }
  }
}

export function describeDeed(deed: Deed): string {
  const { kind, ...rest } = deed;
  const words = Object.entries('weather' in rest ? { ...rest.weather, ...rest, weather: undefined } : rest);
  return [
    kind,
    ...words.flatMap(([name, value]) => (value === undefined ? [] : [`${name}=${String(value)}`])),
  ].join(' ');
}
