import type { Command } from 'commander';
import { suggestion } from '../core/errors.ts';
import { REQUEST_STATES, type RequestState } from '../core/generation-request.ts';
import { usageError } from './errors.ts';

// Arguments that several commands take, each checked in one place. Messages name the option, not the value.

/** A parser for `option` that takes whole numbers in the decimal system alone. */
export function wholeNumber(option: string, min: number, max: number, unit = ''): (text: string) => number {
  return (text) => {
    const value = /^\d{1,9}$/.test(text) ? Number(text) : Number.NaN;
    if (value >= min && value <= max) return value;
    throw usageError(`${option}: expected a whole number${unit} from ${min} to ${max}.`);
  };
}

export function stateNamed(text: string): RequestState {
  const state = REQUEST_STATES.find((known) => known === text);
  if (state !== undefined) return state;
  throw usageError(
    `--state: unknown state.${suggestion(text, REQUEST_STATES)}`,
    `States: ${REQUEST_STATES.join(', ')}.`,
  );
}

const INSTANT = /^\d{4}-\d\d-\d\dT\d\d:\d\d(:\d\d(\.\d{1,6})?)?(Z|[+-]\d\d:\d\d)$/;

/** Without an offset, the machine's own zone would decide when money may be spent. */
export function instantOf(option: string): (text: string) => Date {
  return (text) => {
    const at = new Date(INSTANT.test(text) ? text : Number.NaN);
    if (!Number.isNaN(at.getTime())) return at;
    throw usageError(`${option}: expected an instant with its offset, such as 2026-03-01T12:00:00Z.`);
  };
}

/**
 * `--reason --yes` has forgotten its reason, and would be done for the reason "--yes": what names an option is no
 * value of another. For the options of `command` that take one.
 */
export function refuseOptionsAsValues(command: Command, common: readonly string[]): void {
  const names = new Set([...common, ...command.options.flatMap(({ long, short }) => [long, short])]);
  for (const option of command.options) {
    if (!option.required) continue;
    const parse = option.parseArg;
    option.argParser((text: string, previous: unknown) => {
      if (names.has(text)) throw usageError(`${option.long}: its value is missing, ${text} is an option.`);
      return parse === undefined ? text : parse(text, previous);
    });
  }
}
