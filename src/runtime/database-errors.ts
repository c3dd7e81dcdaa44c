import { OnetakeError, type OnetakeErrorCode } from '../core/errors.ts';
import { CommitUnknownError } from '../postgres/database.ts';
import { databaseErrorCode, isLostConnection, isRetryable, isSqlState } from '../postgres/errors.ts';

const UNMIGRATED: ReadonlySet<string> = new Set(['42P01', '3F000', '42883', '42703']);

/**
 * What an error of the database means to whoever called, said without its own message and detail, which may
 * hold row values and addresses. Errors of ours, and those that are none of the database's, as they are.
 */
export function explainDatabaseError(error: unknown): unknown {
  if (error instanceof OnetakeError) return error;
  if (error instanceof CommitUnknownError) {
    return ours(
      'commit_unknown',
      'The connection was lost during the commit: it may have happened or not.',
      'Look, before you do it again.',
    );
  }
  const code = databaseErrorCode(error);
  if (UNMIGRATED.has(code)) {
    return ours(
      'schema_not_migrated',
      'The database has no onetake schema, or an older one.',
      'Run `onetake migrate` once, with a role that may create schemas.',
    );
  }
  if (code === '28P01' || code === '28000') {
    return ours(
      'database_unreachable',
      `The database refuses this user or password (${code}).`,
      'Check user and password of the connection string.',
    );
  }
  if (code === '3D000') {
    return ours(
      'database_unreachable',
      "The database that the connection string names doesn't exist (3D000).",
      'Create it, or correct the name at the end of the connection string.',
    );
  }
  if (isLostConnection(error)) {
    return ours(
      'database_unreachable',
      `The database can't be reached (${code.replaceAll('_', ' ')}).`,
      'Check that it runs and that the connection string is right.',
    );
  }
  if (code === '25006') {
    return ours(
      'database_read_only',
      'The database takes no writes (25006): it is a standby, or was set to read-only.',
      'Connect to the primary, or wait until it is one; default_transaction_read_only is respected.',
    );
  }
  if (isRetryable(error) || /^(53|58)/.test(code)) {
    return ours(
      'database_busy',
      `The database could not do it now (SQLSTATE ${code}), also when asked again.`,
      code.startsWith('53') ? 'It is out of disk, memory or connections.' : 'Try again a little later.',
    );
  }
  if (code === '42501') {
    return ours(
      'database_refused',
      'The role of the connection string lacks a permission (42501).',
      'docs/operations.md lists what each role needs.',
    );
  }
  if (isSqlState(code)) {
    return ours('database_refused', `The database refused a statement (SQLSTATE ${code}).`);
  }
  return error;
}

/** For callers of ours, who may print whatever they catch. */
export async function inOurWords<Result>(work: () => Promise<Result>): Promise<Result> {
  try {
    return await work();
  } catch (error) {
    throw explainDatabaseError(error);
  }
}

/** Where drivers put the values of a statement, or the row that was refused. */
const VALUES = ['detail', 'where', 'internalQuery', 'parameters', 'args'];

/**
 * The driver's own error, for a caller who branches on its code and its class, without what it tells of the
 * statement's values: the caller's log would have the prompt.
 */
export function withoutValues(error: unknown): unknown {
  for (let at = error, depth = 0; depth < 4 && at instanceof Error; depth++) {
    for (const name of VALUES) {
      if (Object.hasOwn(at, name)) Reflect.set(at, name, undefined);
    }
    at = at.cause;
  }
  return error;
}

function ours(code: OnetakeErrorCode, message: string, hint?: string): OnetakeError {
  return new OnetakeError(code, message, hint === undefined ? {} : { hint });
}
