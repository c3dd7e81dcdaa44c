import { isIP } from 'node:net';
import type { KeyBehaviour, RetryAfterStyle } from './accounts.ts';
import {
  describe,
  type Problems,
  present,
  readChoice,
  readFunction,
  readNumber,
  readObject,
  refuseProblems,
} from './checks.ts';
import type { SimulatorEvent, SimulatorPost } from './events.ts';
import { readScript, type ScriptRule } from './script.ts';

/** Everything has a default; an unknown key, a numeric string or a fraction is refused. */
export interface SimulatorOptions {
  /** Loopback unless you say otherwise: whoever reaches it may script it. Default `127.0.0.1`. */
  readonly host?: string;
  /** The API's port; 0 takes a free one. Default 0. */
  readonly port?: number;
  /** The result files' port; 0 takes a free one. Default 0. */
  readonly filesPort?: number;
  /** How long a task or a stream takes. 0 to 86,400,000. Default 2,000. */
  readonly runTimeMs?: number;
  /** Spreads `runTimeMs` by up to this part either way, always the same for one form. 0 to 1. Default 0. */
  readonly runTimeJitter?: number;
  /** From a task's failure to its refund. Default 1,000. */
  readonly refundDelayMs?: number;
  /** How long a result URL works. The provider's is seven days. Default 604,800,000. */
  readonly urlTtlMs?: number;
  /** Per account, in a fixed window of 60 s in which refused calls count too. Default 60. */
  readonly requestsPerMinute?: number;
  /** Per account. Default 4. */
  readonly maxConcurrentGenerations?: number;
  /** `Retry-After` of a 429 for the rate: what is left of the window. Default `seconds`. */
  readonly rateRetryAfter?: RetryAfterStyle;
  /** `Retry-After` of a 429 for concurrency: one second, a mere guess. Default `absent`. */
  readonly concurrencyRetryAfter?: RetryAfterStyle;
  /** Larger bodies are answered with 413. In megabytes (10⁶ bytes). 1 to 2,000. Default 300. */
  readonly maxUploadMb?: number;
  /** Keys that are not just any valid account. Others are valid when they look like `sk_…`. */
  readonly keys?: Readonly<Record<string, KeyBehaviour>>;
  /** Faults by rule; see `ScriptRule`. */
  readonly script?: readonly ScriptRule[];
  /** Milliseconds; moves tasks, windows, refunds, URLs and `from`/`to`. `delayMs` runs on real time. */
  readonly clock?: { now(): number };
  /** Awaited when the headers of a POST have arrived, before its body is read. */
  readonly onFirstByte?: (post: {
    readonly number: number;
    readonly operation: string;
  }) => void | Promise<void>;
  /** Awaited when a POST was read, decided and charged, and nothing of its answer has been sent. */
  readonly onPost?: (post: SimulatorPost) => void | Promise<void>;
  /** Told of everything that happens, as it happens. Holds no key, prompt or URL. */
  readonly onEvent?: (event: SimulatorEvent) => void;
}

export type SimulatorSettings = Required<
  Omit<SimulatorOptions, 'onFirstByte' | 'onPost' | 'onEvent' | 'keys'>
> &
  Pick<SimulatorOptions, 'onFirstByte' | 'onPost' | 'onEvent'> & {
    readonly keys: ReadonlyMap<string, KeyBehaviour>;
  };

const DEFAULTS = {
  host: '127.0.0.1',
  port: 0,
  filesPort: 0,
  runTimeMs: 2_000,
  runTimeJitter: 0,
  refundDelayMs: 1_000,
  urlTtlMs: 604_800_000,
  requestsPerMinute: 60,
  maxConcurrentGenerations: 4,
  rateRetryAfter: 'seconds',
  concurrencyRetryAfter: 'absent',
  maxUploadMb: 300,
  script: [],
  clock: { now: () => Date.now() },
} satisfies SimulatorOptions;

const KEYS = [...Object.keys(DEFAULTS), 'keys', 'onFirstByte', 'onPost', 'onEvent'];
const KEY_BEHAVIOUR_KEYS = [
  'account',
  'status',
  'code',
  'message',
  'requestsPerMinute',
  'maxConcurrentGenerations',
];
const STYLES: readonly RetryAfterStyle[] = ['seconds', 'http-date', 'absent'];
const PORT = { min: 0, max: 65_535 };
const DURATION = { min: 0, max: 86_400_000 };
const LONG_DURATION = { min: 1, max: 31_536_000_000 };
const RATE = { min: 1, max: 1_000_000 };
const CONCURRENCY = { min: 1, max: 100_000 };
const REFUSAL_STATUS = { min: 400, max: 599 };

/** @throws OnetakeError `invalid_option` with all problems at once. */
export function parseOptions(value: unknown): SimulatorSettings {
  const problems: Problems = [];
  const given = readObject(value, 'options', KEYS, problems) ?? {};
  const number = (key: string, bounds: { min: number; max: number; whole?: boolean }) =>
    readNumber(given[key], key, bounds, problems);
  const parsed = present({
    host: readHost(given['host'], problems),
    port: number('port', PORT),
    filesPort: number('filesPort', PORT),
    runTimeMs: number('runTimeMs', DURATION),
    runTimeJitter: number('runTimeJitter', { min: 0, max: 1, whole: false }),
    refundDelayMs: number('refundDelayMs', DURATION),
    urlTtlMs: number('urlTtlMs', LONG_DURATION),
    requestsPerMinute: number('requestsPerMinute', RATE),
    maxConcurrentGenerations: number('maxConcurrentGenerations', CONCURRENCY),
    rateRetryAfter: readChoice(given['rateRetryAfter'], 'rateRetryAfter', STYLES, problems),
    concurrencyRetryAfter: readChoice(
      given['concurrencyRetryAfter'],
      'concurrencyRetryAfter',
      STYLES,
      problems,
    ),
    maxUploadMb: number('maxUploadMb', { min: 1, max: 2_000 }),
    script: given['script'] === undefined ? undefined : readScript(given['script'], 'script', problems),
    clock: readClock(given['clock'], problems),
    onFirstByte: readFunction<NonNullable<SimulatorOptions['onFirstByte']>>(
      given['onFirstByte'],
      'onFirstByte',
      problems,
    ),
    onPost: readFunction<NonNullable<SimulatorOptions['onPost']>>(given['onPost'], 'onPost', problems),
    onEvent: readFunction<NonNullable<SimulatorOptions['onEvent']>>(given['onEvent'], 'onEvent', problems),
  });
  const keys = readKeys(given['keys'], problems);
  refuseProblems(problems, 'The simulator options are not valid');
  return { ...DEFAULTS, ...parsed, keys };
}

/** @throws OnetakeError `invalid_option` with all problems at once. */
export function parseKeys(value: unknown): ReadonlyMap<string, KeyBehaviour> {
  const problems: Problems = [];
  const keys = readKeys(value, problems);
  refuseProblems(problems, 'The keys are not valid');
  return keys;
}

/** Paths name a key by its place: a key itself never gets into a message. */
function readKeys(value: unknown, problems: Problems): ReadonlyMap<string, KeyBehaviour> {
  const keys = new Map<string, KeyBehaviour>();
  if (value === undefined) return keys;
  if (typeof value !== 'object' || value === null || Array.isArray(value)) {
    problems.push(`keys: expected an object, got ${describe(value)}.`);
    return keys;
  }
  for (const [index, [key, behaviour]] of Object.entries(value as Record<string, unknown>).entries()) {
    const path = `keys[${index}]`;
    if (behaviour === 'valid') keys.set(key, 'valid');
    else if (typeof behaviour === 'number') {
      const status = readNumber(behaviour, path, REFUSAL_STATUS, problems);
      if (status !== undefined) keys.set(key, status);
    } else {
      const given = readObject(behaviour, path, KEY_BEHAVIOUR_KEYS, problems) ?? {};
      const text = (name: string) => readText(given[name], `${path}.${name}`, problems);
      const parsed = present({
        account: text('account'),
        status: readNumber(given['status'], `${path}.status`, REFUSAL_STATUS, problems),
        code: text('code'),
        message: text('message'),
        requestsPerMinute: readNumber(
          given['requestsPerMinute'],
          `${path}.requestsPerMinute`,
          RATE,
          problems,
        ),
        maxConcurrentGenerations: readNumber(
          given['maxConcurrentGenerations'],
          `${path}.maxConcurrentGenerations`,
          CONCURRENCY,
          problems,
        ),
      });
      keys.set(key, parsed);
    }
  }
  return keys;
}

function readText(value: unknown, path: string, problems: Problems): string | undefined {
  if (value === undefined) return undefined;
  if (typeof value === 'string' && value !== '') return value;
  problems.push(`${path}: expected text, got ${describe(value)}.`);
  return undefined;
}

function readHost(value: unknown, problems: Problems): string | undefined {
  const host = readText(value, 'host', problems);
  if (host === undefined || host === 'localhost' || isIP(host) !== 0) return host;
  problems.push('host: expected an IP address or localhost.');
  return undefined;
}

function readClock(value: unknown, problems: Problems): { now(): number } | undefined {
  if (value === undefined) return undefined;
  if (typeof value === 'object' && value !== null && 'now' in value && typeof value.now === 'function') {
    return value as { now(): number };
  }
  problems.push('clock: expected an object with a now() function.');
  return undefined;
}
