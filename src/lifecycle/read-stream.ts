import type { StreamEnd, StreamReading, SubmissionStream } from '../core/provider.ts';
import type { StreamFiles } from '../storage/directory-storage.ts';
import type { StoreFailure } from '../storage/store-result.ts';
import type { SubmissionContext } from './context.ts';
import { withDeadline } from './pause.ts';
import { printableCode } from './printable-code.ts';
import { type RenewContext, renewLease, type StreamReader } from './renew-lease.ts';

const RENEW_EVERY_MS = 15_000;
/** A provider ends its stream by itself within its deadline. */
const SILENCE_MARGIN_MS = 1_000;
/** Of a storage that keeps silent: nobody waits any longer for what is not to stay. */
const DISCARD_MS = 10_000;

/** A stream that was read to its end, whatever that was; nothing of its sound is published. */
export interface ReadStream {
  readonly end: StreamEnd;
  readonly files: StreamFiles;
  readonly bytes: number;
}

/**
 * Reads one stream into storage, by the worker that sent the POST and after B1: nobody else can, ever. Renews the lease
 * meanwhile; undefined, with nothing left of it: the request isn't this attempt's to read, or not any more. Bounded by
 * the total deadline, from here on, whatever stream and storage do. Never rejects.
 */
export async function readStream(
  ctx: RenewContext & Pick<SubmissionContext, 'storage'>,
  reader: StreamReader,
  stream: SubmissionStream,
): Promise<ReadStream | undefined> {
  const { attempt } = reader;
  const files = ctx.storage?.storeStream(attempt.requestId);
  const { totalMs } = ctx.settingsOf(attempt.operation).stream;
  const endsAt = performance.now() + totalMs + SILENCE_MARGIN_MS;
  const inTime = <T>(work: Promise<T>, late: T) => withDeadline(work, endsAt - performance.now(), late);
  let bytes = 0;
  const lease = keepLease(ctx, reader, { bytes: () => bytes, onLost: () => stream.cancel() });
  try {
    // The first says whose the request is by now.
    await lease.renew();
    while (lease.isOurs() && files !== undefined) {
      const reading = await inTime(stream.read(), SILENT);
      if (reading.kind !== 'audio') {
        if (!lease.isOurs()) break;
        return { end: withPrintableCode(reading), files, bytes };
      }
      bytes += reading.bytes.byteLength;
      const failure = await inTime(files.write(reading.index, reading.bytes), STALLED);
      if (failure !== undefined) return { end: endOfStorage(failure.reason), files, bytes };
    }
  } catch {
    // A provider that throws, against its word.
    if (lease.isOurs() && files !== undefined) return { end: THREW, files, bytes };
  } finally {
    lease.leave();
    stream.cancel();
  }
  if (files !== undefined) await discard(files);
  return undefined;
}

/** Renews it now and then, until it is left or lost. */
export function keepLease(
  ctx: RenewContext,
  reader: StreamReader,
  { bytes, onLost }: { readonly bytes: () => number; readonly onLost?: () => void },
) {
  let isOurs = true;
  let isRenewing = false;
  const renew = async () => {
    if (isRenewing) return;
    isRenewing = true;
    try {
      isOurs &&= await renewLease(ctx, reader, bytes());
    } catch {
      // A database that is away for as long as the lease will find it ended; till then, it goes on.
    }
    isRenewing = false;
    if (!isOurs) onLost?.();
  };
  const renewal = setInterval(() => void renew(), RENEW_EVERY_MS);
  return { isOurs: () => isOurs, renew, leave: () => clearInterval(renewal) };
}

/** What is left goes on by itself. */
export function discard(files: StreamFiles): Promise<void> {
  return withDeadline(files.discard(), DISCARD_MS, undefined);
}

const SILENT: StreamReading = { kind: 'interrupted', errorCode: 'provider_silent' };
export const STALLED: StoreFailure = {
  kind: 'failed',
  reason: 'storage',
  httpStatus: null,
  errorCode: 'stalled',
};
const THREW: StreamEnd = { kind: 'interrupted', errorCode: 'provider_threw' };

/** What an adapter tells is stored and logged. */
function withPrintableCode(end: StreamEnd): StreamEnd {
  switch (end.kind) {
    case 'complete':
      return end;
    case 'failed':
      return { ...end, errorCode: printableCode(end.errorCode) };
    case 'interrupted':
      return { ...end, errorCode: printableCode(end.errorCode) ?? 'unprintable' };
  }
}

/** What is no media that we know is the provider's doing; a disk or bucket is ours. */
export function endOfStorage(reason: string): StreamEnd {
  return reason === 'not_media'
    ? { kind: 'interrupted', errorCode: 'stream_not_media' }
    : { kind: 'interrupted', errorCode: 'storage', isOurs: true };
}
