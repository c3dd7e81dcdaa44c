import { describe, expect, it, onTestFinished } from 'vitest';
import { createClient } from '../../src/index.ts';
import { createPoller, createWorker, migrate } from '../../src/worker.ts';
import type { Child } from '../support/children.ts';
import { createEmptyDatabase } from '../support/empty-database.ts';
import { findPgbouncer, type PgbouncerOptions, startPgbouncer } from '../support/pgbouncer.ts';
import { waitFor } from '../support/wait-for.ts';
import { API_KEY, openWorld, type World } from '../support/world.ts';

// Everything through a pgbouncer, as many databases are reached.

const found = findPgbouncer();
const SKIPPED = 'missing' in found ? found.missing : undefined;
if (SKIPPED !== undefined) console.warn(`SKIPPED, all tests of poolers: ${SKIPPED}`);
const SONGS = 500;

async function pooled(options: PgbouncerOptions) {
  const world = await openWorld({
    provider: 'raw',
    limits: { requestsPerMinute: 100_000, maxConcurrentGenerations: 10_000 },
  });
  const pgbouncer = await startPgbouncer(world.database.connectionString, options);
  onTestFinished(() => pgbouncer[Symbol.asyncDispose]());
  const client = createClient({ connectionString: pgbouncer.connectionString });
  onTestFinished(() => client.stop());
  return { world, pgbouncer, client, connectionString: pgbouncer.connectionString };
}

const eventsOf = (child: Child, name: string) =>
  (child.messages as { name?: string }[]).filter((line) => line.name === name);

const ended = async (world: World) => {
  const [row] = await world.database.query<{ left: number }>(
    `select count(*)::int as left from onetake.generation_requests where state <> 'failed'`,
  );
  return row?.left === 0;
};

describe.skipIf(SKIPPED !== undefined)(
  'through pgbouncer in transaction mode, with three connections',
  () => {
    it('client, two workers and a poller do 500 requests while it restarts: one POST each', {
      timeout: 180_000,
    }, async () => {
      const { world, pgbouncer, client, connectionString } = await pooled({
        mode: 'transaction',
        poolSize: 3,
      });
      world.raw.onGet = (call) =>
        call.answer(200, {
          task_id: call.path.split('/').at(-1),
          status: 'failed',
          error: { code: 'x' },
          refunded: true,
        });
      const children = await Promise.all([
        world.child('worker', { connectionString }),
        world.child('worker', { connectionString }),
        world.child('poller', { connectionString }),
      ]);
      const enqueueing = (async () => {
        for (let n = 0; n < SONGS; ) {
          const batch = Array.from({ length: 10 }, (_, i) => `song-${n + i}`);
          const ids = await Promise.all(
            batch.map((requestKey) =>
              waitFor(
                () =>
                  client
                    .enqueue({
                      operation: 'text-to-music',
                      fields: { prompt: requestKey, duration: 5 },
                      requestKey,
                    })
                    .catch((error: { code?: string }) => {
                      if (error.code !== 'database_unreachable') throw error;
                      return undefined;
                    }),
                { what: `${requestKey} to be enqueued` },
              ),
            ),
          );
          n += ids.length;
        }
      })();
      for (const posts of [50, 200]) {
        await waitFor(() => world.posts() >= posts, { what: `${posts} POSTs`, timeoutMs: 60_000 });
        await pgbouncer.restart();
      }
      await enqueueing;
      await waitFor(() => world.posts() >= SONGS, { what: 'all songs to be submitted', timeoutMs: 120_000 });
      // What a poller had claimed when its connection went stays claimed for a while.
      let looks = 0;
      const allEnded = async () => {
        if (++looks % 200 === 0) await world.passTime(31_000);
        return ended(world);
      };
      await waitFor(allEnded, { what: 'all songs to end', timeoutMs: 120_000 });
      expect(world.posts()).toBe(SONGS);
      const bodies = new Set(world.raw.posts.map((call) => /song-\d+/.exec(call.body)?.[0]));
      expect(bodies.size).toBe(SONGS);
      for (const child of children) {
        expect(child.process.exitCode).toBeNull();
        expect(child.stderr()).toBe('');
        expect(eventsOf(child, 'process:polling')).toHaveLength(1);
      }
      // Nothing of ours stays behind on the server's sessions, which other applications use as well.
      expect(
        await world.database.query(
          `select from pg_locks where locktype = 'advisory' and database = (select oid from pg_database where datname = current_database())`,
        ),
      ).toEqual([]);
      const [figures] = await world.database.query(
        `select count(*)::int as sessions from pg_stat_activity where datname = current_database() and application_name like 'onetake%'`,
      );
      expect(figures).toEqual({ sessions: expect.toSatisfy((n: number) => n <= 3) });
      expect(await world.breaker()).toMatchObject({
        state: 'closed',
        consecutive_failures: 0,
        generation: 1,
      });
    });

    it('migrate refuses, names the setting and leaves nothing locked', async () => {
      await using database = await createEmptyDatabase();
      await using pgbouncer = await startPgbouncer(database.connectionString, { mode: 'transaction' });
      await expect(migrate({ connectionString: pgbouncer.connectionString })).rejects.toMatchObject({
        code: 'configuration_invalid',
        hint: expect.stringContaining('pool_mode = session'),
      });
      expect(await database.query(`select from pg_namespace where nspname = 'onetake'`)).toEqual([]);
      await migrate({ connectionString: database.connectionString });
    });
  },
);

describe.skipIf(SKIPPED !== undefined)('through pgbouncer in session mode', () => {
  it('all is as on a direct connection: migrate too, and notifications are heard', async () => {
    await using database = await createEmptyDatabase();
    await using pgbouncer = await startPgbouncer(database.connectionString, {
      mode: 'session',
      poolSize: 30,
    });
    const { connectionString } = pgbouncer;
    expect(await migrate({ connectionString })).toMatchObject({ from: 'missing' });
    const seen: string[] = [];
    await using worker = createWorker({
      connectionString,
      credentials: () => API_KEY,
      onEvent: (name) => seen.push(name),
    });
    await worker.start();
    await waitFor(
      async () =>
        (
          await database.query(
            `select from pg_stat_activity where datname = current_database() and application_name like '%listener'`,
          )
        ).length === 1,
      { what: 'the worker to listen' },
    );
    expect(seen).not.toContain('process:polling');
  });
});

describe.skipIf(SKIPPED !== undefined)('through pgbouncer in statement mode', () => {
  it('nothing starts, and the setting is named', async () => {
    const { world, client, connectionString } = await pooled({ mode: 'statement' });
    const refusal = {
      code: 'configuration_invalid',
      hint: expect.stringContaining('pool_mode = transaction'),
    };
    const options = { connectionString, config: world.config, credentials: () => API_KEY };
    await using worker = createWorker(options);
    await using poller = createPoller(options);
    for (const one of [worker, poller]) await expect(one.start()).rejects.toMatchObject(refusal);
    const fields = { prompt: 'rain', duration: 5 };
    await expect(
      client.enqueue({ operation: 'text-to-music', fields, requestKey: 'one' }),
    ).rejects.toMatchObject(refusal);
    await expect(client.list()).rejects.toMatchObject(refusal);
    await expect(migrate({ connectionString })).rejects.toMatchObject({ code: 'configuration_invalid' });
    expect(await world.states()).toEqual({});
  });
});
