import type { Socket } from 'node:net';
import { gzipSync } from 'node:zlib';
import type { RequestState } from '../../src/core/generation-request.ts';
import { flood, type RawBehaviour, response, type SeenRequest } from '../provider/sonilo/raw-server.ts';

/** One kind of fault, and what it must lead to for every request that meets it. */
export interface FaultKind {
  readonly name: string;
  /** POSTs of each request that arrive whole. `refusals`: one for each attempt, all of them refused. */
  readonly posts: 1 | 0 | 'refusals';
  readonly state: RequestState;
  readonly reason: string;
  /** Where the provider is; by default a server that behaves as told. */
  readonly at?: 'refused_port' | 'unknown_host';
  readonly secure?: true;
  /** With short deadlines, for providers that never answer. */
  readonly impatient?: true;
  readonly behaviour?: RawBehaviour;
  /** The kernel decides on which side of the first byte it falls; either way no POST arrives whole. */
  readonly eitherSide?: true;
}

type Answer = (socket: Socket, request: SeenRequest) => void;

const PAGE = `<!doctype html><p>${'sorry '.repeat(50_000)}</p>`;
const BODY = '{"task_id":"task-1","status":"processing"}';
const on = (onRequest: Answer): Pick<FaultKind, 'behaviour'> => ({ behaviour: { onRequest } });
const reply = (...answer: Parameters<typeof response>): Pick<FaultKind, 'behaviour'> =>
  on((socket) => socket.write(response(...answer)));

const ambiguous = (name: string, reason: string, what: Partial<FaultKind>): FaultKind => ({
  name,
  posts: 1,
  state: 'ambiguous',
  reason,
  ...what,
});
const unsent = (name: string, what: Partial<FaultKind>): FaultKind => ({
  name,
  posts: 0,
  state: 'queued',
  reason: 'unsent',
  ...what,
});
const returned = (name: string, reason: string, what: Partial<FaultKind>): FaultKind => ({
  name,
  posts: 'refusals',
  state: 'queued',
  reason,
  ...what,
});
const rejected = (name: string, what: Partial<FaultKind>): FaultKind => ({
  name,
  posts: 1,
  state: 'rejected',
  reason: 'request_refused',
  ...what,
});
const json = (value: unknown) => JSON.stringify(value);

/** The fault kinds of a submission: what the wire may do (A), and what may come back (B). */
export const FAULT_KINDS: readonly FaultKind[] = [
  // A: duplicates, retries, unknown outcomes.
  ambiguous(
    'closed after the POST was read',
    'transport',
    on((socket) => socket.end()),
  ),
  ambiguous(
    'reset after the POST was read',
    'transport',
    on((socket) => socket.resetAndDestroy()),
  ),
  ambiguous('silence after the POST was read', 'transport', { impatient: true, behaviour: {} }),
  ambiguous('endless informational responses', 'transport', {
    impatient: true,
    ...on((socket) => {
      const hints = setInterval(() => socket.write('HTTP/1.1 103 X\r\nlink: </x>\r\n\r\n'), 50);
      socket.once('close', () => clearInterval(hints));
    }),
  }),
  ambiguous('202 with an empty body', 'accepted_without_task_id', reply(202, '')),
  ambiguous(
    '202 cut in its JSON',
    'accepted_without_task_id',
    on((socket) => socket.end('HTTP/1.1 202 X\r\ncontent-length: 60\r\n\r\n{"task_id":"ta')),
  ),
  ambiguous('202 with HTML', 'accepted_without_task_id', reply(202, '<html>Accepted</html>')),
  ambiguous('202 without a task id', 'accepted_without_task_id', reply(202, '{"status":"processing"}')),
  ...[null, '', 0, { id: 'x' }].map((id) =>
    ambiguous(`202 with ${json(id)} as id`, 'accepted_without_task_id', reply(202, json({ task_id: id }))),
  ),
  ambiguous(
    '202 with gzip cut short',
    'accepted_without_task_id',
    reply(202, gzipSync(BODY).subarray(0, 30), [['content-encoding', 'gzip']]),
  ),
  ambiguous('202 that stalls', 'accepted_without_task_id', {
    impatient: true,
    ...on((socket) => socket.write('HTTP/1.1 202 X\r\ncontent-length: 60\r\n\r\n{')),
  }),
  unsent('a host that does not exist', { at: 'unknown_host' }),
  unsent('a port that refuses', { at: 'refused_port' }),
  unsent('a certificate that nobody signed', { secure: true, behaviour: { tls: true } }),
  unsent('a handshake that hangs', { secure: true, impatient: true, behaviour: {} }),
  unsent('a handshake that is reset', {
    secure: true,
    behaviour: { onConnection: (socket) => socket.once('data', () => socket.resetAndDestroy()) },
  }),
  unsent('a plain server behind https', {
    secure: true,
    behaviour: { onConnection: (socket) => socket.once('data', () => socket.end(response(400))) },
  }),
  unsent('reset once accepted', {
    eitherSide: true,
    behaviour: { onConnection: (socket) => socket.resetAndDestroy() },
  }),
  ...[301, 302, 303, 307, 308].map((status) =>
    ambiguous(
      `${status}`,
      'unreviewed_status',
      reply(status, BODY, [['location', status === 307 ? '/v1/text-to-music' : '/v1/elsewhere']]),
    ),
  ),
  // B: what may come back.
  ...[520, 525].map((status) => ambiguous(`${status} with a page`, 'unreviewed_status', reply(status, PAGE))),
  ambiguous('200 with a page', 'accepted_without_task_id', reply(200, PAGE)),
  ambiguous('502 with a page', 'server_error', reply(502, PAGE)),
  returned('403 with a page', 'account_refused', reply(403, PAGE)),
  ...[500, 502, 503, 504].map((status) => ambiguous(`${status}`, 'server_error', reply(status))),
  ...[520, 521, 522, 523, 524, 525, 529].map((status) =>
    ambiguous(`${status}`, 'unreviewed_status', reply(status)),
  ),
  returned('401', 'account_refused', reply(401, '{"code":"invalid_api_key"}')),
  ...['trial_exhausted', 'insufficient_balance', 'payment_required'].map((code) =>
    returned(`402 ${code}`, 'account_refused', reply(402, json({ code }))),
  ),
  returned('402 without a body', 'account_refused', reply(402)),
  ...[404, 405, 408, 409, 410, 418, 425, 451, 499, 600, 999].map((status) =>
    ambiguous(`${status}`, 'unreviewed_status', reply(status, '{"code":"x"}', [['retry-after', '0']])),
  ),
  ambiguous(
    '500 with an endless body',
    'server_error',
    on((socket) => {
      socket.write('HTTP/1.1 500 X\r\ntransfer-encoding: chunked\r\n\r\n');
      flood(socket, `4000\r\n${'x'.repeat(16_384)}\r\n`);
    }),
  ),
  returned(
    '429 of the rate',
    'rate_limited',
    reply(429, '{"message":"Rate limit exceeded"}', [['retry-after', '0']]),
  ),
  returned(
    '429 of the concurrency',
    'concurrency_limited',
    reply(429, '{"message":"Too many concurrent generations: 4 of 4"}'),
  ),
  returned(
    '429 with 50 MB',
    'rate_limited',
    on((socket) => {
      socket.write('HTTP/1.1 429 X\r\ncontent-length: 52428800\r\n\r\n');
      flood(socket, Buffer.alloc(65_536));
    }),
  ),
  rejected('400 of a balance', reply(400, '{"code":"balance_too_low"}')),
  rejected('413', reply(413)),
  rejected('422 of a moderator', reply(422, '{"code":"content_policy"}')),
  ambiguous(
    'a garbage status line',
    'transport',
    on((socket) => socket.write('HTTP/1.1 OK\r\n\r\n')),
  ),
  ambiguous(
    'headers beyond all bounds',
    'transport',
    on((socket) => socket.write(`HTTP/1.1 202 X\r\nx: ${'y'.repeat(20_000)}`)),
  ),
  {
    name: 'none: 202 after a while',
    posts: 1,
    state: 'accepted',
    reason: '',
    ...on((socket, { body }) => {
      const taskId = `task of ${new URLSearchParams(body).get('prompt')}`;
      setTimeout(() => socket.write(response(202, json({ task_id: taskId }))), 500);
    }),
  },
];
