import { randomBytes } from 'node:crypto';
import pg from 'pg';
import { inject } from 'vitest';
import { passTime } from './pass-time.ts';
import { waitFor } from './wait-for.ts';

const OBJECT_IN_USE = '55006';

export interface TestDatabase {
  readonly connectionString: string;
  /** A pool of its own, ended with the database. */
  pool(options?: pg.PoolConfig): pg.Pool;
  /** The rows, over a pool of the database's own. */
  query<Row extends pg.QueryResultRow>(text: string, values?: readonly unknown[]): Promise<Row[]>;
  /** Lets every stored instant of onetake's and pg-boss's tables be `ms` longer ago, in one transaction. */
  passTime(ms: number): Promise<void>;
  drop(): Promise<void>;
  [Symbol.asyncDispose](): Promise<void>;
}

/** A fresh copy of the migrated template, for one test file or one test. */
export async function createTestDatabase(): Promise<TestDatabase> {
  const { connectionString: server, template } = inject('postgres');
  const name = `${template.replace(/template$/, '')}${randomBytes(6).toString('hex')}`;
  // Copied as files, a small database costs a third of what it costs through the log.
  const clone = `create database ${name} template ${template} strategy file_copy`;
  await onServer(server, (client) =>
    waitFor(() => createUnlessBusy(client, clone), { what: `${template} to be free to clone` }),
  );
  const url = new URL(server);
  url.pathname = `/${name}`;
  const database = openTestDatabase(url.href, () =>
    onServer(server, (client) => client.query(`drop database if exists ${name} with (force)`)),
  );
  // A clone is not what its template was confirmed as, and nothing would be submitted from it.
  await database.query(`select onetake.confirm_installation('test', 'a clone of the template')`);
  return database;
}

/** A database that is there already; `dropDatabase` ends it. */
export function openTestDatabase(
  connectionString: string,
  dropDatabase: () => Promise<unknown>,
): TestDatabase {
  const pools: pg.Pool[] = [];
  const pool = (options: pg.PoolConfig = {}): pg.Pool => {
    const made = new pg.Pool({ connectionString, ...options });
    // The drop, or a test on purpose, ends idle connections: without a listener the process would exit.
    made.on('error', () => undefined);
    pools.push(made);
    return made;
  };
  let own: pg.Pool | undefined;
  const ownPool = (): pg.Pool => {
    own ??= pool({ max: 4 });
    return own;
  };
  let dropped: Promise<void> | undefined;
  const drop = (): Promise<void> => {
    dropped ??= (async () => {
      await Promise.all(pools.map(endUnlessHeld));
      await dropDatabase();
    })();
    return dropped;
  };
  return {
    connectionString,
    pool,
    query: async <Row extends pg.QueryResultRow>(text: string, values?: readonly unknown[]) =>
      (await ownPool().query<Row>(text, values === undefined ? undefined : [...values])).rows,
    passTime: (ms) => passTime(ownPool(), ms),
    drop,
    [Symbol.asyncDispose]: drop,
  };
}

/** `end` waits for clients that a failed test never gave back: the forced drop cuts those off instead. */
async function endUnlessHeld(pool: pg.Pool): Promise<void> {
  if (pool.ending) return;
  const ended = pool.end();
  if (pool.totalCount === pool.idleCount) await ended;
}

/** True when it is made; undefined when somebody is still connected to the template. */
async function createUnlessBusy(client: pg.Client, statement: string): Promise<true | undefined> {
  try {
    await client.query(statement);
    return true;
  } catch (error) {
    if ((error as pg.DatabaseError).code === OBJECT_IN_USE) return undefined;
    throw error;
  }
}

async function onServer<T>(connectionString: string, work: (client: pg.Client) => Promise<T>): Promise<T> {
  const client = new pg.Client({ connectionString });
  await client.connect();
  try {
    return await work(client);
  } finally {
    await client.end();
  }
}
