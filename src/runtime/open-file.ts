import { resolve } from 'node:path';
import { OnetakeError } from '../core/errors.ts';
import type { Sql } from '../postgres/database.ts';
import { listFiles } from '../postgres/request-overview.ts';
import { openStoredFile } from '../storage/stored-file.ts';
import type { ResolvedStorage } from './options.ts';

/** One stored file of a request, whose row says where it lies and how long it is. */
export async function openFile(
  sql: Sql,
  storage: ResolvedStorage,
  requestId: string,
  index: number,
): Promise<ReadableStream<Uint8Array>> {
  if (!Number.isInteger(index)) {
    throw new OnetakeError('invalid_option', 'index: expected a whole number, as in files[].index.');
  }
  const file = (await listFiles(sql, requestId)).find((candidate) => candidate.index === index);
  if (file === undefined) {
    throw new OnetakeError('file_not_found', `Request ${requestId} has no file ${index}.`, {
      hint: 'files[] of the request says which there are; before `succeeded` there is none.',
    });
  }
  if (file.storedAt === null) {
    throw new OnetakeError('file_not_stored', `File ${index} of request ${requestId} was not stored.`, {
      hint: 'No storage was configured where it was followed: files[].location is its temporary URL.',
    });
  }
  const { directory, s3 } = storage;
  if (s3 !== null) {
    // Only now: an app without a bucket loads nothing of this.
    const { createS3Objects } = await import('../storage/s3-objects.ts');
    return createS3Objects(s3).open(file.location, file.bytes);
  }
  if (directory === null) {
    throw new OnetakeError('storage_not_configured', 'This client has no storage to read files from.', {
      hint: 'Pass createClient the `config` of the pollers, with the same storage.',
    });
  }
  return openStoredFile(resolve(directory), file.location, file.bytes);
}
