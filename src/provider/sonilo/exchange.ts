import type { Dispatcher } from 'undici';

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
    const chunks: Buffer[] = [];

    const finish = (end: Pick<Reply, 'bodyEnd'> & Partial<Pick<Reply, 'deadline' | 'error'>>) => {
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
    const giveUp = (end: Parameters<typeof finish>[0]) => {
      if (done) return;
      finish(end);
      // Not from inside undici's parser, which is still in the middle of a chunk.
      queueMicrotask(() => {
        try {
          if (limits.endConnection !== undefined) limits.endConnection();
          else controller?.abort(new Error('given up'));
        } catch {
          // The reply is decided; a teardown that fails must not take the process with it.
        }
      });
    };
    const firstResponseTimer = setTimeout(() => {
      giveUp({ bodyEnd: 'cut', deadline: 'first_response' });
    }, limits.firstResponseMs);
    const wholeTimer = setTimeout(() => {
      giveUp({ bodyEnd: 'cut', deadline: 'whole' });
    }, limits.wholeMs);

    const handler: Dispatcher.DispatchHandler = {
      onRequestStart(started) {
        controller = started;
        // Its turn came after its deadline: nothing has been written yet.
        if (done) started.abort(new Error('given up'));
      },
      onResponseStart(_controller, statusCode, responseHeaders) {
        if (statusCode < 200 || done) return;
        status = statusCode;
        headers = responseHeaders;
        startedAt = performance.now();
        clearTimeout(firstResponseTimer);
      },
      onResponseData(_controller, chunk) {
        if (done) return;
        const room = limits.maxBodyBytes - received;
        received += chunk.length;
        chunks.push(chunk.length > room ? chunk.subarray(0, room) : chunk);
        if (chunk.length > room) giveUp({ bodyEnd: 'too_large' });
      },
      onResponseEnd() {
        finish({ bodyEnd: 'complete' });
      },
      onResponseError(_controller, error) {
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
