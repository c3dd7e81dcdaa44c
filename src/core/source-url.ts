import type { FieldProblemCode } from './field-problems.ts';
import { isAddress, isInsideName, isPublicAddress } from './public-address.ts';

export type UrlProblemCode = Extract<
  FieldProblemCode,
  'invalid_url' | 'url_credentials' | 'insecure_url' | 'private_host'
>;

/**
 * What is wrong with the shape of a URL that the provider is asked to fetch; what it resolves to is seen there.
 * `allowPrivateHosts` also permits `http:`.
 */
export function sourceUrlProblem(text: string, allowPrivateHosts: boolean): UrlProblemCode | null {
  // Sent as it is written, and parsers differ in what they mend: only what needs no mending passes.
  if (/[\s\p{Cc}\\]/u.test(text) || !/^https?:\/\/[^/]/i.test(text) || !URL.canParse(text)) {
    return /^[a-z][a-z0-9+.-]*:/i.test(text) && !/^https?:/i.test(text) ? 'insecure_url' : 'invalid_url';
  }
  const url = new URL(text);
  if (url.username !== '' || url.password !== '') return 'url_credentials';
  if (allowPrivateHosts) return null;
  if (url.protocol !== 'https:') return 'insecure_url';
  // The parser has already turned 0x7f.1, 2130706433 and 127.1 into 127.0.0.1.
  const hostname = url.hostname.replace(/^\[|\]$/g, '');
  const isInside = isAddress(hostname) ? !isPublicAddress(hostname) : isInsideName(hostname);
  return isInside ? 'private_host' : null;
}
