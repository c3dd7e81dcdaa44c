import { once } from 'node:events';
import { createServer, type Server, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { OnetakeError } from '../core/errors.ts';

export interface Answer {
  readonly status: number;
  readonly contentType: string;
  readonly body: string;
}

/** By path. Each is asked for a GET or HEAD and must answer in its own bounded time. */
export type Routes = Readonly<Record<string, () => Promise<Answer>>>;

export interface HttpServer {
  /** Resolves with the port. Throws `invalid_option` when host and port can't be had. */
  start(): Promise<number>;
  stop(): Promise<void>;
}

const JUST_HEADERS_MS = 5_000;

/** A small server for scrapes and probes. It reads no body, and has nothing that changes anything. */
export function createHttpServer(host: string, port: number, routes: Routes): HttpServer {
  const server: Server = createServer(
    { headersTimeout: JUST_HEADERS_MS, requestTimeout: JUST_HEADERS_MS, maxHeaderSize: 8_192 },
    (request, response) => {
      request.resume();
      const [path = ''] = (request.url ?? '').split('?', 1);
      const isRead = request.method === 'GET' || request.method === 'HEAD';
      const route = Object.hasOwn(routes, path) ? routes[path] : undefined;
      if (route === undefined)
        return send(response, text(404, `not found: ${Object.keys(routes).join(' ')}`));
      if (!isRead) return send(response, text(405, 'only GET'));
      route().then(
        (answer) => send(response, answer),
        () => send(response, text(500, 'failed')),
      );
    },
  );
  server.maxConnections = 64;
  return {
    async start() {
      server.listen(port, host);
      try {
        await once(server, 'listening');
      } catch (cause) {
        const code = cause instanceof Error && 'code' in cause ? String(cause.code) : 'unknown';
        throw new OnetakeError('invalid_option', `--http-port: can't listen on it (${code}).`, {
          hint: 'Give --http-port a free port and --http-host an address of this machine.',
          cause,
        });
      }
      server.on('error', () => {});
      return (server.address() as AddressInfo).port;
    },
    async stop() {
      if (!server.listening) return;
      const closed = once(server, 'close');
      server.close();
      server.closeAllConnections();
      await closed;
    },
  };
}

function text(status: number, body: string): Answer {
  return { status, contentType: 'text/plain; charset=utf-8', body: `${body}\n` };
}

function send(response: ServerResponse, { status, contentType, body }: Answer): void {
  if (response.destroyed) return;
  response.writeHead(status, {
    'content-type': contentType,
    'content-length': Buffer.byteLength(body),
    'cache-control': 'no-store',
  });
  response.end(response.req.method === 'HEAD' ? '' : body);
}
