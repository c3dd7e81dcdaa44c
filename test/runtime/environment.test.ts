import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir, userInfo } from 'node:os';
import { join } from 'node:path';
import { afterAll, describe, expect, it } from 'vitest';
import { OnetakeError } from '../../src/core/errors.ts';
import {
  databasePlace,
  type EnvironmentSource,
  loadEnvFile,
  readEnvironment,
} from '../../src/runtime/environment.ts';
import { resolveConfig } from '../../src/runtime/options.ts';

const CANARY = 'canary-5e1f-SECRET';
const config = resolveConfig({
  database: { connectionStringEnv: 'PG_URL' },
  accounts: { default: {}, studio: { apiKeyEnv: 'STUDIO_KEY' } },
});

const folder = mkdtempSync(join(tmpdir(), 'onetake-environment-'));
afterAll(() => rmSync(folder, { recursive: true }));

function errorOf(run: () => unknown): OnetakeError {
  try {
    run();
  } catch (error) {
    if (error instanceof OnetakeError) return error;
    throw error;
  }
  throw new Error('Nothing was thrown.');
}

describe('connectionString', () => {
  const read = (value: string | undefined) => {
    const source: EnvironmentSource = value === undefined ? {} : { PG_URL: value };
    return readEnvironment(source).connectionString(config);
  };

  it.each([
    'postgres://user:secret@127.0.0.1:5432/app',
    'postgresql://127.0.0.1/app?sslmode=require',
    'postgres:///app?host=/run/postgresql',
    'postgres://user:secret@/app?host=/run/postgresql',
    'postgres://user:p%23ss@[::1]:5432/app',
  ])('returns %s as it is', (value) => {
    expect(read(value)).toBe(value);
  });

  it('names the variable that is not set, and the remedy', () => {
    const error = errorOf(() => read(undefined));
    expect(error.code).toBe('configuration_invalid');
    expect(error.message).toBe('database.connectionStringEnv: the environment variable PG_URL is not set.');
    expect(error.hint).toContain('PG_URL');
  });

  it.each([
    ['', 'is empty'],
    ['  ', 'is empty'],
    [`"postgres://user:${CANARY}@db/app"`, 'may be in quotes'],
    [`mysql://user:${CANARY}@db/app`, "doesn't begin with postgres://"],
    [CANARY, "doesn't begin with postgres://"],
    [`postgres://user:${CANARY}#x@db/app`, 'percent-encoded'],
    [`postgres://user:${CANARY}@db:port/app`, 'percent-encoded'],
    [`postgres://user:${CANARY}@db/app\n`, "isn't a valid URL"],
  ])('refuses %j without repeating it', (value, reason) => {
    const error = errorOf(() => read(value));
    expect(error.code).toBe('configuration_invalid');
    expect(error.message).toContain('the environment variable PG_URL ');
    expect(error.message).toContain(reason);
    expect(`${error.stack} ${error.hint} ${String(error.cause)}`).not.toContain(CANARY);
  });
});

describe('apiKey', () => {
  it('is read from the variable of its account', () => {
    const environment = readEnvironment({ SONILO_API_KEY: 'sk_a', STUDIO_KEY: 'sk_b' });
    expect(environment.apiKey('default', config)).toBe('sk_a');
    expect(environment.apiKey('studio', config)).toBe('sk_b');
  });

  it('names account and variable when it is not set', () => {
    const error = errorOf(() => readEnvironment({ SONILO_API_KEY: 'sk_a' }).apiKey('studio', config));
    expect(error.code).toBe('missing_api_key');
    expect(error.message).toBe('accounts.studio.apiKeyEnv: the environment variable STUDIO_KEY is not set.');
    expect(error.hint).toContain('STUDIO_KEY');
  });

  it.each([
    '',
    ' ',
    '\t\n',
    `${CANARY}\n`,
    ` ${CANARY}`,
    `${CANARY}\u0000`,
    `${CANARY}\r\nx-evil: 1`,
    `${CANARY}é`,
  ])('refuses %j without repeating it', (value) => {
    const error = errorOf(() => readEnvironment({ SONILO_API_KEY: value }).apiKey('default', config));
    expect(error.code).toBe('missing_api_key');
    expect(error.message).toContain('SONILO_API_KEY');
    expect(`${error.stack} ${error.hint}`).not.toContain(CANARY);
  });

  it('refuses an account that is not configured, and suggests one that is', () => {
    const error = errorOf(() => readEnvironment({}).apiKey('studo', config));
    expect(error.code).toBe('unknown_account');
    expect(error.message).toContain('Did you mean "studio"?');
    expect(errorOf(() => readEnvironment({}).apiKey('constructor', { accounts: {} })).code).toBe(
      'unknown_account',
    );
    expect(errorOf(() => readEnvironment({}).apiKey(`a b ${CANARY}`, config)).message).not.toContain(CANARY);
  });
});

describe('actor', () => {
  it('is $ONETAKE_ACTOR, else the system user', () => {
    expect(readEnvironment({ ONETAKE_ACTOR: ' Ada Lovelace ' }).actor()).toBe('Ada Lovelace');
    expect(readEnvironment({ ONETAKE_ACTOR: ' ' }).actor()).toBe(userInfo().username);
    expect(readEnvironment({}).actor()).toBe(userInfo().username);
  });

  it.each(['a\u0000b', 'a\u001b[31mb', 'a\nb', 'x'.repeat(256)])('refuses %j', (name) => {
    expect(errorOf(() => readEnvironment({ ONETAKE_ACTOR: name }).actor()).code).toBe(
      'operator_identity_missing',
    );
  });
});

describe('colour', () => {
  it.each([
    [{}, true, true],
    [{}, false, false],
    [{ NO_COLOR: '1' }, true, false],
    [{ NO_COLOR: '' }, true, true],
    [{ NO_COLOR: '1', FORCE_COLOR: '1' }, true, false],
    [{ FORCE_COLOR: '1' }, false, true],
    [{ FORCE_COLOR: '0' }, true, false],
    [{ TERM: 'dumb' }, true, false],
  ])('with %o on a terminal (%s) is %s', (source, isTerminal, expected) => {
    expect(readEnvironment(source).colour(isTerminal)).toBe(expected);
  });
});

describe('loadEnvFile', () => {
  it('adds what the environment does not have, and changes nothing that it has', () => {
    const path = join(folder, 'plain.env');
    writeFileSync(path, '\uFEFFA=1\n# a remark\nB="two words"\nexport C=3\nKEPT=file\nEMPTY=file\n');
    const target: Record<string, string | undefined> = { KEPT: 'environment', EMPTY: '' };
    loadEnvFile(path, target);
    expect(target).toEqual({ A: '1', B: 'two words', C: '3', KEPT: 'environment', EMPTY: '' });
  });

  it.each([
    ['nowhere.env', 'there is no such file'],
    ['.', "can't be read"],
  ])('names %s when it cannot be read', (name, reason) => {
    const path = join(folder, name);
    const error = errorOf(() => loadEnvFile(path, {}));
    expect(error.code).toBe('configuration_not_found');
    expect(error.message).toBe(`Environment file ${path}: ${reason}.`);
  });
});

describe('requireAll', () => {
  const everything = { connectionString: true, keys: true };
  const require = (source: EnvironmentSource, what = everything) =>
    readEnvironment(source).requireAll(config, what);

  it('tells everything that is missing at once', () => {
    const error = errorOf(() => require({}));
    expect(error.code).toBe('configuration_invalid');
    expect(error.message).toBe(
      [
        'The environment has 3 problems:',
        '  database.connectionStringEnv: the environment variable PG_URL is not set.',
        '  accounts.default.apiKeyEnv: the environment variable SONILO_API_KEY is not set.',
        '  accounts.studio.apiKeyEnv: the environment variable STUDIO_KEY is not set.',
      ].join('\n'),
    );
    for (const name of ['PG_URL', 'SONILO_API_KEY', 'STUDIO_KEY'])
      expect(error.hint).toContain(`Set ${name} to`);
  });

  it('tells one problem as itself, and of nothing that is not needed', () => {
    const database = { PG_URL: 'postgres://127.0.0.1/app' };
    expect(errorOf(() => require({ ...database, STUDIO_KEY: 'sk_b' })).code).toBe('missing_api_key');
    expect(() => require(database, { connectionString: true, keys: false })).not.toThrow();
    expect(() => require({}, { connectionString: false, keys: false })).not.toThrow();
    expect(() => require({ ...database, STUDIO_KEY: 'sk_b', SONILO_API_KEY: 'sk_a' })).not.toThrow();
  });
});

describe('the place of a database', () => {
  it.each([
    ['postgres://ada:canary@db.example:6432/music', 'the database music at db.example:6432'],
    ['postgresql://db.example/music?sslmode=require', 'the database music at db.example:5432'],
    ['postgres://ada:p%23canary@[::1]/music', 'the database music at [::1]:5432'],
    ['postgres://ada:canary@/music?host=/run/postgresql', 'the database music at /run/postgresql:5432'],
    ['postgres:///music?host=10.0.0.7&port=6543', 'the database music at 10.0.0.7:6543'],
    ['postgres://ada:canary@db.example', 'a database at db.example:5432'],
  ])('of %s is %s', (connectionString, place) => {
    expect(databasePlace(connectionString)).toBe(place);
  });

  // Passwords that were not percent-encoded: the URL ends somewhere in the middle of them.
  it.each([
    'postgres://ada:12/canary@db.example/music',
    'postgres://ada:12?canary@db.example/music',
    'postgres://ada:12#canary@db.example/music',
    'postgres://db.example/my%20music',
    'postgres://db.example/%ff',
    'nothing of the kind',
  ])('is not told of %s', (connectionString) => {
    expect(databasePlace(connectionString)).toBeUndefined();
  });
});
