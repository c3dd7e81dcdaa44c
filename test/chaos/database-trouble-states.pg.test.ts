import { describe, expect, it, onTestFinished } from 'vitest';
import { createClient } from '../../src/index.ts';
import { postgresProxy } from '../support/postgres-proxy.ts';
import { hold } from '../support/raw-provider.ts';
import { createRole, type TestRole } from '../support/roles.ts';
import { waitFor } from '../support/wait-for.ts';
import { openWorld, type World } from '../support/world.ts';

// The database is there and doesn't let us: a right, a schema, a lock, a connection or a write is missing.

interface Trouble {
  /** What loops report; one of them. */
  readonly codes: readonly string[];
  /** What an app is told, by code; undefined: it waits. */
  readonly app: string | undefined;
  /** Resolves to what ends it. */
  begin(world: World, role: TestRole): Promise<() => Promise<unknown>>;
}

const endSessionsOf = (world: World, role: TestRole) =>
  world.database.query(
    `select pg_terminate_backend(pid) from pg_stat_activity where usename = '${role.name}'`,
  );

const TROUBLES: Readonly<Record<string, Trouble>> = {
  'a right that was taken away': {
    codes: ['42501'],
    app: 'database_refused',
    async begin({ database }, role) {
      const tables = 'insert, update on onetake.generation_requests, onetake.submission_attempts';
      await database.query(`revoke ${tables} from ${role.name}`);
      return () => database.query(`grant ${tables} to ${role.name}`);
    },
  },
  'a schema that is missing': {
    codes: ['42P01', '3F000'],
    app: 'schema_not_migrated',
    async begin({ database }) {
      await database.query('alter schema onetake rename to elsewhere');
      return () => database.query('alter schema elsewhere rename to onetake');
    },
  },
  'no connection left': {
    codes: ['53300'],
    app: 'database_busy',
    async begin(world, role) {
      await world.database.query(`alter role ${role.name} connection limit 0`);
      await endSessionsOf(world, role);
      return () => world.database.query(`alter role ${role.name} connection limit -1`);
    },
  },
  'a database that was set to read-only': {
    codes: ['25006'],
    app: 'database_read_only',
    async begin(world, role) {
      const everywhere = `alter role ${role.name} in database ${new URL(world.database.connectionString).pathname.slice(1)}`;
      await world.database.query(`${everywhere} set default_transaction_read_only = on`);
      await endSessionsOf(world, role);
      return async () => {
        await world.database.query(`${everywhere} reset default_transaction_read_only`);
        await endSessionsOf(world, role);
      };
    },
  },
  'a table that somebody alters': {
    codes: ['55P03'],
    app: undefined,
    async begin({ database }, role) {
      const client = await database.pool({ max: 1 }).connect();
      await client.query('begin');
      await client.query('lock table onetake.generation_requests in access exclusive mode');
      return async () => {
        const waiting = await database.query(
          `select from pg_stat_activity where usename = '${role.name}' and wait_event_type = 'Lock'`,
        );
        // No session of an earlier try still stands in the queue for the lock.
        expect(waiting.length).toBeLessThan(10);
        await client.query('rollback');
        client.release();
      };
    },
  },
};

describe.each(Object.entries(TROUBLES))('%s', (_, trouble) => {
  it('holds submissions back, keeps the outcome of the one on the wire, and is over when it is over', {
    timeout: 120_000,
  }, async () => {
    const world = await openWorld({
      provider: 'raw',
      config: { worker: { concurrency: 4, rescueIntervalMs: 100 } },
    });
    const role = await createRole(world.database);
    onTestFinished(() => role[Symbol.asyncDispose]());
    for (const schema of ['onetake', 'onetake_queue']) {
      await world.database.query(`grant usage on schema ${schema} to ${role.name};
grant all on all tables in schema ${schema} to ${role.name}; grant all on all sequences in schema ${schema} to ${role.name};
grant execute on all functions in schema ${schema} to ${role.name}`);
    }
    const proxy = await postgresProxy(role.connectionString);
    onTestFinished(() => proxy.stop());
    const { connectionString } = proxy;
    const app = createClient({ connectionString: role.connectionString });
    onTestFinished(() => app.stop());
    world.raw.onPost = hold;
    const paid = await world.song('one');
    await world.worker({ connectionString }).start();
    await world.poller({ connectionString }).start();
    const first = await world.raw.post(1);

    const end = await trouble.begin(world, role);
    // Queued by somebody who still can, and due, with slots free; else as soon as it can be.
    const queued = world.song('two').catch(() => undefined);
    first.accept('paid-for');
    const told = () => world.events.flatMap(({ name, event }) => (name === 'process:trouble' ? [event] : []));
    await waitFor(() => told().some(({ errorCode }) => trouble.codes.includes(errorCode)), {
      what: `trouble with ${trouble.codes.join(' or ')}`,
    });
    if (trouble.app !== undefined) {
      const fields = { prompt: 'three', duration: 5 };
      const refused = app.enqueue({ operation: 'text-to-music', fields, requestKey: 'three' });
      await expect(refused).rejects.toMatchObject({ name: 'OnetakeError', code: trouble.app });
    }
    const asked = proxy.statements.length + proxy.attempts.length;
    await waitFor(() => proxy.statements.length + proxy.attempts.length >= asked + 12, {
      what: 'a dozen more questions',
      timeoutMs: 40_000,
    });
    expect(world.posts()).toBe(1);
    world.raw.onPost = (call) => call.accept();
    await end();
    const ids = [paid, (await queued) ?? (await world.song('two'))];

    await waitFor(
      async () =>
        (await Promise.all(ids.map((id) => world.request(id)))).every((row) => row['state'] === 'accepted'),
      { what: 'both to be accepted', timeoutMs: 60_000 },
    );
    expect(await world.request(paid)).toMatchObject({
      provider_task_id: 'paid-for',
      submissions: 1,
    });
    for (const id of ids) {
      expect(await world.attempts(id)).toMatchObject([
        { certainty: 'accepted', settled_by: 'worker', attempt: 1 },
      ]);
    }
    expect(world.posts()).toBe(2);
    expect(await world.breaker()).toMatchObject({ state: 'closed', consecutive_failures: 0, generation: 1 });
    expect(await world.transitions()).toEqual([]);
    expect(told().length).toBeLessThan(16);
    await waitFor(() => world.events.some(({ name }) => name === 'process:recovered'), {
      what: 'the end of the trouble to be told',
    });
  });
});
