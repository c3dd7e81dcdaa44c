import { once } from 'node:events';
import { type AddressInfo, createServer, type Server, type Socket } from 'node:net';
import { createServer as createTlsServer } from 'node:tls';
import { SELF_SIGNED_CERTIFICATE, SELF_SIGNED_KEY } from '../../support/self-signed-certificate.ts';

export interface SeenRequest {
  /** `POST /v1/text-to-music` */
  readonly line: string;
  readonly headers: Readonly<Record<string, string>>;
  readonly body: string;
}

export interface RawServer {
  readonly port: number;
  readonly connections: number;
  /** Bytes that the application saw, over all connections. */
  readonly bytes: number;
  /** Requests that arrived whole, in order, of any method. */
  readonly requests: readonly SeenRequest[];
  readonly posts: number;
  /** Stops listening and resolves once every connection is gone: what was going to arrive has arrived. */
  stop(): Promise<void>;
}

export interface RawBehaviour {
  readonly onConnection?: (socket: Socket) => void;
  /** Called for each whole request. Without it the server stays silent. */
  readonly onRequest?: (socket: Socket, request: SeenRequest) => void;
  readonly tls?: boolean;
  /** For runs so long that the record of their requests would be most of the memory. */
  readonly keepsNothing?: boolean;
}

/** A server below HTTP: it writes exactly the bytes it is told to, and counts at the socket. */
export async function rawServer(behaviour: RawBehaviour): Promise<RawServer> {
  const requests: SeenRequest[] = [];
  let connections = 0;
  let bytes = 0;

  const onSocket = (socket: Socket) => {
    connections += 1;
    socket.on('error', () => undefined);
    behaviour.onConnection?.(socket);
    if (behaviour.keepsNothing === true) return;
    let pending = '';
    // Looked at again only when there is enough: a large body comes in many pieces.
    let enough = 0;
    socket.on('data', (chunk: Buffer) => {
      bytes += chunk.length;
      pending += chunk.toString('latin1');
      if (pending.length < enough) return;
      for (let request = takeRequest(); request !== undefined; request = takeRequest()) {
        requests.push(request);
        behaviour.onRequest?.(socket, request);
      }
    });
    const takeRequest = (): SeenRequest | undefined => {
      const end = pending.indexOf('\r\n\r\n');
      if (end < 0) return undefined;
      const [first = '', ...lines] = pending.slice(0, end).split('\r\n');
      const headers = Object.fromEntries(
        lines.map((line) => {
          const colon = line.indexOf(':');
          return [line.slice(0, colon).toLowerCase(), line.slice(colon + 1).trim()];
        }),
      );
      const length = Number(headers['content-length'] ?? 0);
      enough = end + 4 + length;
      if (pending.length < enough) return undefined;
      enough = 0;
      const body = pending.slice(end + 4, end + 4 + length);
      pending = pending.slice(end + 4 + length);
      return { line: first.replace(/ HTTP\/1\.1$/, ''), headers, body };
    };
  };

  const server: Server =
    behaviour.tls === true
      ? createTlsServer({ key: SELF_SIGNED_KEY, cert: SELF_SIGNED_CERTIFICATE }, onSocket)
      : createServer(onSocket);
  server.on('tlsClientError', () => undefined);
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');

  return {
    port: (server.address() as AddressInfo).port,
    get connections() {
      return connections;
    },
    get bytes() {
      return bytes;
    },
    get requests() {
      return requests;
    },
    get posts() {
      return requests.filter((request) => request.line.startsWith('POST ')).length;
    },
    stop() {
      return new Promise((resolve) => {
        server.close(() => resolve());
      });
    },
  };
}

/** A whole HTTP/1.1 response with its length. */
export function response(
  status: number | string,
  body: string | Buffer = '',
  headers: readonly (readonly [string, string])[] = [],
): Buffer {
  const bytes = Buffer.from(body);
  const lines = [['content-length', String(bytes.length)] as const, ...headers];
  const head = lines.map(([name, value]) => `${name}: ${value}\r\n`).join('');
  return Buffer.concat([Buffer.from(`HTTP/1.1 ${status} X\r\n${head}\r\n`, 'latin1'), bytes]);
}

/** Writes `chunk` for as long as the connection lives, at the reader's pace. */
export function flood(socket: Socket, chunk: string | Buffer): void {
  const next = () => {
    if (socket.destroyed) return;
    if (socket.write(chunk)) setImmediate(next);
    else socket.once('drain', next);
  };
  next();
}
