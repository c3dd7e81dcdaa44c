import { pipeline, type Readable } from 'node:stream';
import { createBrotliDecompress, createGunzip, createInflate } from 'node:zlib';
import { Agent, type Dispatcher, request } from 'undici';
import { type AddressRules, PrivateAddressError } from './address-rules.ts';
import { plainErrorCode, StoreFault } from './store-result.ts';

const MAX_REDIRECTS = 3;
const CONNECT_TIMEOUT_MS = 10_000;
const IDLE_TIMEOUT_MS = 30_000;

export interface Download {
  readonly httpStatus: number;
  /** Decoded. Consume or destroy it. */
  readonly body: Readable;
  /** Bytes of the file, where the answer states them. The client itself holds the body to that figure. */
  readonly contentLength: number | null;
  readonly contentType: string | null;
  readonly etag: string | null;
  /** Where `body` begins in the file. */
  readonly from: number;
}

export interface DownloadRequest {
  readonly url: string;
  readonly rules: AddressRules;
  /** Made by `createDownloadAgent` with the same rules. */
  readonly agent: Dispatcher;
  /** The deadline of the whole download, the body included. Its reason should be a `StoreFault`. */
  readonly signal: AbortSignal;
  readonly idleTimeoutMs?: number;
  /** Asked for from this byte on; the host may serve all of it nevertheless. */
  readonly from?: number;
}

/**
 * An agent of its own: nothing that is set on the provider's client, such as the key, can reach the file
 * host. Keep-alive is fine here, since a GET that is sent twice costs nothing.
 */
export function createDownloadAgent(rules: AddressRules): Agent {
  return new Agent({ allowH2: false, connect: { lookup: rules.lookup, timeout: CONNECT_TIMEOUT_MS } });
}

/** Resolves at the headers of a 200, or of the 206 that was asked for; throws `StoreFault` for everything else. */
export async function openDownload(download: DownloadRequest): Promise<Download> {
  let url = parseUrl(download.url);
  for (let redirects = 0; ; redirects += 1) {
    const refusal = download.rules.refuse(url);
    if (refusal !== null) throw new StoreFault(refusal);
    const response = await get(url, download);
    if (response.statusCode === 200) return readable(response, 0);
    const from = download.from === undefined ? null : partFrom(response, download.from);
    if (from !== null) return readable(response, from);
    // A broken body of an answer that nobody reads must not become an unhandled error.
    discard(response.body);
    url = redirectTarget(url, response, redirects);
  }
}

async function get(url: URL, download: DownloadRequest): Promise<Dispatcher.ResponseData> {
  const idleTimeoutMs = download.idleTimeoutMs ?? IDLE_TIMEOUT_MS;
  try {
    return await request(url, {
      method: 'GET',
      dispatcher: download.agent,
      headers: {
        accept: '*/*',
        'accept-encoding': 'identity',
        'user-agent': 'onetake',
        ...(download.from === undefined ? {} : { range: `bytes=${download.from}-` }),
      },
      signal: download.signal,
      headersTimeout: idleTimeoutMs,
      bodyTimeout: idleTimeoutMs,
    });
  } catch (error) {
    throw transportFault(error);
  }
}

export function transportFault(error: unknown): StoreFault {
  if (error instanceof StoreFault) return error;
  if (error instanceof PrivateAddressError) return new StoreFault('private_host');
  return new StoreFault('transport', plainErrorCode(error));
}

function parseUrl(text: string, base?: URL): URL {
  const url = URL.parse(text, base?.href);
  if (url === null) throw new StoreFault('insecure_url', 'url_invalid');
  return url;
}

function redirectTarget(from: URL, response: Dispatcher.ResponseData, redirects: number): URL {
  const status = response.statusCode;
  if (status === 401 || status === 403 || status === 410) throw new StoreFault('url_expired', null, status);
  if (![301, 302, 303, 307, 308].includes(status)) throw new StoreFault('http_status', null, status);
  if (redirects >= MAX_REDIRECTS) throw new StoreFault('http_status', 'too_many_redirects', status);
  const location = header(response, 'location');
  if (location === null) throw new StoreFault('http_status', 'redirect_without_location', status);
  return parseUrl(location, from);
}

/**
 * Where a part begins: at the byte that was asked for, and up to the end of the file. -1: elsewhere, packed, or
 * nowhere, so that it is of no use; null: no such answer.
 */
function partFrom(response: Dispatcher.ResponseData, asked: number): number | null {
  if (response.statusCode === 416) return USELESS;
  if (response.statusCode !== 206) return null;
  const [, first, last, whole] =
    /^bytes (\d{1,15})-(\d{1,15})\/(\d{1,15})$/.exec(header(response, 'content-range') ?? '') ?? [];
  const isPlain = (header(response, 'content-encoding') ?? 'identity') === 'identity';
  return isPlain && Number(first) === asked && Number(last) + 1 === Number(whole) ? asked : USELESS;
}

const USELESS = -1;

function readable(response: Dispatcher.ResponseData, from: number): Download {
  const encoding = header(response, 'content-encoding')?.trim().toLowerCase() ?? 'identity';
  const contentType = header(response, 'content-type');
  const etag = header(response, 'etag');
  if (encoding === 'identity' || encoding === '') {
    const stated = header(response, 'content-length');
    const contentLength = stated !== null && /^\d{1,15}$/.test(stated) ? Number(stated) : null;
    return { httpStatus: response.statusCode, body: response.body, contentLength, contentType, etag, from };
  }
  // Asked for identity and got another encoding: a proxy on the way. The file in it is paid for, so decode.
  const decoder = decoderFor(encoding);
  if (decoder === null) {
    discard(response.body);
    throw new StoreFault('transport', 'content_encoding', 200);
  }
  const body = pipeline(response.body, decoder, () => undefined);
  // What is decoded can't be gone on with: a host counts the bytes that it sends.
  return { httpStatus: 200, body, contentLength: null, contentType, etag: null, from };
}

function decoderFor(encoding: string) {
  if (encoding === 'gzip' || encoding === 'x-gzip') return createGunzip();
  if (encoding === 'br') return createBrotliDecompress();
  return encoding === 'deflate' ? createInflate() : null;
}

function header(response: Dispatcher.ResponseData, name: string): string | null {
  const value = response.headers[name];
  return (Array.isArray(value) ? value[0] : value) ?? null;
}

/** Ends the body unread; the connection goes with it. */
export function discard(body: Readable): void {
  body.on('error', () => undefined);
  body.destroy();
}
