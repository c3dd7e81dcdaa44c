import { createHash } from 'node:crypto';
import { constants } from 'node:fs';
import { type FileHandle, open, stat } from 'node:fs/promises';
import { resolve } from 'node:path';
import { OnetakeError } from '../core/errors.ts';
import type { MediaLimit } from '../core/field-limits.ts';
import { type FieldProblem, problem } from '../core/field-problems.ts';
import { checkMedia, encodeMedia, type MediaReference } from '../core/media.ts';
import type { SourceFile } from '../core/provider.ts';
import { readMediaInfo } from './media-info.ts';

const READ_BYTES = 256 * 1024;

/** A customer's file as it is at enqueue: its reference as form text, or why the provider would refuse it. */
export async function inspectSourceFile(
  field: string,
  path: string,
  limit: MediaLimit | undefined,
): Promise<{ readonly text: string } | { readonly problems: readonly FieldProblem[] }> {
  const file = resolve(path);
  const opened = await openRegular(file);
  if (typeof opened === 'string') return { problems: [problem(opened, field, MESSAGES[opened])] };
  try {
    const { handle, bytes } = opened;
    const unread = { bytes, container: null, codec: null, seconds: null };
    const tooLarge = limit !== undefined && bytes > limit.maxBytes;
    const facts = bytes === 0 || tooLarge ? unread : await readMediaInfo(handle, bytes);
    const problems = checkMedia(field, facts, limit);
    // Nobody reads on in what is too large.
    if (problems.length > 0) return { problems: tooLarge ? problems.slice(0, 1) : problems };
    const sha256 = await digestOf(handle, bytes);
    if (sha256 === null) {
      return { problems: [problem('media_unreadable', field, 'the file changed while it was read.')] };
    }
    return { text: encodeMedia({ file, bytes, sha256, container: facts.container ?? 'bin' }) };
  } catch (error) {
    if (error instanceof OnetakeError) throw error;
    return { problems: [problem('media_unreadable', field, MESSAGES.media_unreadable)] };
  } finally {
    await opened.handle.close();
  }
}

const MESSAGES = {
  media_missing: 'there is no file at that path (not shown).',
  media_unreadable: 'expected a media file that can be read (its path is not shown).',
} as const;

/** Why a file can't be sent; nothing of it has left then. */
export type SourceFault = 'media_missing' | 'media_unreadable' | 'media_changed';

/** Open, and read once through: what it holds is what was enqueued. */
export interface OpenSource extends SourceFile {
  close(): Promise<void>;
}

/**
 * Opens the file once, for one attempt, and compares its content with what was enqueued. The same descriptor is
 * what is sent, so another file that takes its place meanwhile is not.
 */
export async function openSourceFile(reference: MediaReference): Promise<OpenSource | SourceFault> {
  const opened = await openRegular(reference.file);
  if (typeof opened === 'string') return opened;
  const { handle, bytes } = opened;
  try {
    const same = bytes === reference.bytes && (await digestOf(handle, bytes)) === reference.sha256;
    if (same) return sourceOf(handle, reference);
    await handle.close();
    return 'media_changed';
  } catch {
    await handle.close();
    return 'media_unreadable';
  }
}

function sourceOf(handle: FileHandle, { bytes, sha256, container }: MediaReference): OpenSource {
  let isTaken = false;
  return {
    bytes,
    container,
    async *chunks() {
      if (isTaken) throw sourceError('media_sent_before');
      isTaken = true;
      const hash = createHash('sha256');
      let held: Buffer | undefined;
      for await (const chunk of readOrFault(handle, bytes)) {
        hash.update(chunk);
        if (held !== undefined) yield held;
        held = chunk;
      }
      // Written to while it was sent: the last piece is kept back, so that the provider never has it whole.
      if (held === undefined || hash.digest('hex') !== sha256) throw sourceError('media_changed');
      yield held;
    },
    close: () => handle.close(),
  };
}

/** Null when it is shorter than it was. */
async function digestOf(handle: FileHandle, bytes: number): Promise<string | null> {
  const hash = createHash('sha256');
  let length = 0;
  for await (const chunk of read(handle, bytes)) {
    hash.update(chunk);
    length += chunk.length;
  }
  return length === bytes ? hash.digest('hex') : null;
}

/** From its beginning, so many bytes at most, whatever was read before: a descriptor has one place of its own. */
async function* read(handle: FileHandle, bytes: number): AsyncGenerator<Buffer> {
  for (let position = 0; position < bytes; ) {
    const chunk = Buffer.allocUnsafe(Math.min(READ_BYTES, bytes - position));
    const { bytesRead } = await handle.read(chunk, 0, chunk.length, position);
    if (bytesRead === 0) return;
    position += bytesRead;
    yield chunk.subarray(0, bytesRead);
  }
}

/** A disk that fails is no failure of the provider, and is told by our own code. */
async function* readOrFault(handle: FileHandle, bytes: number): AsyncGenerator<Buffer> {
  try {
    yield* read(handle, bytes);
  } catch {
    throw sourceError('media_unreadable');
  }
}

async function openRegular(
  path: string,
): Promise<{ readonly handle: FileHandle; readonly bytes: number } | 'media_missing' | 'media_unreadable'> {
  try {
    // Before it is opened: opening a device may do something, and a pipe without a writer waits for one.
    if (!(await stat(path)).isFile()) return 'media_unreadable';
    const handle = await open(path, constants.O_RDONLY | constants.O_NONBLOCK);
    const found = await handle.stat();
    if (found.isFile()) return { handle, bytes: found.size };
    await handle.close();
    return 'media_unreadable';
  } catch (error) {
    const code = (error as NodeJS.ErrnoException).code;
    return code === 'ENOENT' || code === 'ENOTDIR' ? 'media_missing' : 'media_unreadable';
  }
}

function sourceError(code: string): Error {
  return Object.assign(new Error(code), { code });
}
