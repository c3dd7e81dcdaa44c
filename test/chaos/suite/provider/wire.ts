import type { Socket } from 'node:net';

export interface ReceivedRequest {
  readonly method: string;
  readonly path: string;
  readonly headers: ReadonlyMap<string, string>;
  readonly body: string;
}

const HEAD_END = '\r\n\r\n';
const MAX_BYTES = 65_536;

/**
 * Requests as bytes: no HTTP library stands between the ledger and what was sent. `partial` is what had come
 * of a request when its connection ended; nothing of it is lost.
 */
export function readRequests(
  socket: Socket,
  onRequest: (request: ReceivedRequest) => void,
  onPartial: (text: string) => void,
): void {
  let text = '';
  let told = false;
  socket.on('data', (chunk: Buffer) => {
    text += chunk.toString('latin1');
    if (text.length > MAX_BYTES) {
      socket.destroy();
      return;
    }
    for (let request = takeRequest(); request !== undefined; request = takeRequest()) onRequest(request);
  });
  socket.on('close', () => {
    if (text !== '' && !told) onPartial(text);
    told = true;
  });

  function takeRequest(): ReceivedRequest | undefined {
    const headEnd = text.indexOf(HEAD_END);
    if (headEnd < 0) return undefined;
    const [requestLine = '', ...lines] = text.slice(0, headEnd).split('\r\n');
    const headers = new Map(
      lines.map((line) => {
        const colon = line.indexOf(':');
        return [line.slice(0, colon).toLowerCase(), line.slice(colon + 1).trim()];
      }),
    );
    const length = Number(headers.get('content-length') ?? 0);
    const bodyStart = headEnd + HEAD_END.length;
    if (text.length < bodyStart + length) return undefined;
    const body = text.slice(bodyStart, bodyStart + length);
    text = text.slice(bodyStart + length);
    const [method = '', path = ''] = requestLine.split(' ');
    return { method, path, headers, body };
  }
}

/** One whole answer, as bytes. */
export function answer(
  status: number,
  body: unknown,
  headers: Readonly<Record<string, string>> = {},
): Buffer {
  const bytes = Buffer.isBuffer(body)
    ? body
    : Buffer.from(typeof body === 'string' ? body : JSON.stringify(body));
  const all = {
    'content-type': typeof body === 'string' ? 'text/html' : 'application/json',
    'content-length': String(bytes.length),
    ...headers,
  };
  const head = Object.entries(all).map(([name, value]) => `${name}: ${value}\r\n`);
  return Buffer.concat([Buffer.from(`HTTP/1.1 ${status} Reason\r\n${head.join('')}\r\n`), bytes]);
}
