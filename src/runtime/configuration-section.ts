import { suggestion } from '../core/errors.ts';

/** One thing that is wrong, and where: `accounts.default.requestsPerMinute`; the root's path is empty. */
export interface ConfigurationProblem {
  readonly path: string;
  readonly message: string;
}

/** A number's bounds, both included, and what it is when it is left out. Whole, unless `fraction` says so. */
export interface NumberSetting {
  readonly default: number;
  readonly min: number;
  readonly max: number;
  /** Says the minimum in words, where it follows from another setting. */
  readonly minIs?: string;
  readonly fraction?: true;
}

const NAME = /^[A-Za-z0-9_.-]{1,63}$/;
/**
 * Capitals only: a key or a connection string that was put where its variable's name belongs is refused
 * here, before some other message repeats it.
 */
const VARIABLE_NAME = /^[A-Z_][A-Z0-9_]{0,99}$/;
const SHOWN_TEXT = /^[\x20-\x7e]{0,20}$/;

/**
 * One object of the configuration while it is read. Whatever is wrong goes to the shared list of problems
 * and reading goes on. Only own keys count, so a prototype can't configure anything, and a key that is
 * there but undefined is left out.
 */
export class Section {
  readonly path: string;
  /** False when it was written as something else, which is a problem already. */
  readonly isObject: boolean;
  /** An object with nothing in it, not even something refused. */
  readonly isEmpty: boolean;
  readonly #values: ReadonlyMap<string, unknown>;
  readonly #problems: ConfigurationProblem[];

  /** `known` are the keys that it may have; null: they are names of the user's own. */
  constructor(
    value: unknown,
    path: string,
    known: readonly string[] | null,
    problems: ConfigurationProblem[],
  ) {
    this.path = path;
    this.#problems = problems;
    this.isObject = isPlainObject(value);
    if (!this.isObject) this.refuse(undefined, `expected an object, got ${describe(value)}.`);
    const entries = isPlainObject(value)
      ? Object.entries(value).filter(([, member]) => member !== undefined)
      : [];
    this.isEmpty = this.isObject && entries.length === 0;
    const [accepted, refused] = partition(entries, ([key]) =>
      known === null ? isName(key) : known.includes(key),
    );
    for (const [key] of refused) this.#refuseKey(key, known);
    this.#values = new Map(accepted);
  }

  refuse(key: string | undefined, message: string): void {
    const path = key === undefined ? this.path : this.path === '' ? key : `${this.path}.${key}`;
    this.#problems.push({ path, message });
  }

  has(key: string): boolean {
    return this.#values.has(key);
  }

  get(key: string): unknown {
    return this.#values.get(key);
  }

  names(): readonly string[] {
    return [...this.#values.keys()];
  }

  child(key: string, known: readonly string[] | null): Section {
    const path = this.path === '' ? key : `${this.path}.${key}`;
    return new Section(this.has(key) ? this.get(key) : {}, path, known, this.#problems);
  }

  /** NaN when refused, so that every later comparison with it is false and one mistake is told once. */
  number(key: string, setting: NumberSetting): number {
    if (!this.has(key)) return setting.default;
    const value = this.get(key);
    if (
      typeof value === 'number' &&
      (setting.fraction === true ? Number.isFinite(value) : Number.isInteger(value)) &&
      value >= setting.min &&
      value <= setting.max
    ) {
      return value;
    }
    const from = setting.minIs ?? `from ${grouped(setting.min)}`;
    const what = setting.fraction === true ? 'a number' : 'a whole number';
    this.refuse(key, `expected ${what} ${from} to ${grouped(setting.max)}, got ${describe(value)}.`);
    return Number.NaN;
  }

  boolean(key: string, fallback: boolean): boolean {
    const value = this.has(key) ? this.get(key) : fallback;
    if (typeof value === 'boolean') return value;
    this.refuse(key, `expected true or false, got ${describe(value)}.`);
    return fallback;
  }

  /** One of `choices`; what is left out counts as `fallback`, which must be one of them too. */
  choice(key: string, choices: readonly string[], fallback: string, what: string): string {
    const value = this.has(key) ? this.get(key) : fallback;
    if (typeof value === 'string' && choices.includes(value)) return value;
    const hint = typeof value === 'string' ? suggestion(value, choices) : '';
    const got = this.has(key) ? describe(value) : `${describe(value)} by default`;
    this.refuse(key, `expected ${what}, got ${got}.${hint}`);
    return fallback;
  }

  /** The name of an environment variable; required when it has no fallback. Its value is never repeated. */
  variableName(key: string, fallback: string | undefined, example: string): string {
    const value = this.has(key) ? this.get(key) : fallback;
    if (typeof value === 'string' && VARIABLE_NAME.test(value)) return value;
    const expected = `expected the name of an environment variable in capitals, such as "${example}"`;
    const got = typeof value === 'string' ? 'another string (not shown)' : describe(value);
    this.refuse(key, `${expected}, got ${got}.`);
    return '';
  }

  /** The path of a directory, never repeated; undefined when it is left out or refused. */
  directory(key: string): string | undefined {
    if (!this.has(key)) return undefined;
    const value = this.get(key);
    if (typeof value === 'string' && value.trim() !== '' && !value.includes('\u0000')) return value;
    const got = typeof value === 'string' ? 'another string (not shown)' : describe(value);
    this.refuse(key, `expected the path of a directory, got ${got}.`);
    return undefined;
  }

  /**
   * Each of `settings` (key and value, in this order) must be more than the one before it; with `orEqual`
   * it may be the same. Blamed is a setting that was written down, not a default.
   */
  requireRising(settings: Readonly<Record<string, number>>, orEqual = false): void {
    const entries = Object.entries(settings);
    for (const [index, later] of entries.entries()) {
      const earlier = entries[index - 1];
      if (earlier === undefined) continue;
      const falls = orEqual ? later[1] < earlier[1] : later[1] <= earlier[1];
      if (!falls) continue;
      if (this.has(later[0])) this.#refuseOrder(later, orEqual ? 'no less than' : 'more than', earlier);
      else this.#refuseOrder(earlier, orEqual ? 'no more than' : 'less than', later);
    }
  }

  #refuseOrder(blamed: readonly [string, number], relation: string, other: readonly [string, number]): void {
    const origin = this.has(other[0]) ? '' : ', the default';
    const bound = `${other[0]} (${grouped(other[1])}${origin})`;
    this.refuse(blamed[0], `expected ${relation} ${bound}, got ${blamed[1]}.`);
  }

  #refuseKey(key: string, known: readonly string[] | null): void {
    // A name that isn't short and plain may be anything, a secret too: it is told by its place alone.
    const shown = NAME.test(key);
    if (known === null) {
      this.refuse(shown ? key : undefined, `${NAME_RULE}, got ${describe(key)}.`);
      return;
    }
    const near = shown ? suggestion(key, known) : '';
    const hint = near === '' ? ` Known here: ${known.join(', ')}.` : near;
    this.refuse(
      shown ? key : undefined,
      `${shown ? 'unknown setting' : 'an unknown setting (not shown)'}.${hint}`,
    );
  }
}

const NAME_RULE = 'expected a name of 1 to 63 letters, digits, "_", "." and "-" (not "__proto__")';

function isName(key: string): boolean {
  return NAME.test(key) && key !== '__proto__';
}

function isPlainObject(value: unknown): value is Readonly<Record<string, unknown>> {
  if (typeof value !== 'object' || value === null || Array.isArray(value)) return false;
  const prototype: unknown = Object.getPrototypeOf(value);
  return prototype === null || Object.getPrototypeOf(prototype) === null;
}

function partition<T>(items: readonly T[], test: (item: T) => boolean): [T[], T[]] {
  return [items.filter(test), items.filter((item) => !test(item))];
}

/** Says what a value is; text is repeated only when it is short and plain. */
export function describe(value: unknown): string {
  if (value === null) return 'null';
  if (value === undefined) return 'nothing';
  if (Array.isArray(value)) return 'a list';
  switch (typeof value) {
    case 'string':
      return SHOWN_TEXT.test(value) ? JSON.stringify(value) : `a string of ${value.length} characters`;
    case 'number':
    case 'boolean':
      return String(value);
    case 'object':
      return 'an object';
    default:
      return `a ${typeof value}`;
  }
}

/** 86400000 as 86,400,000. */
export function grouped(value: number): string {
  return value.toLocaleString('en-US');
}
