import { randomUUID } from 'node:crypto';
import { mkdtemp, readdir, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach } from 'vitest';
import type { ResultFile } from '../../src/core/provider.ts';
import {
  createDirectoryStorage,
  type ResultStorage,
  type StoreResult,
} from '../../src/storage/directory-storage.ts';
import { type Answer, type FileServer, startFileServer } from './file-server.ts';

export interface StorageFixture {
  directory: string;
  requestId: string;
  /** Allows private hosts, so that it reaches the file server. */
  storage: ResultStorage;
  serve(answer: Answer): Promise<FileServer>;
  fetchFrom(answer: Answer, file?: Partial<ResultFile>, timeoutMs?: number): Promise<StoreResult>;
  /** The name of every file below the directory, so that a half file or a leftover shows. */
  tree(): Promise<string[]>;
}

export const resultFile = (url: string, more: Partial<ResultFile> = {}): ResultFile => ({
  index: 0,
  kind: 'audio',
  variant: 0,
  label: null,
  url,
  contentType: 'audio/wav',
  bytes: null,
  ...more,
});

/** A fresh directory, storage and request for each test of the file. */
export function useStorage(): StorageFixture {
  const servers: FileServer[] = [];
  const fixture = {
    async serve(answer) {
      const server = await startFileServer(answer);
      servers.push(server);
      return server;
    },
    async fetchFrom(answer, file, timeoutMs = 10_000) {
      const { url } = await fixture.serve(answer);
      const { requestId, storage } = fixture;
      return storage.fetchAndStore({ requestId, file: resultFile(url, file), timeoutMs });
    },
    async tree() {
      const entries = await readdir(fixture.directory, { recursive: true, withFileTypes: true });
      return entries.filter((entry) => entry.isFile()).map((entry) => entry.name);
    },
  } as StorageFixture;

  beforeEach(async () => {
    fixture.directory = await mkdtemp(join(tmpdir(), 'onetake-storage-'));
    fixture.requestId = randomUUID();
    fixture.storage = createDirectoryStorage({ directory: fixture.directory, allowPrivateHosts: true });
  });

  afterEach(async () => {
    for (const server of servers.splice(0)) await server[Symbol.asyncDispose]();
    await fixture.storage.close();
    await rm(fixture.directory, { recursive: true, force: true });
  });

  return fixture;
}
