import { createHash, type Hash } from 'node:crypto';
import { type Draft, type ResultPlace, requireFileName } from './fetch-result.ts';
import { detectMediaFormat, SIGNATURE_BYTES, settleContentType } from './media-signature.ts';
import { plainErrorCode, type StoredFile, type StoreFailure, StoreFault } from './store-result.ts';

export interface StoredStreamFile extends StoredFile {
  readonly index: number;
}

/** The files of one stream, on their way into a storage. Nothing of them is to be seen before `publish`. */
export interface StreamFiles {
  /** Resolves when the bytes are with the storage, or says why they are not. Never rejects. */
  write(index: number, bytes: Uint8Array): Promise<StoreFailure | undefined>;
  /** All of them, whole, under their names, by index; after a failure `discard` them. Never rejects. */
  publish(): Promise<readonly StoredStreamFile[] | StoreFailure>;
  /** Nobody has recorded them, and nobody will: what is there of them goes, published or not. Never rejects. */
  discard(): Promise<void>;
}

/** What a stream doesn't say of its sound; MP4 that holds sound alone begins as a video does. */
const ANNOUNCED = 'audio/mp4';

export function storeStream(place: ResultPlace, requestId: string): StreamFiles {
  const files = new Map<number, StreamFile>();
  const published: string[] = [];
  let isDiscarded = false;
  const unpublish = (location: string) => place.remove(location).catch(() => undefined);

  return {
    write: (index, bytes) =>
      orFailure(async () => {
        let file = files.get(index);
        if (file === undefined) {
          file = new StreamFile(place, requestId, index);
          files.set(index, file);
        }
        await file.write(bytes);
        return undefined;
      }),

    publish: () =>
      orFailure(async () => {
        const stored: StoredStreamFile[] = [];
        // Each is known for what it is before the first is shown.
        for (const file of files.values()) await file.recognise();
        for (const [, file] of [...files].sort(([a], [b]) => a - b)) {
          if (isDiscarded) throw new StoreFault('storage', 'discarded');
          const one = await file.commit();
          published.push(one.location);
          // Whoever waited for it has given it up.
          if (isDiscarded) await unpublish(one.location);
          stored.push(one);
        }
        return stored;
      }),

    async discard() {
      isDiscarded = true;
      for (const location of published) await unpublish(location);
      // Beside each other: one that keeps silent must not keep the others.
      await Promise.all(Array.from(files.values(), (file) => file.discard()));
    },
  };
}

interface Begun {
  readonly draft: Draft;
  readonly location: string;
  readonly contentType: string;
}

class StreamFile {
  readonly #place: ResultPlace;
  readonly #requestId: string;
  readonly #index: number;
  readonly #hash: Hash = createHash('sha256');
  #head: Buffer = Buffer.alloc(0);
  #bytes = 0;
  #begun: Begun | undefined;

  constructor(place: ResultPlace, requestId: string, index: number) {
    requireFileName(requestId, index);
    this.#place = place;
    this.#requestId = requestId;
    this.#index = index;
  }

  async write(bytes: Uint8Array): Promise<void> {
    this.#hash.update(bytes);
    this.#bytes += bytes.byteLength;
    if (this.#begun !== undefined) {
      await this.#begun.draft.write(bytes);
      return;
    }
    this.#head = Buffer.concat([this.#head, bytes]);
    if (this.#head.length >= SIGNATURE_BYTES) await this.recognise();
  }

  /** Begins the draft by what its first bytes say that it is. */
  async recognise(): Promise<void> {
    if (this.#begun !== undefined) return;
    const format = detectMediaFormat(this.#head, ANNOUNCED);
    if (format === null) throw new StoreFault('not_media');
    const { contentType } = settleContentType(format, null);
    const location = `${this.#requestId}/${this.#index}.${format}`;
    const order = { requestId: this.#requestId, index: this.#index, location, contentType, etag: null };
    const draft = await this.#place.begin(order);
    this.#begun = { draft, location, contentType };
    await draft.write(this.#head);
    this.#head = Buffer.alloc(0);
  }

  async commit(): Promise<StoredStreamFile> {
    await this.recognise();
    const { draft, location, contentType } = this.#begun as Begun;
    const sha256 = this.#hash.digest('hex');
    await draft.commit(location, sha256);
    return { kind: 'stored', index: this.#index, location, bytes: this.#bytes, sha256, contentType };
  }

  async discard(): Promise<void> {
    await this.#begun?.draft.discard(false);
  }
}

async function orFailure<T>(work: () => Promise<T>): Promise<T | StoreFailure> {
  try {
    return await work();
  } catch (error) {
    const fault = error instanceof StoreFault ? error : new StoreFault('storage', plainErrorCode(error));
    const { reason, errorCode } = fault;
    return { kind: 'failed', reason, httpStatus: null, errorCode };
  }
}
