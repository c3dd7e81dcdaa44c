import { OnetakeError, suggestion } from '../core/errors.ts';
import { limitsWith } from '../core/field-limits.ts';
import { FieldsError } from '../core/field-problems.ts';
import {
  OPERATION_NAMES,
  type OperationFields,
  type OperationName,
  operationNamed,
} from '../core/operations.ts';
import { checkFields, PREFLIGHT_RULES, type PreflightRules } from '../core/preflight.ts';
import type { Intent } from '../lifecycle/enqueue.ts';
import type { ResolvedConfig } from './options.ts';

/** Those with `whenStreamed`. */
type StreamedOperation = 'text-to-music' | 'video-to-music';

export type EnqueueInput = {
  [Name in OperationName]: {
    readonly operation: Name;
    readonly fields: OperationFields[Name];
    /** Names the user's intent: the same key is the same request, in every state, for ever. */
    readonly requestKey: string;
    /** Default `default`. */
    readonly account?: string;
    /** Only music operations have streams. Default: `operations.*.mode` of the configuration, and else `async`. */
    readonly mode?: Name extends StreamedOperation ? 'async' | 'stream' : 'async';
    readonly fairGroup?: string;
    readonly priority?: number;
    /** Not submitted by then, it becomes `expired`. */
    readonly submitBefore?: Date;
    /** The request that this new intent replaces; links them and cancels nothing. */
    readonly supersedes?: string;
    /** While the breaker is open: wait (default), or be refused without a row. */
    readonly whenOpen?: 'wait' | 'refuse';
  };
}[OperationName];

/** What a request is held against before it is stored. */
export interface EnqueueRules extends PreflightRules {
  /** By operation, of what is enqueued without one. */
  readonly modes: Readonly<Partial<Record<string, 'async' | 'stream'>>>;
  /** False: by its own configuration there is no storage, so no worker could take a stream. */
  readonly storesStreams: boolean;
}

const ENQUEUE_RULES: EnqueueRules = { ...PREFLIGHT_RULES, modes: {}, storesStreams: true };

/** What this configuration says of new requests; of one that nobody gave, nothing is known of a storage. */
export function enqueueRules(config: ResolvedConfig, isGiven: boolean): EnqueueRules {
  const { directory, s3 } = config.storage;
  return {
    ...preflightRules(config),
    modes: Object.fromEntries(OPERATION_NAMES.map((name) => [name, config.operations[name].mode])),
    storesStreams: !isGiven || directory !== null || s3 !== null,
  };
}

/** What this configuration holds the fields of a request against. */
export function preflightRules(config: ResolvedConfig): PreflightRules {
  const entries = OPERATION_NAMES.map((name) => [name, limitsWith(name, config.operations[name].limits)]);
  return {
    limits: Object.fromEntries(entries) as PreflightRules['limits'],
    allowPrivateHosts: config.storage.allowPrivateHosts,
  };
}

const KNOWN = [
  'operation',
  'fields',
  'requestKey',
  'account',
  'mode',
  'fairGroup',
  'priority',
  'submitBefore',
  'supersedes',
  'whenOpen',
];
const UUID = /^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$/i;

/** The caller's input as an intent, or `invalid_option` naming the option; `fields` is checked by its operation. */
export function checkEnqueue(input: EnqueueInput, rules: EnqueueRules = ENQUEUE_RULES): Intent {
  const given = input as Readonly<Record<string, unknown>>;
  if (typeof given !== 'object' || given === null) {
    throw new OnetakeError(
      'invalid_option',
      'input: expected an object with `operation`, `fields` and `requestKey`.',
    );
  }
  for (const key of Object.keys(given)) {
    if (!KNOWN.includes(key)) throw invalid(key, `unknown option.${suggestion(key, KNOWN)}`);
  }
  const { operation, fields, requestKey, submitBefore, supersedes, priority } = given;
  if (typeof operation !== 'string') throw invalid('operation', 'expected the name of an operation.');
  if (typeof fields !== 'object' || fields === null || Array.isArray(fields)) {
    throw invalid('fields', 'expected an object with the fields of the operation.');
  }
  if (requestKey === undefined) {
    throw invalid(
      'requestKey',
      'missing. It names what the user meant, such as the id of an order or a click.',
    );
  }
  // Named before anything is opened: a misspelt field must not be hidden by a database that is away.
  const mode = modeOf(operation, given['mode'], rules);
  const { problems, namesAndTypes } = checkFields(operation, fields as Intent['fields'], rules, mode);
  if (!namesAndTypes) throw new FieldsError(operation, problems);
  if (!isPlainText(requestKey, 1, 255)) {
    throw invalid('requestKey', 'expected 1 to 255 characters without control characters.');
  }
  if (priority !== undefined && !(Number.isInteger(priority) && Math.abs(priority as number) <= 100)) {
    throw invalid('priority', 'expected a whole number from -100 to 100.');
  }
  if (submitBefore !== undefined && !isInstant(submitBefore)) {
    throw invalid('submitBefore', 'expected a valid Date of the years 1970 to 9999.');
  }
  if (supersedes !== undefined && !(typeof supersedes === 'string' && UUID.test(supersedes))) {
    throw invalid('supersedes', 'expected the id of a generation request.');
  }
  const { account = 'default', fairGroup = '', whenOpen = 'wait' } = given;
  if (typeof account !== 'string' || !/^[A-Za-z0-9_.-]{1,63}$/.test(account)) {
    throw invalid('account', 'expected 1 to 63 letters, digits, dots, dashes or underscores.');
  }
  if (!isPlainText(fairGroup, 0, 255)) throw invalid('fairGroup', 'expected at most 255 plain characters.');
  if (whenOpen !== 'wait' && whenOpen !== 'refuse') throw invalid('whenOpen', "expected 'wait' or 'refuse'.");
  return {
    operation,
    fields: fields as Intent['fields'],
    problems,
    requestKey,
    account,
    mode,
    modeIsGiven: given['mode'] !== undefined,
    fairGroup,
    priority: (priority as number | undefined) ?? 0,
    submitBefore: (submitBefore as Date | undefined) ?? null,
    supersedes: (supersedes as string | undefined) ?? null,
    whenOpen,
  };
}

/** Throws `unknown_operation`, `invalid_option`, `storage_not_configured`. */
function modeOf(operation: string, given: unknown, rules: EnqueueRules): 'async' | 'stream' {
  const { whenStreamed } = operationNamed(operation);
  const mode = given ?? rules.modes[operation] ?? 'async';
  if (mode === 'async') return mode;
  if (mode !== 'stream') throw invalid('mode', "expected 'async' or 'stream'.");
  if (whenStreamed === undefined) throw invalid('mode', `${operation} has no streams; use 'async'.`);
  if (rules.storesStreams) return mode;
  throw new OnetakeError(
    'storage_not_configured',
    'mode: a stream is stored as it comes, and this configuration has no storage.',
    { hint: "Set storage.directory or storage.s3, or use mode 'async'." },
  );
}

const MAX_ITEMS = 100_000;

/** Each as an intent, or as what is wrong with it. */
export function checkEnqueueMany(inputs: readonly unknown[], rules: EnqueueRules): (Intent | OnetakeError)[] {
  if (inputs.length > MAX_ITEMS) {
    throw new OnetakeError('invalid_option', `input: expected at most ${MAX_ITEMS} at once.`);
  }
  // A hole in the array is one of them as well, and `map` would pass over it.
  return Array.from(inputs, (input) => {
    try {
      return checkEnqueue(input as EnqueueInput, rules);
    } catch (error) {
      if (error instanceof OnetakeError) return error;
      throw error;
    }
  });
}

const LAST_INSTANT_MS = Date.UTC(9999, 11, 31);

/** A Date that the database can hold as ISO 8601. */
export function isInstant(value: unknown): value is Date {
  return value instanceof Date && value.getTime() >= 0 && value.getTime() <= LAST_INSTANT_MS;
}

export function isPlainText(value: unknown, min: number, max: number): value is string {
  return (
    typeof value === 'string' && value.length >= min && value.length <= max && !/[\p{Cc}\p{Cs}]/u.test(value)
  );
}

function invalid(option: string, message: string): OnetakeError {
  const shown = KNOWN.includes(option) || /^[A-Za-z0-9_.-]{1,40}$/.test(option) ? option : 'option';
  return new OnetakeError('invalid_option', `${shown}: ${message}`);
}
