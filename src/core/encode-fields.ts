import { suggestion } from './errors.ts';
import { type FieldProblem, FieldsError, problem } from './field-problems.ts';
import { type EncodedFields, type FieldType, type LocalFile, operationNamed, shown } from './operations.ts';

/** What could be written of the caller's fields, and what is wrong with the others. */
export interface FieldsRead {
  readonly encoded: EncodedFields;
  readonly problems: readonly FieldProblem[];
}

/**
 * The caller's fields as form values, keys in canonical order, without our defaults (which are no part of
 * the caller's intent). Throws `unknown_operation`, or a `FieldsError` with every problem of name and type.
 */
export function encodeFields(
  operationName: string,
  fields: Readonly<Record<string, unknown>>,
): EncodedFields {
  const { encoded, problems } = readFields(operationName, fields);
  if (problems.length > 0) throw new FieldsError(operationName, problems);
  return encoded;
}

/** Throws `unknown_operation`. */
export function readFields(operationName: string, fields: Readonly<Record<string, unknown>>): FieldsRead {
  const operation = operationNamed(operationName);
  if (typeof fields !== 'object' || fields === null || Array.isArray(fields)) {
    const message = `fields: expected an object, got ${typeNameOf(fields)}.`;
    return { encoded: {}, problems: [{ code: 'wrong_type', field: 'fields', message }] };
  }
  const encoded: Record<string, string> = {};
  const problems: FieldProblem[] = [];
  const refused = new Set<string>();
  for (const name of Object.keys(fields).sort()) {
    const value = fields[name];
    if (value === undefined) continue;
    const spec = Object.hasOwn(operation.fields, name) ? operation.fields[name] : undefined;
    if (spec === undefined) problems.push(unknownField(operationName, Object.keys(operation.fields), name));
    else {
      try {
        encoded[name] = encodeValue(name, spec.type, value);
      } catch (error) {
        if (!(error instanceof Refused)) throw error;
        problems.push(error.problem);
        refused.add(name);
      }
    }
  }
  for (const [name, spec] of Object.entries(operation.fields)) {
    if (spec.required && !refused.has(name) && !encoded[name]?.trim()) {
      problems.push(problem('missing', name, `required by ${operationName}, and missing or blank.`));
    }
  }
  for (const group of operation.oneOf ?? []) {
    const given = group.filter((name) => refused.has(name) || encoded[name]?.trim());
    if (given.length === 0) {
      const message = `one of ${group.join(', ')} is required by ${operationName}, and missing or blank.`;
      problems.push(problem('missing', group.at(-1) as string, message));
    } else if (given.length > 1) {
      problems.push(problem('conflict', given[0] as string, `give one of ${given.join(', ')}, not both.`));
    }
  }
  return { encoded, problems };
}

/** Leaves the value that is being encoded; never leaves this file. */
class Refused extends Error {
  readonly problem: FieldProblem;

  constructor(refusal: FieldProblem) {
    super(refusal.code);
    this.problem = refusal;
  }
}

function unknownField(operationName: string, known: readonly string[], name: string): FieldProblem {
  const repeated = shown(name);
  return {
    code: 'unknown_field',
    field: repeated === '' ? '' : name,
    message: `Unknown field${repeated} of ${operationName}.${suggestion(name, known)}`,
    hint: `Fields of ${operationName}: ${known.join(', ')}.`,
  };
}

function encodeValue(path: string, type: FieldType, value: unknown): string {
  switch (type) {
    case 'string':
      if (typeof value === 'string') return wellFormed(path, value);
      break;
    case 'integer':
      if (Number.isSafeInteger(value)) return String(value);
      break;
    case 'number':
      if (typeof value === 'number' && Number.isFinite(value)) return String(value);
      break;
    case 'boolean':
      if (typeof value === 'boolean') return String(value);
      break;
    case 'json':
      if (typeof value === 'object' && value !== null) return encodeJson(path, value);
      break;
    case 'file':
      if (isLocalFile(value)) return encodeJson(path, { file: value.file });
      break;
  }
  throw new Refused(problem('wrong_type', path, `expected ${EXPECTED[type]}, got ${typeNameOf(value)}.`));
}

function typeNameOf(value: unknown): string {
  if (value === null) return 'null';
  if (value === undefined) return 'nothing';
  if (Array.isArray(value)) return 'an array';
  return typeof value === 'object' ? 'an object' : `a ${typeof value}`;
}

const EXPECTED: Readonly<Record<FieldType, string>> = {
  string: 'a string',
  integer: 'a whole number',
  number: 'a finite number',
  boolean: 'true or false',
  json: 'an array or object',
  file: '{ file: path }',
};

function isLocalFile(value: unknown): value is LocalFile {
  if (typeof value !== 'object' || value === null || Object.keys(value).join() !== 'file') return false;
  const { file } = value as Readonly<Record<string, unknown>>;
  return typeof file === 'string' && file !== '';
}

function encodeJson(path: string, value: object): string {
  let plain: unknown;
  try {
    // What JSON makes of it (toJSON, wrapper objects, getters), taken once and then checked.
    plain = canonical(path, JSON.parse(JSON.stringify(value, (_key, part: unknown) => finite(path, part))));
  } catch (error) {
    if (error instanceof Refused) throw error;
  }
  if (typeof plain !== 'object' || plain === null) {
    throw new Refused(problem('malformed', path, "can't be written as a JSON array or object."));
  }
  return JSON.stringify(plain);
}

/** JSON would turn it into null, and the provider would get something that nobody asked for. */
function finite(path: string, part: unknown): unknown {
  if (typeof part !== 'number' || Number.isFinite(part)) return part;
  throw new Refused(problem('malformed', path, "contains a number that isn't finite."));
}

/** Every string well-formed, and keys in order: the order in which an app wrote them is no part of the intent. */
function canonical(path: string, part: unknown): unknown {
  if (typeof part === 'string') return wellFormed(path, part);
  if (typeof part !== 'object' || part === null) return part;
  if (Array.isArray(part)) return part.map((element) => canonical(path, element));
  const entries = Object.entries(part).map(
    ([key, value]) => [wellFormed(path, key), canonical(path, value)] as const,
  );
  return Object.fromEntries(entries.sort(([a], [b]) => (a < b ? -1 : 1)));
}

/** jsonb and text can't hold either, and a form would silently send another prompt than the stored one. */
function wellFormed(path: string, text: string): string {
  if (text.includes('\u0000')) {
    const hint = 'Remove it: it can be neither stored nor sent.';
    throw new Refused(problem('malformed', path, 'contains a NUL character (U+0000).', hint));
  }
  if (/\p{Cs}/u.test(text)) {
    const hint = 'Cut strings by code point, for example with Array.from(text).';
    throw new Refused(problem('malformed', path, 'contains a lone surrogate (half of a character).', hint));
  }
  return text;
}
