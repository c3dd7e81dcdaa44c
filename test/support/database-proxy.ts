import { once } from 'node:events';
import { type AddressInfo, connect, createServer, type Socket } from 'node:net';
import { unusedPort } from './unused-port.ts';

/** The statement alone, as it is on the wire: `synchronous_commit` is another. */
export const COMMIT = 'commit\0';

const BEGIN = 'begin isolation level';

export type Cut = 'before' | 'after';

export interface DatabaseProxy {
  readonly connectionString: string;
  /**
   * Cuts the connection of the next statement that contains `text`: `before` the server gets it, or `after`
   * the server has answered it and before the client hears. Resolves when it has happened. `after`: only in a
   * transaction that has sent a statement with that text.
   */
  cutAt(text: string, when: Cut, after?: string): Promise<void>;
  /**
   * Keeps the next statement that contains `text` from the server, with its connection there, whatever becomes of
   * the client's; resolves when it has come.
   */
  holdAt(text: string, after?: string): Promise<HeldStatement>;
  /** How many statements that contain `text` the client has sent. */
  count(text: string): number;
  /** Ends all connections (but the server's side of one that is held) and refuses new ones, until `up()`. */
  down(): Promise<void>;
  up(): Promise<void>;
  stop(): Promise<void>;
}

export interface HeldStatement {
  /** Ends the client's connection, as a network does that breaks behind the statement. */
  cutClient(): void;
  /** Lets the server have it; resolves when the server has answered. */
  release(): Promise<void>;
  /** Ends the server's side of the connection: it never gets it. */
  drop(): void;
}

interface Order {
  readonly text: string;
  readonly when: Cut | 'hold';
  readonly after: string;
  readonly done: (held: HeldStatement) => void;
}

const NOT_HELD: HeldStatement = {
  cutClient: () => undefined,
  release: async () => undefined,
  drop: () => undefined,
};

/** Stands between onetake and Postgres, and breaks where a network breaks. */
export async function databaseProxy(target: string): Promise<DatabaseProxy> {
  const url = new URL(target);
  const sockets = new Set<Socket>();
  const holding = new Set<Socket>();
  const orders: Order[] = [];
  const statements: string[] = [];

  const server = createServer((client) => {
    const upstream = connect(Number(url.port || 5432), url.hostname);
    let cutOnAnswer: Order | undefined;
    let transaction = '';
    let answered: (() => void) | undefined;
    const end = () => {
      client.destroy();
      if (!holding.has(upstream)) upstream.destroy();
    };
    const hold = (chunk: Buffer): HeldStatement => {
      holding.add(upstream);
      return {
        drop: () => upstream.destroy(),
        cutClient: () => client.destroy(),
        release: () =>
          new Promise((resolve) => {
            answered = resolve;
            upstream.write(chunk);
          }),
      };
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
      const index = orders.findIndex(({ text, after }) => sent.includes(text) && transaction.includes(after));
      transaction = sent.includes(BEGIN) ? sent : transaction + sent;
      const order = index < 0 ? undefined : orders.splice(index, 1)[0];
      if (order?.when === 'before') {
        end();
        order.done(NOT_HELD);
        return;
      }
      if (order?.when === 'hold') {
        order.done(hold(chunk));
        return;
      }
      if (order !== undefined) cutOnAnswer = order;
      upstream.write(chunk);
    });
    upstream.on('data', (chunk: Buffer) => {
      if (answered !== undefined) {
        holding.delete(upstream);
        answered();
        answered = undefined;
        if (client.destroyed) {
          upstream.destroy();
          return;
        }
      }
      if (cutOnAnswer === undefined) {
        client.write(chunk);
        return;
      }
      end();
      cutOnAnswer.done(NOT_HELD);
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
    for (const socket of sockets) if (!holding.has(socket)) socket.destroy();
    await closed;
  };
  // It goes away and comes back there.
  const port = await listen(await unusedPort());
  const own = new URL(target);
  own.hostname = '127.0.0.1';
  own.port = String(port);
  return {
    connectionString: own.href,
    cutAt: (text, when, after = '') =>
      new Promise((resolve) => orders.push({ text, when, after, done: () => resolve() })),
    holdAt: (text, after = '') => new Promise((done) => orders.push({ text, when: 'hold', after, done })),
    count: (text) => statements.filter((sent) => sent.includes(text)).length,
    down: close,
    up: async () => void (await listen(port)),
    stop: async () => {
      for (const upstream of holding) upstream.destroy();
      if (server.listening) await close();
    },
  };
}
