import type { OnetakeError } from '../core/errors.ts';
import { type Check, fail, ok } from './doctor-check.ts';
import { examineDatabase } from './doctor-database.ts';
import { examineMachine } from './doctor-machine.ts';
import { examineProviders } from './doctor-provider.ts';
import type { Environment } from './environment.ts';
import type { ResolvedConfig } from './options.ts';

export type { Check } from './doctor-check.ts';

/**
 * Looks at everything that onetake needs, changes nothing and pays for nothing. Whatever is away is a finding,
 * and the rest is looked at all the same.
 */
export async function examine(
  config: ResolvedConfig,
  environment: Pick<Environment, 'apiKey' | 'connectionString'>,
  path: string | null,
): Promise<Check[]> {
  const [database, providers, machine] = await Promise.all([
    ofDatabase(config, environment),
    examineProviders(config, environment),
    examineMachine(config),
  ]);
  const source = path === null ? 'no file: every default holds' : path;
  return [ok('configuration', source), ...database, ...providers, ...machine];
}

async function ofDatabase(
  config: ResolvedConfig,
  environment: Pick<Environment, 'connectionString'>,
): Promise<Check[]> {
  let connectionString: string;
  try {
    connectionString = environment.connectionString(config);
  } catch (error) {
    const { message, hint } = error as OnetakeError;
    const why = message.replace(/^[^:]*: the environment variable /, '').replace(/\.$/, '');
    return [fail('database', why, hint ?? 'Set it.')];
  }
  return examineDatabase(connectionString, config);
}
