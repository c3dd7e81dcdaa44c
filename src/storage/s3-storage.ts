import { once } from 'node:events';
import { PassThrough } from 'node:stream';
import type { ResultStorage } from './directory-storage.ts';
import { createResultFetcher, type Draft, type NewDraft, type ResultPlace } from './fetch-result.ts';
import { createS3Objects, type ObjectName, type S3Location, type Sdk } from './s3-objects.ts';
import { plainErrorCode, StoreFault } from './store-result.ts';
import { storeStream } from './store-stream.ts';

/** Of memory for a file under way, twice; and the smallest that every store takes is 5 MiB. */
const PART_BYTES = 8 * 1024 * 1024;
/** Of a bucket that keeps silent: nobody waits any longer for the end of an upload that is given up. */
const ABORT_AFTER_MS = 5_000;

/**
 * A bucket of S3, or of what speaks like it. Credentials are the SDK's own business: they are found by its chain, and
 * nothing of ours holds or prints them. An object is there whole or not at all, by the nature of the store; an upload
 * that fails is aborted, so that no part of it is left to pay for.
 */
export function createS3Storage(at: S3Location, allowPrivateHosts: boolean): ResultStorage {
  const objects = createS3Objects(at);
  const place: ResultPlace = {
    // What was uploaded of an object can't be read back, so nothing is gone on with.
    find: async () => null,
    continues: () => false,
    begin: async (draft) => beginUpload(objects.sdk(), objects.nameOf(draft.location), draft),
    remove: (location) => inBucket(objects.remove(location)),
  };
  const fetcher = createResultFetcher(place, allowPrivateHosts);
  return {
    ...fetcher,
    storeStream: (requestId) => storeStream(place, requestId),
    async prepare() {
      objects.sdk();
    },
    async checkWritable() {
      objects.sdk();
    },
    async check() {
      const { s3, client } = objects.sdk();
      await client.send(new s3.HeadBucketCommand({ Bucket: at.bucket }));
    },
    has: async (location, bytes) => (await objects.lengthOf(location)) === bytes,
    open: (location, bytes) => objects.open(location, bytes),
    async close() {
      await fetcher.close();
      objects.close();
    },
  };
}

function beginUpload({ s3, lib, client }: Sdk, object: ObjectName, { contentType }: NewDraft): Draft {
  const body = new PassThrough({ highWaterMark: PART_BYTES });
  const upload = new lib.Upload({
    client,
    params: { ...object, Body: body, ContentType: contentType },
    queueSize: 1,
    partSize: PART_BYTES,
    leavePartsOnError: false,
  });
  const done = upload.done();
  // It may fail while nobody waits for it; whoever writes next hears of it.
  done.catch(() => undefined);
  let settled = false;
  return {
    async write(chunk) {
      if (body.write(chunk)) return;
      await inBucket(Promise.race([once(body, 'drain'), done]));
    },
    async commit() {
      body.end();
      await inBucket(done);
      settled = true;
      await abortOthers({ s3, client }, object).catch(() => undefined);
    },
    async discard() {
      if (settled) return;
      settled = true;
      // Ended by an error, never by an end: what came so far must not become an object.
      body.on('error', () => undefined);
      body.destroy(new Error('discarded'));
      // By itself it waits for the part under way, and aborts the upload before it ends; `abort` does neither.
      const silent = setTimeout(() => void upload.abort(), ABORT_AFTER_MS);
      await done.catch(() => undefined);
      clearTimeout(silent);
    },
  };
}

/** Of processes that were killed in the middle of the same file, which is whole now. Not every store can tell. */
async function abortOthers(
  { s3, client }: Pick<Sdk, 's3' | 'client'>,
  { Bucket, Key }: ObjectName,
): Promise<void> {
  const { Uploads = [] } = await client.send(new s3.ListMultipartUploadsCommand({ Bucket, Prefix: Key }));
  for (const { Key: key, UploadId } of Uploads) {
    if (key !== Key || UploadId === undefined) continue;
    await client.send(new s3.AbortMultipartUploadCommand({ Bucket, Key, UploadId }));
  }
}

async function inBucket<T>(work: Promise<T>): Promise<T> {
  try {
    return await work;
  } catch (error) {
    throw new StoreFault('storage', plainErrorCode(error));
  }
}
