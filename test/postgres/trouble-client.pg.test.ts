import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { type Client, createClient } from '../../src/index.ts';
import { insertAmbiguous, insertRequest, setColumns } from '../support/fixtures.ts';
import { FAULT_FUNCTION, type PostgresProxy, postgresProxy } from '../support/postgres-proxy.ts';
import { createTestDatabase, type TestDatabase } from '../support/test-database.ts';
import { waitFor } from '../support/wait-for.ts';

// What an app notices of its database's troubles: nothing, if they pass; else an error of ours, by its code.

let database: TestDatabase;
let proxy: PostgresProxy;
let client: Client;
beforeAll(async () => {
  database = await createTestDatabase();
  await database.query(FAULT_FUNCTION);
  proxy = await postgresProxy(database.connectionString);
  client = createClient({ connectionString: proxy.connectionString });
  // Its first statements are made once.
  await client.enqueue({ operation: 'text-to-music', fields: { prompt: 'rain' }, requestKey: 'first' });
});
afterAll(async () => {
  await client.stop();
  await proxy.stop();
  await database.drop();
});

/** Of a new connection, or with the names of queues in them. */
const NOT_REPEATED = /^(select pg_backend_pid|set datestyle)|create_queue/;
const NOTE = { actor: 'ada', reason: 'looked it up' };
let songs = 0;
const CALLS: Readonly<Record<string, () => Promise<unknown>>> = {
  enqueue: () =>
    client.enqueue({ operation: 'text-to-music', fields: { prompt: 'rain' }, requestKey: `song ${++songs}` }),
  get: async () => client.get((await insertRequest(database)).slice(0, 20)),
  list: () => client.list({ limit: 1 }),
  cancel: async () => client.cancel(await insertRequest(database), NOTE),
  resolve: async () => client.resolve({ id: (await insertAmbiguous(database)).id, as: 'abandoned', ...NOTE }),
  breakerStatus: () => client.breakerStatus(),
  upsertAccount: () =>
    client.upsertAccount({
      name: `account-${++songs}`,
      provider: 'sonilo',
      requestsPerMinute: 6,
      maxConcurrentGenerations: 1,
    }),
};

describe.each(Object.entries(CALLS))('%s', (_, call) => {
  it('gets through when any one of its statements meets trouble that passes', async () => {
    await call();
    const from = proxy.statements.length;
    await call();
    const statements = [...new Set(proxy.statements.slice(from))].filter((text) => !NOT_REPEATED.test(text));
    for (const [n, statement] of statements.entries()) {
      // Under READ COMMITTED no INSERT fails to serialize.
      const codes = [
        '40P01',
        '57014',
        '55P03',
        ...(statement.includes('insert into') ? [] : ['40001']),
        ...(statement === 'commit' ? [] : ['57P01']),
      ];
      const fault = proxy.fail(codes[n % codes.length] as string, (text) => text === statement);
      await call();
      expect(fault.times, statement).toBe(0);
    }
  });
});

describe('trouble that does not pass', () => {
  it.each([
    ['enqueue', '53100', 'database_busy'],
    ['list', '53200', 'database_busy'],
    ['cancel', '25006', 'database_read_only'],
    ['enqueue', '42501', 'database_refused'],
    ['get', '42501', 'database_refused'],
    ['enqueue', '23514', 'database_refused'],
    ['resolve', '57P03', 'database_unreachable'],
  ])('makes %s fail: %s is %s', async (name, code, expected) => {
    proxy.fail(code, (text) => !text.startsWith('rollback'), 1_000);
    const failed = await CALLS[name]?.().catch((error: unknown) => error);
    proxy.heal();
    expect(failed).toMatchObject({ name: 'OnetakeError', code: expected });
    expect(JSON.stringify(failed) + (failed as Error).stack).not.toContain('injected');
  });
});

describe('a commit without an answer', () => {
  it('of an enqueue is asked about, and the answer is the same', async () => {
    proxy.fail('57P01', (text) => text === 'commit');
    expect(
      await client.enqueue({
        operation: 'text-to-music',
        fields: { prompt: 'rain' },
        requestKey: 'unanswered',
      }),
    ).toMatchObject({ created: true });
  });

  it('of an operator’s function is told, and nothing is done twice', async () => {
    const id = await insertRequest(database);
    proxy.fail('57P01', (text) => text === 'commit');
    await expect(client.cancel(id, NOTE)).rejects.toMatchObject({ code: 'commit_unknown' });
  });
});

describe('waitForGeneration', () => {
  it('outlasts a database that is away', async () => {
    const id = await insertRequest(database, { state: 'submitting' });
    let looks = 0;
    const waiting = client.waitForGeneration(id, {
      signal: AbortSignal.timeout(40_000),
      onProgress: () => {
        looks++;
      },
    });
    await waitFor(() => looks > 0, { what: 'it to have looked' });
    proxy.refuse();
    const tried = proxy.attempts.length;
    await waitFor(() => proxy.attempts.length > tried + 4, {
      what: 'it to be refused again and again',
      timeoutMs: 35_000,
    });
    await setColumns(database, id, { state: 'ambiguous', state_reason: 'transport' });
    proxy.pass();
    expect(await waiting).toMatchObject({ id, state: 'ambiguous' });
  });
});
