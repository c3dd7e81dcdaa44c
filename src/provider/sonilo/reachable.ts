import type { Dispatcher } from 'undici';
import type { KeyCheck } from '../../core/provider.ts';
import type { BaseUrl } from './base-url.ts';
import { exchange, type Reply } from './exchange.ts';
import { headersFor } from './headers.ts';

const MAX_BYTES = 65_536;

/** One free GET without a key: any status line at all, a 401 too, says that this machine gets through. */
export async function isReachableOnce(
  base: BaseUrl,
  dispatcher: Dispatcher,
  timeoutMs: number,
): Promise<boolean> {
  return (await askServices(base, dispatcher, timeoutMs, {}))?.status != null;
}

/** The same with a key. A 403 knows the key, and means something else. */
export async function checkKeyOnce(
  base: BaseUrl,
  dispatcher: Dispatcher,
  apiKey: string,
  timeoutMs: number,
): Promise<KeyCheck> {
  const reply = await askServices(base, dispatcher, timeoutMs, headersFor(apiKey));
  if (reply?.status === 200) return 'accepted';
  return reply?.status === 401 ? 'refused' : 'unknown';
}

async function askServices(
  base: BaseUrl,
  dispatcher: Dispatcher,
  timeoutMs: number,
  headers: Record<string, string>,
): Promise<Reply | undefined> {
  try {
    return await exchange(
      dispatcher,
      {
        origin: base.origin,
        path: `${base.pathPrefix}/v1/account/services`,
        method: 'GET',
        headers,
        headersTimeout: timeoutMs,
        bodyTimeout: timeoutMs,
      },
      { firstResponseMs: timeoutMs, wholeMs: timeoutMs, maxBodyBytes: MAX_BYTES },
    );
  } catch {
    return undefined;
  }
}
