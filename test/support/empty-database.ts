import { randomBytes } from 'node:crypto';
import pg from 'pg';
import { inject } from 'vitest';

export interface EmptyDatabase {
  readonly connectionString: string;
  query<Row extends pg.QueryResultRow>(text: string, values?: readonly unknown[]): Promise<Row[]>;
  /** A connection of its own, ended with the database. */
  connect(): Promise<pg.Client>;
  [Symbol.asyncDispose](): Promise<void>;
}

/** A database with nothing in it, on the server of the run: for tests of `migrate` itself. */
export async function createEmptyDatabase(): Promise<EmptyDatabase> {
  const { connectionString: server, template } = inject('postgres');
  const name = `${template.replace(/template$/, '')}${randomBytes(6).toString('hex')}`;
  await onServer(server, `create database ${name} template template0 encoding 'UTF8' locale 'C'`);
  const url = new URL(server);
  url.pathname = `/${name}`;
  const pool = new pg.Pool({ connectionString: url.href, max: 2 });
  pool.on('error', () => undefined);
  const clients: pg.Client[] = [];
  return {
    connectionString: url.href,
    query: async <Row extends pg.QueryResultRow>(text: string, values?: readonly unknown[]) =>
      (await pool.query<Row>(text, values === undefined ? undefined : [...values])).rows,
    async connect() {
      const client = new pg.Client({ connectionString: url.href });
      client.on('error', () => undefined);
      await client.connect();
      clients.push(client);
      return client;
    },
    async [Symbol.asyncDispose]() {
      await Promise.all(clients.map((client) => client.end()));
      await pool.end();
      await onServer(server, `drop database if exists ${name} with (force)`);
    },
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
