import type { SubmissionOutcome } from '../../src/core/provider.ts';

// What a POST may have come to, as the provider's adapter reports it.

export function outcomeOf(
  changes: Partial<SubmissionOutcome>,
  evidence: Partial<SubmissionOutcome['evidence']> = {},
): SubmissionOutcome {
  return {
    health: 'success',
    certainty: 'accepted',
    reason: 'task_accepted',
    alert: false,
    retryAfterMs: null,
    ...changes,
    evidence: {
      phase: 'answered',
      httpStatus: 202,
      errorCode: null,
      providerTaskId: null,
      responseAgeMs: 1,
      closed: true,
      ...evidence,
    },
  };
}

export const acceptedAs = (taskId: string) => outcomeOf({}, { providerTaskId: taskId });

export const refusedWith = (httpStatus: number) =>
  outcomeOf(
    httpStatus === 429
      ? { health: 'capacity_signal', certainty: 'refused', reason: 'rate_limited' }
      : {
          health: 'request_or_account_failure',
          certainty: 'refused',
          reason: [401, 402, 403].includes(httpStatus) ? 'account_refused' : 'request_refused',
        },
    { httpStatus },
  );

export const answeredWith = (httpStatus: number) =>
  outcomeOf({ health: 'dependency_failure', certainty: 'unknown', reason: 'server_error' }, { httpStatus });

export const WITHOUT_ID = outcomeOf(
  { health: 'unknown_failure', certainty: 'unknown', reason: 'accepted_without_task_id', alert: true },
  { httpStatus: 200 },
);

export const RESET = outcomeOf(
  { health: 'dependency_failure', certainty: 'unknown', reason: 'transport' },
  { phase: 'sent', httpStatus: null, errorCode: 'ECONNRESET' },
);

export const UNSENT = outcomeOf(
  { health: 'dependency_failure', certainty: 'unsent', reason: 'unsent' },
  { phase: 'unsent', httpStatus: null, errorCode: 'ECONNREFUSED' },
);

export const GATE_CLOSED = outcomeOf(
  { health: 'none', certainty: 'unsent', reason: 'unsent_own_doing', alert: true },
  { phase: 'unsent', httpStatus: null, errorCode: 'gate_closed' },
);
