import type { Client } from '../runtime/client.ts';
import { databasePlace, type Environment } from '../runtime/environment.ts';
import { type LoadedConfig, loadConfig } from '../runtime/load-config.ts';
import type { DatabaseSource } from './errors.ts';
import type { Terminal } from './output.ts';
import type { Signals } from './signals.ts';

/** What every command may use. */
export interface Context {
  /** Where the connection string was read from; undefined while none was. */
  database(): DatabaseSource | undefined;
  readonly terminal: Terminal;
  readonly environment: Environment;
  readonly signals: Signals;
  readonly cwd: string;
  config(): Promise<LoadedConfig>;
  /** Opens a client on the configured database for as long as `work` takes. */
  withClient<Result>(work: (client: Client) => Promise<Result>): Promise<Result>;
}

/** Turns the work of a command into its action; what it returns is the exit code, 0 when it returns nothing. */
export type Runner = <Arguments extends unknown[]>(
  work: (context: Context, ...values: Arguments) => Promise<number | undefined>,
) => (...values: Arguments) => Promise<void>;

export function createContext(
  parts: Pick<Context, 'terminal' | 'environment' | 'signals' | 'cwd'> & { readonly configPath?: string },
): Context {
  const { configPath, ...rest } = parts;
  let database: DatabaseSource | undefined;
  const environment: Environment = {
    ...parts.environment,
    connectionString(config) {
      const connectionString = parts.environment.connectionString(config);
      database = {
        variable: config.database.connectionStringEnv,
        place: databasePlace(connectionString),
      };
      return connectionString;
    },
  };
  let loaded: Promise<LoadedConfig> | undefined;
  const config = () => {
    loaded ??= loadConfig({ cwd: parts.cwd, ...(configPath === undefined ? {} : { path: configPath }) });
    return loaded;
  };
  return {
    ...rest,
    environment,
    database: () => database,
    config,
    async withClient(work) {
      const { config: resolved, path } = await config();
      const connectionString = environment.connectionString(resolved);
      // Without a file nothing is known of what the workers have, such as their storage.
      const known = path === null ? {} : { config: resolved };
      // Only now: help, versions and refusals need no database driver, and answer at once.
      const { createClient } = await import('../runtime/client.ts');
      const client = createClient({ connectionString, ...known });
      try {
        return await work(client);
      } finally {
        await client.stop();
      }
    },
  };
}
