import { suggestion } from '../core/errors.ts';
import type { Problems } from './checks.ts';
import { type Fault, readResponse, toFault } from './script.ts';

/**
 * What a prompt asks of the simulator, written as `[simulate key=value …]` anywhere in it.
 *
 * | in the prompt | what happens |
 * | --- | --- |
 * | `status=502` | that status is answered; nothing is charged unless `charge=true` says so |
 * | `charge=true`, `charge=false` | whether the money went before the fault (default: as in a script) |
 * | `delayMs=500` | the answer leaves 500 ms later |
 * | `end=reset`, `close`, `hang`, `cut` | the connection ends so |
 * | `body="any text"` | this body instead of the usual one |
 * | `retryAfter=5` | a `Retry-After` header |
 * | `fail`, `fail=CODE` | the task fails and is refunded (a stream ends with an `error` event, and is not) |
 * | `runTimeMs=100` | the task takes so long |
 * | `times=1` | only the first POST of this very form meets it (default: every one) |
 *
 * The code of a failure is `generation_failed`, or CODE in the other case.
 * A script rule that matches goes before the answer's fault; `fail` and `runTimeMs` hold in any case.
 * A key that isn't in the table is answered with 422, so that a typo is seen.
 */
export interface MagicPrompt {
  readonly fault?: Fault;
  /** The code that the task fails with. */
  readonly failure?: string;
  readonly runTimeMs?: number;
  readonly times: number;
}

const KEYS = ['status', 'charge', 'delayMs', 'end', 'body', 'retryAfter', 'fail', 'runTimeMs', 'times'];
const GROUP = /\[simulate\b((?:"[^"]*"|[^\]"])*)\]/gi;
const SETTING = /([A-Za-z]+)(?:=(?:"([^"]*)"|(\S*)))?|(\S+)/g;

/** Undefined for an ordinary prompt. Problems are the sender's, in the words of the table above. */
export function readMagicPrompt(prompt: string, problems: Problems): MagicPrompt | undefined {
  const settings = new Map<string, string>();
  let found = false;
  for (const group of prompt.matchAll(GROUP)) {
    found = true;
    for (const [text, key, quoted, plain] of (group[1] ?? '').matchAll(SETTING)) {
      if (key === undefined || !KEYS.includes(key)) {
        problems.push(`[simulate …]: unknown setting.${suggestion(key ?? text, KEYS)}`);
      } else settings.set(key, quoted ?? plain ?? '');
    }
  }
  if (!found) return undefined;

  const response: Record<string, unknown> = {};
  for (const key of ['status', 'delayMs'] as const) {
    if (settings.has(key)) response[key] = toNumber(settings.get(key));
  }
  for (const key of ['end', 'body'] as const) {
    if (settings.has(key)) response[key] = settings.get(key);
  }
  const charge = settings.get('charge');
  if (charge !== undefined)
    response['charge'] = charge === 'true' ? true : charge === 'false' ? false : charge;
  const retryAfter = settings.get('retryAfter');
  if (retryAfter !== undefined) response['headers'] = { 'retry-after': retryAfter };

  const fault =
    Object.keys(response).length === 0 ? undefined : toFault(readResponse(response, '[simulate]', problems));
  const runTimeMs = readCount(settings, 'runTimeMs', 0, problems);
  const failure = settings.has('fail') ? readFailure(settings.get('fail') ?? '', problems) : undefined;
  return {
    ...(fault === undefined ? {} : { fault }),
    ...(failure === undefined ? {} : { failure }),
    ...(runTimeMs === undefined ? {} : { runTimeMs }),
    times: readCount(settings, 'times', 1, problems) ?? Number.POSITIVE_INFINITY,
  };
}

/** In the other case: a code that repeats the prompt to the letter could be a customer's words, and isn't kept. */
function readFailure(code: string, problems: Problems): string {
  if (code === '') return 'generation_failed';
  if (!/^[\w.-]{1,64}$/.test(code) || !/[A-Za-z]/.test(code))
    problems.push(
      '[simulate].fail: expected at most 64 letters, digits, "_", "." and "-", and one letter at least.',
    );
  const lowerCase = code.toLowerCase();
  return code === lowerCase ? code.toUpperCase() : lowerCase;
}

function readCount(
  settings: ReadonlyMap<string, string>,
  key: string,
  min: number,
  problems: Problems,
): number | undefined {
  if (!settings.has(key)) return undefined;
  const number = toNumber(settings.get(key));
  if (typeof number === 'number' && number >= min && number <= 1_000_000_000) return number;
  problems.push(`[simulate].${key}: expected a whole number of at least ${min}.`);
  return undefined;
}

function toNumber(text: string | undefined): number | string {
  return text !== undefined && /^\d+$/.test(text) ? Number(text) : (text ?? '');
}
