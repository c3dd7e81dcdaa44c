import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { CommitUnknownError, Database, firstRow, type Sql } from '../../src/postgres/database.ts';
import { databaseErrorCode } from '../../src/postgres/errors.ts';
import { COMMIT, databaseProxy } from '../support/database-proxy.ts';
import { createRole } from '../support/roles.ts';
import { createTestDatabase, type TestDatabase } from '../support/test-database.ts';
import { waitFor } from '../support/wait-for.ts';

let clone: TestDatabase;
beforeAll(async () => {
  clone = await createTestDatabase();
  await clone.query('create table public.notes (id int primary key, note text)');
  await clone.query(`insert into public.notes select i, 'old' from generate_series(1, 20) i`);
});
afterAll(() => clone.drop());

/** A database of the product over one connection, closed at the end of the scope. */
function open(connectionString = clone.connectionString, max = 1) {
  const database = Database.connect(connectionString, { max, applicationName: 'test' });
  return Object.assign(database, { [Symbol.asyncDispose]: () => database.close() });
}

async function setting(sql: Sql, name: string): Promise<string> {
  const row = await firstRow<{ value: string }>(sql, 'select current_setting($1) as value', [name]);
  return (row as { value: string }).value;
}

async function note(id: number): Promise<string | undefined> {
  return (await clone.query<{ note: string }>('select note from public.notes where id = $1', [id]))[0]?.note;
}

const write = (sql: Sql, id: number, text: string) =>
  sql.executeSql('update public.notes set note = $2 where id = $1', [id, text]);
const pid = async (sql: Sql) =>
  (await firstRow<{ pid: number }>(sql, 'select pg_backend_pid() as pid'))?.pid as number;

describe('a transaction', () => {
  it.each([
    ['default_transaction_isolation', 'repeatable read', 'transaction_isolation', 'read committed'],
    ['default_transaction_isolation', 'serializable', 'transaction_isolation', 'read committed'],
    ['synchronous_commit', 'off', 'synchronous_commit', 'on'],
    ['synchronous_commit', 'local', 'synchronous_commit', 'on'],
    ['synchronous_commit', 'remote_write', 'synchronous_commit', 'on'],
    ['synchronous_commit', 'remote_apply', 'synchronous_commit', 'remote_apply'],
  ])('does not take its role’s %s = %s: it runs with %s = %s', async (name, value, shown, expected) => {
    await using role = await createRole(clone, { [name]: value });
    await using database = open(role.connectionString);
    expect(await database.transaction((tx) => setting(tx, shown))).toBe(expected);
  });

  it('sees in a later statement what the wait for a lock let in', async () => {
    await using role = await createRole(clone, { default_transaction_isolation: 'repeatable read' });
    await clone.query(`grant select, update on public.notes to ${role.name}`);
    await using database = open(role.connectionString);
    const other = await clone.pool({ max: 1 }).connect();
    await other.query('begin');
    await other.query(`update public.notes set note = 'new' where id in (1, 2)`);
    const seen = database.transaction(async (tx) => {
      await tx.executeSql('select from public.notes where id = 1 for no key update');
      return firstRow(tx, 'select note from public.notes where id = 2');
    });
    await waitUntilBlocked();
    await other.query('commit');
    other.release();
    expect(await seen).toEqual({ note: 'new' });
  });

  it('bounds its waits', async () => {
    await using database = open();
    const limits = await database.transaction(
      async (tx) => [await setting(tx, 'lock_timeout'), await setting(tx, 'statement_timeout')],
      { lockTimeoutMs: 1_234, statementTimeoutMs: 5_678 },
    );
    expect(limits).toEqual(['1234ms', '5678ms']);
  });

  it('rolls back after an error of our own, and keeps its connection', async () => {
    await using database = open();
    const before = await pid(database);
    const failed = database.transaction(async (tx) => {
      await write(tx, 3, 'half');
      throw Object.assign(new Error('no'), { code: 'intent_mismatch' });
    });
    await expect(failed).rejects.toThrow('no');
    expect(await note(3)).toBe('old');
    // Not merely out of sight: the transaction is over, and its lock is free.
    expect(await clone.query('select state from pg_stat_activity where pid = $1', [before])).toEqual([
      { state: 'idle' },
    ]);
    expect(await pid(database)).toBe(before);
  });

  it('says that nothing was committed when a failed statement was ignored', async () => {
    await using database = open();
    const before = await pid(database);
    const ignored = database.transaction(async (tx) => {
      await write(tx, 4, 'lost');
      await tx.executeSql('select 1 / 0').catch(() => undefined);
      return 'done';
    });
    await expect(ignored).rejects.toThrow('nothing was committed');
    expect(await note(4)).toBe('old');
    expect(await pid(database)).toBe(before);
  });

  it('reports what a deferred constraint refuses at COMMIT as refused, not as unknown', async () => {
    await clone.query('create table public.parents (id int primary key)');
    await clone.query(
      'create table public.children (parent int references public.parents deferrable initially deferred)',
    );
    await using database = open();
    const refused = database.transaction((tx) => tx.executeSql('insert into public.children values (1)'));
    await expect(refused).rejects.toMatchObject({ code: '23503' });
    expect(await database.transaction((tx) => pid(tx))).toBeGreaterThan(0);
  });
});

describe('a connection that dies', () => {
  it.each(['before', 'after'] as const)(
    '%s COMMIT was carried out leaves its outcome unknown',
    async (when) => {
      const id = when === 'before' ? 5 : 6;
      const proxy = await databaseProxy(clone.connectionString);
      await using database = open(proxy.connectionString);
      const cut = proxy.cutAt(COMMIT, when);
      const committing = database.transaction((tx) => write(tx, id, 'new'));
      await expect(committing).rejects.toBeInstanceOf(CommitUnknownError);
      await cut;
      // The same error for both, which is why only a look under the row's lock can tell.
      expect(await note(id)).toBe(when === 'before' ? 'old' : 'new');
      expect(await database.transaction((tx) => firstRow(tx, 'select 1 as one'))).toEqual({ one: 1 });
    },
  );

  it('because the server ends it during COMMIT leaves its outcome unknown', async () => {
    await clone.query(`create function public.die() returns trigger language plpgsql as $$
begin perform pg_terminate_backend(pg_backend_pid()); perform pg_sleep(10); return null; end $$`);
    await clone.query('create table public.deadly (id int)');
    await clone.query(`create constraint trigger die after insert on public.deadly
deferrable initially deferred for each row execute function public.die()`);
    await using database = open();
    const committing = database.transaction((tx) => tx.executeSql('insert into public.deadly values (1)'));
    await expect(committing).rejects.toBeInstanceOf(CommitUnknownError);
    expect(await clone.query('select * from public.deadly')).toEqual([]);
  });

  it('amid the work is no unknown commit, and the next transaction gets another connection', async () => {
    await using database = open();
    const killed = database.transaction(async (tx) => {
      await write(tx, 7, 'lost');
      await tx.executeSql('select pg_terminate_backend(pg_backend_pid())');
    });
    await expect(killed).rejects.toMatchObject({ code: '57P01' });
    expect(await note(7)).toBe('old');
    expect(await database.transaction((tx) => firstRow(tx, 'select 1 as one'))).toEqual({ one: 1 });
  });

  it('while idle is replaced, and ends no process', async () => {
    await using database = open();
    const idle = await pid(database);
    await clone.query('select pg_terminate_backend($1)', [idle]);
    await waitFor(() => database.pool.totalCount === 0, { what: 'the pool to notice' });
    expect(await pid(database)).not.toBe(idle);
  });
});

describe('retryingTransaction', () => {
  it('runs the victim of a deadlock again, so that both get through', async () => {
    await using one = open();
    await using other = open();
    let arrived = 0;
    let meet: () => void = () => {};
    const both = new Promise<void>((resolve) => {
      meet = resolve;
    });
    const attempts = { one: 0, other: 0 };
    const crossing = (name: 'one' | 'other', first: number, second: number) => async (tx: Sql) => {
      attempts[name]++;
      await write(tx, first, name);
      if (++arrived === 2) meet();
      await both;
      await write(tx, second, name);
    };
    await Promise.all([
      one.retryingTransaction(crossing('one', 8, 9)),
      other.retryingTransaction(crossing('other', 9, 8)),
    ]);
    expect(attempts.one + attempts.other).toBe(3);
    expect(await note(8)).toBe(await note(9));
  });

  it('gives up after its tries, with the last error and without an open transaction', async () => {
    await using database = open();
    const holder = await clone.pool({ max: 1 }).connect();
    await holder.query('begin');
    await holder.query('select from public.notes where id = 10 for update');
    let attempts = 0;
    const blocked = database.retryingTransaction(
      async (tx) => {
        attempts++;
        await write(tx, 10, 'never');
      },
      { tries: 3, lockTimeoutMs: 20 },
    );
    await expect(blocked).rejects.toMatchObject({ code: '55P03' });
    expect(attempts).toBe(3);
    await holder.query('rollback');
    holder.release();
    expect(await note(10)).toBe('old');
  });

  it('gets through once the lock is free', async () => {
    await using database = open();
    const holder = await clone.pool({ max: 1 }).connect();
    await holder.query('begin');
    await holder.query('select from public.notes where id = 11 for update');
    let attempts = 0;
    await database.retryingTransaction(
      async (tx) => {
        if (++attempts === 2) await holder.query('rollback');
        await write(tx, 11, 'new');
      },
      { lockTimeoutMs: 20 },
    );
    holder.release();
    expect(attempts).toBe(2);
    expect(await note(11)).toBe('new');
  });

  it.each([
    ['a unique violation', `insert into public.notes values (12, 'twice')`, '23505'],
    ['a syntax error', 'selct 1', '42601'],
    ['a lost connection', 'select pg_terminate_backend(pg_backend_pid())', '57P01'],
  ])('does not run again after %s', async (_, text, code) => {
    await using database = open();
    let attempts = 0;
    const failed = database.retryingTransaction((tx) => {
      attempts++;
      return tx.executeSql(text);
    });
    await expect(failed.catch((error: unknown) => databaseErrorCode(error))).resolves.toBe(code);
    expect(attempts).toBe(1);
  });
});

describe('close', () => {
  it('may be called any number of times, at once too', async () => {
    const database = open();
    await pid(database);
    await Promise.all([database.close(), database.close()]);
    await database.close();
  });

  it('leaves a pool that it was given', async () => {
    const pool = clone.pool({ max: 1 });
    await new Database(pool, false).close();
    expect((await pool.query('select 1 as one')).rows).toEqual([{ one: 1 }]);
  });
});

async function waitUntilBlocked(): Promise<void> {
  const blocked = `select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'`;
  await waitFor(async () => (await clone.query(blocked)).length > 0, { what: 'a wait for a lock' });
}
