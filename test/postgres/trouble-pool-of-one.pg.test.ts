import { expect, it, onTestFinished } from 'vitest';
import { createClient } from '../../src/index.ts';
import { rescue } from '../../src/lifecycle/rescue.ts';
import { insertAmbiguous, insertRequest } from '../support/fixtures.ts';
import { lifecycleContext } from '../support/lifecycle-context.ts';
import { createTestDatabase } from '../support/test-database.ts';
import { openWorld } from '../support/world.ts';

const NOTE = { actor: 'ada', reason: 'looked it up' };

it('a client over a pool of one answers everybody who calls at once, beside transactions of the app', {
  timeout: 60_000,
}, async () => {
  await using database = await createTestDatabase();
  const pool = database.pool({ max: 1 });
  await using client = createClient({ pool });
  const music = (requestKey: string) =>
    ({ operation: 'text-to-music', fields: { prompt: 'rain' }, requestKey }) as const;
  const each = Array.from({ length: 8 }, (_, n) => n);
  const frozen = await Promise.all(each.map(() => insertAmbiguous(database)));
  const queued = await Promise.all(each.map(() => insertRequest(database)));
  const settled = await insertRequest(database, { state: 'succeeded' });
  const inTheirs = async (n: number) => {
    const tx = await pool.connect();
    try {
      await tx.query('begin');
      const result = await client.enqueue(music(`theirs ${n}`), { tx });
      await tx.query(n % 2 === 0 ? 'commit' : 'rollback');
      return result;
    } finally {
      tx.release();
    }
  };
  const answers = await Promise.all([
    ...each.map((n) => client.enqueue(music(`ours ${n}`))),
    ...each.map(inTheirs),
    ...each.map((n) => client.get((queued[n] as string).slice(0, 18))),
    ...each.map(() => client.list({ limit: 3 })),
    ...each.map(() => client.waitForGeneration(settled)),
    ...each.map((n) => client.cancel(queued[n] as string, NOTE)),
    ...each.map((n) =>
      client.resolve({ id: (frozen[n] as { id: string }).id.slice(0, 18), as: 'abandoned', ...NOTE }),
    ),
    ...each.map(() => client.listAmbiguous()),
    ...each.map(() => client.breakerStatus()),
    ...each.map((n) =>
      client.upsertAccount({
        name: `a${n}`,
        provider: 'sonilo',
        requestsPerMinute: 6,
        maxConcurrentGenerations: 1,
      }),
    ),
  ]);
  expect(answers).toHaveLength(80);
  const states = await database.query(
    `select state, count(*)::int from onetake.generation_requests group by state order by state`,
  );
  expect(states).toEqual([
    { state: 'cancelled', count: 8 },
    { state: 'failed', count: 8 },
    { state: 'queued', count: 12 },
    { state: 'succeeded', count: 1 },
  ]);
  expect(await database.query(`select from onetake_queue.job where state = 'created'`)).toHaveLength(12);
});

it('a rescue over one connection sends what is due, makes a lane its queue first, and does not hang', async () => {
  const world = await openWorld({ provider: 'raw' });
  const ctx = await lifecycleContext({
    connectionString: world.database.connectionString,
    config: world.config,
    poolMax: 1,
  });
  onTestFinished(() => ctx.stop());
  await world.database.query(`insert into onetake.accounts (name, provider, requests_per_minute, max_concurrent_generations)
values ('unseen', 'sonilo', 60, 4)`);
  const ids = [
    await insertRequest(world.database, { job_due: true }),
    await insertRequest(world.database, { job_due: true, account: 'unseen' }),
  ];
  await rescue(ctx);
  const jobs = await world.database.query(
    `select singleton_key as id from onetake_queue.job where state = 'created'`,
  );
  expect(jobs.map((job) => job['id']).sort()).toEqual(ids.sort());
});
