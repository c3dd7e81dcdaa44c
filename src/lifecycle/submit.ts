import { outcomeOfTransportFailure } from '../core/outcome.ts';
import type { SubmissionOutcome } from '../core/provider.ts';
import type { AdmittedAttempt } from '../postgres/submission-attempts.ts';
import type { SubmissionContext } from './context.ts';

/**
 * The POST of one admitted attempt. No transaction is open. Resolves for everything that can happen; what
 * can't be proven unsent is unknown.
 */
export async function submit(
  ctx: SubmissionContext,
  attempt: AdmittedAttempt,
  providerName: string,
  maySend: () => boolean,
): Promise<SubmissionOutcome> {
  const provider = ctx.providerNamed(providerName);
  if (provider === undefined) return unsent('unknown_provider');
  let apiKey: string;
  try {
    apiKey = await ctx.apiKeyOf(attempt.account);
  } catch {
    return unsent('missing_api_key');
  }
  // The worker may have been paused between the commit and here.
  if (!maySend()) return unsent('gate_closed');
  const { deadlines, resubmitOn } = ctx.settingsOf(attempt.operation);
  try {
    return await provider.submit({
      attemptId: attempt.attemptId,
      operation: attempt.operation,
      fields: attempt.fields,
      apiKey,
      deadlines,
      resubmitOn,
      maySend,
    });
  } catch {
    // A provider that throws has told nothing, and the money may be gone.
    return {
      ...outcomeOfTransportFailure({ unsent: false, ownDoing: false }),
      retryAfterMs: null,
      evidence: evidence('sent', 'provider_threw'),
    };
  }
}

function unsent(errorCode: string): SubmissionOutcome {
  return {
    ...outcomeOfTransportFailure({ unsent: true, ownDoing: true }),
    retryAfterMs: null,
    evidence: { ...evidence('unsent', errorCode), closed: true },
  };
}

function evidence(phase: 'unsent' | 'sent', errorCode: string): SubmissionOutcome['evidence'] {
  return { phase, httpStatus: null, errorCode, providerTaskId: null, responseAgeMs: null, closed: false };
}
