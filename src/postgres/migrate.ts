import { readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { drizzle } from 'drizzle-orm/node-postgres';
import { migrate as applyMigrations } from 'drizzle-orm/node-postgres/migrator';
import pg from 'pg';

const MIGRATIONS = new URL('../../migrations', import.meta.url);
const MIGRATIONS_SCHEMA = 'onetake';
const MIGRATIONS_TABLE = 'schema_migrations';
// Any constant, as long as every release uses the same.
const MIGRATION_LOCK = 7_077_381_204_466_115n;

/**
 * Holds the one migration lock of the database while `work` runs, on a direct connection of its own: a
 * session lock taken through a transaction pooler would stay behind on a pooled session.
 */
export async function withMigrationLock<Result>(
  connectionString: string,
  work: (client: pg.Client) => Promise<Result>,
): Promise<Result> {
  const client = new pg.Client({ connectionString, application_name: 'onetake migrate' });
  client.on('error', () => {});
  try {
    await client.connect();
    // Waits for another `migrate` of ours, however long that takes; a lock_timeout of the role would not.
    await client.query('set lock_timeout = 0; set statement_timeout = 0');
    await client.query('select pg_advisory_lock($1)', [MIGRATION_LOCK]);
    return await work(client);
  } finally {
    await client.end();
  }
}

/**
 * Applies the tables and the SQL interface. drizzle's migrator takes no lock of its own, and its default
 * high-water mark would be shared with the app's own migrations: ours is in our schema.
 */
export async function migrateTables(client: pg.Client): Promise<void> {
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
