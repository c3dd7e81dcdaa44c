import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { type Client, createClient } from '../../src/index.ts';
import { admit } from '../../src/lifecycle/admit.ts';
import { settle } from '../../src/lifecycle/settle.ts';
import type { JobQueue } from '../../src/queue/boss.ts';
import { type LifecycleContext, laneOf, lifecycleContext } from '../support/lifecycle-context.ts';
import { acceptedAs } from '../support/outcomes.ts';
import { createTestDatabase, type TestDatabase } from '../support/test-database.ts';

const FLOOD = 50_000;

let database: TestDatabase;
let client: Client;
let ctx: LifecycleContext;
const groups = new Map<string, string>();

const song = (fairGroup: string, n: number, priority = 0) => ({
  operation: 'text-to-music' as const,
  fields: { prompt: 'rain' },
  requestKey: `${fairGroup} ${n}`,
  fairGroup,
  priority,
});

async function enqueue(fairGroup: string, count: number, from = 1, priority = 0): Promise<void> {
  const inputs = Array.from({ length: count }, (_, n) => song(fairGroup, from + n, priority));
  for (const result of await client.enqueue(inputs)) groups.set((result as { id: string }).id, fairGroup);
}

/** The groups of the next requests, in the order of their admission. */
async function next(count: number): Promise<(string | undefined)[]> {
  const order: (string | undefined)[] = [];
  for (let n = 0; n < count; n++) {
    const admitted = await admit(ctx, await laneOf(ctx), { wanted: 1 });
    if (!('attempts' in admitted)) throw new Error(`blocked: ${admitted.blockedBy}`);
    for (const attempt of admitted.attempts) {
      order.push(groups.get(attempt.requestId));
      await settle(ctx, attempt, acceptedAs(attempt.attemptId));
    }
  }
  return order;
}

/** Rows and index entries of both schemas that `work` read, in one transaction of its own; end to end or not. */
async function readsOf(work: (sql: Parameters<JobQueue['fetch']>[0] & { query: never }) => Promise<unknown>) {
  const connection = await database.pool({ max: 1 }).connect();
  try {
    await connection.query('begin');
    await work(
      Object.assign(connection, {
        executeSql: (text: string, values?: unknown[]) => connection.query(text, values),
      }) as never,
    );
    const { rows } = await connection.query(`select
  coalesce(sum(seq_tup_read) filter (where relname in ('generation_requests', 'submission_attempts')
    or relname like 'job%'), 0)::int as scanned,
  (
    select sum(pg_stat_get_xact_tuples_returned(i.indexrelid))::int from pg_stat_user_indexes i
    where i.schemaname in ('onetake', 'onetake_queue')
  ) as entries
from pg_stat_xact_user_tables where schemaname in ('onetake', 'onetake_queue')`);
    await connection.query('rollback');
    return rows[0] as { scanned: number; entries: number };
  } finally {
    connection.release();
  }
}

beforeAll(async () => {
  database = await createTestDatabase();
  client = createClient({ connectionString: database.connectionString });
  await client.upsertAccount({
    name: 'default',
    provider: 'sonilo',
    requestsPerMinute: 1_000_000,
    maxConcurrentGenerations: 100_000,
  });
  ctx = await lifecycleContext({ connectionString: database.connectionString, config: {} });
  await enqueue('flood', FLOOD);
}, 120_000);
afterAll(async () => {
  await ctx.stop();
  await client.stop();
  await database.drop();
});

describe(`with ${FLOOD} requests of one group queued`, () => {
  it('another’s single request waits for one of them, at the beginning and later', async () => {
    await enqueue('one', 1);
    expect(await next(3)).toEqual(['flood', 'one', 'flood']);
    await next(10);
    await enqueue('two', 1);
    await enqueue('three', 1);
    expect(await next(4)).toEqual(['flood', 'two', 'three', 'flood']);
  });

  it('goes on while others come and come: no group is kept out', async () => {
    for (let n = 1; n <= 10; n++) {
      await enqueue(`visitor ${n}`, 1);
      const order = await next(2);
      expect(order).toContain('flood');
      expect(order).toContain(`visitor ${n}`);
    }
  });

  it('one of its own with a priority above zero doesn’t wait for them', async () => {
    await enqueue('flood', 1, FLOOD + 1, 1);
    const [round] = await database.query<{ ahead: number }>(
      `select count(*)::int as ahead from onetake_queue.job j, onetake_queue.job mine
where mine.singleton_key = (select id::text from onetake.generation_requests where request_key = 'flood ${FLOOD + 1}')
  and j.state = 'created' and j.priority > mine.priority`,
    );
    expect(round).toEqual({ ahead: 0 });
  });

  it.each(['before', 'after'])(
    'an enqueue reads a few rows of indexes and no table from end to end, %s the tables are analysed',
    async (when) => {
      if (when === 'after') {
        for (const table of [
          'onetake.generation_requests',
          'onetake.submission_attempts',
          'onetake_queue.job',
        ]) {
          await database.query(`analyze ${table}`);
        }
      }
      await client.enqueue(song('flood', FLOOD + 2));
      const reads = await readsOf((tx) => client.enqueue(song('flood', FLOOD + 3), { tx }));
      expect(reads.scanned).toBe(0);
      expect(reads.entries).toBeLessThan(30);
    },
  );

  it('a fetch reads what it takes', async () => {
    const reads = await readsOf((tx) => ctx.queue.fetch(tx, 'default', 'text-to-music', 4));
    expect(reads.scanned).toBe(0);
    expect(reads.entries).toBeLessThan(40);
  });
});
