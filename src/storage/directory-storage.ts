import { createHash } from 'node:crypto';
import { resolve } from 'node:path';
import type { Readable } from 'node:stream';
import type { ResultFile } from '../core/provider.ts';
import { ANY_HOST, PUBLIC_HOSTS_ONLY } from './address-rules.ts';
import { createAtomicFile } from './atomic-file.ts';
import { createDownloadAgent, type Download, discard, openDownload, transportFault } from './download.ts';
import { bareContentType, detectMediaFormat, SIGNATURE_BYTES, settleContentType } from './media-signature.ts';
import { type StoredFile, StoreFault, type StoreResult } from './store-result.ts';
import { openStoredFile } from './stored-file.ts';

export type { StoredFile, StoreFailure, StoreFailureReason, StoreResult } from './store-result.ts';

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
  /** Aborted: given up at once, with nothing left behind. */
  readonly giveUp?: AbortSignal;
}

/** Keeps the finished files of a request. */
export interface ResultStorage {
  /**
   * Never rejects. Harmless when repeated, or done by two processes at once: the later rename wins, with the
   * same content. `file.url` appears in no result.
   */
  fetchAndStore(request: StoreRequest): Promise<StoreResult>;
  /**
   * Read no faster than it is consumed, and closed when it is cancelled.
   * @throws OnetakeError `file_missing`, and `invalid_option` for what is no location of a storage
   */
  open(location: string, bytes: number | null): Promise<ReadableStream<Uint8Array>>;
  /** Closes idle connections; waits for downloads that are still running. */
  close(): Promise<void>;
}

export interface DirectoryStorageOptions {
  /** Made when it is absent. One per deployment: every poller and every reader must see the same. */
  readonly directory: string;
  /** Also permits `http:`. For the simulator, whose files are on loopback. */
  readonly allowPrivateHosts: boolean;
}

export function createDirectoryStorage(options: DirectoryStorageOptions): ResultStorage {
  const root = resolve(options.directory);
  const rules = options.allowPrivateHosts ? ANY_HOST : PUBLIC_HOSTS_ONLY;
  const agent = createDownloadAgent(rules);
  let closing: Promise<void> | undefined;

  return {
    async fetchAndStore({ requestId, file, timeoutMs, giveUp }) {
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
        const download = await openDownload({ url: file.url, rules, agent, signal: deadline.signal });
        httpStatus = download.httpStatus;
        try {
          return await store(root, requestId, file, download);
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

    open: (location, bytes) => openStoredFile(root, location, bytes),

    close() {
      closing ??= agent.close();
      return closing;
    },
  };
}

function requireFileName(requestId: string, index: number): void {
  if (!REQUEST_ID.test(requestId)) throw new StoreFault('storage', 'invalid_request_id');
  if (!Number.isInteger(index) || index < 0 || index > 9999) throw new StoreFault('storage', 'invalid_index');
}

/** The length to hold the file to. The provider's 0 means that it doesn't know. */
function expectedLength(file: ResultFile, download: Download): number | null {
  const stated = file.bytes !== null && Number.isInteger(file.bytes) && file.bytes > 0 ? file.bytes : null;
  const { contentLength } = download;
  if (stated !== null && contentLength !== null && stated !== contentLength)
    throw new StoreFault('length_mismatch');
  const expected = stated ?? contentLength;
  if (expected !== null && expected > MAX_FILE_BYTES) throw new StoreFault('too_large');
  return expected;
}

/** Memory is bounded: a chunk is on its way to the disk before the next one is taken from the socket. */
async function store(
  root: string,
  requestId: string,
  file: ResultFile,
  download: Download,
): Promise<StoredFile> {
  const announced = bareContentType(file.contentType) ?? bareContentType(download.contentType);
  const hash = createHash('sha256');
  let bytes = 0;
  const chunks = takeExactly(download.body, expectedLength(file, download), (chunk) => {
    bytes += chunk.byteLength;
    hash.update(chunk);
  });
  const head = await readHead(chunks);
  const format = detectMediaFormat(head, announced);
  if (format === null) throw new StoreFault('not_media');
  const { contentType, differs } = settleContentType(format, announced);
  const name = `${file.index}.${format}`;
  const target = await createAtomicFile(root, requestId, String(file.index));
  try {
    await target.write(head);
    for await (const chunk of chunks) await target.write(chunk);
    await target.commit(name);
  } finally {
    await target.discard();
  }
  const stored = {
    kind: 'stored',
    location: `${requestId}/${name}`,
    bytes,
    sha256: hash.digest('hex'),
    contentType,
  } as const;
  return differs ? { ...stored, warning: 'format_differs' } : stored;
}

async function* takeExactly(
  body: Readable,
  expected: number | null,
  onChunk: (chunk: Buffer) => void,
): AsyncGenerator<Buffer, void> {
  const limit = Math.min(expected ?? MAX_FILE_BYTES, MAX_FILE_BYTES);
  let total = 0;
  for await (const chunk of body as AsyncIterable<Buffer>) {
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
