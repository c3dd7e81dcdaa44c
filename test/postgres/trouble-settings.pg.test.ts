import { describe, expect, it, onTestFinished } from 'vitest';
import { OPERATION_NAMES } from '../../src/core/operations.ts';
import { type Client, createClient } from '../../src/index.ts';
import { createEmptyDatabase } from '../support/empty-database.ts';
import { insertAmbiguous } from '../support/fixtures.ts';
import { openTestDatabase } from '../support/test-database.ts';
import { LEASE_MS, openWorld, type World } from '../support/world.ts';

// What a role or database may say of its sessions, all of it at its worst, from before `migrate` on.

const HOSTILE: Readonly<Record<string, string>> = {
  default_transaction_isolation: 'serializable',
  default_transaction_deferrable: 'on',
  lock_timeout: '1ms',
  statement_timeout: '2s',
  idle_in_transaction_session_timeout: '1s',
  idle_session_timeout: '2s',
  search_path: 'evil, pg_catalog',
  datestyle: 'German',
  timezone: 'Asia/Kolkata',
  intervalstyle: 'sql_standard',
  standard_conforming_strings: 'off',
  extra_float_digits: '-15',
  row_security: 'off',
  synchronous_commit: 'off',
  client_min_messages: 'error',
};

/** Names that hide the system's from whoever lets them. */
const EVIL = `create schema evil;
create function evil.now() returns timestamptz language sql as $$ select 'epoch'::timestamptz $$;
create function evil.clock_timestamp() returns timestamptz language sql as $$ select 'epoch'::timestamptz $$;
create function evil.gen_random_uuid() returns uuid language sql as $$ select '00000000-0000-0000-0000-000000000000'::uuid $$;
create table evil.generation_requests (id int);
create table evil.job (id int)`;

async function hostileWorld(): Promise<World> {
  const database = await createEmptyDatabase();
  onTestFinished(() => database[Symbol.asyncDispose]());
  await database.query(EVIL);
  for (const [name, value] of Object.entries(HOSTILE)) {
    const literal = value.includes(', ') ? value : `''${value}''`;
    await database.query(
      `do $$ begin execute format('alter database %I set ${name} = ${literal}', current_database()); end $$`,
    );
  }
  return openWorld({ database: openTestDatabase(database.connectionString, async () => undefined) });
}

describe('under every hostile setting at once', () => {
  it('the whole way of a request works, for apps, workers, pollers and operators', {
    timeout: 120_000,
  }, async () => {
    const world = await hostileWorld();
    for (const name of Object.keys(HOSTILE)) {
      const [row] = await world.database.query(`select current_setting($1) as value`, [name]);
      expect(String(row?.['value']).split(', ')[0], name).toBe(String(HOSTILE[name]).split(', ')[0]);
    }
    const { connectionString } = world.database;
    const pool = world.database.pool({ max: 1 });
    const clients: [string, Client][] = [
      ['a client of its own connections', createClient({ connectionString })],
      ["a client of the app's pool of one", createClient({ pool })],
    ];
    onTestFinished(async () => {
      for (const [, client] of clients) await client.stop();
    });
    await Promise.all([world.worker().start(), world.poller().start()]);
    for (const [whose, client] of clients) {
      const order = async (requestKey: string) => {
        const fields = { prompt: requestKey, duration: 5 };
        const result = await client.enqueue({
          operation: 'text-to-music',
          fields,
          requestKey: `${whose}: ${requestKey}`,
          submitBefore: new Date(Date.now() + 3_600_000),
        });
        if (!('id' in result)) throw new Error('refused');
        return result.id;
      };
      const before = Date.now();
      const id = await order('rain');
      const done = await client.waitForGeneration(id, { signal: AbortSignal.timeout(30_000) });
      expect(done.state, whose).toBe('succeeded');
      // By the minute: what is off is off by hours, or null.
      const minutes = (at: Date | null) => Math.round((Number(at) - before) / 60_000);
      expect([done.createdAt, done.settledAt].map(minutes), whose).toEqual([0, 0]);
      expect(done.files[0]?.bytes, whose).toBeGreaterThan(1_000);
      expect(
        (await client.list({ limit: 5 })).map((request) => request.id),
        whose,
      ).toContain(id);

      const { id: lost } = await insertAmbiguous(world.database);
      const [ambiguous] = await client.listAmbiguous({ id: lost });
      expect(ambiguous, whose).toMatchObject({
        id: lost,
        ageMs: expect.toSatisfy((ms: number) => ms < 60_000),
      });
      const note = { actor: 'ada', reason: 'looked it up' };
      expect(
        await client.resolve({ id: lost, as: 'not_accepted', resubmit: false, ...note }),
        whose,
      ).toMatchObject({
        to: 'cancelled',
      });
      expect(await client.breakerStatus(), whose).toHaveLength(OPERATION_NAMES.length);
      expect(
        await client.overrideBreaker({ name: 'sonilo/video-to-music', mode: 'forced_open', ...note }),
      ).toBe('none');
      expect(await client.overrideBreaker({ name: 'sonilo/video-to-music', mode: 'released', ...note })).toBe(
        'forced_open',
      );
      await client.upsertAccount({
        name: 'other',
        provider: 'sonilo',
        requestsPerMinute: 7,
        maxConcurrentGenerations: 2,
      });
    }
    const tx = await pool.connect();
    await tx.query('begin');
    const fields = { prompt: 'theirs', duration: 5 };
    const inTheirs = { operation: 'text-to-music', fields, requestKey: 'theirs' } as const;
    const [, [, client]] = clients as [[string, Client], [string, Client]];
    const theirs = await client.enqueue(inTheirs, { tx });
    await tx.query('commit');
    tx.release();
    if (!('id' in theirs)) throw new Error('refused');
    const signal = AbortSignal.timeout(30_000);
    expect(await client.waitForGeneration(theirs.id, { signal })).toMatchObject({ state: 'succeeded' });
    expect(world.posts()).toBe(3);
    const attempts = await world.database.query(
      `select extract(epoch from lease_expires_at - started_at) * 1000 as lease from onetake.submission_attempts where certainty = 'accepted'`,
    );
    expect(attempts.map((row) => Math.round(Number(row['lease'])))).toEqual([LEASE_MS, LEASE_MS, LEASE_MS]);
  });
});
