import { randomUUID } from 'node:crypto';
import { outcomeOfResponse, outcomeOfTransportFailure } from '../../src/core/outcome.ts';
import type { SubmissionOutcome } from '../../src/core/provider.ts';
import type { AttemptIntent, SpooledOutcome } from '../../src/core/spooled-outcome.ts';
import { ago } from './fixtures.ts';

export interface SpooledChanges {
  readonly intent?: Partial<AttemptIntent>;
  readonly outcome?: Partial<SubmissionOutcome>;
  readonly evidence?: Partial<SubmissionOutcome['evidence']>;
}

/** An accepted song whose outcome never got to the database, or what the test makes of it. */
export function spooledOutcome({ intent, outcome, evidence }: SpooledChanges = {}): SpooledOutcome {
  return {
    intent: {
      attemptId: randomUUID(),
      requestId: randomUUID(),
      attempt: 1,
      account: 'default',
      operation: 'text-to-music',
      breakerName: 'sonilo/text-to-music',
      generation: 1,
      holdEpoch: 0,
      isProbe: false,
      override: null,
      worker: 'a-host:1',
      startedAt: ago(2_000),
      leaseExpiresAt: ago(-98_000),
      windowUntil: ago(-158_250),
      slotUntil: ago(-698_000),
      quarantineUntil: ago(-218_000),
      isUnconfirmed: false,
      ...intent,
    },
    outcome: {
      health: 'success',
      certainty: 'accepted',
      reason: 'task_accepted',
      alert: false,
      retryAfterMs: null,
      ...outcome,
      evidence: {
        phase: 'answered',
        headersSent: true,
        headersSentProof: 'answer',
        repeatedSend: false,
        httpStatus: 202,
        errorCode: null,
        providerTaskId: 'a-task',
        responseAgeMs: 3,
        closed: true,
        ...evidence,
      },
    },
  };
}

/** What a POST came to that was answered with this status, and for a 2xx with this task id. */
export function answered(httpStatus: number, providerTaskId: string | null = null): SubmissionOutcome {
  const outcome = outcomeOfResponse({ status: httpStatus, taskId: providerTaskId });
  return spooledOutcome({ outcome, evidence: { httpStatus, providerTaskId } }).outcome;
}

const UNANSWERED = {
  httpStatus: null,
  providerTaskId: null,
  responseAgeMs: null,
  headersSentProof: 'oracle',
} as const;

export const RESET = spooledOutcome({
  outcome: outcomeOfTransportFailure({ unsent: false, ownDoing: false }),
  evidence: { ...UNANSWERED, phase: 'sent', errorCode: 'ECONNRESET' },
}).outcome;

export const UNSENT = spooledOutcome({
  outcome: outcomeOfTransportFailure({ unsent: true, ownDoing: false }),
  evidence: { ...UNANSWERED, phase: 'unsent', headersSent: false, errorCode: 'ECONNREFUSED' },
}).outcome;
