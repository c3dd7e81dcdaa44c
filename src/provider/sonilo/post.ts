import type { Readable } from 'node:stream';
import { Client, type Dispatcher } from 'undici';
import type { Deadlines } from '../../core/provider.ts';
import { exchange, type Reply } from './exchange.ts';
import { type FreshSocket, freshSocket } from './fresh-socket.ts';
import { pacedBody, wholeBody } from './paced-body.ts';
import type { WireOracle, WireWatch } from './wire-oracle.ts';

export const MAX_ANSWER_BYTES = 1_048_576;
/** How long past its end we look for the socket's close; counted on top of the deadline. */
export const CLOSE_WAIT_MS = 250;
/** undici's own time-outs lie behind our deadlines, which say by their code that it was we who gave up. */
const BACKSTOP_MS = 1_000;

export interface Post {
  readonly origin: string;
  readonly path: string;
  readonly headers: Record<string, string>;
  /** Of this POST alone: the oracle knows the POST by it, or by the stream that is made of its pieces. */
  readonly body: Buffer | AsyncIterable<Uint8Array>;
  readonly deadlines: Deadlines;
  /** Asked once connected, and again at the first byte. */
  readonly maySend: () => boolean;
  /** The answer may be a stream: one of 2xx is not read here, but left open. */
  readonly stream?: { readonly idleMs: number; readonly maxBytes: number };
}

/** What one POST came to: the reply and the witnesses, read when nothing more can leave, or its answer is open. */
export interface PostEnd {
  readonly reply: Reply;
  readonly watch: WireWatch;
  readonly socket: FreshSocket;
  readonly gateClosed: boolean;
  readonly closed: boolean;
  readonly responseAgeMs: number | null;
}

/** How a POST gets its connection; tests put a client there that sends twice. */
export type OpenClient = (post: Post, socket: FreshSocket) => Dispatcher;

/** One POST on a connection of its own, under the oracle's watch. Never rejects. */
export async function postOnce(
  oracle: WireOracle,
  post: Post,
  open: OpenClient = openClient,
): Promise<PostEnd> {
  const { deadlines } = post;
  let gateClosed = false;
  const mayStillSend = () => {
    gateClosed ||= !asked(post.maySend);
    return !gateClosed;
  };
  const socket = freshSocket({ connectMs: deadlines.connectMs, mayHandOver: mayStillSend });
  const body = wholeBody(post.body) ?? pacedBody(post.body, socket, deadlines.submissionMs);
  // One that was never taken up ends without anybody who listens.
  if (!Buffer.isBuffer(body)) body.on('error', () => undefined);
  const watch = oracle.watch({ body, isItsSocket: socket.isHandedOver, mayWrite: mayStillSend });
  let client: Dispatcher | undefined;
  let reply: Reply;
  let settledAt: number;
  try {
    client = open(post, socket);
    reply = await exchange(client, requestOf(post, body), {
      firstResponseMs: deadlines.firstResponseMs,
      wholeMs: deadlines.submissionMs,
      maxBodyBytes: MAX_ANSWER_BYTES,
      endConnection: () => socket.end(),
      isSending: () => !socket.handedOver || socket.isWriting,
      ...(post.stream === undefined ? {} : { opensBody: post.stream }),
    });
    settledAt = performance.now();
  } catch (error) {
    settledAt = performance.now();
    reply = { ...NO_REPLY, error };
  }
  const endConnection = () => {
    socket.end();
    if (!Buffer.isBuffer(body)) body.destroy();
  };
  const endWatch = () => {
    watch.end();
    client?.destroy().catch(() => undefined);
  };
  if (reply.open !== undefined) {
    // Nobody waits for it, and a teardown that fails must not take the process with it.
    void reply.open.over
      .then(endConnection)
      .finally(endWatch)
      .catch(() => undefined);
    return { reply, watch, socket, gateClosed, closed: false, responseAgeMs: null };
  }
  endConnection();
  const closed = reply.bodyEnd === 'complete' || (await socket.ended(CLOSE_WAIT_MS));
  endWatch();
  const responseAgeMs = reply.startedAt === null ? null : Math.round(settledAt - reply.startedAt);
  return { reply, watch, socket, gateClosed, closed, responseAgeMs };
}

const NO_REPLY: Reply = {
  status: null,
  headers: {},
  body: Buffer.alloc(0),
  bodyEnd: 'cut',
  startedAt: null,
  deadline: null,
  error: undefined,
};

function requestOf(post: Post, body: Buffer | Readable): Dispatcher.DispatchOptions {
  return {
    path: post.path,
    method: 'POST',
    headers: post.headers,
    body,
    // undici's default for a POST, spelled out: `true` would let it send again after a lost socket.
    idempotent: false,
    reset: true,
    headersTimeout: post.deadlines.firstResponseMs + BACKSTOP_MS,
    bodyTimeout: Math.max(post.deadlines.submissionMs, post.stream?.idleMs ?? 0) + BACKSTOP_MS,
  };
}

/** A client of its own for each POST: no pool, no kept connection that the server may just be closing. */
function openClient(post: Post, socket: FreshSocket): Dispatcher {
  return new Client(post.origin, {
    connect: socket.connector,
    // undici 8 would otherwise speak HTTP/2, where it sends a refused stream again by itself.
    allowH2: false,
    pipelining: 0,
    maxRequestsPerClient: 1,
    maxHeaderSize: 16_384,
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
