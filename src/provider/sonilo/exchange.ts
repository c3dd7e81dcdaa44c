import type { Dispatcher } from 'undici';
import { afterArrivals } from './after-arrivals.ts';
import { OpenBody } from './open-body.ts';

type Headers = NonNullable<Dispatcher.ResponseData['headers']>;

/** What one request brought back, however it ended. */
export interface Reply {
  /** Null when no final status line came. */
  readonly status: number | null;
  readonly headers: Headers;
  /** As it came, still encoded; at most `maxBodyBytes`. */
  readonly body: Buffer;
  readonly bodyEnd: 'complete' | 'too_large' | 'cut';
  /** `performance.now()` at the final status line. */
  readonly startedAt: number | null;
  readonly deadline: 'first_response' | 'whole' | null;
  /** What the transport said, where it ended the exchange. */
  readonly error: unknown;
  /** The body, where `opensBody` asked for it: it has only begun, and the connection is its own from now on. */
  readonly open?: OpenBody;
}

export interface ExchangeLimits {
  /** Until the final status line, ms from the call. */
  readonly firstResponseMs: number;
  /** Until the body is read, ms from the call. */
  readonly wholeMs: number;
  readonly maxBodyBytes: number;
  /**
   * How to end the connection when we give up; by default undici's abort. Never both: a socket that was
   * destroyed first makes undici finish an aborted response, and that assertion kills the process.
   */
  readonly endConnection?: () => void;
  /** Whether something of the request has still to leave this process; by default nothing has. */
  readonly isSending?: () => boolean;
  /** An answer of 2xx is replied at its beginning, with a body to read: at most so many bytes of it. */
  readonly opensBody?: { readonly maxBytes: number };
}

/**
 * One request, one reply: resolves by its own timers whatever the wire does, and never rejects. undici's
 * timers restart with every informational response and every byte of a body, so they bound neither.
 */
export function exchange(
  dispatcher: Dispatcher,
  request: Dispatcher.DispatchOptions,
  limits: ExchangeLimits,
): Promise<Reply> {
  return new Promise((resolve) => {
    let status: number | null = null;
    let headers: Headers = {};
    let startedAt: number | null = null;
    let received = 0;
    let done = false;
    let controller: Dispatcher.DispatchController | null = null;
    let open: OpenBody | undefined;
    const chunks: Buffer[] = [];
    const calledAt = performance.now();
    const isSending = limits.isSending ?? (() => false);

    const finish = (end: Pick<Reply, 'bodyEnd'> & Partial<Pick<Reply, 'deadline' | 'error' | 'open'>>) => {
      if (done) return;
      done = true;
      clearTimeout(firstResponseTimer);
      clearTimeout(wholeTimer);
      resolve({
        status,
        headers,
        body: Buffer.concat(chunks),
        startedAt,
        deadline: null,
        error: undefined,
        ...end,
      });
    };
    const endConnection = () => {
      if (limits.endConnection !== undefined) limits.endConnection();
      else controller?.abort(new Error('given up'));
    };
    const giveUp = (end: Parameters<typeof finish>[0]) => {
      if (done) return;
      finish(end);
      // Not from inside undici's parser, which is still in the middle of a chunk.
      queueMicrotask(() => {
        try {
          endConnection();
        } catch {
          // The reply is decided; a teardown that fails must not take the process with it.
        }
      });
    };
    const firstResponseTimer = afterArrivals(limits.firstResponseMs, isSending, () => {
      if (startedAt === null) giveUp({ bodyEnd: 'cut', deadline: 'first_response' });
    });
    const wholeTimer = afterArrivals(limits.wholeMs, isSending, () => {
      giveUp({ bodyEnd: 'cut', deadline: 'whole' });
    });

    const handler: Dispatcher.DispatchHandler = {
      onRequestStart(started) {
        controller = started;
        // Its turn came after its deadline: nothing has been written yet.
        if (done) started.abort(new Error('given up'));
      },
      onResponseStart(started, statusCode, responseHeaders) {
        if (statusCode < 200 || done) return;
        status = statusCode;
        headers = responseHeaders;
        startedAt = performance.now();
        clearTimeout(firstResponseTimer);
        if (limits.opensBody === undefined || statusCode >= 300) return;
        const { wholeMs } = limits;
        open = new OpenBody(started, { calledAt, wholeMs, endConnection, isSending, ...limits.opensBody });
        finish({ bodyEnd: 'cut', open });
      },
      onResponseData(_controller, chunk) {
        open?.push(chunk);
        if (done) return;
        const room = limits.maxBodyBytes - received;
        received += chunk.length;
        chunks.push(chunk.length > room ? chunk.subarray(0, room) : chunk);
        if (chunk.length > room) giveUp({ bodyEnd: 'too_large' });
      },
      onResponseEnd() {
        open?.end('complete');
        finish({ bodyEnd: 'complete' });
      },
      onResponseError(_controller, error) {
        open?.end('cut');
        finish({ bodyEnd: 'cut', error });
      },
    };
    try {
      dispatcher.dispatch(request, handler);
    } catch (error) {
      finish({ bodyEnd: 'cut', error });
    }
  });
}
