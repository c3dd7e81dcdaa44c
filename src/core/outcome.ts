/** What an outcome says about the provider's submission path. Feeds the breaker and nothing else. */
export type Health =
  | 'success'
  | 'dependency_failure'
  | 'capacity_signal'
  | 'request_or_account_failure'
  | 'unknown_failure'
  | 'none';

/** What an outcome says about this one purchase. Feeds the request and nothing else. */
export type Certainty = 'accepted' | 'refused' | 'unsent' | 'unknown';

/** How far one POST got, as far as this process can tell. */
export type Phase =
  /** No byte of the request left us. */
  | 'unsent'
  /** Bytes may have left; no status line came back. */
  | 'sent'
  /** A status came back, its body did not arrive whole. */
  | 'response_started'
  /** Status and body (as far as it is bounded) were read. */
  | 'answered'
  /** The attempt's lease ended with nobody to say. */
  | 'lease_over';

/** Why an outcome is what it is; for frozen requests this is the stored `state_reason`. */
export type OutcomeReason =
  | 'task_accepted'
  /** The answer is a stream, and its first event has come. There is no task. */
  | 'stream_started'
  /** The answer is a stream, and its first event said that the generation failed. */
  | 'stream_failed'
  | 'accepted_without_task_id'
  | 'task_id_conflict'
  | 'request_refused'
  | 'account_refused'
  | 'rate_limited'
  | 'concurrency_limited'
  | 'server_error'
  | 'resubmit_permitted'
  | 'unreviewed_status'
  | 'unsent'
  | 'unsent_own_doing'
  | 'transport'
  | 'repeated_send'
  | 'worker_lost'
  /** The database had lost the attempt; only its outcome shows that there was one. */
  | 'intent_lost';

export interface Outcome {
  readonly health: Health;
  readonly certainty: Certainty;
  readonly reason: OutcomeReason;
  /** Somebody should look: the contract was broken, or nobody has reviewed this answer. */
  readonly alert: boolean;
}

export interface ReviewedResponse {
  /** 100 to 599, or whatever the wire said. */
  readonly status: number;
  /** The id as decoded from the body, of any type; absent when the body was unreadable. */
  readonly taskId?: unknown;
  /** Only meaningful for a 429: the provider's adapter tells the two apart. */
  readonly capacity?: 'rate' | 'concurrency';
  /** Statuses after which the owner permits the same request to be sent again. */
  readonly resubmitOn?: readonly number[];
}

const REFUSED_REQUEST: ReadonlySet<number> = new Set([400, 413, 422]);
const REFUSED_ACCOUNT: ReadonlySet<number> = new Set([401, 402, 403]);
const SERVER_ERROR: ReadonlySet<number> = new Set([500, 502, 503, 504]);

/**
 * The HTTP table: what one answered submission means. The first row that fits decides. A provider that
 * reports errors inside a 200 has a table of its own.
 */
export function outcomeOfResponse(response: ReviewedResponse): Outcome {
  const { status } = response;
  if (status >= 200 && status < 300) {
    return isUsableTaskId(response.taskId)
      ? { health: 'success', certainty: 'accepted', reason: 'task_accepted', alert: false }
      : outcomeOfUnidentified('accepted_without_task_id');
  }
  if (REFUSED_REQUEST.has(status)) {
    return {
      health: 'request_or_account_failure',
      certainty: 'refused',
      reason: 'request_refused',
      alert: false,
    };
  }
  if (REFUSED_ACCOUNT.has(status)) {
    return {
      health: 'request_or_account_failure',
      certainty: 'refused',
      reason: 'account_refused',
      alert: false,
    };
  }
  if (status === 429) {
    const reason = response.capacity === 'concurrency' ? 'concurrency_limited' : 'rate_limited';
    return { health: 'capacity_signal', certainty: 'refused', reason, alert: false };
  }
  if (SERVER_ERROR.has(status)) {
    return response.resubmitOn?.includes(status)
      ? { health: 'dependency_failure', certainty: 'refused', reason: 'resubmit_permitted', alert: false }
      : { health: 'dependency_failure', certainty: 'unknown', reason: 'server_error', alert: false };
  }
  return { health: 'unknown_failure', certainty: 'unknown', reason: 'unreviewed_status', alert: true };
}

/** A 2xx that names no task of ours: charged as far as anybody knows, and there is no handle. */
export function outcomeOfUnidentified(reason: 'accepted_without_task_id' | 'task_id_conflict'): Outcome {
  return { health: 'unknown_failure', certainty: 'unknown', reason, alert: true };
}

/** An answer of 2xx that is a stream, by its first event. It was accepted, and there is no task to ask for. */
export function outcomeOfStream(first: { readonly isError: boolean; readonly isContent?: boolean }): Outcome {
  if (!first.isError) {
    return { health: 'success', certainty: 'accepted', reason: 'stream_started', alert: false };
  }
  const health = first.isContent === true ? 'none' : 'dependency_failure';
  return { health, certainty: 'accepted', reason: 'stream_failed', alert: false };
}

/** Accepted without a task: by a stream. */
export function isOfStream(reason: OutcomeReason): boolean {
  return reason === 'stream_started' || reason === 'stream_failed';
}

/** A POST that ended without a status. `unsent` needs proof; without it the outcome is unknown. */
export function outcomeOfTransportFailure(failure: { unsent: boolean; ownDoing: boolean }): Outcome {
  if (failure.unsent && failure.ownDoing) {
    return { health: 'none', certainty: 'unsent', reason: 'unsent_own_doing', alert: true };
  }
  if (failure.unsent) {
    return { health: 'dependency_failure', certainty: 'unsent', reason: 'unsent', alert: false };
  }
  return { health: 'dependency_failure', certainty: 'unknown', reason: 'transport', alert: false };
}

/**
 * Something below us tried to send the POST again. An answer that accepts stands; any other may be the answer
 * to either, and tells nothing about the one that it is not of.
 */
export function outcomeOfRepeatedSend(outcome: Outcome): Outcome {
  return outcome.certainty === 'accepted'
    ? { ...outcome, alert: true }
    : { health: 'none', certainty: 'unknown', reason: 'repeated_send', alert: true };
}

/** The lease ended and nobody knows: says nothing of the provider, and freezes the purchase. */
export const WORKER_LOST: Outcome = {
  health: 'none',
  certainty: 'unknown',
  reason: 'worker_lost',
  alert: false,
};

/**
 * *Unsent* frees the request for another paid POST, so it takes the attempt's own worker, while its lease runs.
 * From anybody else, or later, it proves nothing: a spooled file may be of a clock, a disk or a process that
 * nobody can ask any more.
 */
export function outcomeAsTold<Told extends Outcome>(outcome: Told, byLiveAttempt: boolean): Told {
  return outcome.certainty === 'unsent' && !byLiveAttempt ? { ...outcome, ...WORKER_LOST } : outcome;
}

const CONTROL_OR_LONE_SURROGATE = /[\p{Cc}\p{Cs}]/u;
/** Counted by code point, as the database counts them. */
const MAX_TASK_ID_CHARACTERS = 255;

/** A JSON string of 1 to 255 characters without control characters or lone surrogates. */
export function isUsableTaskId(value: unknown): value is string {
  return (
    typeof value === 'string' &&
    value.length >= 1 &&
    value.length <= 2 * MAX_TASK_ID_CHARACTERS &&
    Array.from(value).length <= MAX_TASK_ID_CHARACTERS &&
    !CONTROL_OR_LONE_SURROGATE.test(value)
  );
}

export interface ClassifiedOutcome {
  readonly kind: Exclude<Health, 'none'>;
  readonly countsBreaker: boolean;
  readonly ambiguousSubmission: boolean;
}

/**
 * The published classifier of the article that this project began with, kept for users who know it. It
 * sees less than the table above (a status, or that something failed), and it takes a 5xx for a definite
 * failure; onetake itself freezes such a request, because the money goes inside the POST handler.
 */
export function classifyGenerationOutcome(
  observed: { status?: number; transportError?: boolean; streamError?: boolean } = {},
): ClassifiedOutcome {
  const { status, transportError = false, streamError = false } = observed;
  if (transportError) return classified('dependency_failure', true, true);
  if (streamError) return classified('dependency_failure', true, false);
  if (status === undefined) return classified('unknown_failure', false, false);
  if (status >= 200 && status < 300) return classified('success', false, false);
  if (SERVER_ERROR.has(status)) return classified('dependency_failure', true, false);
  if (status === 429) return classified('capacity_signal', false, false);
  if (REFUSED_REQUEST.has(status) || REFUSED_ACCOUNT.has(status)) {
    return classified('request_or_account_failure', false, false);
  }
  return classified('unknown_failure', false, false);
}

function classified(
  kind: ClassifiedOutcome['kind'],
  countsBreaker: boolean,
  ambiguousSubmission: boolean,
): ClassifiedOutcome {
  return { kind, countsBreaker, ambiguousSubmission };
}
