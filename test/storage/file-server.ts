import { once } from 'node:events';
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';

export type Answer = (request: IncomingMessage, response: ServerResponse) => unknown;

export interface FileServer extends AsyncDisposable {
  readonly url: string;
  readonly port: number;
  /** Everything that arrived, in order. */
  readonly requests: readonly IncomingMessage[];
  readonly connections: () => number;
}

/** A file host on loopback that answers every GET by `answer`. */
export async function startFileServer(answer: Answer, host = '127.0.0.1'): Promise<FileServer> {
  const requests: IncomingMessage[] = [];
  let connections = 0;
  const server = createServer((request, response) => {
    requests.push(request);
    void answer(request, response);
  });
  server.on('connection', () => {
    connections += 1;
  });
  server.listen(0, host);
  await once(server, 'listening');
  const { port } = server.address() as AddressInfo;
  return {
    url: `http://${host}:${port}/file?signature=SECRET`,
    port,
    requests,
    connections: () => connections,
    async [Symbol.asyncDispose]() {
      server.closeAllConnections();
      server.close();
      await once(server, 'close');
    },
  };
}

/** A WAV header with `bytes` of file behind it, the header included; no two seeds alike. */
export function wav(bytes: number, seed = 1): Buffer {
  const file = Buffer.alloc(bytes, `sound ${seed} `);
  file.write('RIFF', 0, 'latin1');
  file.writeUInt32LE(bytes - 8, 4);
  file.write('WAVEfmt ', 8, 'latin1');
  return file;
}
