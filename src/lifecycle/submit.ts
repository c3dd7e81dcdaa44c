import { isUsableTaskId, outcomeOfTransportFailure, outcomeOfUnidentified } from '../core/outcome.ts';
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
    return recordable(
      await provider.submit({
        attemptId: attempt.attemptId,
        operation: attempt.operation,
        fields: attempt.fields,
        apiKey,
        deadlines,
        resubmitOn,
        maySend,
      }),
    );
  } catch {
    // A provider that throws has told nothing, and the money may be gone.
    return {
      ...outcomeOfTransportFailure({ unsent: false, ownDoing: false }),
      retryAfterMs: null,
      evidence: evidence('sent', 'provider_threw'),
    };
  }
}

const PLAIN_CODE = /^[A-Za-z0-9_.:-]{1,64}$/;

/**
 * The database refuses codes that are not plain and ids that are not usable. A provider that an app brought
 * along may report such, and its paid outcome must still be recorded.
 */
function recordable(outcome: SubmissionOutcome): SubmissionOutcome {
  const { errorCode, providerTaskId } = outcome.evidence;
  const taskId = isUsableTaskId(providerTaskId) ? providerTaskId : null;
  const table =
    outcome.certainty === 'accepted' && taskId === null
      ? outcomeOfUnidentified('accepted_without_task_id')
      : {};
  const code = errorCode === null || PLAIN_CODE.test(errorCode) ? errorCode : 'unprintable';
  return { ...outcome, ...table, evidence: { ...outcome.evidence, errorCode: code, providerTaskId: taskId } };
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
