import { randomBytes } from 'node:crypto';
import pg from 'pg';
import type { TestDatabase } from './test-database.ts';

export interface TestRole {
  readonly name: string;
  readonly connectionString: string;
  /** A pool that logs in as this role. */
  readonly pool: pg.Pool;
  [Symbol.asyncDispose](): Promise<void>;
}

/**
 * A login role of one test, without any right on our schemas; `settings` are its own defaults. Roles belong
 * to the server, so it is dropped with everything that it was granted.
 */
export async function createRole(
  database: TestDatabase,
  settings: Readonly<Record<string, string>> = {},
): Promise<TestRole> {
  const name = `onetake_test_${randomBytes(6).toString('hex')}`;
  const password = randomBytes(12).toString('hex');
  await database.query(`create role ${name} login password '${password}'`);
  for (const [setting, value] of Object.entries(settings)) {
    await database.query(`alter role ${name} set ${setting} = '${value}'`);
  }
  const url = new URL(database.connectionString);
  url.username = name;
  url.password = password;
  const pool = new pg.Pool({ connectionString: url.href, max: 4 });
  pool.on('error', () => undefined);
  return {
    name,
    connectionString: url.href,
    pool,
    async [Symbol.asyncDispose]() {
      if (!pool.ending) await pool.end();
      await database.query(
        `select pg_terminate_backend(pid) from pg_stat_activity where usename = '${name}'`,
      );
      await database.query(`drop owned by ${name}`);
      await database.query(`drop role ${name}`);
    },
  };
}
