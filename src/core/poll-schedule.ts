export interface PollSettings {
  readonly intervalMs: number;
  readonly maxIntervalMs: number;
}

export interface PollHistory {
  /** Since the provider accepted the task. */
  readonly ageMs: number;
  /** Reads in a row that told nothing. */
  readonly consecutiveErrors: number;
  /** The last read was a 401, 402, 403 or 429: the account's trouble, so patience. */
  readonly accountTrouble: boolean;
  readonly retryAfterMs: number | null;
}

/** A young task is looked at each interval; after that the wait grows with its age. */
const AGE_SHARE = 0.1;
const ACCOUNT_TROUBLE_FACTOR = 10;

/** Wait before the next read of a task, in ms. `random` is in [0, 1) and spreads ±10 %. */
export function nextPollDelayMs(settings: PollSettings, history: PollHistory, random: number): number {
  const { intervalMs, maxIntervalMs } = settings;
  const byAge = Math.min(maxIntervalMs, Math.max(intervalMs, history.ageMs * AGE_SHARE));
  const cap = history.accountTrouble ? maxIntervalMs * ACCOUNT_TROUBLE_FACTOR : maxIntervalMs;
  const doubled = byAge * 2 ** Math.min(history.consecutiveErrors, 20);
  // Only our own wait is spread: what the provider asked for is never cut short, and the cap is a cap.
  const spread = Math.round(Math.min(cap, doubled) * (0.9 + 0.2 * random));
  return Math.min(cap, Math.max(spread, history.retryAfterMs ?? 0));
}

/** The provider keeps what it made for seven days; a day later what can't be had is taken for lost. */
export const RESULT_LOST_AFTER_MS = 8 * 86_400_000;

/** How long a failed task is asked whether its money came back. */
export const REFUND_WATCH_MS = 3_600_000;
const REFUND_MAX_INTERVAL_MS = 60_000;

/** Wait before the next look for a refund, in ms. A poller set slower than a minute stays that slow. */
export function nextRefundLookMs(settings: PollSettings, sinceFailureMs: number): number {
  const byAge = Math.min(REFUND_MAX_INTERVAL_MS, sinceFailureMs * AGE_SHARE);
  return Math.round(Math.max(settings.intervalMs, byAge));
}
