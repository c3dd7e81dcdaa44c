import { OnetakeError, suggestion } from './errors.ts';

export interface Segment {
  readonly start: number;
  readonly prompt: string;
  readonly label?: string;
}

export interface TextToMusicFields {
  readonly prompt: string;
  /** Seconds. Left out, the provider infers it from the prompt. */
  readonly duration?: number;
  readonly output_format?: 'm4a' | 'wav' | 'mp3';
  readonly segments?: readonly Segment[];
  /** The price is multiplied by it. */
  readonly variants_num?: number;
  readonly stems?: boolean;
}

export interface VideoToMusicFields {
  readonly video_url: string;
  readonly prompt?: string;
  readonly output_format?: 'm4a' | 'wav' | 'mp3';
  readonly segments?: readonly Segment[];
  readonly variants_num?: number;
  readonly stems?: boolean;
  readonly preserve_speech?: boolean;
  readonly ducking?: boolean;
  /** 0 to 1. */
  readonly prompt_influence?: number;
}

/** The fields of each operation, by its name. */
export interface OperationFields {
  'text-to-music': TextToMusicFields;
  'video-to-music': VideoToMusicFields;
}

export type OperationName = keyof OperationFields;

/** Form fields as they go on the wire, fixed at enqueue: what is sent is what is stored. */
export type EncodedFields = Readonly<Record<string, string>>;

type FieldType = 'string' | 'integer' | 'number' | 'boolean' | 'json';

export interface Operation {
  readonly path: string;
  readonly fields: Readonly<Record<string, { readonly type: FieldType; readonly required?: true }>>;
  /** Where a finished task keeps its media. */
  readonly result: 'audio';
  /** The provider's own ceiling; after it a task is overdue and its slot is given back. */
  readonly maxRunMs: number;
  /**
   * What we send where the caller says nothing. The provider has changed defaults without a version, so
   * nothing that is paid for relies on them.
   */
  readonly defaults: EncodedFields;
}

const MUSIC_FIELDS = {
  output_format: { type: 'string' },
  segments: { type: 'json' },
  variants_num: { type: 'integer' },
  stems: { type: 'boolean' },
} as const;

const MUSIC_DEFAULTS = { mode: 'async', output_format: 'm4a', variants_num: '1', stems: 'false' } as const;
const MUSIC_MAX_RUN_MS = 600_000;

export const OPERATIONS: Readonly<Record<OperationName, Operation>> = {
  'text-to-music': {
    path: '/v1/text-to-music',
    fields: { prompt: { type: 'string', required: true }, duration: { type: 'integer' }, ...MUSIC_FIELDS },
    result: 'audio',
    maxRunMs: MUSIC_MAX_RUN_MS,
    defaults: MUSIC_DEFAULTS,
  },
  'video-to-music': {
    path: '/v1/video-to-music',
    fields: {
      video_url: { type: 'string', required: true },
      prompt: { type: 'string' },
      preserve_speech: { type: 'boolean' },
      ducking: { type: 'boolean' },
      prompt_influence: { type: 'number' },
      ...MUSIC_FIELDS,
    },
    result: 'audio',
    maxRunMs: MUSIC_MAX_RUN_MS,
    defaults: { ...MUSIC_DEFAULTS, preserve_speech: 'false', ducking: 'false', prompt_influence: '0.5' },
  },
};

export const OPERATION_NAMES = Object.keys(OPERATIONS) as OperationName[];

export function isOperationName(name: string): name is OperationName {
  return Object.hasOwn(OPERATIONS, name);
}

/** The operation, or `unknown_operation` with a suggestion. */
export function operationNamed(name: string): Operation {
  if (isOperationName(name)) return OPERATIONS[name];
  const near = typeof name === 'string' ? suggestion(name, OPERATION_NAMES) : '';
  throw new OnetakeError('unknown_operation', `Unknown operation${shown(name)}.${near}`, {
    hint: `Known operations: ${OPERATION_NAMES.join(', ')}.`,
  });
}

/**
 * The caller's fields as form values, keys in canonical order, without our defaults (which are no part of
 * the caller's intent). Throws `unknown_field` or `invalid_field`, naming the field and never its value.
 */
export function encodeFields(
  operationName: string,
  fields: Readonly<Record<string, unknown>>,
): EncodedFields {
  const operation = operationNamed(operationName);
  if (typeof fields !== 'object' || fields === null || Array.isArray(fields)) {
    throw new OnetakeError('invalid_field', `fields: expected an object, got ${typeNameOf(fields)}.`);
  }
  const encoded: Record<string, string> = {};
  for (const name of Object.keys(fields).sort()) {
    const value = fields[name];
    if (value === undefined) continue;
    const spec = Object.hasOwn(operation.fields, name) ? operation.fields[name] : undefined;
    if (spec === undefined) throw unknownField(operationName, operation, name);
    encoded[name] = encodeValue(`fields.${name}`, spec.type, value);
  }
  for (const [name, spec] of Object.entries(operation.fields)) {
    if (spec.required && !encoded[name]?.trim()) {
      throw new OnetakeError(
        'invalid_field',
        `fields.${name}: required by ${operationName}, and missing or blank.`,
      );
    }
  }
  return encoded;
}

/** What goes on the wire: the caller's fields over our defaults. */
export function wireFields(operationName: string, encoded: EncodedFields): EncodedFields {
  return { ...operationNamed(operationName).defaults, ...encoded };
}

function unknownField(operationName: string, operation: Operation, name: string): OnetakeError {
  const known = Object.keys(operation.fields);
  return new OnetakeError(
    'unknown_field',
    `Unknown field${shown(name)} of ${operationName}.${suggestion(name, known)}`,
    {
      hint: `Fields of ${operationName}: ${known.join(', ')}.`,
    },
  );
}

/** A hostile or mistaken name is customer data too: only a short, plain one is repeated. */
function shown(name: string): string {
  return /^[A-Za-z0-9_.-]{1,40}$/.test(name) ? ` "${name}"` : '';
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
  }
  throw new OnetakeError('invalid_field', `${path}: expected ${EXPECTED[type]}, got ${typeNameOf(value)}.`);
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
};

function encodeJson(path: string, value: object): string {
  let plain: unknown;
  try {
    // What JSON makes of it (toJSON, wrapper objects, getters), taken once and then checked.
    plain = canonical(path, JSON.parse(JSON.stringify(value, (_key, part: unknown) => finite(path, part))));
  } catch (error) {
    if (error instanceof OnetakeError) throw error;
  }
  if (typeof plain !== 'object' || plain === null) {
    throw new OnetakeError('invalid_field', `${path}: can't be written as a JSON array or object.`);
  }
  return JSON.stringify(plain);
}

/** JSON would turn it into null, and the provider would get something that nobody asked for. */
function finite(path: string, part: unknown): unknown {
  if (typeof part !== 'number' || Number.isFinite(part)) return part;
  throw new OnetakeError('invalid_field', `${path}: contains a number that isn't finite.`);
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
    throw new OnetakeError('invalid_field', `${path}: contains a NUL character (U+0000).`, {
      hint: 'Remove it: it can be neither stored nor sent.',
    });
  }
  if (/\p{Cs}/u.test(text)) {
    throw new OnetakeError('invalid_field', `${path}: contains a lone surrogate (half of a character).`, {
      hint: 'Cut strings by code point, for example with Array.from(text).',
    });
  }
  return text;
}
