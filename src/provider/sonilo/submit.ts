import { operationNamed } from '../../core/operations.ts';
import {
  type Outcome,
  outcomeOfRepeatedSend,
  outcomeOfResponse,
  outcomeOfStream,
  outcomeOfTransportFailure,
} from '../../core/outcome.ts';
import type { StreamTerms, Submission, SubmissionOutcome, WireEvidence } from '../../core/provider.ts';
import { isContentCode } from '../../core/stream.ts';
import type { BaseUrl } from './base-url.ts';
import { jsonOf, retryAfterOf } from './body.ts';
import { decodeSubmissionAnswer } from './decode.ts';
import type { Reply } from './exchange.ts';
import { encodeForm } from './forms.ts';
import { headersFor } from './headers.ts';
import type { OpenBody } from './open-body.ts';
import {
  CLOSE_WAIT_MS,
  MAX_ANSWER_BYTES,
  type OpenClient,
  type Post,
  type PostEnd,
  postOnce,
} from './post.ts';
import type { ProvenOracle } from './proven-oracle.ts';
import { providerCode } from './provider-code.ts';
import { MAX_STREAM_BYTES, readOpening } from './stream.ts';
import { isOwnDoing, isUnsentByCode, transportErrorCode } from './transport-errors.ts';

/** One paid POST, at most once, whatever happens. Never rejects. */
export async function submitOnce(
  base: BaseUrl,
  submission: Submission,
  proven: ProvenOracle,
  open?: OpenClient,
): Promise<SubmissionOutcome> {
  let post: Post;
  try {
    post = postOf(base, submission);
    // Once in a process, before its first POST. It takes of the send budget, so the gate comes after it.
    await proven.prove();
    if (!submission.maySend()) return keptBack('gate_closed');
  } catch (error) {
    return keptBack(transportErrorCode(error));
  }
  const end = await postOnce(proven.oracle, post, open);
  const sent = headersSentOf(end, proven);
  const outcome = await outcomeOf(end, sent, submission);
  if (end.watch.repeated === 0) return outcome;
  return {
    ...outcome,
    ...outcomeOfRepeatedSend(outcome),
    evidence: { ...outcome.evidence, repeatedSend: true },
    retryAfterMs: null,
  };
}

async function outcomeOf(
  end: PostEnd,
  sent: HeadersSent,
  submission: Submission,
): Promise<SubmissionOutcome> {
  const { status, open } = end.reply;
  if (status === null || sent.headersSent === false) {
    open?.cancel();
    return withoutStatus(end, sent);
  }
  return open === undefined || submission.stream === undefined
    ? withStatus(end, status, sent, submission)
    : withOpenAnswer(end, { status, open, terms: submission.stream }, sent, submission);
}

type HeadersSent = Required<Pick<WireEvidence, 'headersSent' | 'headersSentProof'>>;

/**
 * Whether the first byte went out, and the proof. *Not* takes the oracle, healthy, without a notice of this POST
 * that it let through; error codes look alike on both sides of the first byte. Only where the oracle can't be
 * trusted does a code prove it, and then only one that comes before a connection.
 */
function headersSentOf({ reply, watch, socket, gateClosed }: PostEnd, proven: ProvenOracle): HeadersSent {
  if (watch.written > 0) return { headersSent: true, headersSentProof: 'oracle' };
  // Bytes that nobody announced, or an answer to nothing: from now on its silence proves nothing.
  if (socket.wasWrittenTo || (reply.status !== null && watch.stopped === 0)) proven.distrust();
  if (proven.health === 'healthy' && !watch.isDoubtful) {
    return { headersSent: false, headersSentProof: 'oracle' };
  }
  // Not the code alone: a socket that undici never got is the second witness that nothing left by it.
  if (!socket.handedOver && gateClosed) return { headersSent: false, headersSentProof: 'kept_back' };
  if (!socket.handedOver && isUnsentByCode(reply.error)) {
    return { headersSent: false, headersSentProof: 'error_code' };
  }
  if (reply.status !== null) return { headersSent: true, headersSentProof: 'answer' };
  return { headersSent: null, headersSentProof: null };
}

function postOf(base: BaseUrl, submission: Submission): Post {
  const form = encodeForm(submission.fields, submission.files);
  return {
    origin: base.origin,
    path: `${base.pathPrefix}${operationNamed(submission.operation).path}`,
    headers: { ...headersFor(submission.apiKey, form.contentType), 'content-length': String(form.bytes) },
    body: form.body,
    deadlines: submission.deadlines,
    maySend: submission.maySend,
    ...(submission.stream === undefined
      ? {}
      : { stream: { idleMs: submission.stream.idleMs, maxBytes: MAX_STREAM_BYTES } }),
  };
}

/** An answer that was asked to be a stream: by its first event, whatever its content type says. */
async function withOpenAnswer(
  end: PostEnd,
  answer: { readonly status: number; readonly open: OpenBody; readonly terms: StreamTerms },
  sent: HeadersSent,
  submission: Submission,
): Promise<SubmissionOutcome> {
  const { status, open, terms } = answer;
  const codeOf = (code: unknown) => providerCode(code, submission);
  const opening = await readOpening(open, terms, codeOf);
  const responseAgeMs = Math.round(performance.now() - (end.reply.startedAt ?? performance.now()));
  if (opening.kind === 'whole') {
    const closed = opening.bodyEnd === 'complete' || (await end.socket.ended(CLOSE_WAIT_MS));
    const { kind, ...whole } = opening;
    const outcome = withStatus(
      { ...end, reply: { ...end.reply, ...whole }, closed, responseAgeMs },
      status,
      sent,
      submission,
    );
    const isUnread = outcome.certainty === 'unknown' && outcome.evidence.errorCode === null;
    if (!isUnread || !isEncoded(end.reply)) return outcome;
    // We asked for none: somebody on the way has compressed it.
    return { ...outcome, evidence: { ...outcome.evidence, errorCode: 'content_encoding' } };
  }
  const evidence = {
    phase: 'response_started',
    ...sent,
    httpStatus: status,
    providerTaskId: null,
    closed: false,
    responseAgeMs,
  } as const;
  if (opening.kind === 'started') {
    const { stream } = opening;
    return {
      ...outcomeOfStream({ isError: false }),
      evidence: { ...evidence, errorCode: null },
      retryAfterMs: null,
      stream,
    };
  }
  const { errorCode } = opening;
  const isContent = isContentCode(errorCode, terms.contentCodes);
  return {
    ...outcomeOfStream({ isError: true, isContent }),
    evidence: { ...evidence, errorCode: errorCode ?? 'stream_error' },
    retryAfterMs: null,
  };
}

function isEncoded({ headers }: Reply): boolean {
  return !['', 'identity'].includes(String(headers['content-encoding'] ?? '').toLowerCase());
}

function withStatus(
  { reply, closed, responseAgeMs }: PostEnd,
  status: number,
  sent: HeadersSent,
  submission: Submission,
): SubmissionOutcome {
  const answer = decodeSubmissionAnswer(jsonOf(reply, MAX_ANSWER_BYTES));
  const outcome = outcomeOfResponse({
    status,
    taskId: answer.taskId,
    capacity: answer.capacity,
    resubmitOn: submission.resubmitOn,
  });
  const accepted = outcome.certainty === 'accepted';
  return {
    ...outcome,
    evidence: {
      phase: reply.bodyEnd === 'cut' ? 'response_started' : 'answered',
      ...sent,
      httpStatus: status,
      errorCode: accepted ? null : (providerCode(answer.code, submission) ?? wireCode(reply)),
      providerTaskId: accepted && typeof answer.taskId === 'string' ? answer.taskId : null,
      closed,
      responseAgeMs,
    },
    retryAfterMs: outcome.health === 'capacity_signal' ? retryAfterOf(reply) : null,
  };
}

function withoutStatus(end: PostEnd, sent: HeadersSent): SubmissionOutcome {
  const unsent = sent.headersSent === false;
  const verdict = { unsent, ownDoing: unsent && (end.gateClosed || isOwnDoing(end.reply.error)) };
  const errorCode = end.gateClosed && unsent ? 'gate_closed' : wireCode(end.reply);
  const outcome = noStatus(verdict, errorCode, sent, end.closed);
  // Our own file failed in the middle of the body: unknown all the same, and no word about the provider.
  return errorCode?.startsWith('media_') === true ? { ...outcome, health: 'none', alert: true } : outcome;
}

function keptBack(errorCode: string | null): SubmissionOutcome {
  const sent = { headersSent: false, headersSentProof: 'kept_back' } as const;
  return noStatus({ unsent: true, ownDoing: true }, errorCode, sent, true);
}

function noStatus(
  verdict: { readonly unsent: boolean; readonly ownDoing: boolean },
  errorCode: string | null,
  sent: HeadersSent,
  closed: boolean,
): SubmissionOutcome {
  const outcome: Outcome = outcomeOfTransportFailure(verdict);
  return {
    ...outcome,
    evidence: {
      phase: verdict.unsent ? 'unsent' : 'sent',
      ...sent,
      httpStatus: null,
      errorCode,
      providerTaskId: null,
      responseAgeMs: null,
      closed: closed || verdict.unsent,
    },
    retryAfterMs: null,
  };
}

/** What ended the exchange, where it was not a whole answer. */
function wireCode(reply: Reply): string | null {
  if (reply.deadline === 'first_response') return 'first_response_deadline';
  if (reply.deadline === 'whole') return 'submission_deadline';
  if (reply.bodyEnd === 'too_large') return 'answer_too_large';
  return transportErrorCode(reply.error);
}
