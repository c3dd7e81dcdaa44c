import { createHash } from 'node:crypto';
import type { Readable } from 'node:stream';
import type { ResultFile } from '../core/provider.ts';
import { ANY_HOST, PUBLIC_HOSTS_ONLY } from './address-rules.ts';
import { createDownloadAgent, type Download, discard, openDownload, transportFault } from './download.ts';
import { bareContentType, detectMediaFormat, SIGNATURE_BYTES, settleContentType } from './media-signature.ts';
import { type StoredFile, StoreFault, type StoreResult } from './store-result.ts';

/** Three times the largest file that the provider takes or makes. */
const MAX_FILE_BYTES = 1024 ** 3;
/** What `setTimeout` can count to; beyond it, it fires at once. */
const MAX_TIMER_MS = 2 ** 31 - 1;
const REQUEST_ID = /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/;

export interface StoreRequest {
  /** A UUID in lower case: it becomes the name of a folder. */
  readonly requestId: string;
  readonly file: ResultFile;
  /** For the whole download, redirects and body included. */
  readonly timeoutMs: number;
  /** Aborted: given up at once; what came so far is kept where it can be gone on with. */
  readonly giveUp?: AbortSignal;
  /** Told after each piece how much of the file is there. */
  readonly onProgress?: (bytes: number, totalBytes: number | null) => void;
}

/** A file on its way into a storage. */
export interface Draft {
  write(chunk: Uint8Array): Promise<void>;
  /** There, whole, under its name when it resolves. A second run that does the same replaces it by the same bytes. */
  commit(location: string, sha256: string): Promise<void>;
  /** After `commit`, or a second time, it does nothing. Never throws. `keep`: another run may go on with it. */
  discard(keep: boolean): Promise<void>;
}

/** What an earlier run has left of a file. */
export interface EarlierPart {
  readonly bytes: number;
  /** Of the content, as `tagOf` makes it. */
  readonly tag: string;
  chunks(): Readable;
  /** It is of no use any more. Never rejects. */
  remove(): Promise<void>;
}

export interface NewDraft {
  readonly requestId: string;
  readonly index: number;
  /** Where it will be: `<request id>/<index>.<format>`. */
  readonly location: string;
  readonly contentType: string;
  /** Of the content, as its host names it; null where nobody does. */
  readonly etag: string | null;
}

/** Where results are put; each storage has its own. Every method throws `StoreFault` and nothing else. */
export interface ResultPlace {
  find(requestId: string, index: number): Promise<EarlierPart | null>;
  /** Whether `download` serves what the part is the beginning of. */
  continues(part: EarlierPart, download: Download): boolean;
  begin(draft: NewDraft): Promise<Draft>;
  /** One that was published and that nobody has recorded. */
  remove(location: string): Promise<void>;
}

export interface ResultFetcher {
  /** Never rejects. `file.url` appears in no result. */
  fetchAndStore(request: StoreRequest): Promise<StoreResult>;
  /** Closes idle connections; waits for downloads that are still running. */
  close(): Promise<void>;
}

/** Downloads, verifies and stores; the same for every kind of storage. */
export function createResultFetcher(place: ResultPlace, allowPrivateHosts: boolean): ResultFetcher {
  const rules = allowPrivateHosts ? ANY_HOST : PUBLIC_HOSTS_ONLY;
  const agent = createDownloadAgent(rules);
  let closing: Promise<void> | undefined;

  /** From where the earlier part ends, if the host serves the same content still; else from its beginning. */
  async function openAt(url: string, part: EarlierPart | null, signal: AbortSignal) {
    if (part !== null) {
      const rest = await openDownload({ url, rules, agent, signal, from: part.bytes });
      if (rest.from === 0) return { download: rest, part: null };
      if (rest.from === part.bytes && place.continues(part, rest)) return { download: rest, part };
      discard(rest.body);
    }
    return { download: await openDownload({ url, rules, agent, signal }), part: null };
  }

  return {
    async fetchAndStore({ requestId, file, timeoutMs, giveUp, onProgress }) {
      const deadline = new AbortController();
      const expire = () => deadline.abort(new StoreFault('transport', 'download_timeout'));
      const timer = setTimeout(expire, Math.min(timeoutMs, MAX_TIMER_MS));
      // Added and removed by hand: this signal outlives many downloads.
      const end = () => deadline.abort(new StoreFault('transport', 'given_up'));
      giveUp?.addEventListener('abort', end, { once: true });
      if (giveUp?.aborted === true) end();
      let httpStatus: number | null = null;
      try {
        requireFileName(requestId, file.index);
        const found = await place.find(requestId, file.index);
        const { download, part } = await openAt(file.url, found, deadline.signal);
        httpStatus = download.httpStatus;
        try {
          return await store(place, { requestId, file, download, part, onProgress });
        } catch (error) {
          // Else the next run would go on with what has just been found wrong.
          if (!['transport', 'storage'].includes(transportFault(error).reason)) await part?.remove();
          throw error;
        } finally {
          discard(download.body);
        }
      } catch (error) {
        const fault = transportFault(error);
        return {
          kind: 'failed',
          reason: fault.reason,
          httpStatus: fault.httpStatus ?? httpStatus,
          errorCode: fault.errorCode,
        };
      } finally {
        clearTimeout(timer);
        giveUp?.removeEventListener('abort', end);
      }
    },

    close() {
      closing ??= agent.close();
      return closing;
    },
  };
}

export function requireFileName(requestId: string, index: number): void {
  if (!REQUEST_ID.test(requestId)) throw new StoreFault('storage', 'invalid_request_id');
  if (!Number.isInteger(index) || index < 0 || index > 9999) throw new StoreFault('storage', 'invalid_index');
}

interface Fetched {
  readonly requestId: string;
  readonly file: ResultFile;
  readonly download: Download;
  readonly part: EarlierPart | null;
  readonly onProgress: StoreRequest['onProgress'];
}

/** The length to hold the file to. The provider's 0 means that it doesn't know. */
function expectedLength({ file, download }: Fetched): number | null {
  const stated = file.bytes !== null && Number.isInteger(file.bytes) && file.bytes > 0 ? file.bytes : null;
  const { contentLength, from } = download;
  const whole = contentLength === null ? null : from + contentLength;
  if (stated !== null && whole !== null && stated !== whole) throw new StoreFault('length_mismatch');
  const expected = stated ?? whole;
  if (expected !== null && expected > MAX_FILE_BYTES) throw new StoreFault('too_large');
  return expected;
}

/** Memory is bounded: a chunk is on its way to the storage before the next one is taken from the socket. */
async function store(place: ResultPlace, fetched: Fetched): Promise<StoredFile> {
  const { requestId, file, download, part, onProgress } = fetched;
  const { index } = file;
  const announced = bareContentType(file.contentType) ?? bareContentType(download.contentType);
  const expected = expectedLength(fetched);
  const hash = createHash('sha256');
  let bytes = 0;
  const chunks = takeExactly(piecesOf(fetched), expected, (chunk) => {
    bytes += chunk.byteLength;
    hash.update(chunk);
    onProgress?.(bytes, expected);
  });
  const head = await readHead(chunks);
  const format = detectMediaFormat(head, announced);
  if (format === null) throw new StoreFault('not_media');
  const { contentType, differs } = settleContentType(format, announced);
  const location = `${requestId}/${index}.${format}`;
  const { etag } = download;
  const draft = await place.begin({ requestId, index, location, contentType, etag });
  let sha256: string;
  let keep = false;
  try {
    await draft.write(head);
    for await (const chunk of chunks) await draft.write(chunk);
    sha256 = hash.digest('hex');
    await draft.commit(location, sha256);
  } catch (error) {
    // Cut, or left to another run: what came is good. Whatever else was wrong with it stays wrong.
    keep = transportFault(error).reason === 'transport';
    // It is in the draft.
    if (keep && part !== null && bytes > part.bytes) await part.remove();
    throw error;
  } finally {
    await draft.discard(keep);
  }
  const stored = { kind: 'stored', location, bytes, sha256, contentType } as const;
  return differs ? { ...stored, warning: 'format_differs' } : stored;
}

async function* piecesOf({ part, download }: Fetched): AsyncGenerator<Buffer, void> {
  if (part !== null) {
    try {
      yield* part.chunks() as AsyncIterable<Buffer>;
    } catch {
      // Removed meanwhile, by whoever has the whole file.
      throw new StoreFault('storage', 'part_gone');
    }
  }
  yield* download.body as AsyncIterable<Buffer>;
}

async function* takeExactly(
  pieces: AsyncIterable<Buffer>,
  expected: number | null,
  onChunk: (chunk: Buffer) => void,
): AsyncGenerator<Buffer, void> {
  const limit = Math.min(expected ?? MAX_FILE_BYTES, MAX_FILE_BYTES);
  let total = 0;
  for await (const chunk of pieces) {
    total += chunk.byteLength;
    if (total > limit) throw new StoreFault(expected === null ? 'too_large' : 'length_mismatch');
    onChunk(chunk);
    yield chunk;
  }
  if (expected !== null && total !== expected) throw new StoreFault('length_mismatch');
}

async function readHead(chunks: AsyncGenerator<Buffer, void>): Promise<Buffer> {
  const head: Buffer[] = [];
  // `next` by hand: leaving a `for await` early would end the generator.
  for (let length = 0; length < SIGNATURE_BYTES; ) {
    const next = await chunks.next();
    if (next.done === true) break;
    head.push(next.value);
    length += next.value.byteLength;
  }
  return Buffer.concat(head);
}
