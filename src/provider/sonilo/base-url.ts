import { OnetakeError } from '../../core/errors.ts';

export interface BaseUrl {
  readonly origin: string;
  /** Without a trailing slash; empty for an API at the root. */
  readonly pathPrefix: string;
}

/**
 * The API's address, checked once. Every request carries the key, so plain http is for loopback unless
 * `allowPlainHttp` says otherwise. Throws `invalid_option`; the value may hold a password, so it is never
 * repeated.
 */
export function parseBaseUrl(value: unknown, allowPlainHttp: boolean): BaseUrl {
  const url = typeof value === 'string' && URL.canParse(value) ? new URL(value) : undefined;
  if (url === undefined || (url.protocol !== 'https:' && url.protocol !== 'http:')) {
    throw refused('expected an absolute https URL', 'For Sonilo it is https://api.sonilo.com.');
  }
  if (url.username !== '' || url.password !== '') {
    throw refused('holds a user name or password', 'Remove it: the API key is configured by account.');
  }
  if (url.search !== '' || url.hash !== '' || /[?#]/.test(url.href)) {
    throw refused('holds a query or fragment', 'Give scheme, host, port and, behind a gateway, a path.');
  }
  if (url.protocol === 'http:' && !allowPlainHttp && !isLoopback(url.hostname)) {
    throw refused('plain http would send the API key unencrypted', 'Use https; http is for loopback only.');
  }
  return { origin: url.origin, pathPrefix: url.pathname.replace(/\/+$/, '') };
}

function refused(problem: string, hint: string): OnetakeError {
  return new OnetakeError('invalid_option', `baseUrl: ${problem}.`, { hint });
}

function isLoopback(hostname: string): boolean {
  return (
    hostname === 'localhost' ||
    hostname.endsWith('.localhost') ||
    hostname === '[::1]' ||
    /^127\.\d{1,3}\.\d{1,3}\.\d{1,3}$/.test(hostname)
  );
}
