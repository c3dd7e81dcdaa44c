import { describe, expect, it } from 'vitest';
import { Database } from '../../src/postgres/database.ts';
import { databaseErrorCode } from '../../src/postgres/errors.ts';
import { listen } from '../../src/postgres/notifications.ts';
import { Listener } from '../../src/runtime/listener.ts';
import { postgresProxy } from '../support/postgres-proxy.ts';
import { createTestDatabase, type TestDatabase } from '../support/test-database.ts';
import { waitFor } from '../support/wait-for.ts';

async function swallowable() {
  const clone = await createTestDatabase();
  const proxy = await postgresProxy(clone.connectionString);
  const database = Database.connect(proxy.connectionString, { max: 3, applicationName: 'onetake test' });
  return {
    clone,
    proxy,
    database,
    async [Symbol.asyncDispose]() {
      await database.close();
      await proxy.stop();
      await clone.drop();
    },
  };
}

const listeners = (clone: TestDatabase) =>
  clone.query<{ pid: number }>(
    `select pid from pg_stat_activity where datname = current_database() and application_name = 'onetake test listener'`,
  );

describe.concurrent('a connection that a network has swallowed', () => {
  it('ends a transaction soon after the server would have, and the next one gets another', async () => {
    await using world = await swallowable();
    const { proxy, database } = world;
    await database.transaction((tx) => tx.executeSql('select 1'));
    const lost = database.transaction(
      async (tx) => {
        for (const connection of proxy.connections) connection.stall();
        await tx.executeSql('select 1');
      },
      { statementTimeoutMs: 100 },
    );
    expect(await lost.catch(databaseErrorCode)).toBe('no_answer');
    expect((await database.transaction((tx) => tx.executeSql('select 1 as one'))).rows).toEqual([{ one: 1 }]);
  });

  it('during COMMIT leaves its outcome unknown', async () => {
    await using world = await swallowable();
    const { proxy, database, clone } = world;
    await clone.query('create table public.notes (id int)');
    const lost = database.transaction(
      async (tx) => {
        await tx.executeSql('insert into public.notes values (1)');
        for (const connection of proxy.connections) connection.stall();
      },
      { statementTimeoutMs: 100 },
    );
    await expect(lost).rejects.toMatchObject({ name: 'CommitUnknownError' });
  });

  it('is noticed by a listener, which listens again on another', async () => {
    await using world = await swallowable();
    const { clone, proxy, database } = world;
    const heard: string[] = [];
    const listener = new Listener(database, {
      onNotice: (what) => heard.push(what),
      onPolling: () => heard.push('polling'),
      beatEveryMs: 100,
    });
    using _ = { [Symbol.dispose]: () => listener.stop() };
    listener.start();
    const [first] = await waitFor(
      async () => ((await listeners(clone)).length === 1 ? listeners(clone) : undefined),
      {
        what: 'it to listen',
      },
    );
    for (const connection of proxy.connections) {
      if (connection.statements.some((text) => text.includes('listen onetake'))) connection.stall();
    }
    await waitFor(async () => (await listeners(clone)).some(({ pid }) => pid !== first?.pid), {
      what: 'it to listen on another connection',
    });
    await waitFor(
      async () => {
        await clone.query(`select pg_notify('onetake', 'lane')`);
        return heard.includes('lane');
      },
      { what: 'a notice to be heard' },
    );
    expect(new Set(heard)).toEqual(new Set(['lane']));
  });
});

describe.concurrent('listen', () => {
  it('keeps what listeners say to themselves from everybody', async () => {
    await using world = await swallowable();
    const { clone, database } = world;
    const heard: string[] = [];
    const ends = await Promise.all(
      [1, 2].map(() =>
        listen(database, {
          onNotice: (what) => heard.push(what),
          onLost: () => heard.push('lost'),
          beatEveryMs: 20,
        }),
      ),
    );
    await waitFor(
      async () => {
        await clone.query(`select pg_notify('onetake', 'slot')`);
        return heard.length >= 100;
      },
      { what: 'a hundred notices' },
    );
    for (const end of ends) end?.();
    expect(new Set(heard)).toEqual(new Set(['slot']));
  });

  it('outlives a role that ends idle sessions', async () => {
    await using world = await swallowable();
    const { clone, database } = world;
    const clock = clone.pool({ max: 1, options: '-c idle_session_timeout=0' });
    const now = async () => Number((await clock.query('select clock_timestamp() as now')).rows[0].now);
    await clock.query(`do $$ begin
execute format('alter database %I set idle_session_timeout = 1000', current_database()); end $$`);
    let lost = false;
    const onLost = () => {
      lost = true;
    };
    const end = await listen(database, { onNotice: () => undefined, onLost });
    const began = await now();
    await waitFor(async () => (await now()) > began + 3_000, { what: 'three times as long' });
    expect(lost).toBe(false);
    end?.();
  });
});

const CALLERS = 40;

describe.concurrent('many who wait for a database that is away', () => {
  it('cost it about one knock a second, and get through when it is back', async () => {
    await using world = await swallowable();
    const { proxy, database } = world;
    await database.transaction((tx) => tx.executeSql('select 1'));
    proxy.refuse();
    const begun = performance.now();
    const from = proxy.attempts.length;
    let done = 0;
    const patient = async () => {
      for (;;) {
        try {
          await database.transaction((tx) => tx.executeSql('select 1'));
          done++;
          return;
        } catch {
          // Again at once: it is the database that holds them up.
        }
      }
    };
    const all = Promise.all(Array.from({ length: CALLERS }, patient));
    await waitFor(() => proxy.attempts.length >= from + CALLERS + 6, {
      what: 'six knocks after the first burst',
    });
    const seconds = (performance.now() - begun) / 1_000;
    expect(proxy.attempts.length - from).toBeLessThan(CALLERS + 12 + 2 * seconds);
    expect(seconds).toBeGreaterThan(1);
    proxy.pass();
    await all;
    expect(done).toBe(CALLERS);
  });
});
