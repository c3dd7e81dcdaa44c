import { once } from 'node:events';
import { type AddressInfo, connect, createServer, type Socket } from 'node:net';

/** The statement alone, as it is on the wire: `synchronous_commit` is another. */
export const COMMIT = 'commit\0';

export type Cut = 'before' | 'after';

export interface DatabaseProxy {
  readonly connectionString: string;
  /**
   * Cuts the connection of the next statement that contains `text`: `before` the server gets it, or `after`
   * the server has answered it and before the client hears. Resolves when it has happened.
   */
  cutAt(text: string, when: Cut): Promise<void>;
  /** How many statements that contain `text` the client has sent. */
  count(text: string): number;
  /** Ends all connections and refuses new ones, until `up()`. */
  down(): Promise<void>;
  up(): Promise<void>;
  stop(): Promise<void>;
}

interface Order {
  readonly text: string;
  readonly when: Cut;
  readonly done: () => void;
}

/** Stands between onetake and Postgres, and breaks where a network breaks. */
export async function databaseProxy(target: string): Promise<DatabaseProxy> {
  const url = new URL(target);
  const sockets = new Set<Socket>();
  const orders: Order[] = [];
  const statements: string[] = [];

  const server = createServer((client) => {
    const upstream = connect(Number(url.port || 5432), url.hostname);
    let cutOnAnswer: Order | undefined;
    const end = () => {
      client.destroy();
      upstream.destroy();
    };
    for (const socket of [client, upstream]) {
      sockets.add(socket);
      socket.on('error', end);
      socket.on('close', () => {
        sockets.delete(socket);
        end();
      });
    }
    client.on('data', (chunk: Buffer) => {
      const sent = chunk.toString('latin1');
      statements.push(sent);
      const index = orders.findIndex((order) => sent.includes(order.text));
      const order = index < 0 ? undefined : orders.splice(index, 1)[0];
      if (order?.when === 'before') {
        end();
        order.done();
        return;
      }
      if (order !== undefined) cutOnAnswer = order;
      upstream.write(chunk);
    });
    upstream.on('data', (chunk: Buffer) => {
      if (cutOnAnswer === undefined) {
        client.write(chunk);
        return;
      }
      end();
      cutOnAnswer.done();
      cutOnAnswer = undefined;
    });
  });
  const listen = async (port: number) => {
    server.listen(port, '127.0.0.1');
    await once(server, 'listening');
    return (server.address() as AddressInfo).port;
  };
  const close = async () => {
    const closed = new Promise((resolve) => server.close(resolve));
    for (const socket of sockets) socket.destroy();
    await closed;
  };
  const port = await listen(0);
  const own = new URL(target);
  own.hostname = '127.0.0.1';
  own.port = String(port);
  return {
    connectionString: own.href,
    cutAt: (text, when) => new Promise((done) => orders.push({ text, when, done })),
    count: (text) => statements.filter((sent) => sent.includes(text)).length,
    down: close,
    up: async () => void (await listen(port)),
    stop: async () => {
      if (server.listening) await close();
    },
  };
}
