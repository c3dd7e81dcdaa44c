import type { AccountLimits } from '../core/admission.ts';
import type { BreakerOverride } from '../core/circuit-breaker.ts';
import { OnetakeError, suggestion } from '../core/errors.ts';
import { REQUEST_STATES } from '../core/generation-request.ts';
import type { OperatorNote } from '../postgres/operator-functions.ts';
import type { RequestFilter, UnrefundedFilter } from '../postgres/request-overview.ts';
import { isInstant, isPlainText } from './enqueue-options.ts';
import { checkKeys, requireObject } from './option-object.ts';
import { NUMBERS } from './options.ts';

// What callers of the client may pass, checked at the door: the types say so only to TypeScript.

const NAME = /^[A-Za-z0-9_.-]{1,63}$/;
const MAX_LIST = 1_000;
const MAX_FROZEN = 100_000;
const MAX_HISTORY = 10_000;
const EXPECTED_INSTANT = 'expected a valid Date of the years 1970 to 9999.';
const RESOLUTIONS = ['accepted', 'not_accepted', 'abandoned'];

export function checkFilter(filter: RequestFilter): RequestFilter {
  checkKeys(filter, ['state', 'account', 'operation', 'requestKey', 'limit'], 'filter');
  const { state, account, operation, requestKey, limit } = filter;
  if (state !== undefined && !REQUEST_STATES.includes(state)) {
    throw invalid(
      'state',
      `expected one of ${REQUEST_STATES.join(', ')}.${suggestion(String(state), REQUEST_STATES)}`,
    );
  }
  if (account !== undefined && !isName(account)) throw invalid('account', 'expected the name of an account.');
  if (operation !== undefined && !isName(operation))
    throw invalid('operation', 'expected the name of an operation.');
  if (requestKey !== undefined && !isPlainText(requestKey, 1, 255)) {
    throw invalid('requestKey', 'expected 1 to 255 characters without control characters.');
  }
  checkLimit(limit);
  return filter;
}

function checkLimit(limit: number | undefined, max = MAX_LIST): void {
  if (limit === undefined || isWholeNumber(limit, 1, max)) return;
  throw invalid('limit', `expected a whole number from 1 to ${max}.`);
}

export function checkFrozen<Filter extends { readonly limit?: number }>(filter: Filter): Filter {
  checkKeys(filter, ['id', 'limit'], 'filter');
  checkLimit(filter.limit, MAX_FROZEN);
  return filter;
}

/** Whether its words are any is the database's to say. */
export function checkNote(note: OperatorNote): void {
  checkKeys(note, ['actor', 'reason'], 'note');
}

export function checkHold(note: OperatorNote & { readonly until?: Date }): void {
  checkKeys(note, ['actor', 'reason', 'until'], 'note');
  if (note.until !== undefined && !isInstant(note.until)) throw invalid('until', EXPECTED_INSTANT);
}

export function checkUnrefunded(filter: UnrefundedFilter): UnrefundedFilter {
  checkKeys(filter, ['account', 'limit'], 'filter');
  checkFilter(filter);
  return filter;
}

export function checkResolve(input: { readonly as: string; readonly submitBefore?: Date }): void {
  requireObject(input, 'input');
  checkKeys(input, ['id', 'actor', 'reason', 'as', ...(KEYS_OF[input.as] ?? [])]);
  if (!RESOLUTIONS.includes(input.as)) throw invalid('as', `expected one of ${RESOLUTIONS.join(', ')}.`);
  if (input.submitBefore !== undefined && !isInstant(input.submitBefore)) {
    throw invalid('submitBefore', EXPECTED_INSTANT);
  }
}

const KEYS_OF: Readonly<Record<string, readonly string[]>> = {
  accepted: ['providerTaskId'],
  not_accepted: ['resubmit', 'force', 'submitBefore'],
};

export function checkAccount(
  account: AccountLimits & { readonly name: string; readonly provider: string },
): void {
  checkKeys(account, ['name', 'provider', 'requestsPerMinute', 'maxConcurrentGenerations'], 'account');
  for (const key of ['name', 'provider'] as const) {
    if (!isName(account[key])) {
      throw invalid(key, 'expected 1 to 63 letters, digits, dots, dashes or underscores.');
    }
  }
  for (const key of ['requestsPerMinute', 'maxConcurrentGenerations'] as const) {
    const { min, max } = NUMBERS[key];
    if (!isWholeNumber(account[key], min, max)) {
      throw invalid(key, `expected a whole number from ${min} to ${max}.`);
    }
  }
}

function isName(value: unknown): boolean {
  return typeof value === 'string' && NAME.test(value);
}

function isWholeNumber(value: unknown, min: number, max: number): boolean {
  return typeof value === 'number' && Number.isInteger(value) && value >= min && value <= max;
}

function invalid(option: string, message: string): OnetakeError {
  return new OnetakeError('invalid_option', `${option}: ${message}`);
}

export function checkWait<Options extends { readonly signal?: AbortSignal; readonly onProgress?: unknown }>(
  options: Options,
): Options {
  checkKeys(options, ['signal', 'onProgress']);
  const { signal, onProgress } = options;
  if (signal !== undefined && !(signal instanceof AbortSignal))
    throw invalid('signal', 'expected an AbortSignal.');
  if (onProgress !== undefined && typeof onProgress !== 'function') {
    throw invalid('onProgress', 'expected a function.');
  }
  return options;
}

export function checkSettled<Options extends { readonly concurrency?: number; readonly onError?: unknown }>(
  handler: unknown,
  options: Options,
): Options {
  if (typeof handler !== 'function') throw invalid('handler', 'expected a function.');
  checkKeys(options, ['concurrency', 'onError']);
  const { concurrency, onError } = options;
  if (concurrency !== undefined && !isWholeNumber(concurrency, 1, MAX_LIST)) {
    throw invalid('concurrency', `expected a whole number from 1 to ${MAX_LIST}.`);
  }
  if (onError !== undefined && typeof onError !== 'function')
    throw invalid('onError', 'expected a function.');
  return options;
}

export type RecoverInput = { readonly actor: string; readonly reason: string } & (
  | {
      /** Nothing was lost: submissions go on. */
      readonly mode: 'resume';
      /** Needed where it is proven that something was. */
      readonly force?: boolean;
    }
  | {
      /** Something may be lost: what is `queued` becomes `ambiguous`, then submissions of what is new go on. */
      readonly mode: 'freeze';
      /** What was enqueued from this instant on stays `queued`. Default: now, by the database's clock. */
      readonly enqueuedBefore?: Date;
      /** Told after each step how many requests are frozen by now. */
      readonly onProgress?: (frozen: number) => void;
    }
);

const RECOVER_KEYS: Readonly<Record<string, readonly string[]>> = {
  resume: ['force'],
  freeze: ['enqueuedBefore', 'onProgress'],
};

export function checkRecover(input: RecoverInput): void {
  requireObject(input, 'input');
  const keys = Object.hasOwn(RECOVER_KEYS, input.mode) ? RECOVER_KEYS[input.mode] : undefined;
  if (keys === undefined) throw invalid('mode', 'expected one of resume, freeze.');
  checkKeys(input, ['mode', 'actor', 'reason', ...keys]);
  if (input.mode === 'resume') {
    if (input.force === undefined || typeof input.force === 'boolean') return;
    throw invalid('force', 'expected true or false.');
  }
  if (input.enqueuedBefore !== undefined && !isInstant(input.enqueuedBefore)) {
    throw invalid('enqueuedBefore', EXPECTED_INSTANT);
  }
}

export function checkHistory(name: string, limit: number): void {
  checkBreakerName(name);
  checkLimit(limit, MAX_HISTORY);
}

function checkBreakerName(name: unknown): void {
  if (typeof name === 'string') return;
  throw invalid('name', 'expected that of a breaker, `<provider>/<operation>`.');
}

export interface OverrideBreakerInput {
  /** `<provider>/<operation>` */
  readonly name: string;
  readonly mode: BreakerOverride | 'released';
  readonly actor: string;
  readonly reason: string;
  /** The override ends by itself at this instant of the database's clock. */
  readonly expiresAt?: Date;
  /** The same, in ms from now by that clock; 1 to 1,000,000,000,000. Not both. */
  readonly expiresInMs?: number;
}

const OVERRIDE_KEYS = ['name', 'mode', 'actor', 'reason', 'expiresAt', 'expiresInMs'];
const OVERRIDE_MODES = ['forced_open', 'forced_closed', 'released'];
/** About 31 years; much later instants are none to the database. */
const MAX_EXPIRES_IN_MS = 1_000_000_000_000;

/** When the override ends by itself; throws `invalid_option` for what makes no sense. */
export function checkOverride(
  input: OverrideBreakerInput,
): { readonly at: Date } | { readonly inMs: number } | null {
  checkKeys(input, OVERRIDE_KEYS, 'input');
  const { name, mode, expiresAt, expiresInMs } = input;
  checkBreakerName(name);
  if (!OVERRIDE_MODES.includes(mode)) throw invalid('mode', `expected one of ${OVERRIDE_MODES.join(', ')}.`);
  const given = [expiresAt, expiresInMs].filter((expiry) => expiry !== undefined).length;
  if (given > (mode === 'released' ? 0 : 1)) {
    throw invalid('expiresAt, expiresInMs', 'give one of them, and none to a release.');
  }
  if (expiresInMs !== undefined) {
    if (isWholeNumber(expiresInMs, 1, MAX_EXPIRES_IN_MS)) return { inMs: expiresInMs };
    throw invalid('expiresInMs', `expected a whole number from 1 to ${MAX_EXPIRES_IN_MS}.`);
  }
  if (expiresAt === undefined) return null;
  if (isInstant(expiresAt)) return { at: expiresAt };
  throw invalid('expiresAt', EXPECTED_INSTANT);
}
