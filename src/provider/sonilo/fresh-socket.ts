import { Socket } from 'node:net';
import { buildConnector } from 'undici';

/** One connection for one POST: never shared, never replaced, and ended by a reset. */
export interface FreshSocket {
  /** For undici's `connect` option. Connects once; a second call is refused. */
  readonly connector: buildConnector.connector;
  /** The request may be on this socket: it was given to undici. */
  readonly handedOver: boolean;
  isHandedOver(socket: unknown): boolean;
  /** Closes without a byte more; for the moment just before the first one. */
  drop(): void;
  /** Throws away what the kernel has not sent yet. A plain close would go on sending it. */
  end(): void;
  /** True once nothing can leave by it any more; waits for that at most `withinMs`. */
  ended(withinMs: number): Promise<boolean>;
}

export function freshSocket(options: {
  /** Until name, TCP and TLS are done, ms. */
  readonly connectMs: number;
  /** Asked once connected, in the same turn in which undici would write. */
  readonly mayHandOver: () => boolean;
}): FreshSocket {
  let connectorUsed = false;
  let over = false;
  // Under TLS this is the TCP socket below: only a TCP handle can be reset.
  let tcp: Socket | undefined;
  let given: Socket | undefined;

  const connector: buildConnector.connector = (target, callback) => {
    // undici connects again for a request that it has not written yet; one intent gets one connection.
    if (connectorUsed) {
      callback(socketError('SECOND_CONNECTION_REFUSED'), null);
      return;
    }
    connectorUsed = true;
    const startedAt = performance.now();
    const secure = target.protocol === 'https:';
    const { servername: _, ...address } = target;

    const handOver = (socket: Socket) => {
      if (over || !options.mayHandOver()) {
        socket.destroy();
        tcp?.destroy();
        callback(socketError('NOT_HANDED_OVER'), null);
        return;
      }
      given = socket;
      callback(null, socket);
    };

    // Racing the addresses of a name (Node's default) is safe: it only connects, the losers carry nothing.
    const connectTcp = buildConnector({ timeout: options.connectMs, allowH2: false });
    const connecting: unknown = connectTcp(
      { ...address, protocol: 'http:', port: target.port || (secure ? '443' : '80') },
      (error, socket) => {
        if (error !== null) {
          callback(error, null);
          return;
        }
        tcp = socket;
        if (!secure) {
          handOver(socket);
          return;
        }
        const leftMs = Math.max(1, Math.round(options.connectMs - (performance.now() - startedAt)));
        const connectTls = buildConnector({ timeout: leftMs, allowH2: false, maxCachedSessions: 0 });
        connectTls({ ...target, httpSocket: socket }, (tlsError, tlsSocket) => {
          if (tlsError === null) handOver(tlsSocket);
          else callback(tlsError, null);
        });
      },
    );
    if (connecting instanceof Socket) tcp = connecting;
  };

  return {
    connector,
    get handedOver() {
      return given !== undefined;
    },
    isHandedOver: (socket) => given !== undefined && socket === given,
    drop() {
      over = true;
      given?.destroy();
      tcp?.destroy();
    },
    end() {
      over = true;
      if (tcp === undefined || tcp.destroyed) return;
      // With an error, so that undici's connect timer ends too.
      if (tcp.connecting) tcp.destroy(socketError('ENDED_WHILE_CONNECTING'));
      else tcp.resetAndDestroy();
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
