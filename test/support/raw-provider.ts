import { once } from 'node:events';
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http';
import type { AddressInfo, Socket } from 'node:net';
import { waitFor } from './wait-for.ts';

/** One request that arrived whole and waits for what the test decides. */
export interface ProviderCall {
  /** From 1, over all POSTs or all GETs. */
  readonly number: number;
  readonly path: string;
  readonly body: string;
  readonly authorization: string | undefined;
  /** The bare connection: `destroy()`, `resetAndDestroy()`, bytes of one's own. */
  readonly socket: Socket;
  readonly response: ServerResponse;
  answer(status: number, body?: unknown, headers?: Readonly<Record<string, string>>): void;
  /** 202 with this task id, by default one of its own. */
  accept(taskId?: string): void;
}

export interface RawProviderOptions {
  /** Without it a POST is accepted at once. */
  readonly onPost?: (call: ProviderCall) => void;
  /** Without it a task is processing for ever. */
  readonly onGet?: (call: ProviderCall) => void;
}

export interface RawProvider {
  readonly url: string;
  readonly posts: readonly ProviderCall[];
  readonly gets: readonly ProviderCall[];
  onPost: (call: ProviderCall) => void;
  onGet: (call: ProviderCall) => void;
  /** The nth POST, from 1, as soon as it has arrived whole. */
  post(number: number): Promise<ProviderCall>;
  stop(): Promise<void>;
}

export const hold = (): void => undefined;

/** A provider that does exactly what a test says and remembers everything that it was asked. */
export async function rawProvider(options: RawProviderOptions = {}): Promise<RawProvider> {
  const posts: ProviderCall[] = [];
  const gets: ProviderCall[] = [];
  let stopped: Promise<void> | undefined;
  const server = createServer((request, response) => {
    void receive(request).then((body) => {
      if (body === undefined) return;
      const isPost = request.method === 'POST';
      const list = isPost ? posts : gets;
      const call = callOf(request, response, body, list.length + 1);
      list.push(call);
      (isPost ? provider.onPost : provider.onGet)(call);
    });
  });
  server.on('connection', (socket) => socket.on('error', () => undefined));
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  const provider: RawProvider = {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    posts,
    gets,
    onPost: options.onPost ?? ((call) => call.accept()),
    onGet:
      options.onGet ??
      ((call) => call.answer(200, { task_id: call.path.split('/').at(-1), status: 'processing' })),
    post: (number) => waitFor(() => posts[number - 1], { what: `POST ${number}` }),
    stop() {
      stopped ??= new Promise((resolve) => {
        server.close(() => resolve());
        server.closeAllConnections();
      });
      return stopped;
    },
  };
  return provider;
}

function callOf(
  request: IncomingMessage,
  response: ServerResponse,
  body: string,
  number: number,
): ProviderCall {
  const answer: ProviderCall['answer'] = (status, content = '', headers = {}) => {
    const isText = typeof content === 'string';
    response.writeHead(status, { 'content-type': isText ? 'text/html' : 'application/json', ...headers });
    response.end(isText ? content : JSON.stringify(content));
  };
  return {
    number,
    path: request.url ?? '',
    body,
    authorization: request.headers.authorization,
    socket: request.socket,
    response,
    answer,
    accept: (taskId = `task-${number}`) => answer(202, { task_id: taskId, status: 'processing' }),
  };
}

async function receive(request: IncomingMessage): Promise<string | undefined> {
  try {
    const chunks: Buffer[] = [];
    for await (const chunk of request) chunks.push(chunk as Buffer);
    return Buffer.concat(chunks).toString('latin1');
  } catch {
    return undefined;
  }
}
