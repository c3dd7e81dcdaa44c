/** Every code that a caller may branch on. Stable: codes are added, never renamed. */
export type OnetakeErrorCode =
  | 'ambiguous_id_prefix'
  | 'aws_sdk_missing'
  | 'breaker_not_overridden'
  | 'commit_unknown'
  | 'configuration_invalid'
  | 'configuration_not_found'
  | 'database_busy'
  | 'database_read_only'
  | 'database_refused'
  | 'database_unreachable'
  | 'embedded_postgres_failed'
  | 'embedded_postgres_missing'
  | 'file_missing'
  | 'file_not_found'
  | 'file_not_stored'
  | 'installation_in_doubt'
  | 'intent_mismatch'
  | 'invalid_field'
  | 'invalid_option'
  | 'mediainfo_missing'
  | 'missing_api_key'
  | 'operator_identity_missing'
  | 'request_not_found'
  | 'request_not_in_state'
  | 'schema_not_migrated'
  | 'schema_too_old'
  | 'serialization_failure'
  | 'simulator_failed'
  | 'stopped'
  | 'storage_not_configured'
  | 'storage_unavailable'
  | 'task_id_in_use'
  | 'unknown_account'
  | 'unknown_breaker'
  | 'unknown_field'
  | 'unknown_operation'
  | 'wait_aborted';

export interface OnetakeErrorOptions {
  /** What to do about it, in one sentence. */
  readonly hint?: string;
  readonly cause?: unknown;
}

/**
 * The one error class that onetake throws. `code` is for programs, `message` names the thing and says
 * what was expected, `hint` says what to do. None of them ever holds a key, a prompt or a URL.
 */
export class OnetakeError extends Error {
  readonly code: OnetakeErrorCode;
  readonly hint: string | undefined;

  constructor(code: OnetakeErrorCode, message: string, options: OnetakeErrorOptions = {}) {
    super(message, options.cause === undefined ? {} : { cause: options.cause });
    this.name = 'OnetakeError';
    this.code = code;
    this.hint = options.hint;
  }
}

/** Longer than any name of ours; comparing costs the product of both lengths. */
const MAX_COMPARED = 64;

/** The known name nearest to `given`, or undefined when none is near enough to be a likely typo. */
export function nearestName(given: string, known: readonly string[]): string | undefined {
  if (given.length > MAX_COMPARED) return undefined;
  const limit = Math.max(2, Math.floor(given.length / 3));
  let best: { name: string; distance: number } | undefined;
  for (const name of known) {
    const distance = editDistance(given.toLowerCase(), name.toLowerCase());
    if (distance <= limit && (best === undefined || distance < best.distance)) best = { name, distance };
  }
  return best?.name;
}

/** ` Did you mean "x"?`, or nothing. */
export function suggestion(given: string, known: readonly string[]): string {
  const name = nearestName(given, known);
  return name === undefined ? '' : ` Did you mean "${name}"?`;
}

function editDistance(a: string, b: string): number {
  const columns = Array.from(b);
  let previous = Array.from({ length: columns.length + 1 }, (_, column) => column);
  for (const [row, left] of Array.from(a).entries()) {
    const current = [row + 1];
    for (const [column, right] of columns.entries()) {
      const substitution = (previous[column] as number) + (left === right ? 0 : 1);
      current.push(
        Math.min(substitution, (previous[column + 1] as number) + 1, (current[column] as number) + 1),
      );
    }
    previous = current;
  }
  return previous[columns.length] as number;
}
