import { decodeMedia, fileFields } from '../core/media.ts';
import type { EncodedFields } from '../core/operations.ts';
import { type OpenSource, openSourceFile, type SourceFault } from '../storage/source-file.ts';
import { withDeadline } from './pause.ts';

/** The local files of one attempt, open and compared with what was enqueued. */
export interface OpenSources {
  readonly files: Readonly<Record<string, OpenSource>>;
  close(): Promise<void>;
}

/** A share that hangs must not hold the attempt beyond its lease. */
const OPEN_TIMEOUT_MS = 10_000;

/**
 * Opens what is sent before a byte of it is: a file that is gone or another one is *unsent* then, and not a body
 * that breaks off. The intent is committed already, since only admission knows whose turn it is.
 */
export async function openSources(
  operation: string,
  fields: EncodedFields,
): Promise<OpenSources | SourceFault> {
  const opened = openAll(operation, fields);
  const sources = await withDeadline<OpenSources | SourceFault | undefined>(
    opened,
    OPEN_TIMEOUT_MS,
    undefined,
  );
  if (sources !== undefined) return sources;
  void opened.then((late) => (typeof late === 'string' ? undefined : late.close()));
  return 'media_unreadable';
}

async function openAll(operation: string, fields: EncodedFields): Promise<OpenSources | SourceFault> {
  const files: Record<string, OpenSource> = {};
  const close = async () => {
    await Promise.all(Object.values(files).map((file) => file.close().catch(() => undefined)));
  };
  for (const name of fileFields(operation, fields)) {
    let source: OpenSource | SourceFault;
    try {
      source = await openSourceFile(decodeMedia(fields[name] as string));
    } catch {
      source = 'media_unreadable';
    }
    if (typeof source === 'string') {
      await close();
      return source;
    }
    files[name] = source;
  }
  return { files, close };
}
