import pg from 'pg';
import { afterAll, beforeAll, describe, expect, onTestFinished, test } from 'vitest';
import { createClient } from '../../src/index.ts';
import { type AdmittedBatch, admit } from '../../src/lifecycle/admit.ts';
import type { SubmissionContext } from '../../src/lifecycle/context.ts';
import { settle } from '../../src/lifecycle/settle.ts';
import { Database } from '../../src/postgres/database.ts';
import { type LifecycleContext, laneOf, lifecycleContext } from '../support/lifecycle-context.ts';
import { type PrivateServer, startPrivateServer } from '../support/private-server.ts';
import { createRole } from '../support/roles.ts';
import { answered } from '../support/spooled.ts';
import { openWorld, type World } from '../support/world.ts';

// The server crashes while nothing but our own commits has left its memory: the role says synchronous_commit = off,
// and the WAL writer sleeps. (The operating system lives on, so fsync plays no part.)

let server: PrivateServer;
beforeAll(async () => {
  server = await startPrivateServer({
    wal_writer_delay: '10s',
    // No checkpoint or vacuum that would flush on the side.
    checkpoint_timeout: '1h',
    autovacuum: 'off',
  });
}, 120_000);
afterAll(() => server?.[Symbol.asyncDispose]());

describe('a crash takes back what was confirmed asynchronously, but not', () => {
  test('an intent', async () => {
    const { world, ctx, crash } = await prepared();
    const id = await world.song('a song');
    const { attempts } = await permitted(ctx);
    await crash();
    expect(await world.request(id)).toMatchObject({ state: 'submitting' });
    expect(await world.attempts(id)).toMatchObject([{ id: attempts[0]?.attemptId }]);
  });

  test('an acceptance, which is one statement without a transaction of ours', async () => {
    const { world, ctx, crash } = await prepared();
    const id = await world.song('a song');
    const { attempts } = await permitted(ctx);
    await settle(ctx, only(attempts), answered(202, 'its task'));
    await crash();
    expect(await world.request(id)).toMatchObject({ state: 'accepted', provider_task_id: 'its task' });
  });

  test('an acceptance through a pooler, where no session is ours', async () => {
    const { world, ctx: direct, connectionString, crash } = await prepared();
    // Whose connections have no terms of ours, as those of a pooler.
    const database = new Database(new pg.Pool({ connectionString, max: 2 }), true);
    onTestFinished(() => database.close());
    const ctx = { ...direct, database };
    const id = await world.song('a song');
    const { attempts } = await permitted(ctx);
    await settle(ctx, only(attempts), answered(202, 'its task'));
    await crash();
    expect(await world.request(id)).toMatchObject({ state: 'accepted' });
  });

  test('an outcome that goes the long way', async () => {
    const { world, ctx, crash } = await prepared();
    const id = await world.song('a song');
    const { attempts } = await permitted(ctx);
    await settle(ctx, only(attempts), answered(502));
    await crash();
    expect(await world.request(id)).toMatchObject({ state: 'ambiguous', state_reason: 'server_error' });
  });

  test('what was said in SQL: a withdrawal, a freeze', async () => {
    const { world, pool, crash } = await prepared();
    const [withdrawn, frozen] = (await world.songs(2)) as [string, string];
    await pool.query(`select onetake.cancel_request('${withdrawn}', 'mia', 'not wanted any more')`);
    await crash();
    expect(await world.request(withdrawn)).toMatchObject({ state: 'cancelled' });
    await pool.query(`select onetake.freeze_installation('mia', 'restored')`);
    await crash();
    expect(await world.request(frozen)).toMatchObject({ state: 'ambiguous' });
    expect(await world.client.installation()).toMatchObject({ trouble: null, confirmed: { by: 'mia' } });
  });

  test('a request that the library enqueued in a transaction of its own', async () => {
    const { world, connectionString, crash } = await prepared();
    const client = createClient({ connectionString });
    onTestFinished(() => client.stop());
    const fields = { prompt: 'a song', duration: 5 };
    const result = await client.enqueue({ operation: 'text-to-music', fields, requestKey: 'mine' });
    await crash();
    expect(await world.states()).toEqual({ mine: 'queued' });
    expect(result).toMatchObject({ created: true });
  });
});

interface Prepared {
  readonly world: World;
  readonly ctx: LifecycleContext;
  /** Of the role that commits asynchronously. */
  readonly connectionString: string;
  readonly pool: pg.Pool;
  /** Ends the server at once; fails when the crash took nothing, since then it proves nothing. */
  readonly crash: () => Promise<void>;
}

async function prepared(): Promise<Prepared> {
  const database = await server.createDatabase();
  const world = await openWorld({ provider: 'raw', database });
  await database.query('create table marker (n integer)');
  const role = await createRole(database, { synchronous_commit: 'off' });
  await database.query(`grant usage on schema onetake, onetake_queue to ${role.name};
grant all on all tables in schema onetake, onetake_queue, public to ${role.name};
grant execute on all functions in schema onetake, onetake_queue to ${role.name}`);
  const { connectionString } = role;
  const ctx = await lifecycleContext({ connectionString, config: world.config });
  onTestFinished(async () => {
    await ctx.stop();
    await role.pool.end();
  });
  let markers = 0;
  const crash = async () => {
    markers++;
    await role.pool.query('insert into marker values ($1)', [markers]);
    const written = await role.pool.query('select from marker where n = $1', [markers]);
    expect(written.rows).toHaveLength(1);
    await server.stop('immediate');
    await server.start();
    expect(await database.query('select from marker where n = $1', [markers])).toEqual([]);
  };
  return { world, ctx, connectionString, pool: role.pool, crash };
}

async function permitted(ctx: SubmissionContext): Promise<AdmittedBatch> {
  const batch = await admit(ctx, await laneOf(ctx), { wanted: 1 });
  if (!('attempts' in batch)) throw new Error(`blocked: ${batch.blockedBy}`);
  return batch;
}

function only<T>(list: readonly T[]): T {
  expect(list).toHaveLength(1);
  return list[0] as T;
}
