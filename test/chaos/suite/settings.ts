import type { OnetakeConfig, OperationConfig } from '../../../src/runtime/define-config.ts';

// Short enough that minutes hold many incidents, and in the same order as in production: every deadline lies
// within the lease, the lease within the quarantine.

export const DEADLINES = { connectMs: 1_000, firstResponseMs: 3_000, submissionMs: 4_000 } as const;
export const LEASE_MS = 8_000;
export const QUARANTINE_MS = 4_000;
/** The provider never runs longer. */
export const MAX_RUN_MS = 12_000;
export const COOLDOWN_MS = 2_000;
export const FAILURE_THRESHOLD = 4;
/** What the product sets itself, for a session that was left in the middle of a transaction. */
export const IDLE_SESSION_LIMIT_MS = 15_000;

export const OPERATIONS = ['text-to-music', 'video-to-music'] as const;
export type Operation = (typeof OPERATIONS)[number];
export const BREAKERS = OPERATIONS.map((operation) => `sonilo/${operation}`);

/** One part of every key, prompt, source and result URL: wherever else it is seen, something has leaked. */
export const CANARY = 'CANARY';
export const promptOf = (marker: number) => `${CANARY}PROMPT-${marker}- a song`;
export const sourceOf = (marker: number) => `https://example.com/${CANARY}SOURCE-${marker}.mp4`;
/** Bytes of the files that the app uploads, by turns: what one segment holds, and what takes its time. */
export const UPLOAD_BYTES = [20_000, 300_000, 1_000_000, 3_000_000] as const;
export const uploadName = (bytes: number) => `${CANARY}FILE-${bytes}.mp4`;
export const keyOf = (account: string) => `sk_${CANARY}KEY_${account}`;
export const requestKeyOf = (marker: number) => `order ${marker}`;

export interface AccountLimits {
  readonly requestsPerMinute: number;
  readonly maxConcurrentGenerations: number;
  /** The app holds back while so many wait. */
  readonly backlog: number;
  readonly weight: number;
}

/** The narrow ones are always at their limits; the others seldom. */
export const ACCOUNTS: Readonly<Record<string, AccountLimits>> = {
  minute: { requestsPerMinute: 24, maxConcurrentGenerations: 20, backlog: 10, weight: 3 },
  slots: { requestsPerMinute: 200, maxConcurrentGenerations: 2, backlog: 8, weight: 4 },
  amber: { requestsPerMinute: 90, maxConcurrentGenerations: 12, backlog: 30, weight: 2 },
  basil: { requestsPerMinute: 90, maxConcurrentGenerations: 12, backlog: 30, weight: 2 },
  cedar: { requestsPerMinute: 90, maxConcurrentGenerations: 12, backlog: 30, weight: 2 },
  delta: { requestsPerMinute: 90, maxConcurrentGenerations: 12, backlog: 30, weight: 2 },
  ember: { requestsPerMinute: 90, maxConcurrentGenerations: 12, backlog: 30, weight: 2 },
  fjord: { requestsPerMinute: 90, maxConcurrentGenerations: 12, backlog: 30, weight: 2 },
};
export const ACCOUNT_NAMES = Object.keys(ACCOUNTS);
export const keyVariableOf = (account: string) => `CHAOS_KEY_${account.toUpperCase()}`;

export function configuration(providerUrl: string): OnetakeConfig {
  const operation: OperationConfig = {
    breaker: { failureThreshold: FAILURE_THRESHOLD, cooldownMs: COOLDOWN_MS },
    deadlines: DEADLINES,
    leaseMs: LEASE_MS,
    rearmQuarantineMs: QUARANTINE_MS,
    maxRunMs: MAX_RUN_MS,
  };
  const accounts = Object.fromEntries(
    Object.entries(ACCOUNTS).map(([name, { requestsPerMinute, maxConcurrentGenerations }]) => [
      name,
      { provider: 'sonilo', apiKeyEnv: keyVariableOf(name), requestsPerMinute, maxConcurrentGenerations },
    ]),
  );
  return {
    providers: { sonilo: { baseUrl: providerUrl } },
    accounts,
    operations: Object.fromEntries(OPERATIONS.map((name) => [name, operation])),
    worker: { concurrency: 8, rescueIntervalMs: 500 },
    poller: { intervalMs: 250, maxIntervalMs: 1_000, concurrency: 16 },
    storage: { directory: './generations', allowPrivateHosts: true },
  };
}
