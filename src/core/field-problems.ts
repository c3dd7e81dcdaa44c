import { OnetakeError } from './errors.ts';

/** Stable: codes are added, never renamed. */
export type FieldProblemCode =
  /** The operation has no field of that name. */
  | 'unknown_field'
  | 'missing'
  /** Given together with another one that says the same. */
  | 'conflict'
  | 'wrong_type'
  /** A NUL, half a character, or no JSON. */
  | 'malformed'
  | 'too_long'
  | 'out_of_range'
  /** None of the values that the provider knows. */
  | 'not_allowed'
  | 'count'
  /** A first start that isn't 0, or starts and ends that don't follow each other as they have to. */
  | 'order'
  /** Asked for together with `mode: stream`, which can't carry it. */
  | 'needs_async'
  | 'invalid_url'
  | 'url_credentials'
  | 'insecure_url'
  | 'private_host'
  | 'media_missing'
  /** No permission, no file, or no media that can be recognised. */
  | 'media_unreadable'
  | 'media_empty'
  | 'media_too_large'
  | 'media_too_long'
  | 'media_container'
  | 'media_codec';

/** One thing that is wrong with the fields of a request. Holds no value of theirs. */
export interface FieldProblem {
  readonly code: FieldProblemCode;
  /** Such as `prompt` or `segments[2].start`; `fields` for all of them; empty where its name can't be repeated. */
  readonly field: string;
  /** A whole sentence. */
  readonly message: string;
  readonly hint?: string;
}

/** Everything that is wrong with the fields of one request; `code` is `unknown_field` or `invalid_field`. */
export class FieldsError extends OnetakeError {
  readonly problems: readonly FieldProblem[];

  constructor(operation: string, problems: readonly FieldProblem[]) {
    const unknownOnly = problems.every(({ code }) => code === 'unknown_field');
    const [first, ...others] = problems;
    const lines = problems.map(({ message }) => `\n  ${message}`).join('');
    const hint = problems.find((problem) => problem.hint !== undefined)?.hint;
    super(
      unknownOnly ? 'unknown_field' : 'invalid_field',
      first !== undefined && others.length === 0
        ? first.message
        : `The fields of ${operation} have ${problems.length} problems:${lines}`,
      hint === undefined ? {} : { hint },
    );
    this.problems = problems;
  }
}

/** A problem of one field or of a part of it (`path` is below `fields`). */
export function problem(code: FieldProblemCode, path: string, message: string, hint?: string): FieldProblem {
  return {
    code,
    field: path,
    message: `fields.${path}: ${message}`,
    ...(hint === undefined ? {} : { hint }),
  };
}
