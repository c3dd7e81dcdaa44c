import { type AddressInfo, createServer, type Socket } from 'node:net';
import { ACCOUNT_NAMES, CANARY, keyOf, requestKeyOf } from '../settings.ts';
import {
  CALM,
  type PostBehaviour,
  planFile,
  planGet,
  planPost,
  planUpload,
  resetsOnConnect,
  type Weather,
} from './faults.ts';
import { IntentCheck } from './intent-check.ts';
import type { LedgerEvent, ProviderOptions, ProviderOrder } from './ledger-events.ts';
import { answerPost } from './post-answers.ts';
import { answer, type ReceivedRequest, readRequests } from './wire.ts';

// The provider, in a process of its own that no incident of the suite touches: what it has counted is what
// was sent. It tells the suite each entry of its ledger as it writes it.

interface Task {
  readonly id: string;
  readonly marker: number;
  readonly account: string;
  readonly endsAt: number;
  readonly fails: boolean;
  refunded: boolean;
  reads: number;
  fileReads: number;
}

const { seed, publicUrl, connectionString } = JSON.parse(
  process.env['CHAOS_PROVIDER'] ?? '{}',
) as ProviderOptions;
const intents = new IntentCheck(connectionString);
const tasks = new Map<string, Task>();
const postsOf = new Map<number, number>();
const uploadsOf = new Map<number, number>();
const accountOfKey = new Map(ACCOUNT_NAMES.map((account) => [`Bearer ${keyOf(account)}`, account]));
let weather: Weather = CALM;
let healed = false;
let connections = 0;
let posts = 0;

const tell = (event: LedgerEvent): void => void process.send?.(event);
const markerOf = (text: string): number | null => {
  const found = new RegExp(`${CANARY}PROMPT-(\\d+)-`).exec(text);
  return found === null ? null : Number(found[1]);
};

process.on('message', (order: ProviderOrder) => {
  if (order.type === 'weather') weather = order.weather;
  else healed = true;
});
process.on('disconnect', () => process.exit(0));
// Ctrl-C in a terminal reaches the whole group: the suite ends us in its own order.
process.on('SIGINT', () => undefined);

const server = createServer({ noDelay: true }, (socket) => {
  socket.on('error', () => undefined);
  if (resetsOnConnect(seed, ++connections, weather, healed)) {
    tell({ type: 'reset_on_connect' });
    socket.resetAndDestroy();
    return;
  }
  readRequests(
    socket,
    (request) => serve(socket, request),
    notePartial,
    (request) => beginUpload(socket, request),
  );
});
server.listen(0, '127.0.0.1', () => tell({ type: 'ready', port: (server.address() as AddressInfo).port }));

function serve(socket: Socket, request: ReceivedRequest): void {
  if (request.method === 'POST') takePost(socket, request);
  else if (request.path.startsWith('/v1/tasks/')) readTask(socket, request);
  else if (request.path.startsWith('/files/')) sendFile(socket, request);
  else socket.write(answer(404, { code: 'not_found' }));
}

/** Once its marker has come, which the form has before the file. */
function beginUpload(socket: Socket, request: ReceivedRequest): 'taken' | 'read' | 'undecided' {
  const marker = markerOf(request.body);
  if (marker === null) return 'undecided';
  const nth = (uploadsOf.get(marker) ?? 0) + 1;
  uploadsOf.set(marker, nth);
  const behaviour = planUpload(seed, marker, nth, healed);
  tell({ type: 'upload', behaviour });
  switch (behaviour) {
    case 'read':
      return 'read';
    case 'cut':
      socket.resetAndDestroy();
      return 'read';
    case 'stall':
      socket.pause();
      setTimeout(() => socket.destroy(), 6_000);
      return 'read';
    case 'refuse_early':
      takePost(socket, request, 'status_413');
      return 'taken';
    case 'accept_early':
      takePost(socket, request, 'accept');
      return 'taken';
  }
}

function notePartial(text: string): void {
  if (!text.startsWith('POST')) return;
  const key = /authorization: (.*)\r\n/i.exec(text)?.[1] ?? '';
  tell({
    type: 'partial_post',
    marker: markerOf(text),
    account: accountOfKey.get(key) ?? null,
    at: Date.now(),
  });
}

/** `early`: decided on before the whole has come. */
function takePost(socket: Socket, request: ReceivedRequest, early?: PostBehaviour): void {
  const account = accountOfKey.get(request.headers.get('authorization') ?? '');
  const marker = markerOf(request.body);
  if (account === undefined || marker === null) {
    tell({
      type: 'protest',
      what: `a POST ${account === undefined ? 'with no key of ours' : 'without a marker'}`,
    });
    socket.end(answer(400, { code: 'unknown' }));
    return;
  }
  const nth = (postsOf.get(marker) ?? 0) + 1;
  postsOf.set(marker, nth);
  let plan = planPost(seed, marker, nth, weather, healed);
  if (early !== undefined) plan = { ...plan, behaviour: early, charged: early === 'accept' };
  const foreignTask = taskToLend(account, marker);
  if (plan.behaviour === 'foreign_id_202' && foreignTask === null) plan = { ...plan, behaviour: 'accept' };
  const post = ++posts;
  const task = `task_${seed}_${marker}_${nth}`;
  tell({ type: 'post', post, marker, account, behaviour: plan.behaviour, at: Date.now() });
  void intents.isCommitted(requestKeyOf(marker), nth).then((isCommitted) => {
    if (isCommitted !== undefined) tell({ type: 'intent', marker, isCommitted });
  });
  if (plan.charged) {
    const endsAt = Date.now() + plan.runMs;
    tasks.set(task, {
      id: task,
      marker,
      account,
      endsAt,
      fails: plan.fails,
      refunded: false,
      reads: 0,
      fileReads: 0,
    });
    tell({ type: 'charged', post, task, endsAt, fails: plan.fails });
  }
  const answered = (status: number) => tell({ type: 'answered', post, status, at: Date.now() });
  answerPost({ socket, plan, task, foreignTask, sent: request.body, seed, answered });
}

/** One that a poller has read: then the database knows whose it is. */
function taskToLend(account: string, marker: number): string | null {
  for (const task of tasks.values()) {
    if (task.account === account && task.marker !== marker && task.reads > 0) return task.id;
  }
  return null;
}

function readTask(socket: Socket, request: ReceivedRequest): void {
  const task = tasks.get(decodeURIComponent(request.path.slice('/v1/tasks/'.length)));
  const account = accountOfKey.get(request.headers.get('authorization') ?? '');
  if (task === undefined || task.account !== account) {
    tell({ type: 'protest', what: 'a read of a task that this account does not have' });
    socket.write(answer(404, { code: 'not_found' }));
    return;
  }
  const behaviour = planGet(seed, task.id, ++task.reads, healed);
  tell({ type: 'get', behaviour });
  switch (behaviour) {
    case 'answer':
      socket.write(answer(200, taskBody(task)));
      break;
    case 'status_500':
      socket.write(answer(500, { code: 'internal' }));
      break;
    case 'html_502':
      socket.write(answer(502, '<html>bad gateway</html>'));
      break;
    case 'not_found':
      socket.write(answer(404, { code: 'not_found' }));
      break;
    case 'unauthorized':
      socket.write(answer(401, { code: 'invalid_api_key' }));
      break;
    case 'too_many':
      socket.write(answer(429, { code: 'rate_limit' }, { 'retry-after': '1' }));
      break;
    case 'reset':
      socket.resetAndDestroy();
      break;
    case 'cut':
      socket.end(answer(200, taskBody(task)).subarray(0, -7));
      break;
    case 'garbage':
      socket.end(answer(200, Buffer.from('{"task_id": ')));
      break;
    case 'empty':
      socket.write(answer(200, Buffer.alloc(0)));
      break;
    case 'never':
      setTimeout(() => socket.destroy(), 20_000);
      break;
  }
}

function taskBody(task: Task): unknown {
  const known = { task_id: task.id, charged_duration: 5 };
  if (Date.now() < task.endsAt) return { ...known, status: 'processing' };
  if (task.fails) {
    task.refunded ||= task.reads > 2;
    return { ...known, status: 'failed', error: { code: 'generation_failed' }, refunded: task.refunded };
  }
  const url = `${publicUrl}/files/${encodeURIComponent(task.id)}?signature=${CANARY}RESULT-${task.reads}`;
  const file = { stream_index: 0, url, content_type: 'audio/wav', file_size: fileOf(task).length };
  return { ...known, status: 'succeeded', audio: [file], variants_num: 1 };
}

function fileOf(task: Task): Buffer {
  return Buffer.concat([
    Buffer.from('RIFF\u0000\u0000\u0000\u0000WAVEfmt ', 'latin1'),
    Buffer.alloc(2_000, task.id),
  ]);
}

function sendFile(socket: Socket, request: ReceivedRequest): void {
  if (request.headers.has('authorization'))
    tell({ type: 'protest', what: 'the key reached the host of the files' });
  const id = decodeURIComponent(request.path.slice('/files/'.length).replace(/\?.*$/, ''));
  const task = tasks.get(id);
  if (task === undefined) {
    socket.write(answer(404, '<html>not found</html>'));
    return;
  }
  const behaviour = planFile(seed, id, ++task.fileReads, healed);
  tell({ type: 'file', behaviour });
  const wav = { 'content-type': 'audio/wav' };
  switch (behaviour) {
    case 'answer':
      socket.write(answer(200, fileOf(task), wav));
      break;
    case 'expired':
      socket.write(answer(403, '<Error>expired</Error>'));
      break;
    case 'reset':
      socket.resetAndDestroy();
      break;
    case 'cut':
      socket.end(answer(200, fileOf(task), wav).subarray(0, 700));
      break;
    case 'html':
      socket.write(answer(200, '<html>not a song</html>', wav));
      break;
    case 'status_503':
      socket.write(answer(503, '<html>slow down</html>'));
      break;
  }
}
