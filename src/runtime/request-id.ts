import { OnetakeError } from '../core/errors.ts';
import { shown } from '../core/operations.ts';

const UUID = /^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$/i;

export function isRequestId(given: string): boolean {
  return UUID.test(given);
}

/** Eight or more of an id's first digits, with dashes or without. */
export function checkIdPrefix(given: unknown): string {
  if (typeof given === 'string' && /^[0-9a-f-]{8,36}$/i.test(given)) {
    const digits = given.replaceAll('-', '').length;
    if (digits >= 8 && digits <= 32) return given;
  }
  const repeated = typeof given === 'string' ? shown(given) : '';
  throw new OnetakeError(
    'invalid_option',
    `id:${repeated === '' ? ' what was given' : repeated} is neither a request id nor 8 or more of its first digits.`,
  );
}
