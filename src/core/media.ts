import type { MediaLimit } from './field-limits.ts';
import { type FieldProblem, type FieldProblemCode, problem } from './field-problems.ts';
import { type EncodedFields, OPERATIONS, type OperationName } from './operations.ts';

/** A local file as a request keeps it, in the column of its fields: what the worker has to find there. */
export interface MediaReference {
  /** Absolute. Customer data: it leaves this column for the file system only. */
  readonly file: string;
  readonly bytes: number;
  /** Hex. */
  readonly sha256: string;
  readonly container: string;
}

/** What a look at a file told. */
export interface MediaFacts {
  readonly bytes: number;
  /** Lower case; null for what is no media. */
  readonly container: string | null;
  /** Of its pictures; null where it has none. */
  readonly codec: string | null;
  /** Null where the file doesn't say. */
  readonly seconds: number | null;
}

/** What the provider is known to refuse about a file of this field. Without a limit: only one of no bytes. */
export function checkMedia(
  field: string,
  facts: MediaFacts,
  limit: MediaLimit | undefined,
): readonly FieldProblem[] {
  const refuse = (code: FieldProblemCode, message: string) => problem(code, field, message);
  if (facts.bytes === 0) return [refuse('media_empty', 'the file is empty.')];
  if (limit === undefined) return [];
  const problems: FieldProblem[] = [];
  if (facts.bytes > limit.maxBytes) {
    problems.push(refuse('media_too_large', `expected at most ${limit.maxBytes} bytes.`));
  }
  const { containers, codecs } = limit;
  if (facts.container === null || (codecs !== undefined && facts.codec === null)) {
    const what = codecs === undefined ? 'sound or a video' : 'a video';
    return [...problems, refuse('media_unreadable', `expected ${what}; this is none that is known here.`)];
  }
  if (containers !== undefined && !containers.includes(facts.container)) {
    problems.push(refuse('media_container', `expected one of ${containers.join(', ')}.`));
  }
  if (codecs !== undefined && facts.codec !== null && !codecs.includes(facts.codec)) {
    problems.push(refuse('media_codec', `expected pictures in one of ${codecs.join(', ')}.`));
  }
  if (facts.seconds !== null && facts.seconds > limit.maxSeconds) {
    problems.push(refuse('media_too_long', `expected at most ${limit.maxSeconds} s.`));
  }
  return problems;
}

/** The names of the fields that hold a local file. */
export function fileFields(operation: string, encoded: EncodedFields): readonly string[] {
  const fields = Object.hasOwn(OPERATIONS, operation) ? OPERATIONS[operation as OperationName].fields : {};
  return Object.keys(encoded).filter((name) => fields[name]?.type === 'file');
}

export function encodeMedia({ file, bytes, sha256, container }: MediaReference): string {
  return JSON.stringify({ bytes, container, file, sha256 });
}

/** Throws for what `encodeMedia` has not written. */
export function decodeMedia(text: string): MediaReference {
  const { file, bytes, sha256, container } = JSON.parse(text) as Partial<MediaReference>;
  if (typeof file !== 'string' || !Number.isSafeInteger(bytes) || typeof bytes !== 'number') {
    throw new Error('no media reference');
  }
  if (typeof sha256 !== 'string' || typeof container !== 'string') throw new Error('no media reference');
  return { file, bytes, sha256, container };
}

/** The fields as the intent has them: a file is its content, wherever it lies. */
export function intentOf(operation: string, encoded: EncodedFields): EncodedFields {
  const files = fileFields(operation, encoded).map((name) => {
    const { bytes, sha256 } = decodeMedia(encoded[name] as string);
    return [name, JSON.stringify({ bytes, sha256 })] as const;
  });
  return { ...encoded, ...Object.fromEntries(files) };
}
