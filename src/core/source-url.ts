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
  const written = text.slice(text.indexOf('//') + 2);
  // By the letter, and up to the first slash: an empty name, or one that a sloppier parser finds after ? or #.
  if (/^[^/]*@/.test(written)) return 'url_credentials';
  if (allowPrivateHosts) return null;
  if (url.protocol !== 'https:') return 'insecure_url';
  // The parser has already turned 0x7f.1, 2130706433 and 127.1 into 127.0.0.1.
  const hostname = url.hostname.replace(/^\[|\]$/g, '');
  const isInside = isAddress(hostname) ? !isPublicAddress(hostname) : isInsideName(hostname);
  if (isInside) return 'private_host';
  return isHostAsWritten(written, url.hostname) ? null : 'invalid_url';
}

/**
 * Whether every parser finds this host: 010.8.8.8 is 8.8.8.8 to one and 10.8.8.8 to another, an escape or a character
 * that is dropped is left in by some, and no resolver takes an empty label. Names beyond ASCII are one thing to all.
 */
function isHostAsWritten(written: string, hostname: string): boolean {
  if (/^\.|\.\./.test(hostname)) return false;
  const host = written.replace(/[/?#].*$/s, '').replace(/:\d*$/, '');
  return host.toLowerCase() === hostname || host.startsWith('[') || /(^|\.)xn--/.test(hostname);
}
