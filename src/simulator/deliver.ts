import type { ServerResponse } from 'node:http';
import type { Socket } from 'node:net';
import { setTimeout as wait } from 'node:timers/promises';
import { type Answer, isStreamed, type StreamedBody } from './answers.ts';
import type { Fault, FaultEnd } from './script.ts';

/** What the client got: a status once headers were sent, and how it ended if not well. */
export interface Delivery {
  readonly status: number | null;
  readonly end?: FaultEnd | 'client_gone';
}

/**
 * Sends `answer`, changed by `fault`. Never rejects, whatever the client does. A stop of the server needs
 * no word here: it ends the sockets, and a client whose socket has ended is gone.
 */
export async function deliver(
  response: ServerResponse,
  answer: Answer,
  fault: Fault | undefined,
): Promise<Delivery> {
  const leave = departureOf(response);
  const socket = response.socket;
  try {
    if (fault !== undefined && fault.delayMs > 0) await wait(fault.delayMs, undefined, { signal: leave });
    if (socket === null || leave.aborted) return { status: null, end: 'client_gone' };
    if (fault?.end !== undefined) return await endBadly(response, socket, answer, fault, fault.end, leave);
    return await send(response, answer, leave);
  } catch {
    return { status: response.headersSent ? response.statusCode : null, end: 'client_gone' };
  }
}

/** Aborted when the client leaves, or at once when it has left; also after a whole answer. */
export function departureOf(response: ServerResponse): AbortSignal {
  const gone = new AbortController();
  if (response.destroyed || response.socket === null) gone.abort();
  else response.once('close', () => gone.abort());
  return gone.signal;
}

async function send(response: ServerResponse, answer: Answer, leave: AbortSignal): Promise<Delivery> {
  writeHead(response, answer);
  if (isStreamed(answer.body)) await sendPieces(response, answer.body, answer.body.count, leave);
  else await write(response, answer.body, leave);
  response.end();
  return { status: answer.status };
}

async function endBadly(
  response: ServerResponse,
  socket: Socket,
  answer: Answer,
  fault: Fault,
  end: FaultEnd,
  leave: AbortSignal,
): Promise<Delivery> {
  const answers = end === 'cut' || fault.status !== undefined;
  if (answers) {
    writeHead(response, answer);
    response.flushHeaders();
    // An RST overtakes what is still buffered here, so the bytes are handed to the kernel first.
    if (end === 'cut') await sendHalf(response, answer, leave);
    else await new Promise<void>((resolve) => socket.write('', () => resolve()));
  }
  if (end === 'reset') socket.resetAndDestroy();
  if (end === 'close') socket.destroySoon();
  if (end === 'cut') socket.destroy();
  return { status: answers ? answer.status : null, end };
}

async function sendHalf(response: ServerResponse, answer: Answer, leave: AbortSignal): Promise<void> {
  if (isStreamed(answer.body))
    await sendPieces(response, answer.body, Math.floor(answer.body.count / 2), leave);
  else await write(response, answer.body.subarray(0, Math.floor(answer.body.length / 2)), leave);
}

function writeHead(response: ServerResponse, { status, headers, body }: Answer): void {
  response.writeHead(
    status,
    isStreamed(body) ? headers : { 'content-length': String(body.length), ...headers },
  );
}

async function sendPieces(
  response: ServerResponse,
  body: StreamedBody,
  count: number,
  leave: AbortSignal,
): Promise<void> {
  let sent = 0;
  for (const piece of body.pieces) {
    if (sent >= count) return;
    if (sent > 0 && body.intervalMs > 0) await wait(body.intervalMs, undefined, { signal: leave });
    await write(response, piece, leave);
    sent += 1;
  }
}

/** Resolves when the bytes are with the kernel; rejects when the client leaves first. */
export function write(response: ServerResponse, bytes: Buffer, leave: AbortSignal): Promise<void> {
  if (bytes.length === 0) return Promise.resolve();
  return new Promise((resolve, reject) => {
    const abort = () => reject(new Error('the client has left'));
    if (leave.aborted) {
      abort();
      return;
    }
    leave.addEventListener('abort', abort, { once: true });
    response.write(bytes, (error) => {
      leave.removeEventListener('abort', abort);
      if (error) reject(error);
      else resolve();
    });
  });
}
