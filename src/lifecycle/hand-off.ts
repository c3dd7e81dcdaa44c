import type { Emit } from '../core/events.ts';
import type { ResultFile } from '../core/provider.ts';
import type { NewAsset } from '../postgres/accepted-tasks.ts';
import type { FileRow } from '../postgres/request-overview.ts';
import type { ResultStorage, StoreFailure } from '../storage/directory-storage.ts';

export interface HandOffContext {
  readonly storage: ResultStorage | null;
  readonly emit: Emit;
  readonly downloadTimeoutMs: number;
  /** Aborted: files under way are given up, and left to whoever takes the task next. */
  readonly giveUp?: AbortSignal;
}

export interface FinishedTask {
  readonly requestId: string;
  readonly files: readonly ResultFile[];
  /** Recorded by an earlier run. */
  readonly known: readonly FileRow[];
  /** Records a file that is safe, at once; false: the request isn't waiting for its files any more. */
  readonly record: (asset: NewAsset) => Promise<boolean>;
  readonly onProgress: (progress: FileProgress) => void;
}

export interface FileProgress {
  readonly index: number;
  readonly bytes: number;
  readonly totalBytes: number | null;
}

export type HandOff =
  | { readonly done: true; readonly assets: readonly NewAsset[]; readonly warnings: readonly string[] }
  /** Some file is not safe yet. The task is read again, which also gives fresh URLs. */
  | {
      readonly done: false;
      readonly errorCode: string;
      /** By the file host's own word it can't be had: not for want of a network or a disk of ours. */
      readonly gone: boolean;
    };

/**
 * Moves a finished task's files to safety before its request says `succeeded`. Harmless twice, from two
 * processes at once, and after a crash at any point: files appear under their name only whole and verified, each is
 * recorded when it is safe, and one that was cut is gone on with.
 */
export async function handOff(ctx: HandOffContext, task: FinishedTask): Promise<HandOff> {
  const assets: NewAsset[] = [];
  const warnings: string[] = [];
  for (const file of task.files) {
    const brought = await bringIn(ctx, task, file);
    if ('kind' in brought) return failure(ctx, task.requestId, file.index, brought);
    if (brought.isNew && !(await task.record(brought.asset))) {
      return { done: false, errorCode: 'superseded', gone: false };
    }
    if (brought.isNew && brought.asset.stored) {
      ctx.emit('asset:stored', {
        requestId: task.requestId,
        index: file.index,
        bytes: brought.asset.bytes ?? 0,
      });
    }
    if (brought.warning !== undefined) warnings.push(brought.warning);
    assets.push(brought.asset);
  }
  return { done: true, assets, warnings };
}

interface BroughtIn {
  readonly asset: NewAsset;
  /** Not recorded yet. */
  readonly isNew: boolean;
  readonly warning?: string;
}

async function bringIn(
  ctx: HandOffContext,
  task: FinishedTask,
  file: ResultFile,
): Promise<BroughtIn | StoreFailure> {
  const { storage, downloadTimeoutMs: timeoutMs, giveUp } = ctx;
  const { requestId, known, onProgress } = task;
  const { index } = file;
  if (storage === null) return { asset: linked(file), isNew: true };
  const earlier = known.find((asset) => asset.index === index && asset.storedAt !== null);
  try {
    if (earlier !== undefined && (await storage.has(earlier.location, earlier.bytes ?? 0))) {
      const { contentType, bytes, sha256, location } = earlier;
      return {
        asset: { ...placeOf(file), contentType, bytes, sha256, location, stored: true },
        isNew: false,
      };
    }
  } catch {
    return { kind: 'failed', reason: 'storage', httpStatus: null, errorCode: 'unavailable' };
  }
  const result = await storage.fetchAndStore({
    requestId,
    file,
    timeoutMs,
    onProgress: (bytes, totalBytes) => onProgress({ index, bytes, totalBytes }),
    ...(giveUp === undefined ? {} : { giveUp }),
  });
  if (result.kind === 'failed') return result;
  const { location, bytes, sha256, contentType, warning } = result;
  const asset = { ...placeOf(file), contentType, bytes, sha256, location, stored: true };
  return { asset, isNew: true, ...(warning === undefined ? {} : { warning }) };
}

const OURS: ReadonlySet<StoreFailure['reason']> = new Set(['storage', 'transport']);

function failure(ctx: HandOffContext, requestId: string, index: number, { reason }: StoreFailure): HandOff {
  if (ctx.giveUp?.aborted === true) return { done: false, errorCode: 'given_up', gone: false };
  ctx.emit('asset:failed', { requestId, index, errorCode: reason });
  return { done: false, errorCode: reason, gone: !OURS.has(reason) };
}

/** Without storage the provider's temporary URL is the result, and its column is the only place for it. */
function linked(file: ResultFile): NewAsset {
  const { contentType, bytes, url } = file;
  return { ...placeOf(file), contentType, bytes, sha256: null, location: url, stored: false };
}

function placeOf({ index, kind, variant, label }: ResultFile) {
  return { index, kind, variant, label };
}
