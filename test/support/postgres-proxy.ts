import { once } from 'node:events';
import { type AddressInfo, connect, createServer, type Socket } from 'node:net';

/** What a statement that was asked to fail says instead of running: SQL that the server itself refuses. */
export interface Fault {
  readonly code: string;
  readonly matches: (text: string) => boolean;
  /** How many statements, the first that match. */
  times: number;
}

export interface ProxiedConnection {
  /** Statements that the client has sent over it, in order. */
  readonly statements: readonly string[];
  /** Nothing goes through it any more, and neither side is told. */
  stall(): void;
}

export interface PostgresProxy {
  readonly connectionString: string;
  /** `performance.now()` of each connection that was tried, refused ones included. */
  readonly attempts: readonly number[];
  /** Statements over all connections, in order of arrival. */
  readonly statements: readonly string[];
  /** Those that are open. */
  readonly connections: ReadonlySet<ProxiedConnection>;
  /** The next `times` statements that match fail with this SQLSTATE, raised by the server in their place. */
  fail(code: string, matches: (text: string) => boolean, times?: number): Fault;
  heal(): void;
  /** Ends every connection, and refuses new ones the moment that they come. */
  refuse(): void;
  /** Accepts connections and lets nothing through, old ones and new ones. */
  swallow(): void;
  /** Lets new connections through, to another port from now on if one is given; ends the swallowed ones. */
  pass(port?: number): void;
  stop(): Promise<void>;
}

/** `needs` in the database: what raises the SQLSTATE that it is told. */
export const FAULT_FUNCTION = `create function public.onetake_fault(code text, ignored text[] default '{}')
returns void language plpgsql as $$ begin raise exception 'injected' using errcode = code; end $$`;

const SSL_REQUEST = 80_877_103;

/** Stands between onetake and Postgres, reads what is said, and breaks the network or single statements. */
export async function postgresProxy(target: string): Promise<PostgresProxy> {
  const url = new URL(target);
  let port = Number(url.port);
  let mode: 'pass' | 'refuse' | 'swallow' = 'pass';
  const attempts: number[] = [];
  const statements: string[] = [];
  const faults = new Set<Fault>();
  const links = new Set<Link>();

  /** The statement's own text, or what is to run in its place. */
  const instead = (text: string): string => {
    statements.push(text);
    for (const fault of faults) {
      if (!fault.matches(text)) continue;
      if (--fault.times === 0) faults.delete(fault);
      const parameters = [...text.matchAll(/\$(\d+)/g)].map(([, n]) => Number(n));
      const given = Array.from({ length: Math.max(0, ...parameters) }, (_, n) => `$${n + 1}::text`);
      const raise = `select public.onetake_fault('${fault.code}', array[${given.join(', ')}]::text[])`;
      // A COMMIT that fails ends the transaction all the same.
      return text === 'commit' ? `rollback; ${raise}` : raise;
    }
    return text;
  };

  const server = createServer({ noDelay: true }, (client) => {
    attempts.push(performance.now());
    client.on('error', () => undefined);
    if (mode === 'refuse') return void client.resetAndDestroy();
    const link = new Link(client, port, instead, () => links.delete(link));
    links.add(link);
    if (mode === 'swallow') link.stall();
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  const endAll = () => {
    for (const link of [...links]) link.end();
  };
  url.hostname = '127.0.0.1';
  url.port = String((server.address() as AddressInfo).port);
  return {
    connectionString: url.href,
    attempts,
    statements,
    connections: links,
    fail(code, matches, times = 1) {
      const fault = { code, matches, times };
      faults.add(fault);
      return fault;
    },
    heal: () => faults.clear(),
    refuse() {
      mode = 'refuse';
      endAll();
    },
    swallow() {
      mode = 'swallow';
      for (const link of links) link.stall();
    },
    pass(other = port) {
      if (other !== port || mode === 'swallow') endAll();
      port = other;
      mode = 'pass';
    },
    async stop() {
      const closed = new Promise((resolve) => server.close(resolve));
      endAll();
      await closed;
    },
  };
}

class Link implements ProxiedConnection {
  readonly statements: string[] = [];
  readonly #client: Socket;
  readonly #upstream: Socket;
  #stalled = false;
  #hasBegun = false;
  #rest: Buffer = Buffer.alloc(0);

  constructor(client: Socket, port: number, instead: (text: string) => string, onEnd: () => void) {
    this.#client = client;
    this.#upstream = connect({ port, host: '127.0.0.1', noDelay: true });
    for (const socket of [client, this.#upstream]) {
      socket.on('error', () => this.end());
      socket.on('close', () => {
        onEnd();
        // A swallowed connection hears nothing of the other side's end.
        if (!this.#stalled) this.end();
      });
    }
    client.on('data', (chunk: Buffer) => {
      if (this.#stalled) return;
      this.#rest = Buffer.concat([this.#rest, chunk]);
      for (let message = this.#next(); message !== undefined; message = this.#next()) {
        this.#upstream.write(
          rewritten(message, (text) => {
            this.statements.push(text);
            return instead(text);
          }),
        );
      }
    });
    this.#upstream.on('data', (chunk: Buffer) => {
      if (!this.#stalled) client.write(chunk);
    });
  }

  stall(): void {
    this.#stalled = true;
  }

  end(): void {
    this.#client.destroy();
    this.#upstream.destroy();
  }

  /** The next whole message: the first ones of a connection have no type byte. */
  #next(): Buffer | undefined {
    const header = this.#hasBegun ? 1 : 0;
    if (this.#rest.length < header + 4) return undefined;
    const end = header + this.#rest.readInt32BE(header);
    if (this.#rest.length < end) return undefined;
    const message = this.#rest.subarray(0, end);
    this.#rest = this.#rest.subarray(end);
    if (!this.#hasBegun && message.readInt32BE(4) !== SSL_REQUEST) this.#hasBegun = true;
    return message;
  }
}

function rewritten(message: Buffer, instead: (text: string) => string): Buffer {
  const type = String.fromCharCode(message[0] ?? 0);
  if (type !== 'Q' && type !== 'P') return message;
  const start = type === 'Q' ? 5 : message.indexOf(0, 5) + 1;
  const end = message.indexOf(0, start);
  const text = message.toString('utf8', start, end);
  const other = instead(text);
  if (other === text) return message;
  const changed = Buffer.concat([message.subarray(0, start), Buffer.from(other), message.subarray(end)]);
  changed.writeInt32BE(changed.length - 1, 1);
  return changed;
}
