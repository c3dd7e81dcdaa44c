import type pg from 'pg';
import { OnetakeError } from '../core/errors.ts';
import type { InstallationTrouble } from '../core/installation.ts';
import { OPERATION_NAMES } from '../core/operations.ts';
import { databaseErrorCode } from '../postgres/errors.ts';
import { checkInstallation, confirmFirstInstallation } from '../postgres/installation.ts';
import { migrateTables, withMigrationLock } from '../postgres/migrate.ts';
import { readSchemaStatus } from '../postgres/schema-version.ts';
import { JobQueue } from '../queue/boss.ts';
import { NoticeQueue } from '../queue/notices.ts';
import { writeConfigurationRows } from './configuration-rows.ts';
import { explainDatabaseError } from './database-errors.ts';
import type { OnetakeConfig } from './define-config.ts';
import { checkConnectionString } from './environment.ts';
import { checkKeys } from './option-object.ts';
import { type ResolvedConfig, resolveConfig } from './options.ts';

export interface MigrateOptions {
  /** A direct connection, not through a transaction pooler. */
  readonly connectionString: string;
  readonly config?: OnetakeConfig | ResolvedConfig;
}

export interface MigrateResult {
  /** What the tables were before. */
  readonly from: 'missing' | 'older' | 'current' | 'newer';
  /** Settings whose rows changed. */
  readonly changed: readonly string[];
  /** Set: the database is not the one that was confirmed, so nothing is submitted until `onetake recover`. */
  readonly trouble: InstallationTrouble | null;
}

/** Our tables, pg-boss's and the configuration's rows. Safe when many run it at once: they take turns. */
export async function migrate(given: MigrateOptions): Promise<MigrateResult> {
  const options = given ?? {};
  checkKeys(options, ['connectionString', 'config']);
  // Without one the driver would take what it finds in PGHOST, or this machine.
  checkConnectionString(options.connectionString);
  const config = resolveConfig(options.config ?? {});
  try {
    return await withMigrationLock(options.connectionString, (client) => migrateUnderLock(client, config));
  } catch (error) {
    if (databaseErrorCode(error) === INSUFFICIENT_PRIVILEGE) throw notPermitted();
    throw explainDatabaseError(error);
  }
}

const INSUFFICIENT_PRIVILEGE = '42501';

function notPermitted(): OnetakeError {
  return new OnetakeError(
    'schema_not_migrated',
    'This role may not create or change the schemas of onetake.',
    {
      hint: 'Run `onetake migrate` with a role that may create schemas, the same one each time.',
    },
  );
}

async function migrateUnderLock(client: pg.Client, config: ResolvedConfig): Promise<MigrateResult> {
  const executor = { executeSql: (text: string, values?: unknown[]) => client.query(text, values) };
  const from = await readSchemaStatus(executor);
  if (from === 'unreadable') throw notPermitted();
  if (from === 'missing' || from === 'older') await migrateTables(client);
  const queue = new JobQueue({ executor, role: 'client', onError: () => {} });
  await queue.migrate();
  try {
    await new NoticeQueue(queue).ensure();
    await queue.ensureQueues(Object.keys(config.accounts), OPERATION_NAMES);
  } finally {
    await queue.stop();
  }
  await client.query('begin isolation level read committed');
  const changed = await writeConfigurationRows(executor, config);
  await confirmFirstInstallation(executor, 'onetake migrate', 'first migration');
  const { trouble } = await checkInstallation(executor, null);
  await client.query('commit');
  return { from, changed, trouble };
}
