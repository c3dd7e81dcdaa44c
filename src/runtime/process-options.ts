import { hostname } from 'node:os';
import { OnetakeError } from '../core/errors.ts';
import type { OperationSettings } from '../core/operation-settings.ts';
import { OPERATIONS, type OperationName } from '../core/operations.ts';
import type { Provider } from '../core/provider.ts';
import { createSoniloProvider } from '../provider/sonilo/client.ts';
import type { OnetakeConfig } from './define-config.ts';
import { checkConnectionString, readEnvironment } from './environment.ts';
import type { EventListener } from './event-bus.ts';
import { checkKeys } from './option-object.ts';
import { type ResolvedConfig, resolveConfig } from './options.ts';

/** Options of `createWorker` and `createPoller`. */
export interface ProcessOptions {
  /** As in `onetake.config.ts`. Default: every default. */
  readonly config?: OnetakeConfig | ResolvedConfig;
  /** Default: the environment variable that the configuration names. */
  readonly connectionString?: string;
  /** Providers of your own, by the name that accounts use. */
  readonly providers?: Readonly<Record<string, Provider>>;
  /** The key of an account, asked for when it is needed. Default: the account's environment variable. */
  readonly credentials?: (account: string) => string | Promise<string>;
  /** Sees every event. Ids, codes and numbers only. */
  readonly onEvent?: EventListener;
  /** Names this process in attempts and logs. Default: host and process id. */
  readonly name?: string;
}

const KNOWN = ['config', 'connectionString', 'providers', 'credentials', 'onEvent', 'name'];

/** What a process is built from, checked once. */
export interface ProcessSetup {
  readonly config: ResolvedConfig;
  readonly connectionString: string;
  readonly name: string;
  readonly providerNames: readonly string[];
  readonly providerNamed: (name: string) => Provider | undefined;
  readonly apiKeyOf: (account: string) => string | Promise<string>;
  /** Whether this process can have the account's key at all. */
  readonly hasKey: (account: string) => boolean;
  /** Not a provider or operation of another release or configuration: those are left to who knows them. */
  readonly serves: (provider: string, operation: string) => boolean;
  readonly settingsOf: (operation: string) => OperationSettings;
  readonly listeners: readonly EventListener[];
  readonly closeProviders: () => Promise<void>;
}

/** Throws for everything that is wrong with the options, before anything is opened. */
export function setUp(options: ProcessOptions): ProcessSetup {
  checkOptions(options);
  const config = resolveConfig(options.config ?? {});
  const environment = readEnvironment();
  environment.requireAll(config, {
    connectionString: options.connectionString === undefined,
    keys: options.credentials === undefined,
  });
  const providers = new Map<string, Provider>(Object.entries(options.providers ?? {}));
  const ours: Provider[] = [];
  for (const [name, { baseUrl }] of Object.entries(config.providers)) {
    if (providers.has(name)) continue;
    const provider = createSoniloProvider({
      baseUrl,
      // The configuration has refused plain http elsewhere; here it is a simulator on a private network.
      allowPlainHttp: config.storage.allowPrivateHosts,
    });
    providers.set(name, provider);
    ours.push(provider);
  }
  const apiKeyOf = options.credentials ?? ((account: string) => environment.apiKey(account, config));
  return {
    config,
    connectionString: options.connectionString ?? environment.connectionString(config),
    name: options.name ?? `${hostname()}:${process.pid}`,
    providerNames: [...providers.keys()],
    providerNamed: (name) => providers.get(name),
    apiKeyOf,
    hasKey: (account) => options.credentials !== undefined || Object.hasOwn(config.accounts, account),
    serves: (provider, operation) => providers.has(provider) && Object.hasOwn(OPERATIONS, operation),
    settingsOf: (operation) => settingsOf(config, operation),
    listeners: options.onEvent === undefined ? [] : [options.onEvent],
    closeProviders: async () => {
      await Promise.all(ours.map((provider) => provider.close()));
    },
  };
}

/** What a worker is called is kept with its attempts, on disk and in the database, and printed. */
const PLAIN_NAME = /^[^\p{Cc}\p{Cs}]{1,255}$/u;
const EXPECTED: Readonly<Record<string, readonly [what: string, is: (value: unknown) => boolean]>> = {
  providers: ['an object', (value) => typeof value === 'object' && value !== null],
  credentials: ['a function', (value) => typeof value === 'function'],
  onEvent: ['a function', (value) => typeof value === 'function'],
  name: [
    '1 to 255 characters without control characters',
    (value) => typeof value === 'string' && PLAIN_NAME.test(value),
  ],
};

function checkOptions(options: ProcessOptions): void {
  checkKeys(options, KNOWN);
  if (options.connectionString !== undefined) checkConnectionString(options.connectionString);
  for (const [key, value] of Object.entries(options)) {
    const [what, is] = EXPECTED[key] ?? [];
    if (value !== undefined && is?.(value) === false) {
      throw new OnetakeError('invalid_option', `${key}: expected ${what}.`);
    }
  }
}

/** An operation that a newer release enqueued gets the settings of the first one we know: its rows may be rescued. */
function settingsOf(config: ResolvedConfig, operation: string): OperationSettings {
  const known = Object.hasOwn(OPERATIONS, operation) ? (operation as OperationName) : 'text-to-music';
  return config.operations[known];
}
