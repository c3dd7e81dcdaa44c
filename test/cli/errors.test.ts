import { CommanderError } from 'commander';
import { describe, expect, test } from 'vitest';
import { reportOf } from '../../src/cli/errors.ts';
import { OnetakeError, type OnetakeErrorCode } from '../../src/core/errors.ts';

const withCode = (code: string, message = 'row values: secret') =>
  Object.assign(new Error(message), { code });

describe('reportOf', () => {
  test.each<[OnetakeErrorCode, number]>([
    ['configuration_invalid', 2],
    ['configuration_not_found', 2],
    ['invalid_option', 2],
    ['missing_api_key', 2],
    ['unknown_field', 2],
    ['unknown_operation', 2],
    ['unknown_account', 2],
    ['unknown_breaker', 2],
    ['breaker_not_overridden', 1],
    ['database_unreachable', 1],
    ['schema_not_migrated', 1],
    ['intent_mismatch', 1],
    ['request_not_found', 1],
    ['request_not_in_state', 1],
    ['task_id_in_use', 1],
  ])('ends %s with exit code %i', (code, exitCode) => {
    expect(reportOf(new OnetakeError(code, 'What is wrong.', { hint: 'What to do.' }))).toEqual({
      code,
      message: 'What is wrong.',
      hint: 'What to do.',
      exitCode,
    });
  });

  test.each([
    ['ECONNREFUSED', 'database_unreachable'],
    ['ENOTFOUND', 'database_unreachable'],
    ['57P03', 'database_unreachable'],
    ['28P01', 'database_unreachable'],
    ['3D000', 'database_unreachable'],
    ['42P01', 'schema_not_migrated'],
    ['42501', 'database_refused'],
    ['23505', 'database_refused'],
    ['EACCES', 'unexpected'],
  ])('says of %s what it means: %s, without its message', (code, expected) => {
    const report = reportOf(withCode(code));
    expect(report).toMatchObject({ code: expected, exitCode: 1 });
    expect(JSON.stringify(report)).not.toContain('secret');
  });

  test('names the variable of a database that nobody reaches, never its value', () => {
    const database = { variable: 'APP_DATABASE', place: undefined };
    expect(reportOf(withCode('ECONNREFUSED'), database)).toMatchObject({
      code: 'database_unreachable',
      hint: 'Check that it runs and that APP_DATABASE is right.',
    });
    expect(reportOf(withCode('28P01'), database).hint).toBe('Check user and password of APP_DATABASE.');
    expect(reportOf(new OnetakeError('stopped', 'Over.'), database).hint).toBeUndefined();
  });

  test.each(['ECONNREFUSED', '42P01', '3D000', '25006'])('says of %s which database it was', (code) => {
    const database = { variable: 'APP_DATABASE', place: 'the database music at db.example:6432' };
    expect(reportOf(withCode(code), database).hint).toMatch(
      /\. APP_DATABASE leads to the database music at db\.example:6432\.$/,
    );
  });

  test('says of a missing reason what it is for', () => {
    const error = new CommanderError(
      1,
      'commander.missingMandatoryOptionValue',
      "error: required option '--reason <text>' not specified",
    );
    expect(reportOf(error)).toMatchObject({
      message: "Required option '--reason <text>' not specified.",
      hint: expect.stringContaining('onetake.operator_actions'),
    });
  });

  test('knows a connection that gets no answer by its message', () => {
    expect(reportOf(new Error('timeout exceeded when trying to connect')).code).toBe('database_unreachable');
  });

  test('tells an unexpected error by its kind and place alone', () => {
    const report = reportOf(new TypeError('prompt "secret words" at postgres://u:secret@h/d'));
    expect(report.message).toMatch(/^Something unexpected happened \(TypeError, errors\.test\.ts:\d+\)\.$/);
    expect(report.exitCode).toBe(1);
  });

  test('repeats nothing that may be a prompt without its quotes', () => {
    const said = (code: string, message: string) => reportOf(new CommanderError(1, code, message)).message;
    expect(
      said(
        'commander.excessArguments',
        "error: too many arguments for 'enqueue'. Expected 1 argument but got 3: x, secret, words.",
      ),
    ).toBe("Too many arguments for 'enqueue'. Expected 1 argument but got 3. Quote a value that has blanks.");
    expect(said('commander.unknownOption', "error: unknown option '--prompt=secret words'")).toBe(
      "Unknown option '--prompt'.",
    );
    expect(said('commander.unknownCommand', `error: unknown command '${'secret '.repeat(9)}'`)).not.toContain(
      'secret '.repeat(7),
    );
  });

  test("gives the parser's suggestion as the hint", () => {
    const error = new CommanderError(
      1,
      'commander.unknownOption',
      "error: unknown option '--sate'\n(Did you mean --state?)",
    );
    expect(reportOf(error)).toMatchObject({
      code: 'invalid_option',
      hint: 'Did you mean --state?',
      exitCode: 2,
    });
  });
});
