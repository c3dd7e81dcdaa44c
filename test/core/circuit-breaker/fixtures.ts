import type { CircuitBreakerSettings } from '../../../src/core/circuit-breaker.ts';

/** Three failures, half a minute, and nothing that is off by default. */
export const SETTINGS: CircuitBreakerSettings = {
  failureThreshold: 3,
  cooldownMs: 30_000,
  cooldownGrowth: 1,
  maxCooldownMs: 600_000,
  jitter: 0,
  shadow: false,
};
