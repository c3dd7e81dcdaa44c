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
    fields[name] = parseFieldText(type ?? 'string', text.slice(equals + 1));
  }
  return { ...fields };
}

/** A text that is none of the type stays text: enqueue refuses it, with everything else that is wrong. */
function parseFieldText(type: FieldType, text: string): unknown {
  switch (type) {
    case 'string':
      return text;
    case 'integer':
      return /^[+-]?\d{1,15}$/.test(text) ? Number(text) : text;
    case 'number':
      return /^[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$/i.test(text) && Number.isFinite(Number(text))
        ? Number(text)
        : text;
    case 'boolean':
      return text === 'true' || text === 'false' ? text === 'true' : text;
    case 'file':
      return { file: text };
    case 'json':
      try {
        return JSON.parse(text);
      } catch {
        return text;
      }
  }
}
