import {
  type Certainty,
  type Health,
  isUsableTaskId,
  outcomeOfTransportFailure,
  outcomeOfUnidentified,
  type Phase,
} from '../core/outcome.ts';
import type { SubmissionOutcome, WireEvidence, WireProof } from '../core/provider.ts';
import type { AdmittedAttempt } from '../postgres/submission-attempts.ts';
import type { SubmissionContext } from './context.ts';
import { withDeadline } from './pause.ts';

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
  const apiKey = await keyInTime(ctx, attempt.account);
  if (apiKey === undefined) return unsent('missing_api_key');
  // The worker may have been paused between the commit and here.
  if (!maySend()) return unsent('gate_closed');
  const { deadlines, resubmitOn } = ctx.settingsOf(attempt.operation);
  try {
    const submitted = provider.submit({
      attemptId: attempt.attemptId,
      operation: attempt.operation,
      fields: attempt.fields,
      apiKey,
      deadlines,
      resubmitOn,
      maySend,
    });
    // Ours ends by itself within submissionMs.
    const silent = unknown('provider_silent');
    return recordable(await withDeadline(submitted, deadlines.submissionMs + SILENCE_MARGIN_MS, silent));
  } catch {
    // A provider that throws has told nothing, and the money may be gone.
    return unknown('provider_threw');
  }
}

const SILENCE_MARGIN_MS = 1_000;
const KEY_TIMEOUT_MS = 5_000;

async function keyInTime(ctx: SubmissionContext, account: string): Promise<string | undefined> {
  try {
    return await withDeadline<string | undefined>(
      Promise.resolve(ctx.apiKeyOf(account)),
      KEY_TIMEOUT_MS,
      undefined,
    );
  } catch {
    return undefined;
  }
}

function unknown(errorCode: string): SubmissionOutcome {
  return {
    ...outcomeOfTransportFailure({ unsent: false, ownDoing: false }),
    retryAfterMs: null,
    evidence: evidence('sent', errorCode),
  };
}

const PLAIN_CODE = /^[A-Za-z0-9_.:-]{1,64}$/;

/**
 * The database refuses codes that are not plain and ids that are not usable. A provider that an app brought
 * along may report such, and its paid outcome must still be recorded.
 */
function recordable(reported: SubmissionOutcome): SubmissionOutcome {
  const outcome = isVerdict(reported) ? reported : { ...reported, ...UNREADABLE };
  const { errorCode, providerTaskId, httpStatus, responseAgeMs } = outcome.evidence;
  const taskId = isUsableTaskId(providerTaskId) ? providerTaskId : null;
  const table =
    outcome.certainty === 'accepted' && taskId === null
      ? outcomeOfUnidentified('accepted_without_task_id')
      : {};
  const code = errorCode === null || PLAIN_CODE.test(errorCode) ? errorCode : 'unprintable';
  return {
    ...outcome,
    ...table,
    retryAfterMs: within(outcome.retryAfterMs, MAX_MS),
    evidence: {
      ...outcome.evidence,
      phase: phaseOf(outcome),
      ...headersSentOf(outcome),
      errorCode: code,
      providerTaskId: taskId,
      httpStatus: within(httpStatus, 999),
      // Unknown is the careful reading: the POST then counts as arriving when its lease ends.
      responseAgeMs: within(responseAgeMs, MAX_MS),
    },
  };
}

const PHASES: readonly Phase[] = ['unsent', 'sent', 'response_started', 'answered'];
const CERTAINTIES: readonly Certainty[] = ['accepted', 'refused', 'unsent', 'unknown'];
const HEALTHS: readonly Health[] = [
  'success',
  'dependency_failure',
  'capacity_signal',
  'request_or_account_failure',
  'unknown_failure',
  'none',
];
/** What is no verdict of ours proves nothing. */
const UNREADABLE = outcomeOfTransportFailure({ unsent: false, ownDoing: false });

function isVerdict({ certainty, health, reason, evidence }: SubmissionOutcome): boolean {
  return (
    CERTAINTIES.includes(certainty) &&
    HEALTHS.includes(health) &&
    typeof reason === 'string' &&
    // Its word counts for *unsent*, until it contradicts itself.
    !(certainty === 'unsent' && evidence.headersSent === true)
  );
}

function phaseOf({ certainty, evidence: { phase } }: SubmissionOutcome): Phase {
  if (certainty === 'unsent') return 'unsent';
  return PHASES.includes(phase) ? phase : 'sent';
}

/** A provider that tells nothing of the wire has still told by its verdict, or by a status, what left. */
function headersSentOf({
  certainty,
  evidence,
}: SubmissionOutcome): Pick<WireEvidence, 'headersSent' | 'headersSentProof'> {
  const { headersSent, headersSentProof, httpStatus } = evidence;
  if (typeof headersSent === 'boolean') {
    const isProof = headersSentProof !== undefined && PROOFS.includes(headersSentProof);
    return { headersSent, headersSentProof: isProof ? headersSentProof : 'provider' };
  }
  if (certainty === 'unsent') return { headersSent: false, headersSentProof: 'provider' };
  if (httpStatus !== null) return { headersSent: true, headersSentProof: 'answer' };
  return { headersSent: null, headersSentProof: null };
}

const PROOFS: readonly (WireProof | null)[] = ['oracle', 'error_code', 'kept_back', 'answer', 'provider'];

const MAX_MS = 86_400_000;

/** A number of a provider's own is taken only when the database can hold it. */
function within(value: number | null, max: number): number | null {
  return value !== null && Number.isFinite(value) && value >= 0 && value <= max ? Math.round(value) : null;
}

function unsent(errorCode: string): SubmissionOutcome {
  return {
    ...outcomeOfTransportFailure({ unsent: true, ownDoing: true }),
    retryAfterMs: null,
    evidence: {
      ...evidence('unsent', errorCode),
      headersSent: false,
      headersSentProof: 'kept_back',
      closed: true,
    },
  };
}

function evidence(phase: 'unsent' | 'sent', errorCode: string): SubmissionOutcome['evidence'] {
  return { phase, httpStatus: null, errorCode, providerTaskId: null, responseAgeMs: null, closed: false };
}
