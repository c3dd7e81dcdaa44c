import type { EncodedFields } from '../../core/operations.ts';
import { plainCode, withoutKey } from './transport-errors.ts';

/**
 * A code of the provider's as it may be stored and shown: at most 64 plain characters, and neither what was sent nor
 * the key. A provider that repeats what it was sent must not get it into our logs as its code.
 */
export function providerCode(
  code: unknown,
  { apiKey, fields }: { readonly apiKey: string; readonly fields: EncodedFields },
): string | null {
  const plain = plainCode(code);
  if (plain === null || Object.values(fields).some((value) => tellsOf(plain, value))) return null;
  // A part of the key is too much, and no code is one.
  return apiKey.includes(plain) ? null : withoutKey(plain, apiKey);
}

/** Long enough to be a customer's own words, and no setting such as `m4a` that a code may well name. */
const OWN_WORDS = 8;

function tellsOf(code: string, value: string): boolean {
  const words = value.trim();
  return words.includes(code) || (words.length >= OWN_WORDS && code.includes(words));
}
