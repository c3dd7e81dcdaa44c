import type { CircuitBreakerSettings } from './circuit-breaker.ts';
import type { Deadlines, StreamTerms } from './provider.ts';

/** What this process's configuration says of one operation. */
export interface OperationSettings {
  readonly breaker: CircuitBreakerSettings;
  readonly deadlines: Deadlines;
  readonly leaseMs: number;
  readonly rearmQuarantineMs: number;
  readonly maxSubmissions: number;
  readonly resubmitOn: readonly number[];
  readonly maxRunMs: number;
  readonly stream: StreamTerms;
}
