import type { Emit } from '../core/events.ts';
import type { ResultFile } from '../core/provider.ts';
import type { NewAsset } from '../postgres/accepted-tasks.ts';
import type { ResultStorage } from '../storage/directory-storage.ts';

export interface HandOffContext {
  readonly storage: ResultStorage | null;
  readonly emit: Emit;
  readonly downloadTimeoutMs: number;
  /** Aborted: files under way are given up, and left to whoever takes the task next. */
  readonly giveUp?: AbortSignal;
}

export type HandOff =
  | { readonly done: true; readonly assets: readonly NewAsset[]; readonly warnings: readonly string[] }
  /** Some file is not safe yet. The task is read again, which also gives fresh URLs. */
  | { readonly done: false; readonly errorCode: string };

/**
 * Moves a finished task's files to safety before its request says `succeeded`. Harmless twice, from two
 * processes at once, and after a crash at any point: files appear under their name only whole and verified.
 */
export async function handOff(
  ctx: HandOffContext,
  requestId: string,
  files: readonly ResultFile[],
): Promise<HandOff> {
  if (ctx.storage === null) return { done: true, assets: files.map(linked), warnings: [] };
  const assets: NewAsset[] = [];
  const warnings: string[] = [];
  for (const file of files) {
    const { downloadTimeoutMs: timeoutMs, giveUp } = ctx;
    const stored = await ctx.storage.fetchAndStore({
      requestId,
      file,
      timeoutMs,
      ...(giveUp === undefined ? {} : { giveUp }),
    });
    if (stored.kind === 'failed' && giveUp?.aborted === true) return { done: false, errorCode: 'given_up' };
    if (stored.kind === 'failed') {
      ctx.emit('asset:failed', { requestId, index: file.index, errorCode: stored.reason });
      return { done: false, errorCode: stored.reason };
    }
    ctx.emit('asset:stored', { requestId, index: file.index, bytes: stored.bytes });
    if (stored.warning !== undefined) warnings.push(stored.warning);
    const { location, bytes, sha256, contentType } = stored;
    assets.push({ ...placeOf(file), contentType, bytes, sha256, location, stored: true });
  }
  return { done: true, assets, warnings };
}

/** Without storage the provider's temporary URL is the result, and its column is the only place for it. */
function linked(file: ResultFile): NewAsset {
  const { contentType, bytes, url } = file;
  return { ...placeOf(file), contentType, bytes, sha256: null, location: url, stored: false };
}

function placeOf({ index, kind, variant, label }: ResultFile) {
  return { index, kind, variant, label };
}
