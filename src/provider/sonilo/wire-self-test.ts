import { once } from 'node:events';
import { type AddressInfo, createServer, type Server, type Socket } from 'node:net';
import type { ProviderSelfTest } from '../../core/provider.ts';
import { type OpenClient, type PostEnd, postOnce } from './post.ts';
import { transportErrorCode } from './transport-errors.ts';
import type { WireOracle } from './wire-oracle.ts';

/** Each of the two POSTs; on loopback they take a few ms. */
const DEADLINES = { connectMs: 1_000, firstResponseMs: 1_500, submissionMs: 2_000 } as const;
const ANSWER = 'HTTP/1.1 202 Accepted\r\ncontent-length: 2\r\n\r\n{}';

/**
 * Two POSTs to a server of our own, by the client that the paid ones go by. The first must be announced once,
 * with its body and its socket. The second is stopped where it is announced, and no byte of it may arrive: so the
 * notice comes before the first byte, and the gate holds. Never rejects; takes a few seconds at most.
 */
export async function testWire(oracle: WireOracle, open?: OpenClient): Promise<ProviderSelfTest> {
  const connections: LoopbackConnection[] = [];
  const server = createServer((socket) => connections.push(new LoopbackConnection(socket)));
  try {
    const origin = await listen(server);
    const bytes = () => connections.reduce((sum, connection) => sum + connection.bytes, 0);

    const sent = await post(oracle, origin, open, () => true);
    const { written, repeated, byBody, bySocket } = sent.watch;
    const isSilent = byBody + bySocket === 0;
    const isKnown = written === 1 && repeated === 0 && byBody === 1 && bySocket === 1;
    if (!isSilent && !isKnown) return UNKNOWN_SHAPE;
    // Without a POST at the server there is nothing that the oracle could have told or missed.
    if (sent.reply.status !== 202 || bytes() === 0) return untested(sent);
    if (isSilent) return { wireOracle: 'silent', errorCode: null };

    const before = bytes();
    const accepted = once(server, 'connection', { signal: AbortSignal.timeout(DEADLINES.submissionMs) });
    let asked = 0;
    const held = await post(oracle, origin, open, () => ++asked === 1);
    // Whatever was going to arrive has arrived when the connection, taken up late perhaps, has ended.
    await accepted;
    await Promise.all(connections.map((connection) => connection.ended));
    const isHeld = held.watch.stopped === 1 && held.watch.written === 0;
    return isHeld && bytes() === before ? { wireOracle: 'healthy', errorCode: null } : UNKNOWN_SHAPE;
  } catch (error) {
    return { wireOracle: 'untested', errorCode: transportErrorCode(error) };
  } finally {
    for (const connection of connections) connection.socket.destroy();
    server.close();
  }
}

const UNKNOWN_SHAPE: ProviderSelfTest = { wireOracle: 'unknown_shape', errorCode: null };

function untested({ reply }: PostEnd): ProviderSelfTest {
  const errorCode = reply.deadline === null ? transportErrorCode(reply.error) : 'self_test_deadline';
  return { wireOracle: 'untested', errorCode };
}

function post(oracle: WireOracle, origin: string, open: OpenClient | undefined, maySend: () => boolean) {
  const body = Buffer.from('self-test=1');
  const headers = { 'content-type': 'application/x-www-form-urlencoded' };
  return postOnce(oracle, { origin, path: '/', headers, body, deadlines: DEADLINES, maySend }, open);
}

async function listen(server: Server): Promise<string> {
  // The process may end meanwhile.
  server.unref();
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  return `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
}

class LoopbackConnection {
  bytes = 0;
  readonly socket: Socket;
  /** Bounded by the deadlines of the POST, whose end ends the connection, too. */
  readonly ended: Promise<unknown>;

  constructor(socket: Socket) {
    this.socket = socket;
    socket.on('error', () => undefined);
    this.ended = new Promise((resolve) => socket.once('close', resolve));
    socket.on('data', (chunk) => {
      if (this.bytes === 0) socket.write(ANSWER);
      this.bytes += chunk.length;
    });
  }
}
