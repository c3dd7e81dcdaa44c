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

/** Rows that many tests begin with. */
export interface Beginning {
  /** Databases with the same one begin alike. */
  readonly key: string;
  /** Writes them; its connections are closed when it resolves. */
  readonly write: (connectionString: string) => Promise<unknown>;
}

/** A fresh copy of the migrated template, for one test file or one test. */
export async function createTestDatabase(beginning?: Beginning): Promise<TestDatabase> {
  const { connectionString: server, template } = inject('postgres');
  const begun = beginning && (await templateOf(beginning));
  const name = await clone(begun ?? template);
  const database = openTestDatabase(urlOf(server, name), () =>
    onServer((client) => client.query(`drop database if exists ${name} with (force)`)),
  );
  await database.query(CONFIRM);
  if (begun === undefined) await beginning?.write(database.connectionString);
  return database;
}

/** A clone is not what its template was confirmed as, and nothing would be submitted from it. */
const CONFIRM = `select onetake.confirm_installation('test', 'a clone of the template')`;

/** By key; the second test that asks makes a template, of this process's own. */
const beginnings = new Map<string, Promise<string> | 'asked once'>();

async function templateOf({ key, write }: Beginning): Promise<string | undefined> {
  const known = beginnings.get(key);
  if (known === undefined) {
    beginnings.set(key, 'asked once');
    return undefined;
  }
  if (known !== 'asked once') return known;
  const { connectionString: server, template } = inject('postgres');
  const made = (async () => {
    const name = await clone(template);
    const client = new pg.Client({ connectionString: urlOf(server, name) });
    await client.connect();
    await client.query(CONFIRM).finally(() => client.end());
    await write(urlOf(server, name));
    return name;
  })();
  beginnings.set(key, made);
  return made;
}

async function clone(template: string): Promise<string> {
  const name = `${inject('postgres').template.replace(/template$/, '')}${randomBytes(6).toString('hex')}`;
  // Copied as files, a small database costs a third of what it costs through the log.
  const statement = `create database ${name} template ${template} strategy file_copy`;
  await onServer((client) =>
    waitFor(() => createUnlessBusy(client, statement), { what: `${template} to be free to clone` }),
  );
  return name;
}

function urlOf(server: string, database: string): string {
  const url = new URL(server);
  url.pathname = `/${database}`;
  return url.href;
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

/** Kept open: a connection costs as much as what it is used for here. */
let administrator: Promise<pg.Client> | undefined;

async function onServer<T>(work: (client: pg.Client) => Promise<T>): Promise<T> {
  administrator ??= (async () => {
    const client = new pg.Client({ connectionString: inject('postgres').connectionString });
    client.on('error', () => {
      administrator = undefined;
    });
    await client.connect();
    return client;
  })();
  return work(await administrator);
}
