import { randomBytes } from 'node:crypto';
import type { EncodedFields } from '../../core/operations.ts';
import type { SourceFile } from '../../core/provider.ts';

export interface FormBody {
  readonly contentType: string;
  /** Exact, and announced: a body that ends early is never a whole request. */
  readonly bytes: number;
  /** In memory where there is no file; else its pieces, which can be had once, so that nothing can send them again. */
  readonly body: Buffer | AsyncGenerator<Uint8Array>;
}

/**
 * The stored fields, all of them and as they are. Urlencoded where there is no file: the API takes both, and
 * multipart parsers rewrite line breaks and trip over a boundary inside a prompt.
 */
export function encodeForm(
  fields: EncodedFields,
  files: Readonly<Record<string, SourceFile>> = {},
): FormBody {
  if (Object.keys(files).length > 0) return encodeMultipart(fields, files);
  const body = Buffer.from(new URLSearchParams(Object.entries(fields)).toString(), 'utf8');
  return { contentType: 'application/x-www-form-urlencoded', bytes: body.length, body };
}

interface Part {
  readonly head: Buffer;
  readonly content: Buffer | SourceFile;
}

const CRLF = Buffer.from('\r\n');

function encodeMultipart(fields: EncodedFields, files: Readonly<Record<string, SourceFile>>): FormBody {
  // 128 random bits: no text and no file holds them.
  const boundary = `onetake-${randomBytes(16).toString('hex')}`;
  const parts: Part[] = [];
  for (const [name, text] of Object.entries(fields)) {
    if (!Object.hasOwn(files, name)) parts.push({ head: headOf(boundary, name), content: Buffer.from(text) });
  }
  // Last, so that a provider that reads in order knows everything else before it.
  for (const [name, file] of Object.entries(files)) {
    parts.push({ head: headOf(boundary, name, file.container), content: file });
  }
  const end = Buffer.from(`--${boundary}--\r\n`);
  const bytes = parts.reduce((sum, { head, content }) => {
    return sum + head.length + (Buffer.isBuffer(content) ? content.length : content.bytes) + CRLF.length;
  }, end.length);
  return {
    contentType: `multipart/form-data; boundary=${boundary}`,
    bytes,
    body: inOrder(parts, end),
  };
}

async function* inOrder(parts: readonly Part[], end: Buffer): AsyncGenerator<Uint8Array> {
  for (const { head, content } of parts) {
    yield head;
    if (Buffer.isBuffer(content)) yield content;
    else yield* content.chunks();
    yield CRLF;
  }
  yield end;
}

/** Never the customer's own name of the file. Field names and containers are ours, and plain. */
function headOf(boundary: string, name: string, container?: string): Buffer {
  const disposition = `--${boundary}\r\nContent-Disposition: form-data; name="${name}"`;
  if (container === undefined) return Buffer.from(`${disposition}\r\n\r\n`);
  const type = CONTENT_TYPES[container] ?? 'application/octet-stream';
  // A container of another name than a file's ending has none.
  const ending = /^[a-z0-9]{1,8}$/.test(container) ? `.${container}` : '';
  return Buffer.from(`${disposition}; filename="${name}${ending}"\r\nContent-Type: ${type}\r\n\r\n`);
}

const CONTENT_TYPES: Readonly<Record<string, string>> = {
  mp4: 'video/mp4',
  m4v: 'video/x-m4v',
  mov: 'video/quicktime',
  webm: 'video/webm',
  aac: 'audio/aac',
  flac: 'audio/flac',
  m4a: 'audio/mp4',
  mp3: 'audio/mpeg',
  ogg: 'audio/ogg',
  wav: 'audio/wav',
};
