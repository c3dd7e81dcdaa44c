import { Socket } from 'node:net';
import { buildConnector } from 'undici';

/** One connection for one POST: never shared, never replaced, and ended by a reset. */
export interface FreshSocket {
  /** For undici's `connect` option. Connects once; a second call is refused. */
  readonly connector: buildConnector.connector;
  /**
   * The request may be on this socket: it was given to undici. While it is false nothing can have been sent,
   * since undici has no other way to a socket than this connector.
   */
  readonly handedOver: boolean;
  /** Something was written to it. True is proof of a byte; false is a second witness, and no proof by itself. */
  readonly wasWrittenTo: boolean;
  /** Something that was written to it has not left this process yet. */
  readonly isWriting: boolean;
  isHandedOver(socket: unknown): boolean;
  /** Throws away what the kernel has not sent yet. A plain close would go on sending it. */
  end(): void;
  /** True once nothing can leave by it any more; waits for that at most `withinMs`. */
  ended(withinMs: number): Promise<boolean>;
}

/** undici's own connect time-out, counted in ticks of half a second, lies behind ours. */
const BACKSTOP_MS = 2_000;

export function freshSocket(options: {
  /** Until name, TCP and TLS are done, ms. */
  readonly connectMs: number;
  /** Asked once connected, in the same turn in which undici would write. */
  readonly mayHandOver: () => boolean;
}): FreshSocket {
  let connectorUsed = false;
  let over = false;
  let giveUp: ((error: Error) => void) | undefined;
  // Under TLS this is the TCP socket below: only a TCP handle can be reset.
  let tcp: Socket | undefined;
  let given: Socket | undefined;

  const connector: buildConnector.connector = (target, callback) => {
    // undici connects again for a request that it has not written yet; one intent gets one connection.
    if (connectorUsed || over) {
      callback(socketError(over ? 'NOT_HANDED_OVER' : 'SECOND_CONNECTION_REFUSED'), null);
      return;
    }
    connectorUsed = true;
    let secured: Socket | undefined;
    let decided = false;
    const decide = (error: Error | null, socket: Socket | null) => {
      if (decided) return;
      decided = true;
      giveUp = undefined;
      clearTimeout(timer);
      if (error === null && socket !== null) {
        given = socket;
        callback(null, socket);
        return;
      }
      const cause = error ?? socketError('NOT_CONNECTED');
      // With an error, so that undici's connect timer ends too.
      secured?.destroy(cause);
      tcp?.destroy(cause);
      callback(cause, null);
    };
    giveUp = (error) => decide(error, null);
    const timer = setTimeout(() => giveUp?.(socketError('connect_deadline')), options.connectMs);
    const handOver = (socket: Socket) => {
      if (!options.mayHandOver()) decide(socketError('NOT_HANDED_OVER'), null);
      else decide(null, socket);
    };

    const secure = target.protocol === 'https:';
    const { servername: _, ...address } = target;
    const timeout = options.connectMs + BACKSTOP_MS;
    // Racing the addresses of a name (Node's default) is safe: it only connects, the losers carry nothing.
    const connectTcp = buildConnector({ timeout, allowH2: false });
    const connecting: unknown = connectTcp(
      { ...address, protocol: 'http:', port: target.port || (secure ? '443' : '80') },
      (error, socket) => {
        if (error !== null || decided) {
          decide(error, null);
          return;
        }
        tcp = socket;
        if (!secure) {
          handOver(socket);
          return;
        }
        const connectTls = buildConnector({ timeout, allowH2: false, maxCachedSessions: 0 });
        const securing: unknown = connectTls({ ...target, httpSocket: socket }, (tlsError, tlsSocket) => {
          if (tlsError === null) handOver(tlsSocket);
          else decide(tlsError, null);
        });
        if (securing instanceof Socket) secured = securing;
      },
    );
    if (connecting instanceof Socket) tcp = connecting;
  };

  return {
    connector,
    get handedOver() {
      return given !== undefined;
    },
    get wasWrittenTo() {
      // Counts what waits in Node, too; a socket that has never been written to says undefined or 0.
      return given !== undefined && (given.bytesWritten ?? 0) > 0;
    },
    get isWriting() {
      return given !== undefined && !given.destroyed && given.writableLength > 0;
    },
    isHandedOver: (socket) => given !== undefined && socket === given,
    end() {
      over = true;
      if (giveUp !== undefined) giveUp(socketError('ENDED_WHILE_CONNECTING'));
      else if (tcp !== undefined && !tcp.destroyed) tcp.resetAndDestroy();
    },
    ended(withinMs) {
      const socket = tcp;
      if (socket === undefined) return Promise.resolve(over);
      if (socket.closed) return Promise.resolve(true);
      return new Promise((resolve) => {
        const timer = setTimeout(() => settle(false), withinMs);
        const onClose = () => settle(true);
        const settle = (closed: boolean) => {
          clearTimeout(timer);
          socket.off('close', onClose);
          resolve(closed);
        };
        socket.once('close', onClose);
      });
    },
  };
}

function socketError(code: string): Error {
  return Object.assign(new Error(code), { code });
}
