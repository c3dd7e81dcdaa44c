import { randomUUID } from 'node:crypto';
import type pg from 'pg';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { type Client, createClient, type EnqueueInput } from '../../src/index.ts';
import { COMMIT, databaseProxy } from '../support/database-proxy.ts';
import { ago } from '../support/fixtures.ts';
import { createTestDatabase, type TestDatabase } from '../support/test-database.ts';
import { deadlocks } from '../support/world.ts';

let database: TestDatabase;
let client: Client;
beforeAll(async () => {
  database = await createTestDatabase();
  client = createClient({ connectionString: database.connectionString });
});
afterAll(async () => {
  await client.stop();
  await database.drop();
});

type Music = Extract<EnqueueInput, { operation: 'text-to-music' }>;

function intent(overrides: Partial<Music> = {}): Music {
  return {
    operation: 'text-to-music',
    fields: { prompt: 'rain on a tin roof' },
    requestKey: randomUUID(),
    ...overrides,
  };
}

const intents = (count: number, overrides: Partial<Music> = {}) =>
  Array.from({ length: count }, () => intent(overrides));

const idOf = (result: unknown) => (result as { id: string }).id;

/** By key: the row and how many jobs it has. */
async function rowsOf(inputs: readonly EnqueueInput[]) {
  const rows = await database.query<{ request_key: string; round: number; job_due: boolean; jobs: number }>(
    `select r.*, (select count(*)::int from onetake_queue.job j where j.singleton_key = r.id::text) as jobs
from onetake.generation_requests r where request_key = any($1)`,
    [inputs.map(({ requestKey }) => requestKey)],
  );
  return new Map(rows.map((row) => [row.request_key, row]));
}

async function inTransaction<Result>(work: (tx: pg.PoolClient) => Promise<Result>, begin = 'begin') {
  const tx = await database.pool({ max: 1 }).connect();
  try {
    await tx.query(begin);
    const result = await work(tx);
    await tx.query('commit');
    return result;
  } finally {
    tx.release();
  }
}

describe('an enqueue of many', () => {
  it('refuses each that is no request, a hole in the array included, and makes the others', async () => {
    const sparse: unknown[] = [intent()];
    sparse.length = 2;
    const given: readonly unknown[] = [null, 7, [], undefined, intent()];
    const results = await client.enqueue(given as EnqueueInput[]);
    expect(results.map((result) => ('refused' in result ? result.refused : 'made'))).toEqual([
      ...Array.from({ length: 4 }, () => 'invalid_option'),
      'made',
    ]);
    expect(await client.enqueue(sparse as EnqueueInput[])).toMatchObject([
      { created: true },
      { refused: 'invalid_option', field: 'input' },
    ]);
  });

  it('makes each with its job, and tells of them in the given order', async () => {
    const inputs = intents(2_500);
    const results = await client.enqueue(inputs);
    expect(results).toHaveLength(2_500);
    expect(results.every((result) => 'created' in result && result.created)).toBe(true);
    const rows = await rowsOf(inputs);
    expect(inputs.map(({ requestKey }) => rows.get(requestKey))).toMatchObject(
      results.map((result) => ({ id: idOf(result), state: 'queued', job_due: false, jobs: 1 })),
    );
    expect(await client.enqueue([])).toEqual([]);
  });

  it('gives those of one group their turns in the given order', async () => {
    const inputs = intents(1_500, { fairGroup: 'in order' });
    await client.enqueue(inputs);
    const rows = await rowsOf(inputs);
    const rounds = inputs.map(({ requestKey }) => rows.get(requestKey)?.round as number);
    expect(rounds).toEqual(inputs.map((_, n) => (rounds[0] as number) + n));
    const [next] = [intent({ fairGroup: 'in order' })];
    await client.enqueue(next);
    expect((await rowsOf([next])).get(next.requestKey)?.round).toBe((rounds.at(-1) as number) + 1);
  });

  it('lets what is there already take no turn again', async () => {
    const inputs = intents(20, { fairGroup: 'again' });
    await client.enqueue(inputs);
    const more = intent({ fairGroup: 'again' });
    const results = await client.enqueue([...inputs, more]);
    expect(results.filter((result) => 'created' in result && result.created)).toHaveLength(1);
    const rows = await rowsOf([...inputs, more]);
    expect(rows.get(more.requestKey)?.round).toBe(
      (rows.get(inputs[19]?.requestKey as string)?.round ?? 0) + 1,
    );
  });

  it('tells of each what its own enqueue would have, and keeps none out on account of another', async () => {
    const taken = intent();
    const first = await client.enqueue(taken);
    const twin = intent();
    const good = intent();
    const inputs = [
      taken,
      { ...taken, fields: { prompt: 'sun' } },
      intent({ account: 'defautl' }),
      intent({ fields: { prompt: 'rain', durations: 3 } as never }),
      intent({ fields: { prompt: 'NUL \u0000' } }),
      { ...intent(), operation: 'text-to-musik' } as never,
      intent({ supersedes: randomUUID() }),
      intent({ priority: 101 }),
      null as never,
      twin,
      { ...twin, priority: 7 },
      { ...twin, fields: { prompt: 'snow' } },
      good,
    ];
    const results = await client.enqueue(inputs);
    expect(results).toMatchObject([
      { id: idOf(first), created: false },
      { refused: 'intent_mismatch', field: 'requestKey', hint: expect.stringContaining('supersedes') },
      { refused: 'unknown_account', field: 'account', message: expect.stringContaining('"default"') },
      { refused: 'unknown_field', field: 'fields.durations' },
      { refused: 'invalid_field', field: 'fields.prompt' },
      { refused: 'unknown_operation' },
      { refused: 'request_not_found', field: 'supersedes' },
      { refused: 'invalid_option', field: 'priority' },
      { refused: 'invalid_option' },
      { created: true },
      { id: idOf(results[9]), created: false },
      { refused: 'intent_mismatch' },
      { created: true },
    ]);
    expect((await rowsOf([taken, twin, good])).size).toBe(3);
    expect((await rowsOf(inputs.slice(2, 8))).size).toBe(0);
  });

  it('writes the first of a key that the provider is not known to refuse', async () => {
    const key = randomUUID();
    const results = await client.enqueue([
      intent({ requestKey: key, fields: { prompt: 'rain', duration: 1e9 } }),
      intent({ requestKey: key }),
      intent({ fields: { prompt: 'rain', duration: 1e9 } }),
    ]);
    expect(results).toMatchObject([
      {
        refused: 'invalid_field',
        field: 'fields.duration',
        problems: [{ code: 'out_of_range', field: 'duration' }],
      },
      { created: true },
      { refused: 'invalid_field' },
    ]);
  });

  it('refuses by an open breaker what asks for it, and takes the rest', async () => {
    const known = intent();
    await client.enqueue(known);
    const retryAt = ago(-60_000);
    const set = (columns: string, values: unknown[] = []) =>
      database.query(
        `update onetake.circuit_breakers set ${columns} where name = 'sonilo/text-to-music'`,
        values,
      );
    await set(`state = 'open', opened_at = now(), retry_at = $1`, [retryAt]);
    try {
      const inputs = [intent({ whenOpen: 'refuse' }), intent(), { ...known, whenOpen: 'refuse' as const }];
      expect(await client.enqueue(inputs)).toMatchObject([
        { refused: 'breaker_open', retryAt },
        { created: true },
        { created: false },
      ]);
      expect((await rowsOf(inputs)).size).toBe(2);
    } finally {
      await set(`state = 'closed', opened_at = null, retry_at = null`);
    }
  });

  it('shares the caller’s transaction, in one savepoint', async () => {
    const [kept, dropped] = [intents(5), intents(5)];
    await inTransaction(async (tx) => {
      expect(await client.enqueue(kept, { tx })).toHaveLength(5);
      await tx.query('savepoint mine');
      await client.enqueue(dropped, { tx });
      await tx.query('rollback to savepoint mine');
      await expect(tx.query('release savepoint onetake_enqueue')).rejects.toMatchObject({ code: '3B001' });
      await tx.query('rollback to savepoint mine');
      expect((await rowsOf(kept)).size).toBe(0);
    });
    expect((await rowsOf(kept)).size).toBe(5);
    expect((await rowsOf(dropped)).size).toBe(0);
  });

  it('takes at most 100,000', async () => {
    await expect(client.enqueue(new Array(100_001))).rejects.toMatchObject({ code: 'invalid_option' });
  });

  it('makes each once when the answer to its COMMIT is lost, and says that it made them', async () => {
    const proxy = await databaseProxy(database.connectionString);
    await using cutOff = createClient({ connectionString: proxy.connectionString });
    const inputs = intents(3);
    const cut = proxy.cutAt(COMMIT, 'after');
    expect(await cutOff.enqueue(inputs)).toMatchObject(inputs.map(() => ({ created: true })));
    await cut;
    expect([...(await rowsOf(inputs)).values()]).toMatchObject(inputs.map(() => ({ jobs: 1 })));
    await proxy.stop();
  });
});

describe('a job that pg-boss drops, or can’t take', () => {
  it('leaves its request to rescue, and the others as they are', async () => {
    await database.query(
      `create function drop_some() returns trigger language plpgsql as $$ begin
  if (new.data->>'requestId') = current_setting('test.dropped', true) or new.priority = -3 then return null; end if;
  return new; end $$`,
    );
    await database.query(
      `create trigger drop_some before insert on onetake_queue.job for each row execute function drop_some()`,
    );
    try {
      const inputs = intents(4, { fairGroup: 'dropped' });
      const results = await client.enqueue(inputs);
      expect(results).toMatchObject(inputs.map(() => ({ created: true })));
      const rows = await rowsOf(inputs);
      const dropped = [...rows.values()].filter(({ jobs }) => jobs === 0);
      expect(dropped).toHaveLength(1);
      expect(dropped).toMatchObject([{ round: 3, job_due: true }]);
    } finally {
      await database.query('drop trigger drop_some on onetake_queue.job');
    }
  });

  it('is written as pg-boss itself writes it', async () => {
    const [one] = intents(1);
    const result = await client.enqueue(one as Music);
    const row = (await rowsOf([one as Music])).get((one as Music).requestKey);
    const { lifecycleContext } = await import('../support/lifecycle-context.ts');
    const ctx = await lifecycleContext({ connectionString: database.connectionString, config: {} });
    const other = randomUUID();
    await ctx.database.transaction((tx) =>
      ctx.queue.send(
        tx,
        {
          id: other,
          account: 'default',
          operation: 'text-to-music',
          jobPriority: -(row?.round as number),
        },
        null,
      ),
    );
    await ctx.stop();
    const job = async (id: string) => {
      const [found] = await database.query<{ job: object }>(
        `select to_jsonb(j) - 'id' - 'created_on' - 'start_after' - 'keep_until' - 'data' - 'singleton_key'
  || jsonb_build_object('kept', keep_until - start_after, 'starts', start_after - created_on,
       'ofIt', data = jsonb_build_object('requestId', singleton_key)) as job
from onetake_queue.job j where singleton_key = $1`,
        [id],
      );
      return found?.job;
    };
    expect(await job(idOf(result))).toEqual(await job(other));
    expect(await job(other)).toMatchObject({ policy: 'exclusive', ofIt: true });
  });
});

describe('two calls with the same keys', () => {
  it('in opposite orders don’t deadlock, and make each once', async () => {
    const inputs = intents(1_200);
    const [one, other] = await Promise.all([client.enqueue(inputs), client.enqueue(inputs.toReversed())]);
    const created = [...one, ...other].filter((result) => 'created' in result && result.created);
    expect(created).toHaveLength(1_200);
    expect(one.map(idOf)).toEqual(other.toReversed().map(idOf));
    expect([...(await rowsOf(inputs)).values()].every(({ jobs }) => jobs === 1)).toBe(true);
  });

  it('in transactions of callers wait for each other; whose first is rolled back, the second makes', async () => {
    const inputs = intents(50);
    const first = await database.pool({ max: 1 }).connect();
    await first.query('begin');
    await client.enqueue(inputs, { tx: first });
    const second = inTransaction((tx) => client.enqueue(inputs.toReversed(), { tx }));
    await first.query('rollback');
    first.release();
    expect(await second).toMatchObject(inputs.map(() => ({ created: true })));
  });

  it('under REPEATABLE READ say that the transaction must be run again, and leave it usable', async () => {
    const inputs = intents(3);
    await inTransaction(async (tx) => {
      await tx.query('select count(*) from onetake.accounts');
      await client.enqueue(inputs[1] as Music);
      await expect(client.enqueue(inputs, { tx })).rejects.toMatchObject({ code: 'serialization_failure' });
      expect((await tx.query('select 1 as one')).rows).toEqual([{ one: 1 }]);
    }, 'begin isolation level repeatable read');
    expect((await rowsOf(inputs)).size).toBe(1);
  });

  it('have resolved no deadlock', async () => {
    expect(await deadlocks(database)).toBe(0);
  });
});
