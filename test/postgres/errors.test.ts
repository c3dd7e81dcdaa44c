import { describe, expect, it } from 'vitest';
import {
  databaseErrorCode,
  isAnswered,
  isLostConnection,
  isPassing,
  isRetryable,
  violatedConstraint,
} from '../../src/postgres/errors.ts';

const withCode = (code: string, cause?: unknown) => Object.assign(new Error('x', { cause }), { code });

describe('an error of the database', () => {
  it('is known by its code, also through wrappers', () => {
    expect(databaseErrorCode(withCode('23505'))).toBe('23505');
    expect(databaseErrorCode(new Error('Failed query', { cause: withCode('23505') }))).toBe('23505');
    expect(databaseErrorCode(new Error('x'))).toBe('unknown');
    expect(databaseErrorCode(withCode('a value: secret'))).toBe('unknown');
    for (const odd of [undefined, null, 'text', 7]) expect(databaseErrorCode(odd)).toBe('unknown');
  });

  it('names the constraint, also through wrappers', () => {
    const inner = Object.assign(withCode('23505'), { constraint: 'once' });
    expect(violatedConstraint(new Error('x', { cause: inner }))).toBe('once');
    expect(violatedConstraint(withCode('23505'))).toBeUndefined();
  });

  it.each([
    '08006',
    '57P01',
    '57P03',
    '25P03',
    '25P04',
    'ECONNRESET',
    'EPIPE',
    'ENOTFOUND',
    'CERT_HAS_EXPIRED',
  ])('with the code %s is a lost connection, and no answer', (code) => {
    expect(isLostConnection(withCode(code))).toBe(true);
    expect(isAnswered(withCode(code))).toBe(false);
  });

  it.each([
    ['Connection terminated unexpectedly', 'connection_lost'],
    ['Connection terminated due to connection timeout', 'connect_timeout'],
    ['timeout exceeded when trying to connect', 'no_free_connection'],
    ['Client has encountered a connection error and is not queryable', 'connection_lost'],
    ['Query read timeout', 'no_answer'],
  ])('that the driver words as "%s" is %s: a lost connection, and no answer', (message, word) => {
    expect(databaseErrorCode(new Error('the outcome', { cause: new Error(message) }))).toBe(word);
    expect(isLostConnection(new Error(message))).toBe(true);
    expect(isLostConnection(new Error('Failed query', { cause: new Error(message) }))).toBe(true);
    expect(isAnswered(new Error(message))).toBe(false);
  });

  it.each(['23505', '40P01', 'P0001', 'OT002', '57014'])(
    'with the code %s is an answer of the server',
    (code) => {
      expect(isLostConnection(withCode(code))).toBe(false);
      expect(isAnswered(withCode(code))).toBe(true);
    },
  );

  it('that is none, but ours or a mistake, is neither', () => {
    for (const error of [
      withCode('intent_mismatch'),
      withCode('ERR_INVALID_ARG_TYPE'),
      new TypeError('x is not a function'),
    ]) {
      expect(isLostConnection(error)).toBe(false);
      expect(isAnswered(error)).toBe(false);
    }
  });

  it.each(['40P01', '40001', '55P03', '57014'])(
    'with the code %s leaves nothing behind and may be tried again',
    (code) => {
      expect(isRetryable(withCode(code))).toBe(true);
    },
  );

  it.each(['40P01', '57P01', '57P03', '25006', '53100', '53200', '53300', '58030', 'ECONNREFUSED'])(
    'with the code %s is trouble of the whole database, which passes',
    (code) => {
      expect(isPassing(withCode(code))).toBe(true);
    },
  );

  it.each(['42501', '42P01', '23514', 'PGBOSS_x', 'intent_mismatch'])('with the code %s is not', (code) => {
    expect(isPassing(withCode(code))).toBe(false);
  });

  it('with any other code is not tried again', () => {
    for (const code of ['23505', '57P01', 'ECONNRESET']) expect(isRetryable(withCode(code))).toBe(false);
  });
});
