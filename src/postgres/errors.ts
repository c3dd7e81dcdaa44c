/**
 * Errors of the database carry row values in `detail` and sometimes in `message`: only codes and
 * constraint names leave this file.
 */
interface DatabaseErrorLike {
  readonly code?: unknown;
  readonly constraint?: unknown;
  readonly cause?: unknown;
}

function like(error: unknown): DatabaseErrorLike {
  return typeof error === 'object' && error !== null ? error : {};
}

/**
 * The SQLSTATE or socket code, from the error or from what a wrapper (drizzle's, ours) put around it; for what
 * the driver gives no code, a word of ours.
 */
export function databaseErrorCode(error: unknown): string {
  for (let at: unknown = error, depth = 0; depth < 4 && at !== undefined; depth++) {
    const { code, cause } = like(at);
    if (typeof code === 'string' && /^[A-Za-z0-9_]{1,64}$/.test(code)) return code;
    at = cause;
  }
  return driverCode(error) ?? 'unknown';
}

export function violatedConstraint(error: unknown): string | undefined {
  for (let at: unknown = error, depth = 0; depth < 4 && at !== undefined; depth++) {
    const { constraint, cause } = like(at);
    if (typeof constraint === 'string') return constraint;
    at = cause;
  }
  return undefined;
}

// Every SQLSTATE has a digit; EPIPE has none.
const SQLSTATE = /^(?=.*[0-9])[0-9A-Z]{5}$/;
// Codes of sockets and of TLS: ECONNRESET, CERT_HAS_EXPIRED. Ours are lower case; pg-boss marks errors of its
// own, such as a queue that is missing, in capitals too, and Node.js its users' mistakes.
const SOCKET_CODE = /^(?!PGBOSS_|ERR_(?!TLS_|SSL_))[A-Z][A-Z0-9_]+$/;
/** The driver gives these no code. The first that fits. */
const DRIVER_MESSAGES: readonly (readonly [beginning: string, code: string])[] = [
  ['Connection terminated due to connection timeout', 'connect_timeout'],
  ['timeout expired', 'connect_timeout'],
  ['timeout exceeded when trying to connect', 'no_free_connection'],
  ['Query read timeout', 'no_answer'],
  ['Connection terminated', 'connection_lost'],
  ['Client has encountered a connection error', 'connection_lost'],
  ['Client was closed', 'connection_lost'],
];
// Deadlock, serialization failure, lock time-out, statement time-out.
const RETRYABLE: ReadonlySet<string> = new Set(['40P01', '40001', '55P03', '57014']);
// Connection failures and shutdowns as the server itself reports them.
const CONNECTION_STATES = /^(08...|57P0.|25P03|25P04)$/;

export function isSqlState(code: string): boolean {
  return SQLSTATE.test(code);
}

export function isRetryable(error: unknown): boolean {
  return RETRYABLE.has(databaseErrorCode(error));
}

/** The server itself answered: what it refused did not happen. */
export function isAnswered(error: unknown): boolean {
  const code = databaseErrorCode(error);
  return SQLSTATE.test(code) && !CONNECTION_STATES.test(code);
}

/** The session is gone, or there was none: the server said so, the socket's error did, or the driver. */
export function isLostConnection(error: unknown): boolean {
  const code = databaseErrorCode(error);
  if (DRIVER_MESSAGES.some(([, word]) => code === word)) return true;
  return CONNECTION_STATES.test(code) || (SOCKET_CODE.test(code) && !SQLSTATE.test(code));
}

/** No connection of the pool became free in time, which tells nothing about the server. */
export function isPoolExhausted(error: unknown): boolean {
  return databaseErrorCode(error) === 'no_free_connection';
}

function driverCode(error: unknown): string | undefined {
  for (let at: unknown = error, depth = 0; depth < 4 && at instanceof Error; depth++) {
    const { message } = at;
    const found = DRIVER_MESSAGES.find(([beginning]) => message.startsWith(beginning));
    if (found !== undefined) return found[1];
    at = at.cause;
  }
  return undefined;
}

/**
 * Trouble of the whole database that passes by itself: it restarts, fails over, is read-only, or out of disk,
 * memory or connections.
 */
export function isPassing(error: unknown): boolean {
  return (
    isRetryable(error) || isLostConnection(error) || /^(25006|53...|58...)$/.test(databaseErrorCode(error))
  );
}

/** What a pooler answers to BEGIN when it gives every single statement to any server connection. */
export function isStatementPooling(error: unknown): boolean {
  return (
    databaseErrorCode(error) === '08P01' &&
    error instanceof Error &&
    error.message.includes('statement pooling')
  );
}
