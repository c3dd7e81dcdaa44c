import type { EncodedFields } from '../../core/operations.ts';
import { isContentCode, type StreamTerms } from '../../core/stream.ts';
import { plainCode, withoutKey } from './transport-errors.ts';

interface CodeTerms {
  readonly apiKey: string;
  readonly fields: EncodedFields;
  readonly stream?: Pick<StreamTerms, 'contentCodes'>;
}

/** Codes of the contract, November 2026: the provider's own words, whatever a customer's are. */
const KNOWN: ReadonlySet<string> = new Set([
  'invalid_request',
  'unauthorized',
  'auth_invalid',
  'insufficient_balance',
  'insufficient_credit',
  'trial_exhausted',
  'payment_required',
  'account_suspended',
  'not_found',
  'payload_too_large',
  'unprocessable_entity',
  'validation_error',
  'rate_limit_exceeded',
  'rate_limited',
  'internal_error',
]);

/**
 * A code of the provider's as it may be stored and shown: at most 64 plain characters, and neither what was sent nor
 * the key. A provider that repeats what it was sent must not get it into our logs as its code.
 */
export function providerCode(code: unknown, { apiKey, fields, stream }: CodeTerms): string | null {
  const plain = plainCode(code);
  // Whoever writes it into a prompt must not decide whom a refusal holds, or that a judged prompt is an outage.
  if (plain !== null && (KNOWN.has(plain) || isContentCode(plain, stream?.contentCodes ?? []))) return plain;
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
