import type { StreamEnd, SubmissionStream } from '../core/provider.ts';
import { READER_LEASE_MS } from '../core/stream.ts';
import { renewReader } from '../postgres/accepted-streams.ts';
import type { StreamFiles } from '../storage/directory-storage.ts';
import type { SubmissionContext } from './context.ts';
import type { AttemptIds } from './record-outcome.ts';

const RENEW_EVERY_MS = 15_000;

/** A stream that was read to its end, whatever that was; nothing of its sound is published. */
export interface ReadStream {
  readonly end: StreamEnd;
  readonly files: StreamFiles;
  readonly bytes: number;
}

/**
 * Reads one stream into storage, by the worker that sent the POST and after B1: nobody else can, ever. Renews the lease
 * meanwhile; undefined, with nothing left of it: the request isn't this attempt's to read, or not any more. Bounded by
 * the stream's own deadlines. Never rejects.
 */
export async function readStream(
  ctx: Pick<SubmissionContext, 'database' | 'storage'>,
  ids: AttemptIds,
  stream: SubmissionStream,
): Promise<ReadStream | undefined> {
  const files = ctx.storage?.storeStream(ids.requestId);
  let bytes = 0;
  let isOurs = true;
  let isRenewing = false;
  const renew = async () => {
    if (isRenewing) return;
    isRenewing = true;
    try {
      isOurs &&= await renewReader(ctx.database, ids, { leaseMs: READER_LEASE_MS, bytes });
    } catch {
      // A database that is away for as long as the lease will find it ended; till then, it goes on.
    }
    isRenewing = false;
    if (!isOurs) stream.cancel();
  };
  // The first says whose the request is by now.
  await renew();
  const renewal = setInterval(() => void renew(), RENEW_EVERY_MS);
  try {
    while (isOurs && files !== undefined) {
      const reading = await stream.read();
      if (reading.kind !== 'audio') {
        if (!isOurs) break;
        return { end: reading, files, bytes };
      }
      bytes += reading.bytes.byteLength;
      const failure = await files.write(reading.index, reading.bytes);
      if (failure !== undefined) return { end: endOfStorage(failure.reason), files, bytes };
    }
  } catch {
    // A provider that throws, against its word.
    if (isOurs && files !== undefined) return { end: THREW, files, bytes };
  } finally {
    clearInterval(renewal);
    stream.cancel();
  }
  await files?.discard();
  return undefined;
}

const THREW: StreamEnd = { kind: 'interrupted', errorCode: 'provider_threw' };

/** What is no media that we know is the provider's doing; a disk or bucket is ours. */
export function endOfStorage(reason: string): StreamEnd {
  return reason === 'not_media'
    ? { kind: 'interrupted', errorCode: 'stream_not_media' }
    : { kind: 'interrupted', errorCode: 'storage', isOurs: true };
}
