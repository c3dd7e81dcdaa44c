import type { Socket } from 'node:net';
import { gzipSync } from 'node:zlib';
import { type Random, randomOf } from '../random.ts';
import { CANARY, DEADLINES, LEASE_MS } from '../settings.ts';
import type { PostPlan } from './faults.ts';
import { answer } from './wire.ts';

export interface PostInHand {
  readonly socket: Socket;
  readonly plan: PostPlan;
  /** Of the task that was charged, or one that there never was. */
  readonly task: string;
  /** A task of another request of the account that its poller has read already. */
  readonly foreignTask: string | null;
  /** What the client sent: a rude provider repeats it. */
  readonly sent: string;
  readonly seed: string;
  /** A whole answer with this status was handed to the connection. */
  readonly answered: (status: number) => void;
}

const PAGE = `<!DOCTYPE html><html><body><h1>${CANARY}PAGE</h1>${'<p>bad gateway</p>'.repeat(400)}</body></html>`;
const CODES: Readonly<Record<number, string>> = {
  401: 'invalid_api_key',
  402: 'insufficient_balance',
  403: 'forbidden',
};
const ODD_RETRY_AFTER = ['', ' ', '-3', '1.5', '+3', 'Infinity', '1000abc', 'soon', '0', '30', '1'];
const CLOSING = { connection: 'close' };

export function answerPost(post: PostInHand): void {
  const { socket, plan, task, answered } = post;
  const random = randomOf(post.seed, 'answer', task);
  const whole = (status: number, body: unknown, headers: Readonly<Record<string, string>> = {}) => {
    socket.end(answer(status, body, { ...CLOSING, ...headers }));
    answered(status);
  };
  const later = (ms: number, act: () => void) => void setTimeout(() => socket.destroyed || act(), ms);
  const { behaviour, pace } = plan;
  switch (behaviour) {
    case 'accept':
      later(20 + pace * 120, () => whole(202, { task_id: task }));
      break;
    case 'accept_slowly':
      later(300 + pace * 2_000, () => whole(202, { task_id: task }));
      break;
    case 'accept_in_pieces':
      drip(socket, answer(202, { task_id: task }, CLOSING), 5 + pace * 10, () => answered(202));
      break;
    case 'accept_after_103':
      socket.write('HTTP/1.1 103 Early Hints\r\nlink: </>\r\n\r\n');
      later(100, () => whole(202, { task_id: task }));
      break;
    case 'read_then_close':
      later(pace * 500, () => socket.end());
      break;
    case 'read_then_reset':
      later(pace * 500, () => socket.resetAndDestroy());
      break;
    case 'never_answer':
      later(60_000, () => socket.destroy());
      break;
    case 'answer_after_deadline':
      later(DEADLINES.submissionMs + 100 + pace * 2_000, () => whole(202, { task_id: task }));
      break;
    case 'answer_after_lease':
      later(LEASE_MS + 500 + pace * 2_000, () => whole(202, { task_id: task }));
      break;
    case 'slow_headers':
      drip(socket, answer(202, { task_id: task }, CLOSING), 60 + pace * 150, () => answered(202));
      break;
    case 'garbage':
      socket.end(`\u0000\u0001 garbage ${post.sent.slice(0, 200)}\r\n\r\n`);
      break;
    case 'cut_202': {
      const bytes = answer(202, { task_id: task, more: 'x'.repeat(50) }, CLOSING);
      socket.write(bytes.subarray(0, bytes.length - 20 - Math.floor(pace * 60)));
      later(50, () => (pace < 0.5 ? socket.end() : socket.resetAndDestroy()));
      break;
    }
    case 'endless_202':
    case 'endless_500': {
      const status = behaviour === 'endless_202' ? 202 : 500;
      socket.write(
        `HTTP/1.1 ${status} Reason\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n`,
      );
      endless(socket);
      break;
    }
    case 'gzip_cut_202': {
      const bytes = gzipSync(JSON.stringify({ task_id: task }));
      whole(202, bytes.subarray(0, bytes.length - 8), { 'content-encoding': 'gzip' });
      break;
    }
    case 'rate_429':
      whole(429, { code: 'rate_limit', message: 'Rate limit exceeded' }, retryAfter(random));
      break;
    case 'concurrency_429':
      whole(429, { code: 'rate_limit', message: 'Too many concurrent generations (limit 2)' });
      break;
    default:
      if (!malformed202(post, whole)) statusOf(post, whole);
  }
}

type Whole = (status: number, body: unknown, headers?: Readonly<Record<string, string>>) => void;

/** False where the behaviour is another one. */
function malformed202({ plan, foreignTask, task }: PostInHand, whole: Whole): boolean {
  const bodies: Readonly<Record<string, unknown>> = {
    empty_202: '',
    html_202: PAGE,
    no_id_202: { status: 'processing' },
    null_id_202: { task_id: null },
    number_id_202: { task_id: 17 },
    object_id_202: { task_id: { id: task } },
    long_id_202: { task_id: 'x'.repeat(300) },
    control_id_202: { task_id: `${task}\u0007` },
    foreign_id_202: { task_id: foreignTask },
  };
  if (!(plan.behaviour in bodies)) return false;
  whole(202, bodies[plan.behaviour]);
  return true;
}

function statusOf({ plan, sent }: PostInHand, whole: Whole): void {
  const status = Number(plan.behaviour.replace('status_', ''));
  const headers: Record<string, string> =
    status === 301 || status === 307 ? { location: `/v1/text-to-music?again=1` } : {};
  if (status === 503 && plan.pace < 0.5) headers['retry-after'] = '1';
  // Some answers repeat what they were sent, and some are a page of the edge.
  const body =
    plan.pace < 0.3
      ? PAGE
      : {
          code: CODES[status] ?? `e_${status}`,
          message: `refused: ${sent.slice(0, 100)}\u0000`,
          detail: sent,
        };
  whole(status, body, headers);
}

function retryAfter(random: Random): Record<string, string> {
  return random.chance(0.3) ? {} : { 'retry-after': random.pick(ODD_RETRY_AFTER) };
}

/** A few bytes at a time, so that whoever waits for a byte is kept waiting for the whole. */
function drip(socket: Socket, bytes: Buffer, everyMs: number, done: () => void): void {
  let at = 0;
  const timer = setInterval(() => {
    if (socket.destroyed) return clearInterval(timer);
    if (at >= bytes.length) {
      clearInterval(timer);
      socket.end();
      return done();
    }
    socket.write(bytes.subarray(at, at + 3));
    at += 3;
  }, everyMs);
}

function endless(socket: Socket): void {
  const chunk = `4000\r\n${' '.repeat(0x4000)}\r\n`;
  let left = 600;
  const timer = setInterval(() => {
    if (socket.destroyed || left-- <= 0) {
      clearInterval(timer);
      socket.destroy();
      return;
    }
    // The client stops reading when it has seen enough.
    if (socket.writableLength < 1_000_000) socket.write(chunk);
  }, 10);
}
