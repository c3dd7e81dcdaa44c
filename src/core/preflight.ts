import { readFields } from './encode-fields.ts';
import {
  FIELD_LIMITS,
  type FieldLimit,
  LIMITS_AS_OF,
  type OperationLimits,
  type SegmentsLimit,
} from './field-limits.ts';
import { type FieldProblem, type FieldProblemCode, problem } from './field-problems.ts';
import { type EncodedFields, OPERATIONS, type OperationName, wireFields } from './operations.ts';
import { sourceUrlProblem, type UrlProblemCode } from './source-url.ts';

/** What the fields of a request are held against before they are stored. */
export interface PreflightRules {
  readonly limits: OperationLimits;
  /** Source URLs may be `http:` and point at private hosts: for a simulator. */
  readonly allowPrivateHosts: boolean;
}

export const PREFLIGHT_RULES: PreflightRules = { limits: FIELD_LIMITS, allowPrivateHosts: false };

export interface Preflight {
  readonly problems: readonly FieldProblem[];
  /** Whether each field is one of the operation's and of its type: only then is there a payload at all. */
  readonly namesAndTypes: boolean;
}

/**
 * Everything that the provider is known to refuse about the fields: names, types, limits, combinations and the
 * shape of URLs, all at once. What isn't known here is left to the provider. Throws `unknown_operation`.
 */
export function checkFields(
  operation: string,
  fields: Readonly<Record<string, unknown>>,
  rules: PreflightRules = PREFLIGHT_RULES,
  mode: 'async' | 'stream' = 'async',
): Preflight {
  const { encoded, problems } = readFields(operation, fields);
  const name = operation as OperationName;
  const sent = mode === 'stream' ? { ...encoded, mode } : encoded;
  return {
    problems: [...problems, ...checkEncoded(name, sent, rules)],
    namesAndTypes: problems.length === 0,
  };
}

/** The same for fields that are encoded; with `mode` among them, also what a stream can't carry. */
export function checkEncoded(
  operation: OperationName,
  encoded: EncodedFields,
  rules: PreflightRules,
): readonly FieldProblem[] {
  const limits = rules.limits[operation];
  const problems: FieldProblem[] = [];
  for (const [name, { url }] of Object.entries(OPERATIONS[operation].fields)) {
    const text = encoded[name];
    if (text === undefined) continue;
    const limit = limits[name];
    if (limit !== undefined) problems.push(...checkLimit(operation, name, text, limit, encoded));
    // A blank one is missing, and told as such.
    if (url === true && text.trim() !== '') {
      const code = sourceUrlProblem(text, rules.allowPrivateHosts);
      if (code !== null) problems.push(problem(code, name, URL_MESSAGES[code]));
    }
  }
  return [...problems, ...checkMode(operation, encoded)];
}

const URL_MESSAGES: Readonly<Record<UrlProblemCode, string>> = {
  invalid_url: 'expected a URL that begins with https:// and needs no mending (not shown).',
  url_credentials: 'expected a URL without user name and password (not shown).',
  insecure_url: 'expected an https: URL (not shown).',
  private_host: 'expected a host that the provider can reach, not a private one (not shown).',
};

function checkMode(operation: OperationName, encoded: EncodedFields): readonly FieldProblem[] {
  const streamed = OPERATIONS[operation].whenStreamed;
  const sent = wireFields(operation, encoded);
  if (streamed === undefined || sent['mode'] !== 'stream') return [];
  return Object.entries(streamed)
    .filter(([name, value]) => sent[name] !== value)
    .map(([name, value]) => problem('needs_async', name, `a stream carries ${value} only; use mode async.`));
}

function checkLimit(
  operation: OperationName,
  name: string,
  text: string,
  limit: FieldLimit,
  encoded: EncodedFields,
): readonly FieldProblem[] {
  const hint = `The provider's limits as of ${LIMITS_AS_OF}; operations.${operation}.limits.${name} in the configuration overrides them.`;
  const refuse = (code: FieldProblemCode, path: string, message: string) =>
    problem(code, path, message, hint);
  switch (limit.kind) {
    case 'text':
      return lengthOf(text) <= limit.maxLength
        ? []
        : [refuse('too_long', name, `expected at most ${limit.maxLength} characters.`)];
    case 'number':
      return Number(text) >= limit.min && Number(text) <= limit.max
        ? []
        : [refuse('out_of_range', name, `expected ${limit.min} to ${limit.max}.`)];
    case 'choice':
      return limit.values.includes(text)
        ? []
        : [refuse('not_allowed', name, `expected one of ${limit.values.join(', ')}.`)];
    case 'media':
      // It takes a look at the file, which is no business of core: `checkMedia` judges what was seen.
      return [];
    case 'segments': {
      const duration = encoded['duration'];
      return checkSegments(name, text, limit, duration === undefined ? null : Number(duration), refuse);
    }
  }
}

type Refuse = (code: FieldProblemCode, path: string, message: string) => FieldProblem;

function checkSegments(
  name: string,
  text: string,
  limit: SegmentsLimit,
  duration: number | null,
  refuse: Refuse,
): readonly FieldProblem[] {
  const segments: unknown = JSON.parse(text);
  if (!Array.isArray(segments)) return [refuse('wrong_type', name, 'expected a list.')];
  const problems: FieldProblem[] = [];
  if (limit.maxLength !== undefined && lengthOf(text) > limit.maxLength) {
    problems.push(refuse('too_long', name, `expected at most ${limit.maxLength} characters of JSON.`));
  }
  if (segments.length < 1 || segments.length > limit.maxCount) {
    problems.push(refuse('count', name, `expected 1 to ${limit.maxCount} of them.`));
    // A list of a million would be told a million times.
    if (segments.length > limit.maxCount) return problems;
  }
  let previous: Times | null = null;
  for (const [index, segment] of segments.entries()) {
    const times = timesOf(segment);
    problems.push(...checkSegment(`${name}[${index}]`, segment, { times, previous }, limit, refuse));
    previous = times;
  }
  const last = previous?.start ?? null;
  if (limit.order === 'starts' && duration !== null && last !== null && duration - last < limit.minSpacing) {
    const at = `${name}[${segments.length - 1}].start`;
    problems.push(refuse('order', at, `expected at least ${limit.minSpacing} s before duration.`));
  }
  return problems;
}

/** Null where there is none, or no number. */
interface Times {
  readonly start: number | null;
  readonly end: number | null;
}

function checkSegment(
  path: string,
  segment: unknown,
  { times, previous }: { readonly times: Times; readonly previous: Times | null },
  limit: SegmentsLimit,
  refuse: Refuse,
): readonly FieldProblem[] {
  if (typeof segment !== 'object' || segment === null || Array.isArray(segment)) {
    return [refuse('wrong_type', path, 'expected an object.')];
  }
  const problems: FieldProblem[] = [];
  const { prompt, label } = segment as Readonly<Record<string, unknown>>;
  if (typeof prompt !== 'string') {
    problems.push(refuse('wrong_type', `${path}.prompt`, 'expected a string.'));
  } else if (prompt === '') {
    problems.push(refuse('missing', `${path}.prompt`, 'expected at least 1 character.'));
  } else if (lengthOf(prompt) > limit.maxPromptLength) {
    const message = `expected at most ${limit.maxPromptLength} characters.`;
    problems.push(refuse('too_long', `${path}.prompt`, message));
  }
  if (limit.labels !== undefined && label !== undefined && !limit.labels.includes(label as string)) {
    problems.push(refuse('not_allowed', `${path}.label`, `expected one of ${limit.labels.join(', ')}.`));
  }
  const order = limit.order === 'starts' ? startOrder(times, previous, limit) : contiguity(times, previous);
  return order === null ? problems : [...problems, refuse(order.code, `${path}.${order.of}`, order.message)];
}

interface OrderProblem {
  readonly code: 'order' | 'wrong_type';
  readonly of: 'start' | 'end';
  readonly message: string;
}

function startOrder({ start }: Times, previous: Times | null, limit: SegmentsLimit): OrderProblem | null {
  if (start === null) return { code: 'wrong_type', of: 'start', message: 'expected a number of seconds.' };
  if (previous === null) return start === 0 ? null : FIRST_START;
  // The one before has been told of already.
  if (previous.start === null) return null;
  if (start > previous.start && start - previous.start >= limit.minSpacing) return null;
  const message = `expected at least ${limit.minSpacing} s after the previous start.`;
  return { code: 'order', of: 'start', message };
}

function contiguity({ start, end }: Times, previous: Times | null): OrderProblem | null {
  if (start === null) return { code: 'wrong_type', of: 'start', message: 'expected a number of seconds.' };
  if (end === null) return { code: 'wrong_type', of: 'end', message: 'expected a number of seconds.' };
  if (previous === null && start !== 0) return FIRST_START;
  if (previous !== null && previous.end !== null && start !== previous.end) {
    return { code: 'order', of: 'start', message: 'expected the end of the previous one.' };
  }
  return end > start ? null : { code: 'order', of: 'end', message: 'expected more than its start.' };
}

const FIRST_START: OrderProblem = { code: 'order', of: 'start', message: 'expected 0, as it is the first.' };

function timesOf(segment: unknown): Times {
  if (typeof segment !== 'object' || segment === null) return { start: null, end: null };
  const { start, end } = segment as Readonly<Record<string, unknown>>;
  return {
    start: typeof start === 'number' ? start : null,
    end: typeof end === 'number' ? end : null,
  };
}

/** In code points, as the provider counts. */
function lengthOf(text: string): number {
  return Array.from(text).length;
}
