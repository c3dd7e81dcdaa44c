import { OnetakeError, suggestion } from '../core/errors.ts';

/** The types say so only to TypeScript. `what` names the argument; what was given is never repeated. */
export function requireObject(given: unknown, what = 'options'): asserts given is object {
  if (typeof given === 'object' && given !== null && !Array.isArray(given)) return;
  throw new OnetakeError('invalid_option', `${what}: expected an object, got ${kindOf(given)}.`);
}

/** An unknown key is a typo, and left unsaid it would be as if the option had not been given. */
export function checkKeys(given: unknown, known: readonly string[], what = 'options'): void {
  requireObject(given, what);
  for (const key of Object.keys(given)) {
    if (known.includes(key)) continue;
    const shown = /^[A-Za-z0-9_.-]{1,40}$/.test(key) ? ` "${key}"` : '';
    throw new OnetakeError('invalid_option', `Unknown option${shown}.${suggestion(key, known)}`, {
      hint: `Known: ${known.join(', ')}.`,
    });
  }
}

/** Of any length and content, so that text may be a key or an address. */
function kindOf(value: unknown): string {
  if (value === undefined) return 'nothing';
  if (value === null) return 'null';
  return Array.isArray(value) ? 'a list' : `a ${typeof value}`;
}
