import { mkdir, mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { drizzle } from 'drizzle-orm/node-postgres';
import { migrate as migrateApp } from 'drizzle-orm/node-postgres/migrator';
import { PgBoss } from 'pg-boss';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { OPERATION_NAMES } from '../../src/core/operations.ts';
import { createClient } from '../../src/index.ts';
import { createPoller, createWorker, migrate } from '../../src/worker.ts';
import { type Child, startChild } from '../support/children.ts';
import { createEmptyDatabase, type EmptyDatabase } from '../support/empty-database.ts';
import { createRole } from '../support/roles.ts';
import { createTestDatabase } from '../support/test-database.ts';
import { waitFor } from '../support/wait-for.ts';

const MIGRATING_CHILD = `import { migrate } from './src/runtime/migrate.ts';
console.log(JSON.stringify({ ready: true }));
process.stdin.once('data', async () => {
  console.log(JSON.stringify(await migrate({ connectionString: process.env.TEST_URL })));
  process.stdin.destroy();
});`;

interface Said {
  readonly ready?: true;
  readonly from?: string;
  readonly changed?: readonly string[];
}

async function migratingChild(database: EmptyDatabase): Promise<Child> {
  const child = startChild({ module: MIGRATING_CHILD, env: { TEST_URL: database.connectionString } });
  await child.message<Said>((said) => said.ready === true, 'it was ready', 60_000);
  return child;
}

const IN_ORDER = [...OPERATION_NAMES].sort();
const intent = { operation: 'text-to-music', fields: { prompt: 'rain' }, requestKey: 'a-key' } as const;

describe('migrate', () => {
  it('makes tables, queues and settings in an empty database, and nothing the second time', async () => {
    await using database = await createEmptyDatabase();
    expect(await migrate({ connectionString: database.connectionString })).toEqual({
      from: 'missing',
      changed: ['accounts.default', ...OPERATION_NAMES.map((name) => `operations.${name}.breaker`)],
      trouble: null,
    });
    const before = await everyRow(database);
    expect(await migrate({ connectionString: database.connectionString })).toEqual({
      from: 'current',
      changed: [],
      trouble: null,
    });
    expect(await everyRow(database)).toEqual(before);
    expect(await database.query('select name from onetake_queue.queue order by name')).toMatchObject(
      ['settled', 'settled/undelivered', ...IN_ORDER.map((name) => `submit/default/${name}`)].map((name) => ({
        name,
      })),
    );
  });

  it('is safe when eight processes run it at once on an empty database', { timeout: 150_000 }, async () => {
    await using database = await createEmptyDatabase();
    const children = await Promise.all(Array.from({ length: 8 }, () => migratingChild(database)));
    for (const child of children) child.send('go');
    const said = await Promise.all(
      children.map((child) =>
        child.message<Said>((answer) => answer.from !== undefined, 'its result', 50_000),
      ),
    );
    for (const child of children) expect(await child.exited).toEqual({ code: 0, signal: null });
    expect(said.map((answer) => answer.from).sort()).toEqual([...Array(7).fill('current'), 'missing']);
    expect(said.filter((answer) => answer.changed?.length !== 0)).toHaveLength(1);
    expect(await database.query('select name, revision from onetake.accounts')).toEqual([
      { name: 'default', revision: 1 },
    ]);
    expect(await database.query('select name, revision from onetake.circuit_breakers order by name')).toEqual(
      IN_ORDER.map((name) => ({ name: `sonilo/${name}`, revision: 1 })),
    );
    expect(await database.query('select count(*)::int as applied from onetake.schema_migrations')).toEqual([
      { applied: 2 },
    ]);
  });

  it.each([
    ['its tables', 'create schema onetake', 'create table onetake.generation_requests (id int)', 'missing'],
    ['the queue', 'select 1', 'create schema onetake_queue', 'current'],
  ])('goes on where another was killed in the midst of %s', async (_, before, blocking, from) => {
    await using database = await createEmptyDatabase();
    await database.query(before);
    // An uncommitted object of the same name stops the child right there.
    const blocker = await database.connect();
    await blocker.query('begin');
    await blocker.query(blocking);
    await using child = await migratingChild(database);
    child.send('go');
    await waitFor(
      async () =>
        (
          await database.query(
            `select from pg_stat_activity
where datname = current_database() and application_name = 'onetake migrate' and wait_event_type = 'Lock'`,
          )
        ).length > 0,
      { what: 'the child to be stopped by the lock' },
    );
    expect(await child.kill('SIGKILL')).toEqual({ code: null, signal: 'SIGKILL' });
    await blocker.query('rollback');
    expect(await migrate({ connectionString: database.connectionString })).toMatchObject({ from });
    await using client = createClient({ connectionString: database.connectionString });
    expect(await client.enqueue(intent)).toMatchObject({ created: true });
  });

  it('waits for its turn although its role gives up on locks soon', async () => {
    await using database = await createTestDatabase();
    const impatient = new URL(database.connectionString);
    impatient.searchParams.set('options', '-c lock_timeout=20 -c statement_timeout=200');
    const holder = await database.pool({ max: 1 }).connect();
    await holder.query('begin');
    await holder.query('lock table onetake.accounts in access exclusive mode');
    const migrating = [1, 2].map(() => migrate({ connectionString: impatient.href }));
    await waitFor(
      async () =>
        (await database.query(`select from pg_locks where locktype = 'advisory' and not granted`)).length > 0,
      { what: 'one migrate to wait for the other' },
    );
    await waitFor(
      async () =>
        (
          await database.query(
            `select from pg_stat_activity where datname = current_database() and application_name = 'onetake migrate'
  and wait_event_type = 'Lock' and now() - query_start > interval '300 ms'`,
          )
        ).length === 2,
      { what: 'both to have waited for longer than their role would' },
    );
    await holder.query('rollback');
    holder.release();
    expect(await Promise.all(migrating)).toEqual(
      Array(2).fill({ from: 'current', changed: [], trouble: null }),
    );
  });

  it('says in one sentence that it is not permitted, or that the database is out of reach', async () => {
    await using database = await createTestDatabase();
    await using role = await createRole(database);
    await expect(migrate({ connectionString: role.connectionString })).rejects.toMatchObject({
      code: 'schema_not_migrated',
      hint: expect.stringContaining('role'),
    });
    const error = await migrate({ connectionString: 'postgresql://ada:hunter2@127.0.0.1:1/music' }).catch(
      (thrown: Error) => thrown,
    );
    expect(error).toMatchObject({
      code: 'database_unreachable',
      message: expect.stringContaining('ECONNREFUSED'),
    });
    expect(String(error)).not.toMatch(/hunter2|127\.0\.0\.1|music/);
  });

  it('says so to a role that may create schemas nowhere', async () => {
    await using database = await createEmptyDatabase();
    await using role = await createRole({ ...database, query: database.query } as never);
    const url = new URL(database.connectionString);
    const as = new URL(role.connectionString);
    url.username = as.username;
    url.password = as.password;
    await expect(migrate({ connectionString: url.href })).rejects.toMatchObject({
      code: 'schema_not_migrated',
    });
  });
});

describe('the settings in the database', () => {
  it('follow the configuration, a revision at a time, and stay as they are without a change', async () => {
    await using database = await createTestDatabase();
    const { connectionString } = database;
    const rows = () =>
      database.query(
        `select xmin::text, name, requests_per_minute as value, revision from onetake.accounts
union all select xmin::text, name, failure_threshold, revision from onetake.circuit_breakers order by name`,
      );
    const changed = {
      accounts: { default: { requestsPerMinute: 7 } },
      operations: { 'text-to-music': { breaker: { failureThreshold: 5 } } },
    };
    expect((await migrate({ connectionString, config: changed })).changed).toEqual([
      'accounts.default',
      'operations.text-to-music.breaker',
    ]);
    const after = await rows();
    expect(after).toMatchObject([
      { name: 'default', value: 7, revision: 2 },
      ...IN_ORDER.map((name) => ({
        name: `sonilo/${name}`,
        ...(name === 'text-to-music' ? { value: 5, revision: 2 } : { value: 3, revision: 1 }),
      })),
    ]);
    expect((await migrate({ connectionString, config: changed })).changed).toEqual([]);
    expect(await rows()).toEqual(after);
  });

  it('keep what the configuration does not speak of', async () => {
    await using database = await createTestDatabase();
    const config = { accounts: { second: { apiKeyEnv: 'SECOND_KEY', requestsPerMinute: 9 } } };
    expect((await migrate({ connectionString: database.connectionString, config })).changed).toEqual([
      'accounts.second',
    ]);
    expect(
      await database.query('select name, requests_per_minute as rpm from onetake.accounts order by 1'),
    ).toEqual([
      { name: 'default', rpm: 60 },
      { name: 'second', rpm: 9 },
    ]);
  });

  it('change under an open breaker without moving its probe', async () => {
    await using database = await createTestDatabase();
    const state = `select state, generation, opened_at, retry_at from onetake.circuit_breakers
where name = 'sonilo/text-to-music'`;
    await database.query(
      `update onetake.circuit_breakers set state = 'open', generation = 2, opened_at = now(),
  retry_at = now() + interval '30 s'`,
    );
    const before = await database.query(state);
    const config = { operations: { 'text-to-music': { breaker: { cooldownMs: 100 } } } };
    await migrate({ connectionString: database.connectionString, config });
    expect(await database.query(state)).toEqual(before);
    expect(
      await database.query(
        `select cooldown_ms from onetake.circuit_breakers where name = 'sonilo/text-to-music'`,
      ),
    ).toEqual([{ cooldown_ms: 100 }]);
  });
});

describe('another schema than this build’s', () => {
  const paths = {
    worker: async (connectionString: string) => {
      await using worker = createWorker({ connectionString, credentials: () => 'key' });
      await worker.start();
    },
    poller: async (connectionString: string) => {
      await using poller = createPoller({ connectionString, credentials: () => 'key' });
      await poller.start();
    },
    client: async (connectionString: string) => {
      await using client = createClient({ connectionString });
      await client.enqueue(intent);
    },
  };
  const kinds = {
    'an older schema': {
      make: `delete from onetake.schema_migrations where created_at = (select max(created_at) from onetake.schema_migrations)`,
      refused: { code: 'schema_too_old', message: expect.stringContaining('older') },
      by: ['worker', 'poller', 'client'],
    },
    'an older queue': {
      make: 'update onetake_queue.version set version = version - 1',
      refused: { code: 'schema_too_old', message: expect.stringContaining('queue') },
      by: ['worker', 'client'],
    },
    'no queue': {
      make: 'drop schema onetake_queue cascade',
      refused: { code: 'schema_not_migrated' },
      by: ['worker', 'client'],
    },
    'no schema': {
      make: 'drop schema onetake cascade',
      refused: { code: 'schema_not_migrated' },
      by: ['worker', 'poller', 'client'],
    },
    'a newer schema': {
      make: 'insert into onetake.schema_migrations (hash, created_at) select hash, created_at + 1 from onetake.schema_migrations',
      refused: undefined,
      by: ['worker', 'poller', 'client'],
    },
    'a newer queue': {
      make: 'update onetake_queue.version set version = version + 1',
      refused: undefined,
      by: ['worker', 'poller', 'client'],
    },
  } as const;
  const cases = Object.entries(kinds).flatMap(([kind, { make, refused, by }]) =>
    by.map((path) => [kind, path, make, refused] as const),
  );

  it.each(cases)('%s: a %s goes by it', async (_, path, make, refused) => {
    await using database = await createTestDatabase();
    await database.query(make);
    const attempted = paths[path](database.connectionString);
    if (refused === undefined) await attempted;
    else await expect(attempted).rejects.toMatchObject(refused);
  });

  it.each(['an older schema', 'an older queue', 'no queue', 'no schema'] as const)(
    '%s leaves the transaction of a client’s caller usable',
    async (kind) => {
      await using database = await createTestDatabase();
      await database.query(kinds[kind].make);
      await using client = createClient({ connectionString: database.connectionString });
      const tx = await database.pool({ max: 1 }).connect();
      await tx.query('begin');
      await expect(client.enqueue(intent, { tx })).rejects.toMatchObject(kinds[kind].refused);
      expect((await tx.query('select 1 as one')).rows).toEqual([{ one: 1 }]);
      await tx.query('commit');
      tx.release();
      if (kind === 'no schema') return;
      expect(await database.query('select from onetake.generation_requests')).toEqual([]);
    },
  );

  it('that is newer is left as it is by an older release’s migrate', async () => {
    await using database = await createTestDatabase();
    await database.query(kinds['a newer schema'].make);
    await database.query(kinds['a newer queue'].make);
    expect(await migrate({ connectionString: database.connectionString })).toEqual({
      from: 'newer',
      changed: [],
      trouble: null,
    });
  });
});

describe('an app in the same database', () => {
  let folder: string;
  beforeAll(async () => {
    folder = await mkdtemp(join(tmpdir(), 'onetake-app-'));
  });
  afterAll(() => rm(folder, { recursive: true, force: true }));

  /** The app's own migrations, dated long after ours: with a shared table, ours would look done. */
  async function migrateOwn(database: EmptyDatabase, count: number): Promise<void> {
    const migrationsFolder = join(folder, String(count));
    await mkdir(join(migrationsFolder, 'meta'), { recursive: true });
    const entries = Array.from({ length: count }, (_, idx) => ({
      idx,
      version: '7',
      when: 4_000_000_000_000 + idx,
      tag: `000${idx}_app`,
      breakpoints: true,
    }));
    for (const { tag, idx } of entries) {
      await writeFile(join(migrationsFolder, `${tag}.sql`), `create table app_${idx} (id int);`);
    }
    await writeFile(
      join(migrationsFolder, 'meta/_journal.json'),
      JSON.stringify({ version: '7', dialect: 'postgresql', entries }),
    );
    await migrateApp(drizzle(await database.connect()), { migrationsFolder });
  }

  async function useOwnQueue(database: EmptyDatabase, name: string): Promise<PgBoss> {
    const boss = new PgBoss({
      connectionString: database.connectionString,
      supervise: false,
      schedule: false,
    });
    boss.on('error', () => undefined);
    await boss.start();
    await boss.createQueue(name);
    await boss.send(name, { of: 'the app' });
    return boss;
  }

  async function everythingOfTheApp(database: EmptyDatabase) {
    return {
      migrations: await database.query('select * from drizzle.__drizzle_migrations order by id'),
      version: await database.query('select * from pgboss.version'),
      queues: await database.query('select * from pgboss.queue order by name'),
      jobs: await database.query('select * from pgboss.job order by id'),
      tables: await database.query(
        `select schemaname, tablename from pg_tables where schemaname in ('public', 'drizzle', 'pgboss') order by 1, 2`,
      ),
    };
  }

  it.each(['before', 'after'] as const)(
    'that was there %s keeps its drizzle and its pg-boss',
    async (order) => {
      await using database = await createEmptyDatabase();
      const { connectionString } = database;
      if (order === 'after') await migrate({ connectionString });
      await migrateOwn(database, 1);
      const boss = await useOwnQueue(database, 'submit/default/text-to-music');
      const before = await everythingOfTheApp(database);

      expect(await migrate({ connectionString })).toMatchObject({
        from: order === 'before' ? 'missing' : 'current',
      });
      await using client = createClient({ connectionString });
      const result = await client.enqueue(intent);
      expect(result).toMatchObject({ created: true });

      expect(await everythingOfTheApp(database)).toEqual(before);
      expect(await boss.fetch('submit/default/text-to-music')).toMatchObject([{ data: { of: 'the app' } }]);
      await boss.stop({ graceful: false });
      await migrateOwn(database, 2);
      expect(await database.query(`select to_regclass('public.app_1') is not null as there`)).toEqual([
        { there: true },
      ]);
      expect(await database.query('select data from onetake_queue.job')).toEqual([
        { data: { requestId: (result as { id: string }).id } },
      ]);
    },
  );
});

/** Every row of both schemas with the transaction that wrote it. */
async function everyRow(database: EmptyDatabase): Promise<Record<string, unknown>> {
  const tables = await database.query<{ name: string }>(
    `select format('%I.%I', schemaname, tablename) as name from pg_tables
where schemaname in ('onetake', 'onetake_queue') order by 1`,
  );
  const rows: Record<string, unknown> = {};
  for (const { name } of tables) rows[name] = await database.query(`select xmin::text, * from ${name}`);
  return rows;
}
