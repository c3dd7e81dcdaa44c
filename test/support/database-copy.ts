import { randomBytes } from 'node:crypto';
import pg from 'pg';
import { inject, onTestFinished } from 'vitest';
import type { TestDatabase } from './test-database.ts';
import { waitFor } from './wait-for.ts';

export interface DatabaseCopy {
  readonly connectionString: string;
  query<Row extends pg.QueryResultRow>(text: string, values?: readonly unknown[]): Promise<Row[]>;
}

/** `create database … template`, with everything that is in it, and nobody has confirmed the copy. */
export async function copyDatabase(database: TestDatabase): Promise<DatabaseCopy> {
  const { connectionString: server, template } = inject('postgres');
  const source = new URL(database.connectionString).pathname.slice(1);
  const name = `${template.replace(/template$/, '')}${randomBytes(6).toString('hex')}`;
  await waitFor(
    async () => {
      await onServer(
        server,
        `select pg_terminate_backend(pid) from pg_stat_activity where datname = '${source}'`,
      );
      // A session that is on its way out, or one that came back, is still in the way.
      return onServer(server, `create database ${name} template ${source}`).then(
        () => true,
        () => false,
      );
    },
    { what: `${source} to be free to copy` },
  );
  const url = new URL(server);
  url.pathname = `/${name}`;
  const pool = new pg.Pool({ connectionString: url.href, max: 2 });
  pool.on('error', () => undefined);
  onTestFinished(async () => {
    await pool.end();
    await onServer(server, `drop database if exists ${name} with (force)`);
  });
  return {
    connectionString: url.href,
    query: async <Row extends pg.QueryResultRow>(text: string, values?: readonly unknown[]) =>
      (await pool.query<Row>(text, values === undefined ? undefined : [...values])).rows,
  };
}

async function onServer(connectionString: string, statement: string): Promise<void> {
  const client = new pg.Client({ connectionString });
  await client.connect();
  try {
    await client.query(statement);
  } finally {
    await client.end();
  }
}
