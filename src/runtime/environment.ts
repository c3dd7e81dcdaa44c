import { readFileSync } from 'node:fs';
import { userInfo } from 'node:os';
import { parseEnv } from 'node:util';
import { OnetakeError, suggestion } from '../core/errors.ts';
import type { ResolvedConfig } from './options.ts';

/** What this process may know of its environment. Values that are secret are returned, never thrown. */
export interface Environment {
  /** Throws `configuration_invalid`, naming the variable. */
  connectionString(config: Pick<ResolvedConfig, 'database'>): string;
  /** Throws `unknown_account`, or `missing_api_key` naming the variable. */
  apiKey(accountName: string, config: Pick<ResolvedConfig, 'accounts'>): string;
  /** Throws what the two above would, or all of it at once as `configuration_invalid`. */
  requireAll(
    config: ResolvedConfig,
    what: { readonly connectionString: boolean; readonly keys: boolean },
  ): void;
  /** Who acts: $ONETAKE_ACTOR, else the system user. Throws `operator_identity_missing`. */
  actor(): string;
  /** Whether to colour a stream that is, or isn't, a terminal. */
  colour(isTerminal: boolean): boolean;
  /** $COLUMNS, where it is a width; undefined otherwise. */
  columns(): number | undefined;
}

export type EnvironmentSource = Readonly<Record<string, string | undefined>>;

const LONGEST_ACTOR = 255;

export function readEnvironment(source: EnvironmentSource = process.env): Environment {
  const self: Environment = {
    connectionString(config) {
      const variable = config.database.connectionStringEnv;
      const problem = connectionStringProblem(source[variable]);
      if (problem === undefined) return source[variable] as string;
      throw new OnetakeError(
        'configuration_invalid',
        `database.connectionStringEnv: the environment variable ${variable} ${problem}.`,
        { hint: `Set ${variable} to postgres://user:password@host:5432/database.` },
      );
    },

    apiKey(accountName, config) {
      const account = Object.hasOwn(config.accounts, accountName) ? config.accounts[accountName] : undefined;
      if (account === undefined) throw unknownAccount(accountName, Object.keys(config.accounts));
      const problem = apiKeyProblem(source[account.apiKeyEnv]);
      if (problem === undefined) return source[account.apiKeyEnv] as string;
      throw new OnetakeError(
        'missing_api_key',
        `accounts.${accountName}.apiKeyEnv: the environment variable ${account.apiKeyEnv} ${problem}.`,
        { hint: `Set ${account.apiKeyEnv} to the provider's key for the account "${accountName}".` },
      );
    },

    requireAll(config, what) {
      refuseAll([
        ...(what.connectionString ? [() => self.connectionString(config)] : []),
        ...(what.keys ? Object.keys(config.accounts).map((name) => () => self.apiKey(name, config)) : []),
      ]);
    },

    actor() {
      const given = source['ONETAKE_ACTOR']?.trim();
      const name = given === undefined || given === '' ? systemUser() : given;
      if (name !== undefined && name.length <= LONGEST_ACTOR && !/\p{C}/u.test(name)) return name;
      const problem =
        name === undefined
          ? 'the system knows no name for this user'
          : 'the name is too long or has control characters';
      throw new OnetakeError('operator_identity_missing', `Who is acting? ${problem}.`, {
        hint: 'Set ONETAKE_ACTOR to your name.',
      });
    },

    colour(isTerminal) {
      if (isSet(source['NO_COLOR'])) return false;
      if (isSet(source['FORCE_COLOR'])) return source['FORCE_COLOR'] !== '0';
      return isTerminal && source['TERM'] !== 'dumb';
    },

    columns() {
      const given = source['COLUMNS'] ?? '';
      return /^[1-9]\d{0,3}$/.test(given) ? Number(given) : undefined;
    },
  };
  return self;
}

function refuseAll(reads: readonly (() => unknown)[]): void {
  const problems = reads.flatMap((read) => {
    try {
      read();
      return [];
    } catch (error) {
      if (error instanceof OnetakeError) return [error];
      throw error;
    }
  });
  const [first, second] = problems;
  if (first === undefined) return;
  if (second === undefined) throw first;
  const lines = problems.map(({ message }) => `\n  ${message}`);
  throw new OnetakeError(
    'configuration_invalid',
    `The environment has ${problems.length} problems:${lines.join('')}`,
    { hint: problems.map(({ hint }) => hint).join(' ') },
  );
}

/**
 * Adds the variables of a `.env` file. What the environment has already stays, as everywhere. Throws
 * `configuration_not_found`; the file's content is never repeated.
 */
export function loadEnvFile(path: string, target: Record<string, string | undefined> = process.env): void {
  let content: string;
  try {
    content = readFileSync(path, 'utf8');
  } catch (error) {
    const reason =
      (error as NodeJS.ErrnoException).code === 'ENOENT' ? 'there is no such file' : "can't be read";
    throw new OnetakeError('configuration_not_found', `Environment file ${path}: ${reason}.`, {
      hint: 'Give --env-file the path of a readable file with lines NAME=value.',
    });
  }
  for (const [name, value] of Object.entries(parseEnv(content.replace(/^\uFEFF/, '')))) {
    if (target[name] === undefined) target[name] = value;
  }
}

/**
 * Which database that is, for people: never the user or the password. Undefined where the address isn't plain, since a
 * password that was not percent-encoded ends the host early.
 */
export function databasePlace(connectionString: string): string | undefined {
  const withHost = connectionString.replace('@/', '@host/').replace(/^(\w+:\/\/)\//, '$1host/');
  if (!URL.canParse(withHost) || /@/.test(withHost.replace(/^\w+:\/\/[^/?#]*/, ''))) return undefined;
  const { hostname, port, pathname, searchParams } = new URL(withHost);
  const host = searchParams.get('host') ?? hostname;
  const at = `${host}:${searchParams.get('port') ?? (port || '5432')}`;
  const name = pathname.slice(1);
  if (!/^[A-Za-z0-9_./:[\]-]{1,255}$/.test(at) || !/^[A-Za-z0-9_.-]{0,63}$/.test(name)) return undefined;
  return name === '' ? `a database at ${at}` : `the database ${name} at ${at}`;
}

/** Of an option: throws `invalid_option`, and never repeats it. */
export function checkConnectionString(value: unknown): asserts value is string {
  const problem =
    value === undefined || typeof value === 'string' ? connectionStringProblem(value) : 'is no text';
  if (problem === undefined) return;
  throw new OnetakeError('invalid_option', `connectionString: it ${problem}.`, {
    hint: 'Expected postgres://user:password@host:5432/database, as DATABASE_URL usually has it.',
  });
}

function isSet(value: string | undefined): value is string {
  return value !== undefined && value !== '';
}

function connectionStringProblem(value: string | undefined): string | undefined {
  if (value === undefined) return 'is not set';
  if (value.trim() === '') return 'is empty';
  if (!/^postgres(ql)?:\/\//.test(value)) {
    return "doesn't begin with postgres:// or postgresql:// (its value is not shown; it may be in quotes)";
  }
  // The driver's own error would carry the whole string. `user:password@/database?host=…` is a form it takes.
  if (/\p{Cc}/u.test(value) || !URL.canParse(value.replace('@/', '@host/'))) {
    return "isn't a valid URL (its value is not shown; special characters of a password must be percent-encoded)";
  }
  return undefined;
}

/** A header carries it, so anything beyond visible ASCII would fail at the POST, or worse, be cut. */
function apiKeyProblem(value: string | undefined): string | undefined {
  if (value === undefined) return 'is not set';
  if (value.trim() === '') return 'is empty';
  if (!/^[\x21-\x7e]+$/.test(value)) {
    return 'has blanks, line breaks or characters that no key has (its value is not shown)';
  }
  return undefined;
}

function unknownAccount(given: string, known: readonly string[]): OnetakeError {
  const shown = /^[A-Za-z0-9_.-]{1,63}$/.test(given) ? ` "${given}"` : '';
  return new OnetakeError('unknown_account', `Unknown account${shown}.${suggestion(given, known)}`, {
    hint: `Accounts of this configuration: ${known.join(', ')}.`,
  });
}

/** Undefined in a container whose user id has no name. */
function systemUser(): string | undefined {
  try {
    return userInfo().username.trim() || undefined;
  } catch {
    return undefined;
  }
}
