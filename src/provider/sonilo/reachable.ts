import type { Dispatcher } from 'undici';
import type { BaseUrl } from './base-url.ts';
import { exchange } from './exchange.ts';

const MAX_BYTES = 65_536;

/** One free GET without a key: any status line at all, a 401 too, says that this machine gets through. */
export async function isReachableOnce(
  base: BaseUrl,
  dispatcher: Dispatcher,
  timeoutMs: number,
): Promise<boolean> {
  try {
    const reply = await exchange(
      dispatcher,
      {
        origin: base.origin,
        path: `${base.pathPrefix}/v1/account/services`,
        method: 'GET',
        headersTimeout: timeoutMs,
        bodyTimeout: timeoutMs,
      },
      { firstResponseMs: timeoutMs, wholeMs: timeoutMs, maxBodyBytes: MAX_BYTES },
    );
    return reply.status !== null;
  } catch {
    return false;
  }
}
