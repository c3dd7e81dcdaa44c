import { accountRefusal } from '../core/admission.ts';
import {
  type Certainty,
  type Health,
  isUsableTaskId,
  type OutcomeReason,
  outcomeOfTransportFailure,
  outcomeOfUnidentified,
  type Phase,
} from '../core/outcome.ts';
import type {
  Provider,
  SubmissionOutcome,
  SubmissionStream,
  WireEvidence,
  WireProof,
} from '../core/provider.ts';
import type { AdmittedAttempt } from '../postgres/submission-attempts.ts';
import type { SubmissionContext } from './context.ts';
import { type OpenSources, openSources } from './open-sources.ts';
import { withDeadline } from './pause.ts';
import { printableCode } from './printable-code.ts';

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
  const sources = await openSources(attempt.operation, attempt.fields);
  if (typeof sources === 'string') return unsent(sources);
  const trouble = attempt.mode === 'stream' ? await storageTrouble(ctx) : undefined;
  if (trouble !== undefined) {
    void sources.close();
    return unsent(trouble);
  }
  try {
    // The worker may have been paused between the commit and here.
    if (!maySend()) return unsent('gate_closed');
    return await submitOnce(ctx, attempt, { provider, apiKey, files: sources.files, maySend });
  } finally {
    // Not waited for: the outcome of a paid POST is in hand.
    void sources.close();
  }
}

async function submitOnce(
  ctx: SubmissionContext,
  attempt: AdmittedAttempt,
  terms: {
    readonly provider: Provider;
    readonly apiKey: string;
    readonly files: OpenSources['files'];
    readonly maySend: () => boolean;
  },
): Promise<SubmissionOutcome> {
  const { provider, apiKey, files, maySend } = terms;
  const { deadlines, resubmitOn, stream } = ctx.settingsOf(attempt.operation);
  const asksForStream = attempt.mode === 'stream';
  try {
    const submitted = provider.submit({
      attemptId: attempt.attemptId,
      operation: attempt.operation,
      fields: attempt.fields,
      ...(Object.keys(files).length === 0 ? {} : { files }),
      apiKey,
      deadlines,
      resubmitOn,
      maySend,
      ...(asksForStream ? { stream } : {}),
    });
    // Ours ends by itself within submissionMs.
    const silent = unknown('provider_silent');
    // In two parts: after a standstill of the process both would be over before it has read what arrived meanwhile.
    const inTime = withDeadline(submitted, deadlines.submissionMs, undefined);
    const outcome = (await inTime) ?? (await withDeadline(submitted, SILENCE_MARGIN_MS, silent));
    if (outcome === silent) void submitted.then(cancelStream, () => undefined);
    const recorded = recordable(outcome, asksForStream);
    if (recorded.stream === undefined) cancelStream(outcome);
    return recorded;
  } catch {
    // A provider that throws has told nothing, and the money may be gone.
    return unknown('provider_threw');
  }
}

/** Of an outcome that isn't taken as it is: nobody will read it. */
function cancelStream({ stream }: SubmissionOutcome): void {
  try {
    stream?.cancel();
  } catch {
    // Against its word; the outcome is decided.
  }
}

/** What a stream brings can't be fetched again, so the storage is asked before anything is paid for. */
async function storageTrouble({ storage }: SubmissionContext): Promise<string | undefined> {
  if (storage === null) return 'storage_not_configured';
  try {
    return await withDeadline<string | undefined>(
      storage.checkWritable().then(() => undefined),
      STORAGE_TIMEOUT_MS,
      'storage_unavailable',
    );
  } catch {
    return 'storage_unavailable';
  }
}

const STORAGE_TIMEOUT_MS = 5_000;
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

/**
 * The database refuses codes that are not plain and ids that are not usable. A provider that an app brought
 * along may report such, and its paid outcome must still be recorded.
 */
function recordable(reported: SubmissionOutcome, asksForStream: boolean): SubmissionOutcome {
  const { stream, ...outcome } = isVerdict(reported) ? reported : { ...reported, ...UNREADABLE };
  const isStarted = asksForStream && outcome.reason === 'stream_started' && isStream(stream);
  const isOfStream = isStarted || (asksForStream && outcome.reason === 'stream_failed');
  const { errorCode, providerTaskId, httpStatus, responseAgeMs, repeatedSend, closed } = outcome.evidence;
  const taskId = isUsableTaskId(providerTaskId) ? providerTaskId : null;
  const table =
    outcome.certainty === 'accepted' && taskId === null && !isOfStream
      ? outcomeOfUnidentified('accepted_without_task_id')
      : {};
  return {
    ...outcome,
    ...table,
    alert: outcome.alert === true || 'alert' in table,
    retryAfterMs: within(outcome.retryAfterMs, MAX_MS),
    evidence: {
      ...outcome.evidence,
      phase: phaseOf(outcome),
      ...headersSentOf(outcome),
      repeatedSend: repeatedSend === true,
      errorCode: printableCode(errorCode),
      providerTaskId: taskId,
      httpStatus: within(httpStatus, 999),
      // Unknown is the careful reading: the POST then counts as arriving when its lease ends.
      responseAgeMs: within(responseAgeMs, MAX_MS),
      closed: closed === true,
    },
    ...(isStarted ? { stream: stream as SubmissionStream } : {}),
  };
}

function isStream(stream: SubmissionStream | undefined): boolean {
  return typeof stream?.read === 'function' && typeof stream.cancel === 'function';
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
const REASONS: Readonly<Record<Certainty, readonly OutcomeReason[]>> = {
  accepted: ['task_accepted', 'stream_started', 'stream_failed'],
  refused: [
    'request_refused',
    'account_refused',
    'rate_limited',
    'concurrency_limited',
    'resubmit_permitted',
  ],
  unsent: ['unsent', 'unsent_own_doing'],
  unknown: [
    'accepted_without_task_id',
    'task_id_conflict',
    'server_error',
    'unreviewed_status',
    'transport',
    'repeated_send',
    'worker_lost',
    'intent_lost',
  ],
};
/** What is no verdict of ours proves nothing. */
const UNREADABLE = outcomeOfTransportFailure({ unsent: false, ownDoing: false });

/** A reason of another certainty, or in words of its own, would go where ours go: into columns, events and delays. */
function isVerdict({ certainty, health, reason, evidence }: SubmissionOutcome): boolean {
  return (
    CERTAINTIES.includes(certainty) &&
    HEALTHS.includes(health) &&
    REASONS[certainty].includes(reason) &&
    !contradictsItself(certainty, evidence) &&
    // Without one of these statuses nothing is held, and the next POST would follow at once.
    (reason !== 'account_refused' || accountRefusal(evidence.httpStatus ?? 0, null) !== undefined)
  );
}

/** Its word counts for *unsent* and *refused*, which permit another POST, until the wire says otherwise. */
function contradictsItself(certainty: Certainty, { headersSent, httpStatus, providerTaskId }: WireEvidence) {
  if (certainty === 'unsent' && (headersSent === true || typeof httpStatus === 'number')) return true;
  return (certainty === 'unsent' || certainty === 'refused') && isUsableTaskId(providerTaskId);
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
