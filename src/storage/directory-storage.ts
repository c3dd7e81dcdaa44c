import { resolve } from 'node:path';
import { createResultFetcher, type ResultFetcher, type ResultPlace } from './fetch-result.ts';
import { PartialFiles, tagOf } from './partial-files.ts';
import { type StreamFiles, storeStream } from './store-stream.ts';
import { hasStoredFile, openStoredFile } from './stored-file.ts';

export type { StoreRequest } from './fetch-result.ts';
export type { StoredFile, StoreFailure, StoreFailureReason, StoreResult } from './store-result.ts';
export type { StoredStreamFile, StreamFiles } from './store-stream.ts';

/** Keeps the finished files of a request. */
export interface ResultStorage extends ResultFetcher {
  /** Rejects when a package is missing; a storage that is away is waited for. */
  prepare(): Promise<void>;
  /** Rejects when nothing could be stored now: a package, a bucket or a right is missing. */
  check(): Promise<void>;
  /** Rejects when a file could not be begun now, as far as that can be told without a right that no file needs. */
  checkWritable(): Promise<void>;
  /** For the sound of one answer that is a stream. Nothing is made before the first bytes. */
  storeStream(requestId: string): StreamFiles;
  /** Whether a stored file is there still, and as long as it was. Rejects when the storage can't tell. */
  has(location: string, bytes: number): Promise<boolean>;
  /**
   * Read no faster than it is consumed, and closed when it is cancelled.
   * @throws OnetakeError `file_missing`, and `invalid_option` for what is no location of a storage
   */
  open(location: string, bytes: number | null): Promise<ReadableStream<Uint8Array>>;
}

export interface DirectoryStorageOptions {
  /** Made when it is absent. One per deployment: every poller and every reader must see the same. */
  readonly directory: string;
  /** Also permits `http:`. For the simulator, whose files are on loopback. */
  readonly allowPrivateHosts: boolean;
}

/**
 * Harmless when repeated, or done by two processes at once: the later rename wins, with the same content. A
 * location is relative to the directory, so that the directory can move.
 */
export function createDirectoryStorage(options: DirectoryStorageOptions): ResultStorage {
  const root = resolve(options.directory);
  const parts = new PartialFiles(root);
  const place: ResultPlace = {
    find: (requestId, index) => parts.find(requestId, index),
    continues: (part, { etag }) => tagOf(etag) === part.tag,
    begin: ({ requestId, index, etag }) => parts.begin(requestId, index, tagOf(etag)),
    remove: (location) => parts.unpublish(location),
  };
  return {
    ...createResultFetcher(place, options.allowPrivateHosts),
    storeStream: (requestId) => storeStream(place, requestId),
    prepare: async () => {},
    check: async () => {},
    checkWritable: () => parts.checkWritable(),
    has: (location, bytes) => hasStoredFile(root, location, bytes),
    open: (location, bytes) => openStoredFile(root, location, bytes),
  };
}
