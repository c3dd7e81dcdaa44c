import { createDirectoryStorage, type ResultStorage } from '../storage/directory-storage.ts';
import { createS3Storage } from '../storage/s3-storage.ts';
import type { ResolvedStorage } from './options.ts';

/** Where this process keeps files; null: nowhere, only their temporary URLs. */
export function resultStorage({ directory, s3, allowPrivateHosts }: ResolvedStorage): ResultStorage | null {
  if (s3 !== null) return createS3Storage(s3, allowPrivateHosts);
  return directory === null ? null : createDirectoryStorage({ directory, allowPrivateHosts });
}
