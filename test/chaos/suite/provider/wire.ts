import type { Socket } from 'node:net';

export interface ReceivedRequest {
  readonly method: string;
  readonly path: string;
  readonly headers: ReadonlyMap<string, string>;
  readonly body: string;
}

const HEAD_END = '\r\n\r\n';
const MAX_BYTES = 8_000_000;

/**
 * Requests as bytes: no HTTP library stands between the ledger and what was sent. `partial` is what had come
 * of a request when its connection ended; nothing of it is lost. `onUpload` is told of one whose body has begun, again
 * and again until it says what to do: with `taken`, nothing more is read of the connection.
 */
export function readRequests(
  socket: Socket,
  onRequest: (request: ReceivedRequest) => void,
  onPartial: (text: string) => void,
  onUpload: (request: ReceivedRequest) => 'taken' | 'read' | 'undecided',
): void {
  let text = '';
  let told = false;
  let decided: 'taken' | 'read' | 'undecided' = 'undecided';
  // A large body comes in many pieces, and is looked at when it is there.
  let enough = 0;
  socket.on('data', (chunk: Buffer) => {
    if (decided === 'taken') return;
    text += chunk.toString('latin1');
    if (decided === 'read' && text.length < enough) return;
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
    const [method = '', path = ''] = requestLine.split(' ');
    enough = bodyStart + length;
    if (text.length < enough) {
      if (method !== 'POST' || decided !== 'undecided') return undefined;
      decided = onUpload({ method, path, headers, body: text.slice(bodyStart) });
      if (decided === 'taken') text = '';
      return undefined;
    }
    decided = 'undecided';
    const body = text.slice(bodyStart, enough);
    text = text.slice(enough);
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
