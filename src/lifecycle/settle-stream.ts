import { deliveryWarnings } from '../core/delivery.ts';
import type { EncodedFields } from '../core/operations.ts';
import type { StreamEnd } from '../core/provider.ts';
import { judgeStreamEnd, READER_LOST, type StreamVerdict } from '../core/stream.ts';
import { failStream, writeStreamEnd } from '../postgres/accepted-streams.ts';
import { insertAssets, type NewAsset, succeedRequest } from '../postgres/accepted-tasks.ts';
import { endConcurrencyPause } from '../postgres/accounts.ts';
import { retryDelayMs, type Sql } from '../postgres/database.ts';
import { databaseErrorCode, isPassing } from '../postgres/errors.ts';
import { lockRequest } from '../postgres/generation-requests.ts';
import { notify } from '../postgres/notifications.ts';
import { lockAttempt } from '../postgres/submission-attempts.ts';
import type { StoredStreamFile } from '../storage/directory-storage.ts';
import { applyHealth } from './apply-health.ts';
import type { RescueContext, SubmissionContext } from './context.ts';
import { pause, unlessGivenUp, withDeadline } from './pause.ts';
import { discard, endOfStorage, keepLease, type ReadStream, STALLED } from './read-stream.ts';
import type { AttemptIds } from './record-outcome.ts';
import { renewLease, type StreamReader } from './renew-lease.ts';

/** Tries of a transaction that fails for another reason than a database that is away. */
const TRIES = 600;

/** For all files of one stream: megabytes may be on their way into a bucket. */
const PUBLISH_MS = 120_000;

/** What the end of a stream leaves behind. */
export interface Ending {
  readonly verdict: StreamVerdict;
  readonly files: readonly StoredStreamFile[];
  readonly warnings: readonly string[];
  readonly document: Extract<StreamEnd, { kind: 'complete' }>['document'];
  /** Read of it, published or not. */
  readonly bytes: number;
}

/**
 * Ends a request by its stream: files under their names, then one transaction, then the health. Published means that
 * the request is this attempt's still, by its lease before and by its row after: else nothing of it stays. Tried until
 * `giveUp` is aborted; then rescue ends it, when the lease is over. Files under way are `uncut` by a stop. What was
 * recorded; undefined: nothing, as far as anybody knows.
 */
export async function settleStream(
  ctx: SubmissionContext,
  reader: StreamReader,
  { end, files, bytes }: ReadStream,
  giveUp: AbortSignal,
  uncut: <T>(work: Promise<T>) => Promise<T> = (work) => work,
): Promise<Ending | undefined> {
  const { attempt } = reader;
  const ids = { attemptId: attempt.attemptId, requestId: attempt.requestId };
  const patiently = <T>(work: () => Promise<T>) => untilGivenUp(ctx, giveUp, work);
  let ending: Ending = { ...endingOf(end, [], attempt), bytes };
  if (end.kind === 'complete') {
    if ((await patiently(() => renewLease(ctx, reader, bytes))) !== true) {
      await discard(files);
      return undefined;
    }
    const lease = keepLease(ctx, reader, { bytes: () => bytes });
    const published = await uncut(withDeadline(files.publish(), PUBLISH_MS, STALLED));
    lease.leave();
    const [how, stored] =
      'reason' in published ? ([endOfStorage(published.reason), []] as const) : ([end, published] as const);
    ending = { ...endingOf(how, stored, attempt), bytes };
  }
  const record = () => ctx.database.transaction((tx) => recordStreamEnd(tx, ids, ending, 'reader'));
  const recorded = await patiently(record);
  // One that was given up may be committed still, and then its files are recorded.
  const mayStand = ending.verdict.to === 'succeeded' && recorded?.isSuperseded !== true;
  if (!mayStand) await discard(files);
  if (recorded === undefined || recorded.isSuperseded) return undefined;
  report(ctx, ids, ending);
  if (recorded.healthDue) await unlessGivenUp(giveUp, () => applyHealth(ctx, ids.attemptId));
  return ending;
}

/** The end of a stream that was recorded, on a database that has forgotten it; true when it is recorded again. */
export async function recordEndAgain(ctx: RescueContext, ids: AttemptIds, ending: Ending): Promise<boolean> {
  const record = (tx: Sql) => recordStreamEnd(tx, ids, ending, 'reader');
  const { isSuperseded } = await ctx.database.retryingTransaction(record);
  if (!isSuperseded) report(ctx, ids, ending);
  return !isSuperseded;
}

/** Rescue: nobody has been heard of who reads it, and nobody else can. */
export async function rescueLostReader(
  ctx: RescueContext,
  ids: AttemptIds,
  patience: Parameters<RescueContext['database']['retryingTransaction']>[1],
): Promise<boolean> {
  const verdict = judgeStreamEnd(READER_LOST);
  const ending: Ending = { verdict, files: [], warnings: [], document: null, bytes: 0 };
  const record = (tx: Sql) => recordStreamEnd(tx, ids, ending, 'rescue');
  const { isSuperseded } = await ctx.database.retryingTransaction(record, patience);
  if (!isSuperseded) report(ctx, ids, ending);
  return !isSuperseded;
}

function endingOf(
  end: StreamEnd,
  files: readonly StoredStreamFile[],
  { operation, fields }: { readonly operation: string; readonly fields: EncodedFields },
): Omit<Ending, 'bytes'> {
  const verdict = judgeStreamEnd(end);
  if (end.kind !== 'complete') return { verdict, files: [], warnings: [], document: null };
  const delivered = files.map(({ index, contentType }) => ({ variant: index, label: null, contentType }));
  const warnings = [...deliveryWarnings(operation, fields, delivered)];
  if (end.streams !== null && files.length < end.streams) warnings.push('fewer_streams');
  return { verdict, files, warnings, document: end.document };
}

interface RecordedEnd {
  /** The request isn't this attempt's to end, or not any more: nothing was written. */
  readonly isSuperseded: boolean;
  readonly healthDue: boolean;
}

/** Locks request, attempt and account, in this order. Harmless twice. */
async function recordStreamEnd(
  tx: Sql,
  { requestId, attemptId }: AttemptIds,
  { verdict, files, warnings, document }: Ending,
  teller: 'reader' | 'rescue',
): Promise<RecordedEnd> {
  const request = await lockRequest(tx, requestId);
  const attempt = request && (await lockAttempt(tx, attemptId));
  if (request === undefined || attempt === undefined) return { isSuperseded: true, healthDue: false };
  const isOurs = request.isRead && request.streamAttemptId === attemptId && attempt.streamEndedAt === null;
  if (!isOurs || (teller === 'rescue' && !request.readerIsLost)) {
    // By a commit whose answer was lost: only its reader ends a stream like that.
    const isRepeat =
      teller === 'reader' && request.state === verdict.to && attempt.streamEnd === verdict.code;
    return { isSuperseded: !isRepeat, healthDue: isRepeat && attempt.streamHealthAppliedAt === null };
  }
  const { healthDue, freedSlot } = await writeStreamEnd(tx, attemptId, verdict);
  if (freedSlot) {
    await endConcurrencyPause(tx, request.account);
    await notify(tx, 'slot');
  }
  const { failureReason, code } = verdict;
  if (failureReason !== null) await failStream(tx, requestId, { failureReason, code });
  else {
    await insertAssets(tx, requestId, files.map(assetOf));
    await succeedRequest(tx, requestId, { status: 'stored', document, warnings });
  }
  return { isSuperseded: false, healthDue };
}

function assetOf({ index, contentType, bytes, sha256, location }: StoredStreamFile): NewAsset {
  const place = { index, kind: 'audio', variant: index, label: null };
  return { ...place, contentType, bytes, sha256, location, stored: true };
}

function report(
  ctx: Pick<RescueContext, 'emit'>,
  { requestId, attemptId }: AttemptIds,
  { verdict, files, bytes }: Ending,
): void {
  for (const { index, bytes: size } of files) ctx.emit('asset:stored', { requestId, index, bytes: size });
  const { to, failureReason, code, health } = verdict;
  const event = { requestId, attemptId, to, failureReason, code, health, files: files.length, bytes };
  ctx.emit('stream:ended', event);
}

/** A database that is away is waited for: what was paid for is in hand. Undefined: given up. */
async function untilGivenUp<T>(
  ctx: Pick<RescueContext, 'emit'>,
  giveUp: AbortSignal,
  work: () => Promise<T>,
): Promise<T | undefined> {
  for (let tried = 1; !giveUp.aborted; tried++) {
    try {
      return await unlessGivenUp(giveUp, work);
    } catch (error) {
      const errorCode = databaseErrorCode(error);
      if (tried === 1) ctx.emit('process:trouble', { role: 'worker', loop: 'stream', errorCode });
      if (tried >= TRIES && !isPassing(error)) return undefined;
    }
    await pause(retryDelayMs(tried), giveUp);
  }
  return undefined;
}
