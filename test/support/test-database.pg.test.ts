import { describe, expect, it } from 'vitest';
import { createTestDatabase, type TestDatabase } from './test-database.ts';
import { waitFor } from './wait-for.ts';

describe('a test database', () => {
  it('is a clone of the migrated template, apart from every other clone', async () => {
    await using one = await createTestDatabase();
    await using other = await createTestDatabase();
    await one.query('create table onetake.only_here (at timestamptz)');
    const present = `select to_regclass('onetake.only_here') is not null as here,
      to_regclass('onetake.generation_requests') is not null as ours,
      to_regclass('onetake_queue.job') is not null as queue`;
    expect(await one.query(present)).toEqual([{ here: true, ours: true, queue: true }]);
    expect(await other.query(present)).toEqual([{ here: false, ours: true, queue: true }]);
  });

  it('is made many times at once', async () => {
    const databases = await Promise.all(Array.from({ length: 8 }, () => createTestDatabase()));
    expect(new Set(databases.map((database) => database.connectionString)).size).toBe(8);
    await Promise.all(databases.map((database) => database.drop()));
  });

  it('is dropped although a client was never given back', async () => {
    await using watcher = await createTestDatabase();
    const database = await createTestDatabase();
    const held = await database.pool({ max: 1 }).connect();
    held.on('error', () => undefined);
    await database.drop();
    await database.drop();
    const name = new URL(database.connectionString).pathname.slice(1);
    expect(await watcher.query('select 1 from pg_database where datname = $1', [name])).toEqual([]);
  });
});

describe('passTime', () => {
  it('moves every stored instant of both schemas back, and nothing else', async () => {
    await using database = await createTestDatabase();
    await database.query(
      `create table onetake.sample (id int, at timestamptz, until timestamptz, note text)`,
    );
    await database.query(`insert into onetake.sample values (1, '2026-01-01T12:00:00Z', null, 'kept')`);
    await database.query(`create table public.untouched as select timestamptz '2026-01-01T12:00:00Z' as at`);
    await database.query(
      `insert into onetake_queue.job (name, start_after) select name, '2026-01-01T12:00:00Z' from onetake_queue.queue limit 1`,
    );
    const jobsBefore = await database.query<{ created_on: Date; start_after: Date }>(
      'select * from onetake_queue.job',
    );
    expect(jobsBefore).toHaveLength(1);

    await database.passTime(90_500);

    expect(await database.query('select * from onetake.sample')).toEqual([
      { id: 1, at: new Date('2026-01-01T11:58:29.500Z'), until: null, note: 'kept' },
    ]);
    expect(await database.query('select * from public.untouched')).toEqual([
      { at: new Date('2026-01-01T12:00:00Z') },
    ]);
    const [job] = await database.query<{ created_on: Date; start_after: Date }>(
      'select * from onetake_queue.job',
    );
    expect(job?.start_after).toEqual(new Date('2026-01-01T11:58:29.500Z'));
    expect(job?.created_on.getTime()).toBe((jobsBefore[0]?.created_on.getTime() ?? 0) - 90_500);
  });

  it('sets off no trigger', async () => {
    await using database = await createTestDatabase();
    await database.query(`
      create table onetake.guarded as select now() as at;
      create function onetake.refuse() returns trigger language plpgsql as $$ begin raise 'touched'; end $$;
      create trigger refuse before update on onetake.guarded for each row execute function onetake.refuse()`);
    await expect(database.query('update onetake.guarded set at = at')).rejects.toThrow('touched');
    await database.passTime(1_000);
  });

  it('waits for a transaction that holds the rows, and comes out of a deadlock with it', async () => {
    await using database = await createTestDatabase();
    await database.query(`create table onetake.a_first as select timestamptz '2026-01-01T12:00:00Z' as at`);
    await database.query(`create table onetake.b_second as select timestamptz '2026-01-01T12:00:00Z' as at`);
    const client = await database.pool({ max: 1 }).connect();
    await client.query('begin');
    await client.query('select from onetake.b_second for update');
    const passed = database.passTime(1_000);
    await waitUntilBlocked(database);
    const other = client.query('select from onetake.a_first for update').then(
      () => client.query('commit'),
      () => client.query('rollback'),
    );
    await Promise.all([passed, other]);
    client.release();
    const expected = [{ at: new Date('2026-01-01T11:59:59Z') }];
    expect(await database.query('select * from onetake.a_first')).toEqual(expected);
    expect(await database.query('select * from onetake.b_second')).toEqual(expected);
  });
});

async function waitUntilBlocked(database: TestDatabase): Promise<void> {
  const blocked = `select 1 from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'`;
  await waitFor(async () => (await database.query(blocked)).length > 0, {
    what: 'passTime to wait for the lock',
  });
}
