import type { CircuitBreakerSettings } from '../core/circuit-breaker.ts';
import { OnetakeError } from '../core/errors.ts';
import type { LimitSetting } from '../core/field-limits.ts';
import { OPERATION_NAMES, OPERATIONS, type OperationName } from '../core/operations.ts';
import type { PollSettings } from '../core/poll-schedule.ts';
import type { Deadlines, StreamTerms } from '../core/provider.ts';
import type { S3Location } from '../storage/s3-objects.ts';
import {
  type ConfigurationProblem,
  describe,
  grouped,
  type NumberSetting,
  Section,
} from './configuration-section.ts';
import type { ResubmittableStatus } from './define-config.ts';
import { readLimits } from './read-limits.ts';
import { readS3 } from './read-s3.ts';

export type { ConfigurationProblem } from './configuration-section.ts';

/** A whole, checked configuration: nothing is left out. Its records have no prototype. */
export interface ResolvedConfig {
  readonly database: { readonly connectionStringEnv: string };
  readonly providers: Readonly<Record<string, ResolvedProvider>>;
  readonly accounts: Readonly<Record<string, ResolvedAccount>>;
  readonly operations: Readonly<Record<OperationName, ResolvedOperation>>;
  readonly worker: {
    readonly concurrency: number;
    readonly rescueIntervalMs: number;
    readonly spoolDirectory: string;
  };
  readonly poller: PollSettings & { readonly concurrency: number };
  readonly storage: ResolvedStorage;
}

export interface ResolvedStorage {
  /** One of the two at most. */
  readonly directory: string | null;
  readonly s3: S3Location | null;
  readonly allowPrivateHosts: boolean;
}

export interface ResolvedProvider {
  /** Without a slash at the end: append the operation's path. */
  readonly baseUrl: string;
}

export interface ResolvedAccount {
  readonly provider: string;
  readonly apiKeyEnv: string;
  readonly requestsPerMinute: number;
  readonly maxConcurrentGenerations: number;
}

export interface ResolvedOperation {
  readonly breaker: CircuitBreakerSettings;
  readonly deadlines: Deadlines;
  readonly leaseMs: number;
  readonly rearmQuarantineMs: number;
  readonly maxSubmissions: number;
  readonly resubmitOn: readonly ResubmittableStatus[];
  readonly maxRunMs: number;
  /** Of what is enqueued without saying which. */
  readonly mode: 'async' | 'stream';
  readonly stream: StreamTerms;
  readonly limits: Readonly<Record<string, LimitSetting>>;
}

/** Carries each problem by itself; the message lists them all. */
export class ConfigurationError extends OnetakeError {
  readonly problems: readonly ConfigurationProblem[];

  constructor(problems: readonly ConfigurationProblem[], source: string) {
    const count = problems.length === 1 ? '1 problem' : `${problems.length} problems`;
    const lines = problems.map(({ path, message }) => `\n  ${path === '' ? '' : `${path}: `}${message}`);
    super('configuration_invalid', `${source} has ${count}:${lines.join('')}`, {
      hint: 'Correct the settings named above. A setting that is left out gets its default.',
    });
    this.problems = problems;
  }
}

/** Names and places, when they are left out. */
export const DEFAULTS = {
  connectionStringEnv: 'DATABASE_URL',
  provider: 'sonilo',
  baseUrl: 'https://api.sonilo.com',
  account: 'default',
  apiKeyEnv: 'SONILO_API_KEY',
  spoolDirectory: '.onetake/spool',
} as const;

const ONE_DAY_MS = 86_400_000;
const DEFAULT_MAX_COOLDOWN_MS = 600_000;
/** A timer that is set for longer fires at once, and an integer column ends here too. */
const LONGEST_TIMER_MS = 2_147_483_647;
/** What a lease needs beyond the submission: the last checks before the POST, and the settle after it. */
const LEASE_MARGIN_MS = 2_000;
const DEFAULT_LEASE_MARGIN_MS = 10_000;

/** Every number of the configuration, but for the two that follow from others: `leaseMs` and `maxRunMs`. */
export const NUMBERS = {
  requestsPerMinute: { default: 60, min: 1, max: 1_000_000 },
  maxConcurrentGenerations: { default: 4, min: 1, max: 100_000 },
  failureThreshold: { default: 3, min: 1, max: 1_000 },
  cooldownMs: { default: 30_000, min: 100, max: ONE_DAY_MS },
  cooldownGrowth: { default: 1, min: 1, max: 10, fraction: true },
  jitter: { default: 0, min: 0, max: 0.5, fraction: true },
  connectMs: { default: 5_000, min: 50, max: 600_000 },
  firstResponseMs: { default: 60_000, min: 50, max: 600_000 },
  submissionMs: { default: 90_000, min: 50, max: 600_000 },
  rearmQuarantineMs: { default: 120_000, min: 0, max: LONGEST_TIMER_MS },
  maxSubmissions: { default: 3, min: 1, max: 100 },
  streamIdleMs: { default: 600_000, min: 50, max: 3_600_000 },
  streamTotalMs: { default: 1_800_000, min: 50, max: ONE_DAY_MS },
  workerConcurrency: { default: 8, min: 1, max: 1_000 },
  rescueIntervalMs: { default: 1_000, min: 100, max: 60_000 },
  pollIntervalMs: { default: 3_000, min: 50, max: 3_600_000 },
  pollMaxIntervalMs: { default: 30_000, min: 50, max: 3_600_000 },
  pollConcurrency: { default: 16, min: 1, max: 1_000 },
} as const satisfies Record<string, NumberSetting>;

const RESUBMITTABLE: readonly ResubmittableStatus[] = [500, 502, 503, 504];

const KEYS = {
  root: ['database', 'providers', 'accounts', 'operations', 'worker', 'poller', 'storage'],
  database: ['connectionStringEnv'],
  provider: ['baseUrl'],
  account: ['provider', 'apiKeyEnv', 'requestsPerMinute', 'maxConcurrentGenerations'],
  operation: [
    'breaker',
    'deadlines',
    'leaseMs',
    'rearmQuarantineMs',
    'maxSubmissions',
    'resubmitOn',
    'maxRunMs',
    'mode',
    'stream',
    'limits',
  ],
  stream: ['idleMs', 'totalMs', 'contentCodes'],
  breaker: ['failureThreshold', 'cooldownMs', 'cooldownGrowth', 'maxCooldownMs', 'jitter', 'shadow'],
  deadlines: ['connectMs', 'firstResponseMs', 'submissionMs'],
  worker: ['concurrency', 'rescueIntervalMs', 'spoolDirectory'],
  poller: ['intervalMs', 'maxIntervalMs', 'concurrency'],
  storage: ['directory', 's3', 'allowPrivateHosts'],
} as const;

/**
 * The checked configuration with every default filled in, or a `ConfigurationError` with every problem at
 * once. Nothing is converted or rounded, and nothing wrong is replaced by a default. `source` names the
 * configuration in the message.
 */
export function resolveConfig(input: unknown, source = 'The configuration'): ResolvedConfig {
  if (checked.has(input as ResolvedConfig)) return input as ResolvedConfig;
  const problems: ConfigurationProblem[] = [];
  const root = new Section(input, '', KEYS.root, problems);
  const storage = readStorage(root.child('storage', KEYS.storage));
  const providers = readProviders(root, storage.allowPrivateHosts);
  const worker = root.child('worker', KEYS.worker);

  const config: ResolvedConfig = {
    database: {
      connectionStringEnv: root
        .child('database', KEYS.database)
        .variableName('connectionStringEnv', DEFAULTS.connectionStringEnv, DEFAULTS.connectionStringEnv),
    },
    providers,
    accounts: readAccounts(root, Object.keys(providers)),
    operations: readOperations(root.child('operations', OPERATION_NAMES)),
    worker: {
      concurrency: worker.number('concurrency', NUMBERS.workerConcurrency),
      rescueIntervalMs: worker.number('rescueIntervalMs', NUMBERS.rescueIntervalMs),
      spoolDirectory: worker.directory('spoolDirectory') ?? DEFAULTS.spoolDirectory,
    },
    poller: readPoller(root.child('poller', KEYS.poller)),
    storage,
  };
  if (problems.length > 0) throw new ConfigurationError(problems, source);
  checked.add(config);
  return config;
}

/** A loaded configuration is handed on to processes as it is, and a `directory` of null is no input. */
const checked = new WeakSet<ResolvedConfig>();

function readProviders(root: Section, allowHttp: boolean): Record<string, ResolvedProvider> {
  const section = root.has('providers')
    ? root.child('providers', null)
    : new Section({ [DEFAULTS.provider]: {} }, 'providers', null, []);
  // Written as no object at all, it is told once, not again for every account.
  const names = section.isObject ? section.names() : [DEFAULTS.provider];
  return record(names, (name) => {
    const provider = section.child(name, KEYS.provider);
    return {
      baseUrl: readBaseUrl(provider, name === DEFAULTS.provider ? DEFAULTS.baseUrl : undefined, allowHttp),
    };
  });
}

/** Never repeats the URL: it may carry a password or a token. */
function readBaseUrl(provider: Section, fallback: string | undefined, allowHttp: boolean): string {
  const value = provider.has('baseUrl') ? provider.get('baseUrl') : fallback;
  const url = typeof value === 'string' && URL.canParse(value) ? new URL(value) : undefined;
  if (url === undefined) {
    const got = typeof value === 'string' ? 'another string (not shown)' : describe(value);
    provider.refuse('baseUrl', `expected a URL such as "${DEFAULTS.baseUrl}", got ${got}.`);
    return '';
  }
  if (url.username !== '' || url.password !== '' || url.search !== '' || url.hash !== '') {
    provider.refuse('baseUrl', 'expected a URL without user name, password, query and fragment (not shown).');
  }
  const mayBePlain = url.protocol === 'http:' && (allowHttp || isLoopback(url.hostname));
  if (url.protocol !== 'https:' && !mayBePlain) {
    const exception = 'http: only on loopback, or with storage.allowPrivateHosts';
    provider.refuse('baseUrl', `expected https: (${exception}).`);
  }
  return `${url.origin}${url.pathname}`.replace(/\/+$/, '');
}

function isLoopback(hostname: string): boolean {
  return hostname === 'localhost' || hostname === '[::1]' || /^127\.\d+\.\d+\.\d+$/.test(hostname);
}

function readAccounts(root: Section, providers: readonly string[]): Record<string, ResolvedAccount> {
  const section = root.child('accounts', null);
  if (root.has('accounts') && section.isEmpty) {
    section.refuse(undefined, 'expected at least one account; left out, there is "default".');
  }
  const names = root.has('accounts') ? section.names() : [DEFAULTS.account];
  const choices = `one of providers (${providers.join(', ') || 'there is none'})`;
  const accounts = record(names, (name) => {
    const account = section.child(name, KEYS.account);
    const provider = account.choice('provider', providers, DEFAULTS.provider, choices);
    return {
      provider,
      apiKeyEnv: account.variableName('apiKeyEnv', defaultKeyVariable(name, provider), DEFAULTS.apiKeyEnv),
      requestsPerMinute: account.number('requestsPerMinute', NUMBERS.requestsPerMinute),
      maxConcurrentGenerations: account.number('maxConcurrentGenerations', NUMBERS.maxConcurrentGenerations),
    };
  });
  refuseSharedKeys(section, accounts);
  return accounts;
}

/** By the variable's name: keys are read later, and by workers and pollers alone. */
function refuseSharedKeys(section: Section, accounts: Readonly<Record<string, ResolvedAccount>>): void {
  const owners = new Map<string, string>();
  for (const [name, { provider, apiKeyEnv }] of Object.entries(accounts)) {
    const key = `${provider} ${apiKeyEnv}`;
    const owner = owners.get(key);
    // Empty: refused already.
    if (owner === undefined || apiKeyEnv === '') owners.set(key, name);
    else {
      const other = `got ${apiKeyEnv}, which ${section.path}.${owner} has`;
      section.refuse(
        `${name}.apiKeyEnv`,
        `expected a variable of its own, ${other}: the limits of one key would be counted twice.`,
      );
    }
  }
}

/** Accounts that shared a key by oversight would spend one limit and one balance twice: so one has a default. */
function defaultKeyVariable(account: string, provider: string): string | undefined {
  return account === DEFAULTS.account && provider === DEFAULTS.provider ? DEFAULTS.apiKeyEnv : undefined;
}

function readOperations(section: Section): Record<OperationName, ResolvedOperation> {
  return record(OPERATION_NAMES, (name) => readOperation(section.child(name, KEYS.operation), name));
}

function readOperation(operation: Section, name: OperationName): ResolvedOperation {
  const breaker = operation.child('breaker', KEYS.breaker);
  const deadlines = readDeadlines(operation.child('deadlines', KEYS.deadlines));
  return {
    breaker: readBreaker(breaker),
    deadlines,
    leaseMs: readLease(operation, deadlines.submissionMs),
    rearmQuarantineMs: operation.number('rearmQuarantineMs', NUMBERS.rearmQuarantineMs),
    maxSubmissions: operation.number('maxSubmissions', NUMBERS.maxSubmissions),
    resubmitOn: readResubmitOn(operation),
    maxRunMs: operation.number('maxRunMs', {
      default: OPERATIONS[name].maxRunMs,
      min: 1_000,
      max: ONE_DAY_MS,
    }),
    mode: readMode(operation, name),
    stream: readStream(operation),
    limits: readLimits(operation, name),
  };
}

function readMode(operation: Section, name: OperationName): 'async' | 'stream' {
  if (!operation.has('mode')) return 'async';
  const modes = OPERATIONS[name].whenStreamed === undefined ? ASYNC_ONLY : MODES;
  const mode = operation.choice('mode', modes, 'async', modes.map((one) => `"${one}"`).join(' or '));
  return mode === 'stream' ? mode : 'async';
}

const MODES = ['async', 'stream'] as const;
const ASYNC_ONLY = ['async'] as const;

function readStream(operation: Section): StreamTerms {
  const section = operation.child('stream', KEYS.stream);
  return {
    idleMs: section.number('idleMs', NUMBERS.streamIdleMs),
    totalMs: section.number('totalMs', NUMBERS.streamTotalMs),
    contentCodes: readContentCodes(section),
  };
}

function readContentCodes(section: Section): readonly string[] {
  if (!section.has('contentCodes')) return CONTENT_CODES;
  const value = section.get('contentCodes');
  if (!Array.isArray(value)) {
    section.refuse('contentCodes', `expected a list of codes, got ${describe(value)}.`);
    return [];
  }
  for (const [index, code] of value.entries()) {
    if (typeof code !== 'string' || !/^[A-Za-z0-9_.-]{1,64}$/.test(code)) {
      section.refuse(`contentCodes[${index}]`, 'expected a code of 1 to 64 plain characters.');
    }
  }
  return [...value];
}

/** As the providers of this kind name them; the documentation of this one names none. */
const CONTENT_CODES: readonly string[] = [
  'CONTENT_POLICY',
  'CONTENT_POLICY_VIOLATION',
  'CONTENT_FILTERED',
  'SENSITIVE_WORD_ERROR',
];

function readBreaker(section: Section): CircuitBreakerSettings {
  const cooldownMs = section.number('cooldownMs', NUMBERS.cooldownMs);
  const known = Number.isNaN(cooldownMs) ? NUMBERS.cooldownMs.min : cooldownMs;
  return {
    failureThreshold: section.number('failureThreshold', NUMBERS.failureThreshold),
    cooldownMs,
    cooldownGrowth: section.number('cooldownGrowth', NUMBERS.cooldownGrowth),
    maxCooldownMs: section.number('maxCooldownMs', {
      default: Math.max(DEFAULT_MAX_COOLDOWN_MS, known),
      min: known,
      minIs: `from cooldownMs (${grouped(known)})`,
      max: ONE_DAY_MS,
    }),
    jitter: section.number('jitter', NUMBERS.jitter),
    shadow: section.boolean('shadow', false),
  };
}

function readDeadlines(section: Section): Deadlines {
  const deadlines = {
    connectMs: section.number('connectMs', NUMBERS.connectMs),
    firstResponseMs: section.number('firstResponseMs', NUMBERS.firstResponseMs),
    submissionMs: section.number('submissionMs', NUMBERS.submissionMs),
  };
  section.requireRising(deadlines);
  return deadlines;
}

function readLease(operation: Section, submissionMs: number): number {
  const known = Number.isNaN(submissionMs) ? 0 : submissionMs;
  return operation.number('leaseMs', {
    default: known + DEFAULT_LEASE_MARGIN_MS,
    min: known + LEASE_MARGIN_MS + 1,
    max: LONGEST_TIMER_MS,
    minIs: `above ${grouped(known + LEASE_MARGIN_MS)} (submissionMs + ${grouped(LEASE_MARGIN_MS)}), up`,
  });
}

function readResubmitOn(operation: Section): readonly ResubmittableStatus[] {
  const value = operation.has('resubmitOn') ? operation.get('resubmitOn') : [];
  const expected = `expected ${RESUBMITTABLE.slice(0, -1).join(', ')} or ${RESUBMITTABLE.at(-1)}`;
  if (!Array.isArray(value)) {
    operation.refuse('resubmitOn', `expected a list of statuses, got ${describe(value)}.`);
    return [];
  }
  for (const [index, status] of value.entries()) {
    if (!RESUBMITTABLE.includes(status)) {
      operation.refuse(`resubmitOn[${index}]`, `${expected}, got ${describe(status)}.`);
    } else if (value.indexOf(status) !== index) {
      operation.refuse(`resubmitOn[${index}]`, `${status} is in the list already.`);
    }
  }
  return [...value];
}

function readPoller(section: Section): ResolvedConfig['poller'] {
  const intervals = {
    intervalMs: section.number('intervalMs', NUMBERS.pollIntervalMs),
    maxIntervalMs: section.number('maxIntervalMs', NUMBERS.pollMaxIntervalMs),
  };
  section.requireRising(intervals, true);
  return { ...intervals, concurrency: section.number('concurrency', NUMBERS.pollConcurrency) };
}

function readStorage(section: Section): ResolvedConfig['storage'] {
  const allowPrivateHosts = section.boolean('allowPrivateHosts', false);
  if (section.has('directory') && section.has('s3')) {
    section.refuse('s3', 'expected one place for files; storage.directory is one already.');
  }
  const s3 = section.has('s3') ? readS3(section, allowPrivateHosts) : null;
  return { directory: section.directory('directory') ?? null, s3, allowPrivateHosts };
}

/** Without a prototype, so that `accounts[name]` never finds `constructor`. */
function record<Name extends string, T>(names: readonly Name[], read: (name: Name) => T): Record<Name, T> {
  const result: Record<Name, T> = Object.create(null);
  for (const name of names) result[name] = read(name);
  return result;
}
