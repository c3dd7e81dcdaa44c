import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import type { AddressInfo, Socket } from 'node:net';
import { OnetakeError } from '../core/errors.ts';

export interface RunningServer {
  readonly port: number;
  /** `http://host:port`, without a slash at the end. */
  readonly url: string;
  /** Ends every connection, held ones too. */
  close(): Promise<void>;
}

type Handle = (request: IncomingMessage, response: ServerResponse, path: URL) => Promise<void>;

/** @throws OnetakeError `simulator_failed` when the port is taken or the host isn't ours. */
export async function listen(handle: Handle, host: string, port: number): Promise<RunningServer> {
  const sockets = new Set<Socket>();
  const server = createServer((request, response) => {
    void answer(handle, request, response);
  });
  server.on('connection', (socket) => {
    sockets.add(socket);
    socket.once('close', () => sockets.delete(socket));
  });
  // A client that resets is an ordinary event here.
  server.on('clientError', (_error, socket) => socket.destroy());
  // Slow uploads and held answers are what this server is for.
  server.requestTimeout = 0;
  server.headersTimeout = 0;
  await bind(server, host, port);
  const address = server.address() as AddressInfo;
  const name = address.family === 'IPv6' ? `[${address.address}]` : address.address;
  return {
    port: address.port,
    url: `http://${name}:${address.port}`,
    close: () =>
      new Promise((resolve) => {
        server.close(() => resolve());
        for (const socket of sockets) socket.destroy();
      }),
  };
}

function bind(server: Server, host: string, port: number): Promise<void> {
  return new Promise((resolve, reject) => {
    server.once('error', (error: NodeJS.ErrnoException) => {
      const hint = error.code === 'EADDRINUSE' ? 'Choose another port, or 0 for a free one.' : undefined;
      const message = `The simulator can't listen on ${host}:${port}: ${error.code ?? 'unknown error'}.`;
      reject(new OnetakeError('simulator_failed', message, { ...(hint ? { hint } : {}), cause: error }));
    });
    server.listen(port, host, resolve);
  });
}

async function answer(handle: Handle, request: IncomingMessage, response: ServerResponse): Promise<void> {
  request.on('error', () => request.destroy());
  response.on('error', () => response.destroy());
  try {
    const target = request.url ?? '/';
    const path = URL.canParse(target, 'http://simulator') ? new URL(target, 'http://simulator') : undefined;
    if (path === undefined) response.writeHead(400).end();
    else await handle(request, response, path);
  } catch (error) {
    // Not a fault that anybody asked for: say so where it can be seen, and stay up.
    if (response.headersSent) response.destroy();
    else {
      const message = `The simulator failed: ${error instanceof Error ? error.message : 'unknown'}`;
      response.writeHead(500, { 'content-type': 'application/json' });
      response.end(JSON.stringify({ code: 'simulator_failed', message }));
    }
  }
}
