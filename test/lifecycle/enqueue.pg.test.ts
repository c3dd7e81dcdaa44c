import { createHash, randomUUID } from 'node:crypto';
import type pg from 'pg';
import { afterAll, afterEach, beforeAll, describe, expect, it } from 'vitest';
import { type Client, createClient, type EnqueueInput } from '../../src/index.ts';
import { startChild } from '../support/children.ts';
import { COMMIT, databaseProxy } from '../support/database-proxy.ts';
import { ago, setColumns } from '../support/fixtures.ts';
import { createTestDatabase, type TestDatabase } from '../support/test-database.ts';
import { waitFor } from '../support/wait-for.ts';

const QUEUE = 'submit/default/text-to-music';

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

function intent(overrides: Partial<Extract<EnqueueInput, { operation: 'text-to-music' }>> = {}) {
  return {
    operation: 'text-to-music' as const,
    fields: { prompt: 'rain on a tin roof', duration: 30 },
    requestKey: randomUUID(),
    ...overrides,
  };
}

async function requestsOf(requestKey: string): Promise<Record<string, unknown>[]> {
  return database.query('select * from onetake.generation_requests where request_key = $1', [requestKey]);
}

async function jobsOf(id: string): Promise<{ name: string; data: unknown; state: string }[]> {
  return database.query('select name, data, state from onetake_queue.job where singleton_key = $1', [id]);
}

async function inTransaction<Result>(
  work: (tx: pg.PoolClient) => Promise<Result>,
  options: { end?: 'commit' | 'rollback'; begin?: string } = {},
): Promise<Result> {
  const tx = await database.pool({ max: 1 }).connect();
  try {
    await tx.query(options.begin ?? 'begin');
    const result = await work(tx);
    await tx.query(options.end ?? 'commit');
    return result;
  } finally {
    tx.release();
  }
}

function idOf(result: object): string {
  return (result as { id: string }).id;
}

describe('enqueue', () => {
  it('writes one queued request with what will be sent, and one job that holds its id only', async () => {
    const input = intent();
    const result = await client.enqueue(input);
    expect(result).toEqual({ id: expect.any(String), state: 'queued', created: true });
    const id = idOf(result);
    expect(await requestsOf(input.requestKey)).toMatchObject([
      {
        id,
        account: 'default',
        state: 'queued',
        charge: 'none',
        priority: 0,
        submit_before: null,
        job_due: false,
        fields: { prompt: 'rain on a tin roof', duration: '30', mode: 'async', output_format: 'm4a' },
      },
    ]);
    expect(await jobsOf(id)).toEqual([{ name: QUEUE, data: { requestId: id }, state: 'created' }]);
  });

  it.each(['commit', 'rollback'] as const)('shares the caller’s %s', async (end) => {
    const input = intent();
    const result = await inTransaction(
      async (tx) => {
        const made = await client.enqueue(input, { tx });
        expect(await requestsOf(input.requestKey)).toEqual([]);
        return made;
      },
      { end },
    );
    expect(await requestsOf(input.requestKey)).toHaveLength(end === 'commit' ? 1 : 0);
    expect(await jobsOf(idOf(result))).toHaveLength(end === 'commit' ? 1 : 0);
  });

  it('is rolled back to a savepoint of the caller with it', async () => {
    const [kept, dropped] = [intent(), intent()];
    await inTransaction(async (tx) => {
      await client.enqueue(kept, { tx });
      await tx.query('savepoint mine');
      await client.enqueue(dropped, { tx });
      await tx.query('rollback to savepoint mine');
    });
    expect(await requestsOf(kept.requestKey)).toHaveLength(1);
    expect(await requestsOf(dropped.requestKey)).toEqual([]);
  });

  it('trusts no function that the caller’s search_path finds before the system’s', async () => {
    await database.query(`create schema evil;
create function evil.now() returns timestamptz language sql as $$ select 'epoch'::timestamptz $$;
create function evil.clock_timestamp() returns timestamptz language sql as $$ select 'epoch'::timestamptz $$`);
    await client.enqueue(intent());
    const input = intent();
    const result = await inTransaction(async (tx) => {
      await tx.query('set local search_path = evil, pg_catalog');
      return client.enqueue(input, { tx });
    });
    const [row] = await requestsOf(input.requestKey);
    expect(Number(row?.['not_before'])).toBeGreaterThan(ago(60_000).getTime());
    const kept = 'select keep_until > now() as kept from onetake_queue.job where singleton_key = $1';
    expect(await database.query(kept, [idOf(result)])).toEqual([{ kept: true }]);
  });

  it('sees rows that the same transaction has made', async () => {
    const first = intent();
    await inTransaction(async (tx) => {
      const made = await client.enqueue(first, { tx });
      expect(await client.enqueue(first, { tx })).toEqual({ ...made, created: false });
      const next = await client.enqueue(intent({ supersedes: idOf(made) }), { tx });
      expect(next).toMatchObject({ created: true });
    });
  });
});

describe('an error in enqueue', () => {
  const taken = 'taken-by-another-intent';
  beforeAll(() => client.enqueue(intent({ requestKey: taken })));

  it.each([
    ['intent_mismatch', () => intent({ requestKey: taken, fields: { prompt: 'sun' } })],
    ['unknown_account', () => intent({ account: 'defautl' })],
    ['unknown_field', () => intent({ fields: { prompt: 'rain', durations: 3 } as never })],
    ['invalid_field', () => intent({ fields: { prompt: 'NUL \u0000' } })],
    ['unknown_operation', () => ({ ...intent(), operation: 'text-to-musik' }) as never],
    ['request_not_found', () => intent({ supersedes: randomUUID() })],
    ['invalid_option', () => intent({ priority: 1.5 })],
  ])('(%s) leaves the caller’s transaction usable, and no half request in it', async (code, make) => {
    const input = make();
    const before = await requestsOf(input.requestKey);
    const after = intent();
    await inTransaction(async (tx) => {
      await expect(client.enqueue(input, { tx })).rejects.toMatchObject({ name: 'OnetakeError', code });
      await client.enqueue(after, { tx });
    });
    expect(await requestsOf(input.requestKey)).toEqual(before);
    expect(await requestsOf(after.requestKey)).toHaveLength(1);
  });

  it('suggests the account that was meant', async () => {
    await expect(client.enqueue(intent({ account: 'defautl' }))).rejects.toThrow('Did you mean "default"?');
  });

  it('leaves no savepoint behind', async () => {
    await inTransaction(async (tx) => {
      await client.enqueue(intent(), { tx });
      await client.enqueue(intent({ account: 'nobody' }), { tx }).catch(() => undefined);
      for (const name of ['onetake_enqueue', 'onetake_insert', 'onetake_job']) {
        await tx.query('savepoint probe');
        await expect(tx.query(`release savepoint ${name}`)).rejects.toMatchObject({ code: '3B001' });
        await tx.query('rollback to savepoint probe');
      }
    });
  });

  it.each([
    ['a pool', () => database.pool({ max: 1 })],
    [
      'a client outside a transaction',
      () => ({ executeSql: (text: string) => database.pool({ max: 1 }).query(text) }),
    ],
  ])('says so when tx is %s', async (_, tx) => {
    await expect(client.enqueue(intent(), { tx: tx() })).rejects.toMatchObject({
      code: 'invalid_option',
      message: expect.stringContaining('no transaction is open'),
    });
  });

  it.each([null, 7, {}, { query: 'text' }])('says so when tx is no transaction at all (%#)', async (tx) => {
    await expect(client.enqueue(intent(), { tx: tx as never })).rejects.toMatchObject({
      code: 'invalid_option',
    });
  });

  it('says so when tx is misspelt, instead of enqueueing beside the transaction', async () => {
    const input = intent();
    await expect(client.enqueue(input, { txn: {} } as never)).rejects.toMatchObject({
      code: 'invalid_option',
      message: expect.stringContaining('Did you mean "tx"?'),
    });
    expect(await requestsOf(input.requestKey)).toEqual([]);
  });
});

describe('the identity of an intent', () => {
  it('is its key and its fields: priority, deadline and group are not part of it', async () => {
    const input = intent();
    const first = await client.enqueue(input);
    const again = await client.enqueue({
      ...input,
      fields: { duration: 30, prompt: 'rain on a tin roof' },
      priority: 5,
      submitBefore: ago(-60_000),
      fairGroup: 'free',
    });
    expect(again).toEqual({ ...first, created: false });
    // What is stored is what the first said.
    expect(await requestsOf(input.requestKey)).toMatchObject([
      { priority: 0, submit_before: null, fair_group: '' },
    ]);
  });

  it('leaves our defaults out of the digest: naming one is another payload, and new defaults change nothing', async () => {
    const input = intent();
    const result = await client.enqueue(input);
    await expect(
      client.enqueue({ ...input, fields: { ...input.fields, output_format: 'm4a' } }),
    ).rejects.toMatchObject({ code: 'intent_mismatch' });
    const canonical = JSON.stringify([
      'text-to-music',
      [
        ['duration', '30'],
        ['prompt', 'rain on a tin roof'],
      ],
    ]);
    expect(await requestsOf(input.requestKey)).toMatchObject([
      {
        fields: { output_format: 'm4a' },
        payload_digest: createHash('sha256').update(canonical).digest('hex'),
      },
    ]);
    expect(await client.enqueue(input)).toEqual({ ...result, created: false });
  });

  it('is the same in every state of the request', async () => {
    const input = intent();
    const result = await client.enqueue(input);
    for (const [state, columns] of [
      ['submitting', { submissions: 1 }],
      ['ambiguous', { state_reason: 'transport' }],
      ['rejected', { settled_at: ago(0) }],
    ] as const) {
      await setColumns(database, idOf(result), { state, ...columns });
      expect(await client.enqueue(input)).toEqual({ id: idOf(result), state, created: false });
    }
  });

  it('is per account', async () => {
    await client.upsertAccount({
      name: 'second',
      provider: 'sonilo',
      requestsPerMinute: 60,
      maxConcurrentGenerations: 4,
    });
    const input = intent();
    const first = await client.enqueue(input);
    const second = await client.enqueue({ ...input, account: 'second', fields: { prompt: 'sun' } });
    expect(second).toMatchObject({ created: true });
    expect(idOf(second)).not.toBe(idOf(first));
  });
});

describe('the options of enqueue', () => {
  it('keep priority, deadline, group and link', async () => {
    const first = await client.enqueue(intent());
    const submitBefore = ago(-3_600_000);
    const input = intent({ priority: -100, submitBefore, fairGroup: 'tenant-7', supersedes: idOf(first) });
    await client.enqueue(input);
    expect(await requestsOf(input.requestKey)).toMatchObject([
      { priority: -100, submit_before: submitBefore, fair_group: 'tenant-7', supersedes: idOf(first) },
    ]);
  });

  it.each([
    ['requestKey', { requestKey: '' }],
    ['requestKey', { requestKey: 'x'.repeat(256) }],
    ['requestKey', { requestKey: 'nul \u0000' }],
    ['requestKey', { requestKey: 'half \ud800' }],
    ['requestKey', { requestKey: 7 }],
    ['priority', { priority: 101 }],
    ['priority', { priority: -101 }],
    ['priority', { priority: 0.5 }],
    ['priority', { priority: '1' }],
    ['priority', { priority: null }],
    ['submitBefore', { submitBefore: '2030-01-01' }],
    ['submitBefore', { submitBefore: new Date(Number.NaN) }],
    ['submitBefore', { submitBefore: new Date(8.64e15) }],
    ['supersedes', { supersedes: 'nothing' }],
    ['fairGroup', { fairGroup: 'x'.repeat(256) }],
    ['account', { account: 'with space' }],
    ['whenOpen', { whenOpen: 'panic' }],
    ['fields', { fields: 'prompt' }],
    ['submitBefor', { submitBefor: new Date() }],
  ])('are refused by name when they are wrong: %s (%#)', async (name, wrong) => {
    const refused = client.enqueue({ ...intent(), ...wrong } as never);
    await expect(refused).rejects.toMatchObject({
      code: 'invalid_option',
      message: expect.stringMatching(new RegExp(`^${name}: `)),
    });
  });

  it.each([
    ['a NUL', 'before \u0000 after'],
    ['a lone surrogate', 'a broken \ud83d smile'],
  ])('refuse a prompt with %s by the name of its field, and don’t repeat it', async (_, prompt) => {
    const error = await client.enqueue(intent({ fields: { prompt } })).then(
      () => undefined,
      (thrown: Error) => thrown,
    );
    expect(error).toMatchObject({ code: 'invalid_field', message: expect.stringContaining('fields.prompt') });
    expect(`${error?.message} ${error?.stack}`).not.toContain('smile');
  });

  it('refuse what the provider is known to refuse, whole, without a row and without a word of it', async () => {
    const input = intent({ fields: { prompt: 'rain '.repeat(500), duration: 3 } });
    const error = await client.enqueue(input).then(
      () => undefined,
      (thrown: Error) => thrown,
    );
    expect(error).toMatchObject({
      code: 'invalid_field',
      problems: [
        { code: 'too_long', field: 'prompt' },
        { code: 'out_of_range', field: 'duration' },
      ],
    });
    expect(String(error)).not.toContain('rain');
    const row = 'select from onetake.generation_requests where request_key = $1';
    expect(await database.query(row, [input.requestKey])).toEqual([]);
  });

  it('find what the key names already, though today’s limits would refuse it', async () => {
    const input = intent({ fields: { prompt: 'rain', duration: 400 } });
    const config = { operations: { 'text-to-music': { limits: { duration: { max: 400 } } } } } as const;
    await using generous = createClient({ connectionString: database.connectionString, config });
    const { id } = (await generous.enqueue(input)) as { id: string };
    expect(await client.enqueue(input)).toEqual({ id, state: 'queued', created: false });
    const other = { ...input, fields: { prompt: 'rain', duration: 500 } };
    await expect(client.enqueue(other)).rejects.toMatchObject({ code: 'intent_mismatch' });
  });

  it('refuse a source that only this machine can reach, unless private hosts are allowed', async () => {
    const input: EnqueueInput = {
      operation: 'video-to-music',
      fields: { video_url: 'http://127.0.0.1:1/a.mp4' },
      requestKey: randomUUID(),
    };
    await expect(client.enqueue(input)).rejects.toMatchObject({
      code: 'invalid_field',
      problems: [{ code: 'insecure_url', field: 'video_url' }],
    });
    const config = { storage: { allowPrivateHosts: true } };
    await using local = createClient({ connectionString: database.connectionString, config });
    expect(await local.enqueue(input)).toMatchObject({ created: true });
  });

  it('let a prompt of 5 MB in, as it is, where its length is the provider’s to judge', async () => {
    const prompt = '🎷 rain, '.repeat(500_000);
    const input = intent({ fields: { prompt } });
    const config = { operations: { 'text-to-music': { limits: { prompt: false } } } } as const;
    await using unlimited = createClient({ connectionString: database.connectionString, config });
    await unlimited.enqueue(input);
    const stored = `select fields->>'prompt' = $2 as whole from onetake.generation_requests where request_key = $1`;
    expect(await database.query(stored, [input.requestKey, prompt])).toEqual([{ whole: true }]);
  });
});

describe('with the breaker', () => {
  const open = (retryAt: Date) =>
    database.query(
      `update onetake.circuit_breakers set state = 'open', opened_at = $1, retry_at = $1, consecutive_failures = 0,
  probe_attempt_id = null, probe_request_id = null where name = 'sonilo/text-to-music'`,
      [retryAt],
    );
  const halfOpen = () =>
    database.query(
      `update onetake.circuit_breakers set state = 'half_open', opened_at = null, retry_at = null,
  probe_attempt_id = gen_random_uuid(), probe_request_id = gen_random_uuid() where name = 'sonilo/text-to-music'`,
    );
  afterEach(() =>
    database.query(
      `update onetake.circuit_breakers set state = 'closed', opened_at = null, retry_at = null,
  probe_attempt_id = null, probe_request_id = null`,
    ),
  );

  it('open, waits by default', async () => {
    await open(ago(-60_000));
    expect(await client.enqueue(intent())).toMatchObject({ state: 'queued', created: true });
  });

  it('open, refuses on request without a row, and says when a probe is due', async () => {
    const retryAt = ago(-60_000);
    await open(retryAt);
    const input = intent({ whenOpen: 'refuse' });
    expect(await client.enqueue(input)).toEqual({ refused: 'breaker_open', retryAt });
    expect(await requestsOf(input.requestKey)).toEqual([]);
    // Another operation has another breaker.
    const video = {
      operation: 'video-to-music',
      fields: { video_url: 'https://example.com/v.mp4' },
    } as const;
    expect(await client.enqueue({ ...video, requestKey: randomUUID(), whenOpen: 'refuse' })).toMatchObject({
      created: true,
    });
  });

  it('half open, refuses on request', async () => {
    await halfOpen();
    expect(await client.enqueue(intent({ whenOpen: 'refuse' }))).toEqual({
      refused: 'breaker_open',
      retryAt: null,
    });
  });

  it('open and due for a probe, takes the request: with nothing queued the breaker would stay open for ever', async () => {
    await open(ago(1_000));
    expect(await client.enqueue(intent({ whenOpen: 'refuse' }))).toMatchObject({ created: true });
  });

  it('open, still returns a request that is there already', async () => {
    const input = intent({ whenOpen: 'refuse' });
    const result = await client.enqueue(input);
    await open(ago(-60_000));
    expect(await client.enqueue(input)).toEqual({ ...result, created: false });
  });
});

describe('transactions with one key', () => {
  it('wait for the first; rolled back, another becomes the creator', async () => {
    const input = intent();
    const first = await database.pool({ max: 1 }).connect();
    await first.query('begin');
    const lost = await client.enqueue(input, { tx: first });
    const second = inTransaction((tx) => client.enqueue(input, { tx }));
    await waitUntilBlocked();
    await first.query('rollback');
    first.release();
    const made = await second;
    expect(made).toMatchObject({ created: true });
    expect(idOf(made)).not.toBe(idOf(lost));
    expect(await jobsOf(idOf(made))).toHaveLength(1);
  });

  it('wait for the first; committed, they get its request', async () => {
    const input = intent();
    const first = await database.pool({ max: 1 }).connect();
    await first.query('begin');
    const made = await client.enqueue(input, { tx: first });
    const second = inTransaction((tx) => client.enqueue(input, { tx }));
    await waitUntilBlocked();
    await first.query('commit');
    first.release();
    expect(await second).toEqual({ ...made, created: false });
  });

  it.each(['repeatable read', 'serializable'])(
    'under %s say that the snapshot is older than the other’s row, and stay usable',
    async (level) => {
      const input = intent();
      await inTransaction(
        async (tx) => {
          await tx.query('select count(*) from onetake.accounts');
          const made = await client.enqueue(input);
          await expect(client.enqueue(input, { tx })).rejects.toMatchObject({
            code: 'serialization_failure',
            message: expect.stringContaining('requestKey'),
            hint: expect.stringContaining('READ COMMITTED'),
          });
          expect((await tx.query('select 1 as one')).rows).toEqual([{ one: 1 }]);
          expect(made).toMatchObject({ created: true });
        },
        { begin: `begin isolation level ${level}` },
      );
    },
  );

  it('in opposite orders deadlock for callers, one of whom gets 40P01; ours retry', async () => {
    const [a, b] = [intent(), intent()];
    const one = await database.pool({ max: 1 }).connect();
    const other = await database.pool({ max: 1 }).connect();
    await one.query('begin');
    await other.query('begin');
    await client.enqueue(a, { tx: one });
    await client.enqueue(b, { tx: other });
    const outcome = (pending: Promise<unknown>, tx: pg.PoolClient) =>
      pending.then(
        () => tx.query('commit').then(() => 'done'),
        (error: { code: string }) => tx.query('rollback').then(() => error.code),
      );
    const outcomes = await Promise.all([
      outcome(client.enqueue(b, { tx: one }), one),
      outcome(client.enqueue(a, { tx: other }), other),
    ]);
    one.release();
    other.release();
    expect(outcomes.sort()).toEqual(['40P01', 'done']);
    await Promise.all([client.enqueue(a), client.enqueue(b)]);
    expect(await requestsOf(a.requestKey)).toHaveLength(1);
    expect(await requestsOf(b.requestKey)).toHaveLength(1);
  });

  it('from two processes make one row and one job between them', async () => {
    const key = randomUUID();
    const module = `import { createClient } from './src/index.ts';
const client = createClient({ connectionString: process.env.TEST_URL });
const intent = { operation: 'text-to-music', fields: { prompt: 'rain' }, requestKey: process.env.TEST_KEY };
console.log(JSON.stringify({ ready: true }));
process.stdin.once('data', async () => {
  const results = await Promise.all(Array.from({ length: 25 }, () => client.enqueue(intent)));
  console.log(JSON.stringify({ results }));
  process.stdin.destroy();
});`;
    const env = { TEST_URL: database.connectionString, TEST_KEY: key };
    await using one = startChild({ module, env });
    await using other = startChild({ module, env });
    type Said = { ready?: true; results?: { id: string; created: boolean }[] };
    await Promise.all(
      [one, other].map((child) => child.message<Said>((said) => said.ready === true, 'ready')),
    );
    for (const child of [one, other]) child.send('go');
    const said = await Promise.all(
      [one, other].map((child) =>
        child.message<Said>((answer) => answer.results !== undefined, 'the results'),
      ),
    );
    const results = said.flatMap((answer) => answer.results ?? []);
    expect(results).toHaveLength(50);
    expect(new Set(results.map((result) => result.id)).size).toBe(1);
    expect(results.filter((result) => result.created)).toHaveLength(1);
    expect(await requestsOf(key)).toHaveLength(1);
    expect(await jobsOf(results[0]?.id as string)).toHaveLength(1);
  });
});

describe('a COMMIT whose answer is lost', () => {
  it.each(['before', 'after'] as const)(
    '(cut %s it was carried out) still makes one request, and says that it made it',
    async (when) => {
      const proxy = await databaseProxy(database.connectionString);
      await using cutOff = createClient({ connectionString: proxy.connectionString });
      const input = intent();
      const cut = proxy.cutAt(COMMIT, when);
      expect(await cutOff.enqueue(input)).toMatchObject({ created: true });
      await cut;
      const rows = await requestsOf(input.requestKey);
      expect(rows).toHaveLength(1);
      expect(await jobsOf(rows[0]?.['id'] as string)).toHaveLength(1);
      await proxy.stop();
    },
  );
});

async function waitUntilBlocked(): Promise<void> {
  const blocked = `select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'`;
  await waitFor(async () => (await database.query(blocked)).length > 0, { what: 'a wait for the key' });
}
