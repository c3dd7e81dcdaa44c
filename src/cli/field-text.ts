import { OnetakeError } from '../core/errors.ts';
import { type Operation, operationNamed } from '../core/operations.ts';
import { usageError } from './errors.ts';

type FieldType = Operation['fields'][string]['type'];

/**
 * `k=v` texts as the fields of an operation, each value converted by its field's type. A name that the
 * operation doesn't know stays text: enqueue refuses it with a suggestion. Messages never repeat a value.
 */
export function parseFields(operation: string, texts: readonly string[]): Record<string, unknown> {
  const known = operationNamed(operation).fields;
  const fields: Record<string, unknown> = Object.create(null);
  for (const text of texts) {
    const equals = text.indexOf('=');
    const name = text.slice(0, Math.max(0, equals));
    if (equals < 1) {
      const shown = Object.hasOwn(known, text) ? ` "${text}"` : '';
      throw usageError(`--field${shown}: expected name=value.`, "For example --field prompt='a slow waltz'.");
    }
    if (name in fields) {
      const shown = Object.hasOwn(known, name) ? ` ${name}` : ' of one name';
      throw usageError(`--field: there is more than one${shown}.`);
    }
    const type = Object.hasOwn(known, name) ? known[name]?.type : undefined;
    fields[name] = parseFieldText(name, type ?? 'string', text.slice(equals + 1));
  }
  return { ...fields };
}

/** Throws `invalid_field`. */
export function parseFieldText(name: string, type: FieldType, text: string): unknown {
  switch (type) {
    case 'string':
      return text;
    case 'integer':
      if (/^[+-]?\d{1,15}$/.test(text)) return Number(text);
      throw invalid(name, 'a whole number');
    case 'number':
      if (/^[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$/i.test(text) && Number.isFinite(Number(text)))
        return Number(text);
      throw invalid(name, 'a number');
    case 'boolean':
      if (text === 'true' || text === 'false') return text === 'true';
      throw invalid(name, 'true or false');
    case 'file':
      return { file: text };
    case 'json':
      try {
        return JSON.parse(text);
      } catch {
        throw invalid(name, 'a JSON array or object');
      }
  }
}

function invalid(name: string, expected: string): OnetakeError {
  return new OnetakeError('invalid_field', `fields.${name}: expected ${expected}.`);
}
