/**
 * The allow-list, for a process whose wire oracle can't be trusted: codes that are raised only before a
 * connection could carry the request. Everything that is not listed may have been charged: ECONNRESET,
 * UND_ERR_SOCKET, UND_ERR_DESTROYED and timeouts look the same on both sides of the first byte. A code joins
 * this list with a proof, never for convenience.
 */
const UNSENT: ReadonlySet<string> = new Set([
  'ENOTFOUND',
  'EAI_AGAIN',
  'UND_ERR_CONNECT_TIMEOUT',
  // Ours, of the fresh socket.
  'connect_deadline',
  'UND_ERR_INVALID_ARG',
  // The server's certificate was refused: the handshake ends before anything of ours is encrypted.
  'ERR_TLS_CERT_ALTNAME_INVALID',
  'CERT_CHAIN_TOO_LONG',
  'CERT_HAS_EXPIRED',
  'CERT_NOT_YET_VALID',
  'CERT_REJECTED',
  'CERT_REVOKED',
  'CERT_SIGNATURE_FAILURE',
  'CERT_UNTRUSTED',
  'CRL_HAS_EXPIRED',
  'CRL_NOT_YET_VALID',
  'CRL_SIGNATURE_FAILURE',
  'DEPTH_ZERO_SELF_SIGNED_CERT',
  'ERROR_IN_CERT_NOT_AFTER_FIELD',
  'ERROR_IN_CERT_NOT_BEFORE_FIELD',
  'ERROR_IN_CRL_LAST_UPDATE_FIELD',
  'ERROR_IN_CRL_NEXT_UPDATE_FIELD',
  'HOSTNAME_MISMATCH',
  'INVALID_CA',
  'INVALID_PURPOSE',
  'PATH_LENGTH_EXCEEDED',
  'SELF_SIGNED_CERT_IN_CHAIN',
  'UNABLE_TO_DECODE_ISSUER_PUBLIC_KEY',
  'UNABLE_TO_DECRYPT_CERT_SIGNATURE',
  'UNABLE_TO_DECRYPT_CRL_SIGNATURE',
  'UNABLE_TO_GET_CRL',
  'UNABLE_TO_GET_ISSUER_CERT',
  'UNABLE_TO_GET_ISSUER_CERT_LOCALLY',
  'UNABLE_TO_VERIFY_LEAF_SIGNATURE',
]);

/** Ours to repair, where nothing was sent: it says nothing of the provider. */
const OWN_DOING: ReadonlySet<string> = new Set([
  'UND_ERR_INVALID_ARG',
  'UND_ERR_NOT_SUPPORTED',
  'UND_ERR_REQ_CONTENT_LENGTH_MISMATCH',
  'UND_ERR_DESTROYED',
  'UND_ERR_CLOSED',
  'SECOND_CONNECTION_REFUSED',
  'ERR_ASSERTION',
]);

/** What the error of a request that got no status proves by itself. Only where the wire oracle can't tell. */
export function isUnsentByCode(error: unknown): boolean {
  if (!(error instanceof Error)) return false;
  // Several addresses were tried at once; its own code is only the first member's.
  if (error instanceof AggregateError) {
    const members: readonly unknown[] = error.errors;
    return members.length > 0 && members.every(isUnsent);
  }
  return isUnsent(error);
}

/** Says so only of a request that is known to be unsent: some of these codes come on both sides. */
export function isOwnDoing(error: unknown): boolean {
  return error instanceof Error && OWN_DOING.has(stringField(error, 'code') ?? '');
}

function isUnsent(error: unknown): boolean {
  if (!(error instanceof Error) || error instanceof AggregateError) return false;
  const code = stringField(error, 'code');
  if (code === 'ECONNREFUSED') return stringField(error, 'syscall') === 'connect';
  return code !== undefined && UNSENT.has(code);
}

/** The error's code, else its class: identifiers of the transport, and nothing of what was sent. */
export function transportErrorCode(error: unknown): string | null {
  if (!(error instanceof Error)) return null;
  return plainCode(stringField(error, 'code')) ?? plainCode(error.name);
}

/** A code that may be stored and shown: 1 to 64 plain characters. Anything else may be prose or data. */
export function plainCode(value: unknown): string | null {
  return typeof value === 'string' && /^[A-Za-z0-9_.-]{1,64}$/.test(value) ? value : null;
}

/** Null for a code that repeats the key: a server may echo what it refused. */
export function withoutKey(code: string | null, apiKey: string): string | null {
  return code?.includes(apiKey.trim()) ? null : code;
}

function stringField(error: Error, name: 'code' | 'syscall'): string | undefined {
  const value = (error as { readonly code?: unknown; readonly syscall?: unknown })[name];
  return typeof value === 'string' ? value : undefined;
}
