import { subscribe, unsubscribe } from 'node:diagnostics_channel';

/** Published by undici in the same turn as, and just before, the first byte of a request. */
export const SEND_HEADERS = 'undici:client:sendHeaders';

export interface WatchedPost {
  /** The very bytes or stream that undici is given. Whatever is made of the request below us carries it. */
  readonly body: object;
  readonly isItsSocket: (socket: unknown) => boolean;
  /** Asked at the last synchronous point before the first byte. Must not throw. */
  readonly mayWrite: () => boolean;
}

/** What the channel has told of one POST so far. */
export interface WireWatch {
  /** Times that its first byte was let through: 0 or 1. */
  readonly written: number;
  /** Times that it was stopped because the gate was closed. */
  readonly stopped: number;
  /** Times that something below us tried to write it again, and was stopped. */
  readonly repeated: number;
  /** Notices that carried its body, and notices that carried its socket. */
  readonly byBody: number;
  readonly bySocket: number;
  /** Meanwhile a notice came that can't be read: it may have been of this POST. */
  readonly isDoubtful: boolean;
  /** The POST is over. A notice of it that comes later is stopped. */
  end(): void;
}

export interface WireOracle {
  watch(post: WatchedPost): WireWatch;
  /** POSTs that were about to be written after their end, and were stopped. */
  readonly lateSends: number;
  /**
   * For a channel that is not what we know: from now on notices are looked at, and nothing is stopped on
   * account of them, since one that comes twice or too late would stop every POST.
   */
  disarm(): void;
  close(): void;
}

interface Notice {
  readonly body: unknown;
  readonly socket: { destroy(): unknown };
}

/** One subscription, for all POSTs of one provider. It costs every other request of the process a look-up. */
export function createWireOracle(): WireOracle {
  const live = new Map<object, Watch>();
  const over = new WeakSet<object>();
  let isSubscribed = false;
  let isClosed = false;
  let isArmed = true;
  let lateSends = 0;

  const onSendHeaders = (message: unknown): void => {
    const notice = read(message);
    if (notice === undefined) {
      for (const watch of live.values()) watch.isDoubtful = true;
      return;
    }
    const { body, socket } = notice;
    const watch = live.get(body as object) ?? [...live.values()].find((one) => one.isItsSocket(socket));
    if (watch !== undefined) {
      watch.see(body, socket);
      if (isArmed) watch.decide(socket);
    } else if (isArmed && over.has(body as object)) {
      lateSends++;
      socket.destroy();
    }
  };
  const unsubscribeWhenIdle = () => {
    if (!isClosed || !isSubscribed || live.size > 0) return;
    unsubscribe(SEND_HEADERS, onSendHeaders);
    isSubscribed = false;
  };

  return {
    watch(post) {
      if (!isSubscribed) subscribe(SEND_HEADERS, onSendHeaders);
      isSubscribed = true;
      const watch = new Watch(post, () => {
        live.delete(post.body);
        over.add(post.body);
        unsubscribeWhenIdle();
      });
      live.set(post.body, watch);
      return watch;
    },
    get lateSends() {
      return lateSends;
    },
    disarm() {
      isArmed = false;
    },
    close() {
      isClosed = true;
      unsubscribeWhenIdle();
    },
  };
}

class Watch implements WireWatch {
  written = 0;
  stopped = 0;
  repeated = 0;
  byBody = 0;
  bySocket = 0;
  isDoubtful = false;
  readonly isItsSocket: (socket: unknown) => boolean;
  readonly end: () => void;
  readonly #post: WatchedPost;

  constructor(post: WatchedPost, end: () => void) {
    this.#post = post;
    this.isItsSocket = post.isItsSocket;
    this.end = end;
  }

  see(body: unknown, socket: unknown): void {
    if (body === this.#post.body) this.byBody++;
    if (this.isItsSocket(socket)) this.bySocket++;
  }

  decide(socket: Notice['socket']): void {
    if (this.written > 0) this.repeated++;
    else if (!this.#post.mayWrite()) this.stopped++;
    else {
      this.written++;
      return;
    }
    // Destroying lets no byte out; throwing here would.
    socket.destroy();
  }
}

/** Undefined for a message of another shape: it may be of one of our POSTs, and can't be told. */
function read(message: unknown): Notice | undefined {
  const { request, socket } = Object(message) as { readonly request?: unknown; readonly socket?: unknown };
  const { method, body } = Object(request) as { readonly method?: unknown; readonly body?: unknown };
  const { destroy } = Object(socket) as { readonly destroy?: unknown };
  if (typeof method !== 'string' || typeof destroy !== 'function') return undefined;
  return { body, socket: socket as Notice['socket'] };
}
