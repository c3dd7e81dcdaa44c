import { OnetakeError, suggestion } from '../core/errors.ts';

/** Problems found so far, each a sentence that begins with its path. All are reported at once. */
export type Problems = string[];

export function refuseProblems(problems: Problems, what: string): void {
  if (problems.length === 0) return;
  throw new OnetakeError('invalid_option', `${what}: ${problems.join(' ')}`, {
    hint: 'Correct the settings named above.',
  });
}

/** The value as an object that has no key outside `known`, else undefined and a problem. */
export function readObject(
  value: unknown,
  path: string,
  known: readonly string[],
  problems: Problems,
): Readonly<Record<string, unknown>> | undefined {
  if (typeof value !== 'object' || value === null || Array.isArray(value)) {
    // Text in its place may be anything, a key too.
    const got = typeof value === 'string' ? 'a text' : describe(value);
    problems.push(`${path}: expected an object, got ${got}.`);
    return undefined;
  }
  for (const key of Object.keys(value)) {
    if (!known.includes(key)) problems.push(`${join(path, key)}: unknown key.${suggestion(key, known)}`);
  }
  return value as Record<string, unknown>;
}

export interface NumberBounds {
  readonly min: number;
  readonly max: number;
  /** Whole numbers only, unless false. */
  readonly whole?: boolean;
}

/** Undefined when absent or refused. Numeric strings are refused, never converted. */
export function readNumber(
  value: unknown,
  path: string,
  bounds: NumberBounds,
  problems: Problems,
): number | undefined {
  if (value === undefined) return undefined;
  const whole = bounds.whole ?? true;
  const fits = typeof value === 'number' && value >= bounds.min && value <= bounds.max;
  if (fits && (!whole || Number.isInteger(value))) return value;
  const kind = whole ? 'a whole number' : 'a number';
  problems.push(`${path}: expected ${kind} from ${bounds.min} to ${bounds.max}, got ${describe(value)}.`);
  return undefined;
}

export function readChoice<Choice extends string>(
  value: unknown,
  path: string,
  choices: readonly Choice[],
  problems: Problems,
): Choice | undefined {
  if (value === undefined) return undefined;
  const found = choices.find((choice) => choice === value);
  if (found !== undefined) return found;
  const hint = typeof value === 'string' ? suggestion(value, choices) : '';
  problems.push(`${path}: expected one of ${choices.join(', ')}, got ${describe(value)}.${hint}`);
  return undefined;
}

export function readBoolean(value: unknown, path: string, problems: Problems): boolean | undefined {
  if (value === undefined || typeof value === 'boolean') return value;
  problems.push(`${path}: expected true or false, got ${describe(value)}.`);
  return undefined;
}

export function readFunction<F>(value: unknown, path: string, problems: Problems): F | undefined {
  if (value === undefined || typeof value === 'function') return value as F | undefined;
  problems.push(`${path}: expected a function, got ${describe(value)}.`);
  return undefined;
}

/** Drops undefined members, so that optional properties stay absent. */
export function present<T extends object>(value: T): { [K in keyof T]: Exclude<T[K], undefined> } {
  return Object.fromEntries(Object.entries(value).filter(([, member]) => member !== undefined)) as {
    [K in keyof T]: Exclude<T[K], undefined>;
  };
}

/** Says what a value is without repeating long or private text. */
export function describe(value: unknown): string {
  if (value === null) return 'null';
  if (value === undefined) return 'nothing';
  if (Array.isArray(value)) return 'a list';
  if (typeof value === 'string') return value.length <= 40 ? JSON.stringify(value) : 'a long text';
  if (typeof value === 'number' || typeof value === 'boolean') return String(value);
  if (typeof value === 'object') return 'an object';
  return `a value of type ${typeof value}`;
}

function join(path: string, key: string): string {
  return path === '' ? key : `${path}.${key}`;
}
