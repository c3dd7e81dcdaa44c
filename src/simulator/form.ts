import { createHash } from 'node:crypto';
import type { IncomingMessage } from 'node:http';

/** One POST's form: texts as sent, files by their digest and length only. */
export interface Form {
  readonly texts: readonly (readonly [name: string, value: string])[];
  readonly files: readonly FormFile[];
  /** SHA-256 (hex) over the fields in canonical order: the same form, however it was encoded. */
  readonly digest: string;
}

export interface FormFile {
  readonly field: string;
  readonly sha256: string;
  readonly bytes: number;
}

export type ReceivedBody =
  /** JSON, or anything else that is no form, is one without fields, as the provider reads it. */
  | { readonly kind: 'form'; readonly form: Form }
  | { readonly kind: 'too_large' }
  /** The client left before its last byte. */
  | { readonly kind: 'aborted' };

export async function receiveForm(request: IncomingMessage, maxBytes: number): Promise<ReceivedBody> {
  const bytes = await receiveBytes(request, maxBytes);
  if (!Buffer.isBuffer(bytes)) return { kind: bytes };
  const contentType = request.headers['content-type'] ?? '';
  const decoded = await decode(bytes, contentType);
  if (decoded === undefined) return { kind: 'form', form: { texts: [], files: [], digest: sha256(bytes) } };
  return { kind: 'form', form: await canonical(decoded) };
}

/** The whole body; past the bound the rest is read and dropped, so that the refusal can be read. */
export function receiveBytes(
  request: IncomingMessage,
  maxBytes: number,
): Promise<Buffer | 'too_large' | 'aborted'> {
  // Its close event may have been and gone while a hook was awaited.
  if (request.destroyed) return Promise.resolve('aborted');
  return new Promise((resolve) => {
    const chunks: Buffer[] = [];
    let length = 0;
    const leave = (outcome: Buffer | 'too_large' | 'aborted') => {
      request.off('data', onData);
      resolve(outcome);
    };
    const onData = (chunk: Buffer) => {
      length += chunk.length;
      if (length > maxBytes) {
        leave('too_large');
        request.resume();
      } else chunks.push(chunk);
    };
    request.on('data', onData);
    request.once('end', () => leave(Buffer.concat(chunks)));
    request.once('close', () => leave('aborted'));
    request.once('error', () => leave('aborted'));
  });
}

async function decode(bytes: Buffer, contentType: string): Promise<FormData | undefined> {
  if (!/^(multipart\/form-data|application\/x-www-form-urlencoded)\b/i.test(contentType)) return undefined;
  try {
    return await new Response(new Uint8Array(bytes), { headers: { 'content-type': contentType } }).formData();
  } catch {
    return undefined;
  }
}

async function canonical(data: FormData): Promise<Form> {
  const texts: [string, string][] = [];
  const files: FormFile[] = [];
  for (const [name, value] of data) {
    if (typeof value === 'string') texts.push([name, value]);
    else {
      const content = Buffer.from(await value.arrayBuffer());
      files.push({ field: name, sha256: sha256(content), bytes: content.length });
    }
  }
  return { texts, files, digest: formDigest(texts, files) };
}

/** The `form` of the ledger: field order and encoding don't matter, names and values do. */
export function formDigest(
  texts: readonly (readonly [name: string, value: string])[],
  files: readonly FormFile[] = [],
): string {
  const lines = [
    ...texts.map(([name, value]) => JSON.stringify(['text', name, value])),
    ...files.map(({ field, sha256: digest }) => JSON.stringify(['file', field, digest])),
  ];
  return sha256(Buffer.from(lines.sort().join('\n')));
}

function sha256(bytes: Buffer): string {
  return createHash('sha256').update(bytes).digest('hex');
}

export function textOf(form: Form, name: string): string | undefined {
  return form.texts.find(([field]) => field === name)?.[1];
}

/** The prompt, under whichever name the operation has for it. */
export function promptOf(form: Form): string {
  return textOf(form, 'prompt') ?? textOf(form, 'music_prompt') ?? textOf(form, 'sfx_prompt') ?? '';
}
