import { OnetakeError } from '../core/errors.ts';
import type { KeyCheck, Provider } from '../core/provider.ts';
import { withDeadline } from '../lifecycle/pause.ts';
import { createSoniloProvider } from '../provider/sonilo/client.ts';
import { type Check, fail, ok, warn } from './doctor-check.ts';
import type { Environment } from './environment.ts';
import type { ResolvedConfig } from './options.ts';

const TIMEOUT_MS = 5_000;
const SELF_TEST_TIMEOUT_MS = 10_000;

/** Every provider and every account's key, asked for free. */
export async function examineProviders(
  config: ResolvedConfig,
  environment: Pick<Environment, 'apiKey'>,
): Promise<Check[]> {
  const checks: Check[] = [];
  for (const [name, { baseUrl }] of Object.entries(config.providers)) {
    const provider = createSoniloProvider({ baseUrl, allowPlainHttp: config.storage.allowPrivateHosts });
    try {
      checks.push(...(await examineProvider(name, provider, config, environment)));
    } finally {
      await provider.close();
    }
  }
  return checks;
}

async function examineProvider(
  name: string,
  provider: Provider,
  config: ResolvedConfig,
  environment: Pick<Environment, 'apiKey'>,
): Promise<Check[]> {
  const accounts = Object.entries(config.accounts).filter(([, account]) => account.provider === name);
  const [isReachable, wire] = await Promise.all([reaches(provider), ofWire(name, provider)]);
  const keys = await Promise.all(
    accounts.map(([account, { apiKeyEnv }]) =>
      ofKey(account, apiKeyEnv, isReachable ? provider : undefined, () =>
        environment.apiKey(account, config),
      ),
    ),
  );
  return [
    isReachable
      ? ok(`provider ${name}`, 'reachable')
      : fail(
          `provider ${name}`,
          `no answer within ${TIMEOUT_MS / 1_000} s`,
          `Check providers.${name}.baseUrl, name resolution and the way out of this machine.`,
        ),
    wire,
    ...keys,
  ];
}

async function reaches(provider: Provider): Promise<boolean> {
  if (provider.isReachable === undefined) return true;
  return withDeadline(provider.isReachable(TIMEOUT_MS), TIMEOUT_MS * 2, false).catch(() => false);
}

async function ofWire(name: string, provider: Provider): Promise<Check> {
  const check = `wire ${name}`;
  if (provider.selfTest === undefined) return ok(check, 'taken at its word');
  const untested = { wireOracle: 'untested', errorCode: null } as const;
  const { wireOracle, errorCode } = await withDeadline(
    provider.selfTest(),
    SELF_TEST_TIMEOUT_MS,
    untested,
  ).catch(() => untested);
  if (wireOracle === 'healthy') return ok(check, 'can prove what was not sent');
  return warn(
    check,
    `can't prove what was not sent (${[wireOracle, errorCode].filter((part) => part !== null).join(', ')})`,
    'More submissions become ambiguous, and none is sent twice. Check the version of undici.',
  );
}

const REFUSED: Readonly<Record<Exclude<KeyCheck, 'accepted'>, string>> = {
  refused: 'is refused by the provider',
  unknown: 'is set; the provider gave no clear answer to it',
};

/** Names the variable, never what is in it. */
async function ofKey(
  account: string,
  variable: string,
  provider: Provider | undefined,
  keyOf: () => string,
): Promise<Check> {
  const name = `key ${account}`;
  let key: string;
  try {
    key = keyOf();
  } catch (error) {
    if (!(error instanceof OnetakeError)) throw error;
    const why = error.message.replace(/^.* the environment variable /, '').replace(/\.$/, '');
    return fail(name, why, 'Workers and pollers need it; an app that only enqueues does not.');
  }
  if (provider?.checkKey === undefined) return ok(name, `${variable} is set`);
  const found = await withDeadline<KeyCheck>(
    provider.checkKey(key, TIMEOUT_MS),
    TIMEOUT_MS * 2,
    'unknown',
  ).catch(() => 'unknown' as const);
  if (found === 'accepted') return ok(name, `${variable} is accepted by the provider`);
  const told = `${variable} ${REFUSED[found]}`;
  return found === 'refused'
    ? fail(name, told, 'Set the key that the provider shows for this account.')
    : warn(name, told, 'Try again; a worker would find out at its first submission.');
}
