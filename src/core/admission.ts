import type { Permit } from './circuit-breaker.ts';

/**
 * How long a POST occupies the provider's minute, counted from its latest possible arrival. The margin
 * covers the provider's clock ticking on another boundary than ours.
 */
export const RATE_WINDOW_MS = 60_250;

export interface AccountLimits {
  readonly requestsPerMinute: number;
  readonly maxConcurrentGenerations: number;
}

/** What one lane (account and operation) looks like, counted under the account's lock. */
export interface LaneLoad {
  /** POSTs that may still lie inside the provider's window. */
  readonly windowCount: number;
  /** Generations that may still be running. */
  readonly slotCount: number;
  readonly pausedUntil: Date | null;
  readonly held: boolean;
  /**
   * After a hold, until the first acceptance: POSTs under way in what it held, of which there may be one. Null:
   * nothing has to be tried out.
   */
  readonly trialInFlight: number | null;
  readonly permit: Permit;
  /** POSTs under way in the breaker's generation, of all accounts; only asked for while it ramps up. */
  readonly inFlight?: number;
}

export type AdmissionBlock = 'held' | 'trial' | 'paused' | 'breaker' | 'ramp' | 'rate' | 'concurrency';

export type Admission =
  | { readonly permits: number; readonly probe: 'none' | 'alone' | 'first' }
  | { readonly permits: 0; readonly blockedBy: AdmissionBlock };

/** How many submissions may start now, of at most `wanted`. `now` is the database's clock. */
export function decideAdmission(limits: AccountLimits, load: LaneLoad, wanted: number, now: Date): Admission {
  if (load.held) return { permits: 0, blockedBy: 'held' };
  if (load.trialInFlight !== null && load.trialInFlight > 0) return { permits: 0, blockedBy: 'trial' };
  if (load.pausedUntil !== null && now < load.pausedUntil) return { permits: 0, blockedBy: 'paused' };
  if (load.permit.permit === 'refuse') return { permits: 0, blockedBy: 'breaker' };
  const ramp = rampRoom(load);
  if (ramp <= 0) return { permits: 0, blockedBy: 'ramp' };
  const rate = limits.requestsPerMinute - load.windowCount;
  if (rate <= 0) return { permits: 0, blockedBy: 'rate' };
  const slots = limits.maxConcurrentGenerations - load.slotCount;
  if (slots <= 0) return { permits: 0, blockedBy: 'concurrency' };
  if (load.permit.permit === 'probe') return { permits: Math.min(wanted, 1), probe: 'alone' };
  const probe = load.permit.permit === 'shadow_probe' ? 'first' : 'none';
  const trial = load.trialInFlight === null ? Number.POSITIVE_INFINITY : 1;
  return { permits: Math.min(wanted, ramp, rate, slots, trial), probe };
}

function rampRoom({ permit, inFlight = 0 }: LaneLoad): number {
  if (permit.permit !== 'allow' || permit.atMost === undefined) return Number.POSITIVE_INFINITY;
  return permit.atMost - inFlight;
}

const RATE_PAUSE_FLOOR_MS = 60_000;
const RATE_PAUSE_CAP_MS = 900_000;
const CONCURRENCY_PAUSE_FLOOR_MS = 5_000;
const CONCURRENCY_PAUSE_CAP_MS = 60_000;

/**
 * How long a 429 pauses its account, in ms. The provider's window counts refused calls too, so less than
 * a full minute can't help; a concurrency refusal ends when a generation of ours does, and the pause is
 * only its fallback. `consecutive` counts this refusal.
 */
export function capacityPauseMs(
  kind: 'rate' | 'concurrency',
  retryAfterMs: number | null,
  consecutive: number,
): number {
  if (kind === 'concurrency') {
    const doublings = Math.max(0, Math.min(consecutive - 1, 4));
    return Math.min(CONCURRENCY_PAUSE_CAP_MS, CONCURRENCY_PAUSE_FLOOR_MS * 2 ** doublings);
  }
  return Math.min(RATE_PAUSE_CAP_MS, Math.max(RATE_PAUSE_FLOOR_MS, retryAfterMs ?? 0));
}

export type HoldKind = 'key_refused' | 'payment_required' | 'access_denied' | 'operator';

export interface AccountRefusal {
  readonly kind: HoldKind;
  /** `operation`: only the lane that was refused; `account`: every lane of the account. */
  readonly scope: 'account' | 'operation';
}

/** What an answered 401, 402 or 403 holds. Anything else holds nothing. */
export function accountRefusal(status: number, code: string | null): AccountRefusal | undefined {
  switch (status) {
    case 401:
      return { kind: 'key_refused', scope: 'account' };
    case 402:
      return { kind: 'payment_required', scope: code === 'trial_exhausted' ? 'operation' : 'account' };
    case 403:
      return { kind: 'access_denied', scope: 'operation' };
    default:
      return undefined;
  }
}

/** What a refused attempt (401, 402, 403) and its lane look like under the account's lock. */
export interface RefusedAttempt {
  readonly kind: HoldKind;
  /** A release came since its admission. */
  readonly isFromBeforeRelease: boolean;
  /** Null: no hold of this lane has ended without an acceptance since. */
  readonly trial: {
    /** Admitted after the hold had ended. */
    readonly isFirst: boolean;
    /** Refused since then, in a row, without this one. */
    readonly refusals: number;
  } | null;
  /** An earlier attempt of the same request was refused with the same status. */
  readonly wasRefusedBefore: boolean;
}

export interface RefusalVerdict {
  readonly hold: boolean;
  /** The request that goes first may be the only one that is refused: it ends, and the others don't. */
  readonly reject: boolean;
  readonly countsForTrial: boolean;
}

/** After a release so many refusals in a row hold again. A key is refused for everybody, a balance may not be. */
const TRIAL_REFUSALS = 3;

/**
 * One refusal holds; after a hold ended, a wrong end costs at most one request, and one request that the account
 * can't pay for costs only itself: so only the first refusal of a trial may reject.
 */
export function judgeRefusal({
  kind,
  isFromBeforeRelease,
  trial,
  wasRefusedBefore,
}: RefusedAttempt): RefusalVerdict {
  // It tells of the account as it was before somebody put it right.
  if (isFromBeforeRelease || trial?.isFirst === false) {
    return { hold: false, reject: false, countsForTrial: false };
  }
  if (trial === null) return { hold: true, reject: false, countsForTrial: false };
  return {
    hold: kind === 'key_refused' || trial.refusals + 1 >= TRIAL_REFUSALS,
    reject: wasRefusedBefore && trial.refusals === 0,
    countsForTrial: true,
  };
}

/** How long a request that was refused in a trial stands aside, so that the next one may show that it is not alone. */
export const TRIAL_STEP_ASIDE_MS = 5_000;

const KEY_CHECK_FIRST_MS = 30_000;
const KEY_CHECK_CAP_MS = 900_000;

/** The pause before the next free check of a refused key, in ms; `checks` counts those made. */
export function keyCheckDelayMs(checks: number): number {
  return Math.min(KEY_CHECK_CAP_MS, KEY_CHECK_FIRST_MS * 2 ** Math.min(Math.max(0, checks - 1), 5));
}

const SECONDS = /^\d+(\.\d+)?$/;
const MONTH = '(?<month>Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)';
const TIME = String.raw`(?<time>\d\d:\d\d:\d\d)`;
/** The three forms of RFC 9110: the current one, RFC 850's and asctime's, which names no zone and means UTC. */
const HTTP_DATES: readonly RegExp[] = [
  new RegExp(String.raw`^[A-Z][a-z]{2}, (?<day>\d\d) ${MONTH} (?<year>\d{4}) ${TIME} GMT$`),
  new RegExp(String.raw`^[A-Z][a-z]{5,8}, (?<day>\d\d)-${MONTH}-(?<year>\d\d) ${TIME} GMT$`),
  new RegExp(String.raw`^[A-Z][a-z]{2} ${MONTH} (?<day>[ \d]\d) ${TIME} (?<year>\d{4})$`),
];
/** Longer than anybody's pause, and short enough for any timer or interval that it may end up in. */
const RETRY_AFTER_CAP_MS = 86_400_000;

/**
 * `Retry-After` in ms from `now`, at most a day, or null for anything that is neither a plain count of
 * seconds nor an HTTP date. `Date.parse` alone would read "-3" as a month, "120" as a year and an asctime
 * date in this machine's zone.
 */
export function retryAfterMs(header: string | null, now: Date): number | null {
  const text = header?.trim() ?? '';
  if (SECONDS.test(text)) return Math.min(RETRY_AFTER_CAP_MS, Math.ceil(Number(text) * 1_000));
  const at = readHttpDate(text, now);
  return at === null ? null : Math.min(RETRY_AFTER_CAP_MS, Math.max(0, at.getTime() - now.getTime()));
}

/** An instant as an HTTP header writes it, or null. `now` only tells which century two digits mean. */
export function readHttpDate(header: string, now: Date): Date | null {
  for (const form of HTTP_DATES) {
    const groups = form.exec(header.trim())?.groups;
    if (groups === undefined) continue;
    const { day, month, time } = groups as { day: string; month: string; time: string };
    const at = new Date(`${day.trim()} ${month} ${fullYear(groups['year'] as string, now)} ${time} GMT`);
    return Number.isNaN(at.getTime()) ? null : at;
  }
  return null;
}

/** Two digits mean the year that is at most 50 years ahead (RFC 9110, section 5.6.7). */
function fullYear(digits: string, now: Date): number {
  const year = Number(digits);
  if (digits.length === 4) return year;
  const thisYear = now.getUTCFullYear();
  const inThisCentury = thisYear - (thisYear % 100) + year;
  return inThisCentury > thisYear + 50 ? inThisCentury - 100 : inThisCentury;
}
