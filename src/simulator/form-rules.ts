import { type Answer, type FieldError, refusal, validationRefusal } from './answers.ts';
import { type Form, promptOf, textOf } from './form.ts';
import type { FieldRule, SimulatedOperation } from './operations.ts';
import { readSegments, type Segment } from './segments.ts';

/** A form that the provider would work on. */
export interface Order {
  readonly prompt: string;
  readonly stream: boolean;
  readonly durationSeconds: number;
  readonly variants: number;
  /** The format asked for; what comes is always WAV. */
  readonly format: string;
  readonly stems: boolean;
  /** Of a dubbing; it is paid for by the language. */
  readonly languages: readonly string[];
  /** The video or the voice, as a digest or a URL: a part of what the sound is composed from. */
  readonly source: string;
}

type Value = string | number | boolean | readonly Segment[] | readonly string[];
type Values = Readonly<Record<string, Value>>;

/** The music's length when neither field, segments nor prompt say one. */
const INFERRED_MUSIC_SECONDS = 90;
const DEFAULT_EFFECT_SECONDS = 8;
/** No video is decoded here, so every one is taken to be so long. */
const ASSUMED_SOURCE_SECONDS = 10;
/** Options that a stream can't carry. */
const TASK_ONLY = ['stems', 'preserve_speech', 'isolate_vocals', 'ducking'];

/** The order, or the provider's refusal. Nothing is charged for a refusal. */
export function checkForm(operation: SimulatedOperation, form: Form): Order | Answer {
  const errors: FieldError[] = [];
  const values: Record<string, Value> = {};
  for (const [name, rule] of Object.entries(operation.fields)) {
    const value = readField(name, rule, form, errors);
    if (value !== undefined) values[name] = value;
  }
  const sources = operation.sources.map((group) => readSource(group, form, errors));
  if (errors.length > 0) return validationRefusal(errors);

  const stream = operation.streams && values['mode'] === 'stream';
  const variants = numberOr(values, 'variants_num', 1);
  const format = String(values['output_format'] ?? values['audio_format'] ?? 'wav');
  if (stream) {
    const misplaced = TASK_ONLY.filter((name) => values[name] === true);
    if (variants > 1) misplaced.push('variants_num');
    if (format !== 'm4a') misplaced.push('output_format');
    const [first] = misplaced;
    if (first !== undefined) return refusal(400, 'invalid_request', `${first} requires mode=async`);
  }
  return {
    prompt: promptOf(form),
    stream,
    durationSeconds: inferDuration(operation, values, promptOf(form)),
    variants,
    format,
    stems: values['stems'] === true,
    languages: (values['languages'] as readonly string[] | undefined) ?? [],
    source: sources.join('\n'),
  };
}

function readField(name: string, rule: FieldRule, form: Form, errors: FieldError[]): Value | undefined {
  const text = textOf(form, name);
  const refuse = (msg: string, type: string) => {
    errors.push({ loc: ['body', name], msg, type });
    return undefined;
  };
  if (text === undefined || (text === '' && rule.kind !== 'text')) {
    if (rule.kind === 'text' && rule.required === true) return refuse('Field required', 'missing');
    return rule.kind === 'choice' || rule.kind === 'languages' ? rule.default : undefined;
  }
  switch (rule.kind) {
    case 'text':
      if (rule.required === true && text.trim() === '') {
        return refuse('String should have at least 1 character', 'string_too_short');
      }
      if (Array.from(text).length > rule.maxLength) {
        return refuse(`String should have at most ${rule.maxLength} characters`, 'string_too_long');
      }
      return text;
    case 'number': {
      const number = rule.whole ? /^-?\d+$/.test(text) : /^-?\d+(\.\d+)?$/.test(text);
      const kind = rule.whole ? 'int' : 'float';
      if (!number)
        return refuse(`Input should be a valid ${rule.whole ? 'integer' : 'number'}`, `${kind}_parsing`);
      if (Number(text) < rule.min) {
        return refuse(`Input should be greater than or equal to ${rule.min}`, 'greater_than_equal');
      }
      if (Number(text) > rule.max) {
        return refuse(`Input should be less than or equal to ${rule.max}`, 'less_than_equal');
      }
      return Number(text);
    }
    case 'choice':
      if (!rule.values.includes(text)) {
        return refuse(`Input should be ${rule.values.map((value) => `'${value}'`).join(' or ')}`, 'enum');
      }
      return text;
    case 'boolean':
      if (!/^(true|false|1|0)$/i.test(text)) return refuse('Input should be a valid boolean', 'bool_parsing');
      return /^(true|1)$/i.test(text);
    case 'languages':
      return readLanguages(text) ?? refuse('languages must be a JSON array of language codes', 'value_error');
    case 'segments': {
      const total = textOf(form, 'duration');
      const seconds = total !== undefined && /^\d+$/.test(total) ? Number(total) : undefined;
      const segments = readSegments(text, rule.shape, seconds);
      return typeof segments === 'string' ? refuse(segments, 'value_error') : segments;
    }
  }
}

function readLanguages(text: string): readonly string[] | undefined {
  try {
    const languages: unknown = JSON.parse(text);
    const isList = Array.isArray(languages) && languages.length >= 1 && languages.length <= 20;
    const isCode = (one: unknown) => typeof one === 'string' && /^[a-z]{2,3}(_[a-z]{2,4})?$/.test(one);
    return isList && languages.every(isCode) ? [...new Set(languages as string[])] : undefined;
  } catch {
    return undefined;
  }
}

function readSource(
  [fileField, urlField]: readonly [string, string],
  form: Form,
  errors: FieldError[],
): string {
  const file = form.files.find(({ field }) => field === fileField);
  const url = textOf(form, urlField);
  if ((file === undefined) === (url === undefined || url === '')) {
    const msg = `Exactly one of ${fileField} or ${urlField} is required`;
    errors.push({ loc: ['body', fileField], msg, type: 'value_error' });
    return '';
  }
  if (file !== undefined) {
    if (file.bytes === 0) {
      errors.push({ loc: ['body', fileField], msg: 'The file is empty', type: 'value_error' });
    }
    return file.sha256;
  }
  if (!isHttps(url ?? '')) {
    errors.push({ loc: ['body', urlField], msg: 'URL scheme should be https', type: 'url_scheme' });
  }
  return url ?? '';
}

function isHttps(text: string): boolean {
  return URL.canParse(text) && new URL(text).protocol === 'https:';
}

function inferDuration(operation: SimulatedOperation, values: Values, prompt: string): number {
  if (typeof values['duration'] === 'number') return values['duration'];
  const segments = values['segments'];
  if (Array.isArray(segments)) {
    const last = segments.at(-1) as Segment | undefined;
    if (last !== undefined) return last.end ?? last.start + 30;
  }
  if (operation.result === 'effect' && operation.sources.length === 0) return DEFAULT_EFFECT_SECONDS;
  if (operation.sources.length > 0) return ASSUMED_SOURCE_SECONDS;
  const named = Number(/\b(\d{1,3})[ -]?(?:s|sec|secs|seconds?)\b/i.exec(prompt)?.[1] ?? 0);
  return named >= 5 && named <= 360 ? named : INFERRED_MUSIC_SECONDS;
}

function numberOr(values: Values, name: string, otherwise: number): number {
  const value = values[name];
  return typeof value === 'number' ? value : otherwise;
}
