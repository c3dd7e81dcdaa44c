import { randomBytes } from 'node:crypto';
import pg from 'pg';
import type { TestProject } from 'vitest/node';
import { startEmbeddedPostgres } from '../../src/embedded/start-embedded-postgres.ts';

declare module 'vitest' {
  interface ProvidedContext {
    /** The maintenance database of the server, and the migrated database that each test file clones. */
    postgres: { readonly connectionString: string; readonly template: string };
  }
}

/**
 * One server for the whole run: TEST_DATABASE_URL (PostgreSQL 15 to 18, a role that may create databases; passTime
 * prefers a superuser), else an embedded one. The template is migrated once, by the product's own `migrate`.
 */
export default async function setup(project: TestProject): Promise<() => Promise<void>> {
  const given = process.env['TEST_DATABASE_URL'];
  const embedded =
    given === undefined || given === '' ? await startEmbeddedPostgres({ mode: 'ephemeral' }) : undefined;
  const connectionString = embedded?.connectionString ?? (given as string);
  const run = `onetake_test_${randomBytes(4).toString('hex')}`;
  const template = `${run}_template`;
  const tearDown = async (): Promise<void> => {
    if (embedded !== undefined) await embedded.stop();
    else await dropDatabases(connectionString, run);
  };
  try {
    await administer(connectionString, async (client) => {
      await requireSupportedServer(client);
      await client.query(`create database ${template} template template0 encoding 'UTF8' locale 'C'`);
    });
    const { migrate } = await import('../../src/runtime/migrate.ts');
    await migrate({ connectionString: databaseUrl(connectionString, template) });
    // A single open connection to a template makes every clone fail: none is let in any more.
    await administer(connectionString, (client) =>
      client.query(`alter database ${template} with allow_connections false is_template true`),
    );
  } catch (error) {
    await tearDown();
    throw error;
  }
  project.provide('postgres', { connectionString, template });
  return tearDown;
}

async function requireSupportedServer(client: pg.Client): Promise<void> {
  const { rows } = await client.query<{ major: number }>(
    `select current_setting('server_version_num')::int / 10000 as major`,
  );
  const major = rows[0]?.major ?? 0;
  if (major < 15) throw new Error(`the tests need PostgreSQL 15 to 18, TEST_DATABASE_URL leads to ${major}`);
}

async function dropDatabases(connectionString: string, prefix: string): Promise<void> {
  await administer(connectionString, async (client) => {
    const { rows } = await client.query<{ datname: string }>(
      'select datname from pg_database where starts_with(datname, $1)',
      [prefix],
    );
    for (const { datname } of rows) {
      await client.query(`alter database ${datname} with is_template false`);
      await client.query(`drop database ${datname} with (force)`);
    }
  });
}

async function administer(
  connectionString: string,
  work: (client: pg.Client) => Promise<unknown>,
): Promise<void> {
  const client = new pg.Client({ connectionString });
  await client.connect();
  try {
    await work(client);
  } finally {
    await client.end();
  }
}

function databaseUrl(connectionString: string, database: string): string {
  const url = new URL(connectionString);
  url.pathname = `/${database}`;
  return url.href;
}
