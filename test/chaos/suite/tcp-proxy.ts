import { once } from 'node:events';
import { type AddressInfo, connect, createServer, type Server, type Socket } from 'node:net';

interface Link {
  readonly client: Socket;
  readonly upstream: Socket;
}

/** Where the next chunk that holds `text` ends its connection: before it goes on, after, or at its answer. */
export interface CutOrder {
  readonly text: string;
  /** The next chunk with `text` is let through, and the next with this on the same connection is the one. */
  readonly next?: string;
  readonly when: 'before' | 'forwarded' | 'answered';
}

/** A TCP proxy that breaks where a network breaks. Its target may be down, and may come back. */
export class TcpProxy {
  readonly port: number;
  readonly #server: Server;
  readonly #links = new Set<Link>();
  #mode: 'pass' | 'refuse' | 'stall' = 'pass';
  #order: CutOrder | undefined;
  /** `Date.now()` until which a session that waits for this network is no fault of ours. */
  disturbedUntil = 0;

  private constructor(server: Server) {
    this.#server = server;
    this.port = (server.address() as AddressInfo).port;
  }

  static async open(target: () => number): Promise<TcpProxy> {
    // Each side may end its half and still be read.
    const server = createServer({ allowHalfOpen: true, noDelay: true });
    server.listen(0, '127.0.0.1');
    await once(server, 'listening');
    const proxy = new TcpProxy(server);
    server.on('connection', (client) => proxy.#connect(client, target()));
    return proxy;
  }

  get connections(): number {
    return this.#links.size;
  }

  /** Ports of our own at the target, by which it can tell whose sessions it has. */
  upstreamPorts(): number[] {
    return [...this.#links].flatMap(({ upstream }) => upstream.localPort ?? []);
  }

  /** Every connection that is open now ends, with a reset or in order. */
  cut(manner: 'reset' | 'end'): void {
    this.#disturbed(1_000);
    for (const link of this.#links) end(link, manner);
  }

  cutAt(order: CutOrder): void {
    this.#order = order;
  }

  refuse(): void {
    this.#mode = 'refuse';
    this.cut('reset');
  }

  /** Nothing goes through any more and nobody is told: open connections hang, new ones too. */
  stall(): void {
    this.#mode = 'stall';
    this.disturbedUntil = Number.POSITIVE_INFINITY;
    for (const { client, upstream } of this.#links) {
      client.pause();
      upstream.pause();
    }
  }

  /** Back to normal. What was stalled goes on, or is gone for good. */
  pass(stalled: 'deliver' | 'lose' = 'deliver'): void {
    const wasStalled = this.#mode === 'stall';
    this.#mode = 'pass';
    if (!wasStalled) return;
    this.#disturbed(2_000, true);
    for (const link of this.#links) {
      if (stalled === 'lose') end(link, 'reset');
      else {
        link.client.resume();
        link.upstream.resume();
      }
    }
  }

  async close(): Promise<void> {
    const closed = new Promise((resolve) => this.#server.close(resolve));
    this.cut('reset');
    await closed;
  }

  #disturbed(ms: number, again = false): void {
    const until = Date.now() + ms;
    this.disturbedUntil = again ? until : Math.max(this.disturbedUntil, until);
  }

  #connect(client: Socket, targetPort: number): void {
    if (this.#mode === 'refuse') {
      client.on('error', () => undefined);
      client.resetAndDestroy();
      return;
    }
    const upstream = connect({ port: targetPort, host: '127.0.0.1', allowHalfOpen: true, noDelay: true });
    const link: Link = { client, upstream };
    this.#links.add(link);
    let cutAtAnswer = false;
    let armed: CutOrder | undefined;
    for (const socket of [client, upstream]) {
      socket.on('error', () => end(link, 'reset'));
      socket.on('close', () => {
        this.#links.delete(link);
        end(link, 'end');
      });
    }
    client.on('data', (chunk: Buffer) => {
      const ordered = this.#order;
      if (ordered !== undefined && chunk.includes(ordered.text, 0, 'latin1')) {
        this.#order = undefined;
        armed = ordered;
        if (ordered.next !== undefined) {
          forward(chunk, client, upstream, this);
          return;
        }
      }
      if (armed !== undefined && chunk.includes(armed.next ?? armed.text, 0, 'latin1')) {
        const { when } = armed;
        armed = undefined;
        this.#disturbed(1_000);
        if (when === 'before') return end(link, 'reset');
        if (when === 'forwarded') {
          upstream.write(chunk, () => end(link, 'end'));
          return;
        }
        cutAtAnswer = true;
      }
      forward(chunk, client, upstream, this);
    });
    upstream.on('data', (chunk: Buffer) => {
      if (cutAtAnswer) end(link, 'reset');
      else forward(chunk, upstream, client, this);
    });
    client.on('end', () => upstream.end());
    upstream.on('end', () => client.end());
    if (this.#mode === 'stall') {
      client.pause();
      upstream.pause();
    }
  }

  get isStalled(): boolean {
    return this.#mode === 'stall';
  }
}

function forward(chunk: Buffer, from: Socket, to: Socket, proxy: TcpProxy): void {
  if (to.write(chunk)) return;
  from.pause();
  to.once('drain', () => {
    if (!proxy.isStalled) from.resume();
  });
}

function end({ client, upstream }: Link, manner: 'reset' | 'end'): void {
  for (const socket of [client, upstream]) {
    if (socket.destroyed) continue;
    // A socket that is not there yet, or has said its last word, can't be reset: Node.js would keep it for ever.
    if (manner === 'reset' && !socket.connecting && !socket.writableEnded) socket.resetAndDestroy();
    else socket.destroy();
  }
}
