import { subscribe, unsubscribe } from 'node:diagnostics_channel';
import { Client, type Dispatcher } from 'undici';
import { operationNamed } from '../../core/operations.ts';
import { type Outcome, outcomeOfResponse, outcomeOfTransportFailure } from '../../core/outcome.ts';
import type { Submission, SubmissionOutcome, WireEvidence } from '../../core/provider.ts';
import type { BaseUrl } from './base-url.ts';
import { jsonOf, retryAfterOf } from './body.ts';
import { decodeSubmissionAnswer } from './decode.ts';
import { exchange, type Reply } from './exchange.ts';
import { encodeForm } from './forms.ts';
import { type FreshSocket, freshSocket } from './fresh-socket.ts';
import { headersFor } from './headers.ts';
import { transportErrorCode, verdictOfTransportError, withoutKey } from './transport-errors.ts';

const MAX_ANSWER_BYTES = 1_048_576;
/** How long past its end we look for the socket's close; counted on top of the deadline. */
const CLOSE_WAIT_MS = 250;
/** Published by undici in the same turn as, and just before, the first byte of a request. */
const SEND_HEADERS = 'undici:client:sendHeaders';

/** One paid POST, at most once, whatever happens. Never rejects. */
export async function submitOnce(base: BaseUrl, submission: Submission): Promise<SubmissionOutcome> {
  let request: Dispatcher.DispatchOptions;
  try {
    request = postRequest(base, submission);
    if (!submission.maySend()) return unsentByUs('gate_closed');
  } catch (error) {
    return unsentByUs(transportErrorCode(error));
  }

  let gateClosed = false;
  const mayStillSend = () => {
    gateClosed ||= !asked(submission.maySend);
    return !gateClosed;
  };
  const socket = freshSocket({ connectMs: submission.deadlines.connectMs, mayHandOver: mayStillSend });
  const lastGate = (message: unknown) => {
    const { socket: writtenTo } = message as { readonly socket?: unknown };
    // Destroying lets no byte out; throwing here would.
    if (socket.isHandedOver(writtenTo) && !mayStillSend()) socket.drop();
  };

  let client: Client | undefined;
  try {
    subscribe(SEND_HEADERS, lastGate);
    client = postClient(base, socket, submission);
    const reply = await exchange(client, request, {
      firstResponseMs: submission.deadlines.firstResponseMs,
      wholeMs: submission.deadlines.submissionMs,
      maxBodyBytes: MAX_ANSWER_BYTES,
      endConnection: () => socket.end(),
    });
    const settledAt = performance.now();
    socket.end();
    const closed = reply.bodyEnd === 'complete' || (await socket.ended(CLOSE_WAIT_MS));
    if (gateClosed) return unsentByUs('gate_closed');
    return reply.status === null
      ? withoutStatus(reply, socket, closed)
      : withStatus(reply, reply.status, submission, {
          closed,
          responseAgeMs: reply.startedAt === null ? null : Math.round(settledAt - reply.startedAt),
        });
  } catch (error) {
    // Our own fault, but only a socket that was never handed over proves that nothing left.
    socket.end();
    if (!socket.handedOver) return unsentByUs(transportErrorCode(error));
    const closed = await socket.ended(CLOSE_WAIT_MS);
    return noStatus({ unsent: false, ownDoing: false }, transportErrorCode(error), closed);
  } finally {
    unsubscribe(SEND_HEADERS, lastGate);
    client?.destroy().catch(() => undefined);
  }
}

function postRequest(base: BaseUrl, submission: Submission): Dispatcher.DispatchOptions {
  const form = encodeForm(submission.fields);
  const { firstResponseMs, submissionMs } = submission.deadlines;
  return {
    path: `${base.pathPrefix}${operationNamed(submission.operation).path}`,
    method: 'POST',
    headers: headersFor(submission.apiKey, form.contentType),
    body: form.bytes,
    // undici's default for a POST, spelled out: `true` would let it send again after a lost socket.
    idempotent: false,
    reset: true,
    headersTimeout: firstResponseMs + BACKSTOP_MS,
    bodyTimeout: submissionMs + BACKSTOP_MS,
  };
}

/** undici's own time-outs lie behind our deadlines, which say by their code that it was we who gave up. */
const BACKSTOP_MS = 1_000;

/** A client of its own for each POST: no pool, no kept connection that the server may just be closing. */
function postClient(base: BaseUrl, socket: FreshSocket, submission: Submission): Client {
  return new Client(base.origin, {
    connect: socket.connector,
    // undici 8 would otherwise speak HTTP/2, where it sends a refused stream again by itself.
    allowH2: false,
    pipelining: 0,
    maxRequestsPerClient: 1,
    maxHeaderSize: 16_384,
    headersTimeout: submission.deadlines.firstResponseMs + BACKSTOP_MS,
    bodyTimeout: submission.deadlines.submissionMs + BACKSTOP_MS,
  });
}

/** A gate that breaks is closed. */
function asked(maySend: () => boolean): boolean {
  try {
    return maySend() === true;
  } catch {
    return false;
  }
}

function withStatus(
  reply: Reply,
  status: number,
  submission: Submission,
  seen: Pick<WireEvidence, 'closed' | 'responseAgeMs'>,
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
      httpStatus: status,
      errorCode: accepted ? null : (withoutSecrets(answer.code, submission) ?? wireCode(reply)),
      providerTaskId: accepted && typeof answer.taskId === 'string' ? answer.taskId : null,
      ...seen,
    },
    retryAfterMs: outcome.health === 'capacity_signal' ? retryAfterOf(reply) : null,
  };
}

function withoutStatus(reply: Reply, socket: FreshSocket, closed: boolean): SubmissionOutcome {
  const verdict = verdictOfTransportError(reply.error);
  const unsent = verdict.unsent && !socket.handedOver;
  return noStatus({ ...verdict, unsent }, wireCode(reply), closed);
}

function unsentByUs(errorCode: string | null): SubmissionOutcome {
  return noStatus({ unsent: true, ownDoing: true }, errorCode, true);
}

function noStatus(
  verdict: { unsent: boolean; ownDoing: boolean },
  errorCode: string | null,
  closed: boolean,
): SubmissionOutcome {
  const outcome: Outcome = outcomeOfTransportFailure(verdict);
  return {
    ...outcome,
    evidence: {
      phase: verdict.unsent ? 'unsent' : 'sent',
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

/** A provider that repeats what it was sent must not get it into our logs as its code. */
function withoutSecrets(code: string | null, { apiKey, fields }: Submission): string | null {
  if (code === null || Object.values(fields).some((value) => value.trim() === code)) return null;
  return withoutKey(code, apiKey);
}
