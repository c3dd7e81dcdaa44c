import { randomUUID } from 'node:crypto';
import { inspect } from 'node:util';
import { drizzle as nodePostgres } from 'drizzle-orm/node-postgres';
import { drizzle as postgresJs } from 'drizzle-orm/postgres-js';
import { drizzle as otherNodePostgres } from 'drizzle-orm-other/node-postgres';
import { drizzle as otherPostgresJs } from 'drizzle-orm-other/postgres-js';
import pg from 'pg';
import postgres from 'postgres';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { type CallerTransaction, type Client, createClient } from '../../src/index.ts';
import { createTestDatabase, type TestDatabase } from '../support/test-database.ts';

let database: TestDatabase;
let client: Client;
let pool: pg.Pool;
let js: postgres.Sql;
beforeAll(async () => {
  database = await createTestDatabase();
  client = createClient({ connectionString: database.connectionString });
  pool = database.pool();
  js = postgres(database.connectionString, { max: 2, onnotice: () => undefined });
});
afterAll(async () => {
  await js.end();
  await client.stop();
  await database.drop();
});

class Rollback extends Error {}

/**
 * Each way in which an app may hold a transaction: runs `work` in one, and commits unless it throws. That
 * these compile is the other half of the test: none of them needs a cast to be a CallerTransaction.
 */
const WAYS: Readonly<Record<string, (work: (tx: CallerTransaction) => Promise<void>) => Promise<unknown>>> = {
  'drizzle over pg': (work) => nodePostgres(pool).transaction((tx) => work(tx)),
  'drizzle over postgres-js': (work) => postgresJs(js).transaction((tx) => work(tx)),
  'a second copy of drizzle over pg': (work) => otherNodePostgres(pool).transaction((tx) => work(tx)),
  'a second copy of drizzle over postgres-js': (work) => otherPostgresJs(js).transaction((tx) => work(tx)),
  'drizzle in a nested transaction': (work) =>
    nodePostgres(pool).transaction((tx) => tx.transaction((nested) => work(nested))),
  'drizzle over one pg client': (work) =>
    withClient((connection) => nodePostgres(connection).transaction((tx) => work(tx))),
  'a pg client': (work) => withClient((connection) => between(connection, () => work(connection))),
  'a pg pool client': async (work) => {
    const connection = await pool.connect();
    try {
      await between(connection, () => work(connection));
    } finally {
      connection.release();
    }
  },
  '{ executeSql } over pg': (work) =>
    withClient((connection) =>
      between(connection, () =>
        work({ executeSql: (text: string, values?: unknown[]) => connection.query(text, values) }),
      ),
    ),
  '{ executeSql } over postgres-js': (work) =>
    js.begin((tx) =>
      work({
        executeSql: async (text: string, values?: unknown[]) => ({
          rows: await tx.unsafe(text, values as postgres.ParameterOrJSON<never>[]),
        }),
      }),
    ),
  'a query() that gives the bare rows, or nothing for a SAVEPOINT': (work) =>
    js.begin((tx) =>
      work({
        query: async (text: string, values: postgres.ParameterOrJSON<never>[] = []) => {
          const rows = await tx.unsafe(text, values);
          return /^(savepoint|release|rollback)/.test(text) ? (undefined as never) : [...rows];
        },
      }),
    ),
};

async function withClient(work: (connection: pg.Client) => Promise<unknown>): Promise<void> {
  const connection = new pg.Client({ connectionString: database.connectionString });
  await connection.connect();
  try {
    await work(connection);
  } finally {
    await connection.end();
  }
}

async function between(connection: pg.ClientBase, work: () => Promise<void>): Promise<void> {
  await connection.query('begin');
  try {
    await work();
    await connection.query('commit');
  } catch (error) {
    await connection.query('rollback');
    throw error;
  }
}

function intent() {
  return {
    operation: 'text-to-music' as const,
    fields: { prompt: 'it’s 100% rain; $1 "quoted" \\ and 🎷', segments: [{ start: 0, prompt: 'intro' }] },
    requestKey: randomUUID(),
    priority: 3,
    submitBefore: new Date('2100-01-01T00:00:00.123Z'),
    fairGroup: 'tenant',
  };
}

async function found(requestKey: string) {
  return database.query(
    `select r.fields, r.priority, r.submit_before, r.fair_group, r.job_due, j.state as job, j.data = jsonb_build_object('requestId', r.id) as "ofIt"
from onetake.generation_requests r left join onetake_queue.job j on j.singleton_key = r.id::text
where r.request_key = $1`,
    [requestKey],
  );
}

describe.each(Object.entries(WAYS))('%s', (_, run) => {
  it('carries the request and its job into the caller’s commit, as they were given', async () => {
    const input = intent();
    await run(async (tx) => {
      expect(await client.enqueue(input, { tx })).toMatchObject({ state: 'queued', created: true });
      expect(await client.enqueue(input, { tx })).toMatchObject({ state: 'queued', created: false });
      expect(await found(input.requestKey)).toEqual([]);
    });
    expect(await found(input.requestKey)).toMatchObject([
      {
        fields: { prompt: input.fields.prompt, segments: '[{"prompt":"intro","start":0}]' },
        priority: 3,
        submit_before: input.submitBefore,
        fair_group: 'tenant',
        job_due: false,
        job: 'created',
        ofIt: true,
      },
    ]);
  });

  it('carries them into the caller’s rollback', async () => {
    const input = intent();
    const ended = run(async (tx) => {
      await client.enqueue(input, { tx });
      throw new Rollback();
    });
    await expect(ended).rejects.toBeInstanceOf(Rollback);
    expect(await found(input.requestKey)).toEqual([]);
  });

  it('goes on after each error of ours', async () => {
    const input = intent();
    await run(async (tx) => {
      await client.enqueue(input, { tx });
      const mismatch = client.enqueue({ ...input, fields: { prompt: 'other' } }, { tx });
      await expect(mismatch).rejects.toMatchObject({ code: 'intent_mismatch' });
      const nobody = client.enqueue({ ...intent(), account: 'nobody' }, { tx });
      await expect(nobody).rejects.toMatchObject({ code: 'unknown_account' });
      const nothing = client.enqueue({ ...intent(), supersedes: randomUUID() }, { tx });
      await expect(nothing).rejects.toMatchObject({ code: 'request_not_found' });
      await client.enqueue({ ...input, requestKey: `${input.requestKey}-2` }, { tx });
    });
    expect(await found(input.requestKey)).toHaveLength(1);
    expect(await found(`${input.requestKey}-2`)).toHaveLength(1);
  });

  it('takes enqueues that overlap in turn: one that fails undoes itself alone, and COMMIT keeps the others', async () => {
    const taken = intent();
    await client.enqueue(taken);
    const bad = { ...taken, fields: { prompt: 'another intent with the same key' } };
    const inputs = [intent(), intent(), bad, intent(), intent()];
    let results: PromiseSettledResult<unknown>[] = [];
    await run(async (tx) => {
      results = await Promise.allSettled(inputs.map((input) => client.enqueue(input, { tx })));
    });
    expect(results.map(({ status }) => status)).toEqual([
      'fulfilled',
      'fulfilled',
      'rejected',
      'fulfilled',
      'fulfilled',
    ]);
    expect(results[2]).toMatchObject({ reason: { code: 'intent_mismatch' } });
    for (const input of inputs.filter((one) => one !== bad)) {
      expect(await found(input.requestKey)).toMatchObject([{ job_due: false, job: 'created', ofIt: true }]);
    }
  });

  it('tells of an open breaker, with the instant as a Date', async () => {
    const retryAt = new Date('2100-01-01T00:00:00.123Z');
    const set = (columns: string, values: unknown[] = []) =>
      database.query(
        `update onetake.circuit_breakers set ${columns} where name = 'sonilo/text-to-music'`,
        values,
      );
    await set(`state = 'open', opened_at = now(), retry_at = $1`, [retryAt]);
    try {
      await run(async (tx) => {
        const refused = await client.enqueue({ ...intent(), whenOpen: 'refuse' }, { tx });
        expect(refused).toEqual({ refused: 'breaker_open', retryAt });
      });
    } finally {
      await set(`state = 'closed', opened_at = null, retry_at = null`);
    }
  });

  it('leaves a job to rescue when the lane has no queue', async () => {
    const account = `a-${randomUUID()}`;
    await database.query(
      `insert into onetake.accounts (name, provider, requests_per_minute, max_concurrent_generations)
values ($1, 'sonilo', 60, 4)`,
      [account],
    );
    const input = intent();
    await run(async (tx) => {
      expect(await client.enqueue({ ...input, account }, { tx })).toMatchObject({ created: true });
    });
    expect(await found(input.requestKey)).toMatchObject([{ job_due: true, job: null }]);
  });
});

describe('an error of the database in drizzle’s transaction', () => {
  it('comes with the driver’s code and without the prompt', async () => {
    for (const make of [nodePostgres(pool), otherNodePostgres(pool)]) {
      const input = { ...intent(), fields: { prompt: 'a secret prompt' } };
      const failed = make.transaction(async (tx) => {
        await tx.execute('set local statement_timeout = 20');
        const holder = await pool.connect();
        await holder.query('begin');
        await client.enqueue(input, { tx: holder });
        try {
          await client.enqueue(input, { tx });
        } finally {
          await holder.query('rollback');
          holder.release();
        }
      });
      const error = await failed.then(
        () => undefined,
        (thrown: Error) => thrown,
      );
      expect(error).toMatchObject({ code: '57014' });
      expect(inspect(error, { depth: 10 })).not.toContain('a secret prompt');
    }
  });
});

describe('a tx whose answers have no rows', () => {
  it('is refused by name, and nothing is written', async () => {
    const input = intent();
    await withClient((connection) =>
      between(connection, async () => {
        const executeSql = async (text: string, values?: unknown[]) =>
          (await connection.query(text, values)).rowCount as never;
        await expect(client.enqueue(input, { tx: { executeSql } })).rejects.toMatchObject({
          code: 'invalid_option',
          message: 'tx: its answer to a query has no rows.',
        });
      }),
    );
    expect(await found(input.requestKey)).toEqual([]);
  });
});

describe('a drizzle database that is no transaction', () => {
  it('is refused, over either driver', async () => {
    for (const tx of [nodePostgres(pool), postgresJs(js), otherNodePostgres(pool)]) {
      await expect(client.enqueue(intent(), { tx })).rejects.toMatchObject({
        code: 'invalid_option',
        message: expect.stringContaining('no transaction is open'),
      });
    }
  });
});
