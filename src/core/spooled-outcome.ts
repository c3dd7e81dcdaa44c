import type { BreakerOverride } from './circuit-breaker.ts';
import type { SubmissionOutcome } from './provider.ts';

/** The terms of one permission to POST, as admission fixed them. */
export interface AttemptTerms {
  readonly breakerName: string;
  readonly generation: number;
  readonly holdEpoch: number;
  readonly isProbe: boolean;
  /** In force at admission: what comes of the attempt counts for nothing. */
  readonly override: BreakerOverride | null;
  readonly worker: string;
  readonly startedAt: Date;
  readonly leaseExpiresAt: Date;
  readonly windowUntil: Date;
  readonly slotUntil: Date;
  readonly quarantineUntil: Date;
}

/** One attempt as its worker knows it: enough to write its row again where the database has lost it. */
export interface AttemptIntent extends AttemptTerms {
  readonly attemptId: string;
  readonly requestId: string;
  readonly attempt: number;
  readonly account: string;
  readonly operation: string;
  /** Nobody could be asked whether its COMMIT happened, so nothing of it was sent. */
  readonly isUnconfirmed?: boolean;
}

/** What is kept on disk of an outcome that couldn't be committed. Ids and evidence only. */
export interface SpooledOutcome {
  readonly intent: AttemptIntent;
  readonly outcome: SubmissionOutcome;
}
