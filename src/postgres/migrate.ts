import { readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import pg from 'pg';
import { OnetakeError } from '../core/errors.ts';
import { isStatementPooling } from './errors.ts';
import { keepsItsSession } from './pooling.ts';
import { isDirect, SESSION_TERMS } from './session.ts';

const MIGRATIONS = new URL('../../migrations', import.meta.url);
const MIGRATIONS_SCHEMA = 'onetake';
const MIGRATIONS_TABLE = 'schema_migrations';
const CONNECT_TIMEOUT_MS = 10_000;
// Any constant, as long as every release uses the same.
const MIGRATION_LOCK = 7_077_381_204_466_115n;

/**
 * Holds the one migration lock of the database while `work` runs, on a connection of its own. Refuses one that
 * doesn't keep its session: a lock taken through a transaction pooler would stay behind on a pooled session,
 * and lock out every later migrate.
 */
export async function withMigrationLock<Result>(
  connectionString: string,
  work: (client: pg.Client) => Promise<Result>,
): Promise<Result> {
  const client = newClient(connectionString);
  try {
    await client.connect();
    await requireOwnSession(client, connectionString);
    await client.query(SESSION_TERMS);
    // Waits for another `migrate` of ours, however long that takes; a lock_timeout of the role would not.
    await client.query('set lock_timeout = 0; set statement_timeout = 0; set idle_session_timeout = 0');
    await client.query('select pg_advisory_lock($1)', [MIGRATION_LOCK]);
    return await work(client);
  } finally {
    await client.end();
  }
}

function newClient(connectionString: string): pg.Client {
  const client = new pg.Client({
    connectionString,
    application_name: 'onetake migrate',
    connectionTimeoutMillis: CONNECT_TIMEOUT_MS,
    keepAlive: true,
  });
  client.on('error', () => {});
  return client;
}

async function requireOwnSession(client: pg.Client, connectionString: string): Promise<void> {
  if (await isDirect(client)) return;
  const other = newClient(connectionString);
  try {
    await other.connect();
    if (await keepsItsSession(client, other)) return;
  } catch (error) {
    if (!isStatementPooling(error)) throw error;
  } finally {
    await other.end();
  }
  throw new OnetakeError(
    'configuration_invalid',
    'The connection string leads to a transaction pooler, through which nothing can be migrated safely.',
    { hint: 'Run `onetake migrate` with the address of PostgreSQL itself (or pool_mode = session).' },
  );
}

/**
 * Applies the tables and the SQL interface. drizzle's migrator takes no lock of its own, and its default
 * high-water mark would be shared with the app's own migrations: ours is in our schema.
 */
export async function migrateTables(client: pg.Client): Promise<void> {
  // Here, since reading drizzle takes longer than everything else that a worker needs to begin.
  const [{ drizzle }, { migrate: applyMigrations }] = await Promise.all([
    import('drizzle-orm/node-postgres'),
    import('drizzle-orm/node-postgres/migrator'),
  ]);
  await applyMigrations(drizzle(client), {
    migrationsFolder: fileURLToPath(MIGRATIONS),
    migrationsSchema: MIGRATIONS_SCHEMA,
    migrationsTable: MIGRATIONS_TABLE,
  });
}

/** The newest migration of this build, as its journal dates it (epoch ms). */
export function newestMigration(): number {
  const journal: unknown = JSON.parse(readFileSync(new URL('meta/_journal.json', `${MIGRATIONS}/`), 'utf8'));
  const { entries } = journal as { entries: { when: number }[] };
  return Math.max(...entries.map((entry) => entry.when));
}
