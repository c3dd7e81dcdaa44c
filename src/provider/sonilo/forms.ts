import type { EncodedFields } from '../../core/operations.ts';

export interface FormBody {
  readonly contentType: string;
  readonly bytes: Buffer;
}

/**
 * The stored fields, all of them and as they are. Urlencoded, not multipart: without a file the API takes
 * both, and multipart parsers rewrite line breaks and trip over a boundary inside a prompt.
 */
export function encodeForm(fields: EncodedFields): FormBody {
  const form = new URLSearchParams(Object.entries(fields));
  return { contentType: 'application/x-www-form-urlencoded', bytes: Buffer.from(form.toString(), 'utf8') };
}
