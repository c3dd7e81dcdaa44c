import { randomUUID } from 'node:crypto';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { type Client, createClient } from '../../src/index.ts';
import { startChild } from '../support/children.ts';
import { ago, insertAmbiguous, insertRequest } from '../support/fixtures.ts';
import { createTestDatabase, type TestDatabase } from '../support/test-database.ts';
import { waitFor } from '../support/wait-for.ts';

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

const intent = () =>
  ({ operation: 'text-to-music', fields: { prompt: 'rain' }, requestKey: randomUUID() }) as const;
const NOTE = { actor: 'ada', reason: 'looked it up' };

describe('a client over a pool of one', () => {
  it('is first used inside the transaction that holds the one connection, and does not hang', async () => {
    const pool = database.pool({ max: 1 });
    await using own = createClient({ pool });
    const tx = await pool.connect();
    await tx.query('begin');
    const input = intent();
    expect(await own.enqueue(input, { tx })).toMatchObject({ created: true });
    expect(await own.enqueue({ ...input, whenOpen: 'refuse' }, { tx })).toMatchObject({ created: false });
    await expect(own.enqueue({ ...intent(), account: 'nobody' }, { tx })).rejects.toMatchObject({
      code: 'unknown_account',
    });
    await tx.query('commit');
    tx.release();
    expect(await own.enqueue(intent())).toMatchObject({ created: true });
  });

  it('answers everything over it, and leaves it open when it stops', async () => {
    const pool = database.pool({ max: 1 });
    const own = createClient({ pool });
    const result = (await own.enqueue(intent())) as { id: string };
    expect(await own.get(result.id)).toMatchObject({ id: result.id, attempts: [], files: [] });
    expect(await own.list({ limit: 1 })).toHaveLength(1);
    await own.stop();
    expect((await pool.query('select 1 as one')).rows).toEqual([{ one: 1 }]);
  });
});

describe('a queue that is', () => {
  const newAccount = async () => {
    const name = `a-${randomUUID()}`;
    await database.query(
      `insert into onetake.accounts (name, provider, requests_per_minute, max_concurrent_generations)
values ($1, 'sonilo', 60, 4)`,
      [name],
    );
    return name;
  };
  const stored = async (id: string) =>
    (
      await database.query(
        `select job_due, exists (select from onetake_queue.job where singleton_key = r.id::text) as job
from onetake.generation_requests r where r.id = $1`,
        [id],
      )
    )[0];

  it('made by another process after this client started gets its job', async () => {
    await client.enqueue(intent());
    const name = `a-${randomUUID()}`;
    const module = `import { createClient } from './src/index.ts';
const client = createClient({ connectionString: process.env.TEST_URL });
await client.upsertAccount({ name: process.env.TEST_ACCOUNT, provider: 'sonilo', requestsPerMinute: 60, maxConcurrentGenerations: 4 });`;
    await using other = startChild({
      module,
      env: { TEST_URL: database.connectionString, TEST_ACCOUNT: name },
    });
    expect(await other.exited).toEqual({ code: 0, signal: null });
    const result = (await client.enqueue({ ...intent(), account: name })) as { id: string };
    expect(await stored(result.id)).toEqual({ job_due: false, job: true });
  });

  it('nowhere leaves the request marked, so that rescue sends its job', async () => {
    const account = await newAccount();
    const result = (await client.enqueue({ ...intent(), account })) as { id: string };
    expect(await stored(result.id)).toEqual({ job_due: true, job: false });
  });
});

describe('a script that uses a client', () => {
  const script = (end: string) => `import { createClient } from './src/index.ts';
const client = createClient({ connectionString: process.env.TEST_URL });
const result = await client.enqueue({ operation: 'text-to-music', fields: { prompt: 'rain' }, requestKey: process.env.TEST_KEY });
${end}
console.log(JSON.stringify({ result, at: Date.now() }));
process.on('exit', () => console.log(JSON.stringify({ exitedAt: Date.now() })));`;

  it.each([
    ['without stop()', ''],
    ['with stop()', 'await client.stop();'],
    ['with stop() twice', 'await client.stop(); await client.stop();'],
  ])('ends by itself %s', async (_, end) => {
    const env = { TEST_URL: database.connectionString, TEST_KEY: randomUUID() };
    await using child = startChild({ module: script(end), env });
    const done = await child.message<{ at?: number }>((said) => said.at !== undefined, 'its result', 50_000);
    expect(await child.exited).toEqual({ code: 0, signal: null });
    const exit = await child.message<{ exitedAt?: number }>(
      (said) => said.exitedAt !== undefined,
      'its exit',
    );
    expect((exit.exitedAt as number) - (done.at as number)).toBeLessThan(7_000);
    expect(child.stderr()).toBe('');
  });

  it('lives on when the database drops its idle connections', async () => {
    const module = script(`console.log(JSON.stringify({ ready: true }));
await new Promise((resolve) => process.stdin.once('data', resolve));
process.stdin.destroy();
await client.enqueue({ operation: 'text-to-music', fields: { prompt: 'rain' }, requestKey: process.env.TEST_KEY + '-2' });`);
    const url = new URL(database.connectionString);
    const env = { TEST_URL: url.href, TEST_KEY: randomUUID() };
    await using child = startChild({ module, env });
    await child.message<{ ready?: true }>((said) => said.ready === true, 'it was idle', 50_000);
    const others = `datname = current_database() and application_name = 'onetake client' and pid <> pg_backend_pid()`;
    await database.query(`select pg_terminate_backend(pid) from pg_stat_activity where ${others}`);
    await waitFor(
      async () => (await database.query(`select from pg_stat_activity where ${others}`)).length === 0,
      {
        what: 'its connections to be gone',
      },
    );
    child.send('go');
    expect(await child.exited).toEqual({ code: 0, signal: null });
    expect(child.stderr()).toBe('');
  });
});

describe('a client that has been stopped', () => {
  it('says so, by its code, and may be stopped again', async () => {
    const own = createClient({ connectionString: database.connectionString });
    await own.enqueue(intent());
    await Promise.all([own.stop(), own.stop()]);
    await own.stop();
    await expect(own.enqueue(intent())).rejects.toMatchObject({ code: 'stopped' });
    await expect(own.get(randomUUID())).rejects.toMatchObject({ code: 'stopped' });
  });

  it('never having been used, has nothing to close', async () => {
    await createClient({ connectionString: 'postgresql://127.0.0.1:1/nowhere' }).stop();
  });
});

describe('a database that is out of reach', () => {
  it('is named by a code, and its address and password are not repeated', async () => {
    await using own = createClient({ connectionString: 'postgresql://ada:hunter2@127.0.0.1:1/music' });
    for (const call of [() => own.enqueue(intent()), () => own.list(), () => own.breakerStatus()]) {
      const error = await call().catch((thrown: Error) => thrown);
      expect(error).toMatchObject({
        code: 'database_unreachable',
        message: expect.stringContaining('ECONNREFUSED'),
      });
      expect(String(error)).not.toMatch(/hunter2|127\.0\.0\.1|music/);
    }
  });
});

describe('a request that makes no sense', () => {
  it.each<[string, object, string]>([
    ['a misspelt field', { fields: { prompt: 'rain', duratoin: 5 } }, 'unknown_field'],
    ['a field of another type', { fields: { prompt: 'rain', duration: '5' } }, 'invalid_field'],
    ['an unknown operation', { operation: 'text-to-noise' }, 'unknown_operation'],
    ['no key', { requestKey: undefined }, 'invalid_option'],
  ])('with %s is named before any database is looked at', async (_what, wrong, code) => {
    await using own = createClient({ connectionString: 'postgresql://ada:hunter2@127.0.0.1:1/music' });
    await expect(own.enqueue({ ...intent(), ...wrong } as never)).rejects.toMatchObject({ code });
  });
});

describe('what the client is asked', () => {
  it.each([
    [
      'an unknown option',
      () => createClient({ connectionstring: 'x' } as never),
      'Did you mean "connectionString"?',
    ],
    ['no database', () => createClient({} as never), 'connectionString'],
  ])('is refused with %s', (_, make, named) => {
    expect(make).toThrow(named);
  });

  it.each([
    [{ state: 'quued' }, 'queued'],
    [{ stat: 'queued' }, 'state'],
    [{ limit: 0 }, 'limit'],
    [{ limit: 1_001 }, 'limit'],
    [{ limit: '5' }, 'limit'],
    [{ account: 7 }, 'account'],
    [{ requestKey: '' }, 'requestKey'],
  ])('list(%j) is refused and names %s', async (filter, named) => {
    await expect(client.list(filter as never)).rejects.toMatchObject({
      code: 'invalid_option',
      message: expect.stringContaining(named),
    });
  });

  it('list of a name that nothing has is no empty list', async () => {
    await expect(client.list({ operation: 'text-to-musik' })).rejects.toMatchObject({
      code: 'unknown_operation',
      message: expect.stringContaining('"text-to-music"'),
    });
    await expect(client.list({ account: 'defualt' })).rejects.toMatchObject({
      code: 'unknown_account',
      message: expect.stringContaining('defualt'),
    });
    expect(await client.list({ operation: 'audio-ducking' })).toEqual([]);
  });

  it.each([
    [{ as: 'acepted', providerTaskId: 'task' }, 'as'],
    [{ as: 'accepted', taskId: 'task' }, 'taskId'],
    [{ as: 'accepted', providerTaskId: 'task', force: true }, 'force'],
    [{ as: 'not_accepted', resubmitt: false }, 'resubmit'],
    [{ as: 'not_accepted', submitBefore: new Date(Number.NaN) }, 'submitBefore'],
  ])('resolve(%j) is refused and names %s', async (input, named) => {
    const { id } = await insertAmbiguous(database);
    await expect(client.resolve({ id, ...NOTE, ...input } as never)).rejects.toMatchObject({
      code: 'invalid_option',
      message: expect.stringContaining(named),
    });
    expect(await client.get(id)).toMatchObject({ state: 'ambiguous' });
  });

  it('upsertAccount moves an account to another provider only when the old one has nothing of it', async () => {
    const account = { name: 'moves', provider: 'sonilo', requestsPerMinute: 1, maxConcurrentGenerations: 1 };
    await client.upsertAccount(account);
    const { id } = (await client.enqueue({ ...intent(), account: 'moves' })) as { id: string };
    await client.upsertAccount({ ...account, provider: 'mine' });
    for (const state of ['submitting', 'ambiguous', 'accepted'] as const) {
      await insertRequest(database, { account: 'moves', state, request_key: state });
      const moved = client.upsertAccount({ ...account, requestsPerMinute: 2 });
      await expect(moved).rejects.toMatchObject({
        code: 'configuration_invalid',
        message: `accounts.moves.provider: "mine" has requests of this account that aren't finished.`,
      });
      await client.upsertAccount({ ...account, provider: 'mine', requestsPerMinute: 3 });
      await database.query(
        `do $$ begin
  set local session_replication_role = replica;
  delete from onetake.generation_requests where request_key = '${state}';
end $$`,
      );
    }
    await client.upsertAccount(account);
    expect(await client.get(id)).toMatchObject({ state: 'queued', account: 'moves' });
  });

  it.each([
    [{ name: 'with space' }, 'name'],
    [{ requestsPerMinute: 0 }, 'requestsPerMinute'],
    [{ maxConcurrentGenerations: 1.5 }, 'maxConcurrentGenerations'],
    [{ rpm: 5 }, 'rpm'],
  ])('upsertAccount(%j) is refused and names %s', async (wrong, named) => {
    const account = { name: 'third', provider: 'sonilo', requestsPerMinute: 1, maxConcurrentGenerations: 1 };
    await expect(client.upsertAccount({ ...account, ...wrong } as never)).rejects.toMatchObject({
      code: 'invalid_option',
      message: expect.stringContaining(named),
    });
  });
});

describe('an id', () => {
  it('may be shortened to eight or more of its first digits, with dashes or without', async () => {
    const id = await insertRequest(database, { id: 'abcdef01-2345-4678-9abc-def012345678' });
    for (const given of [id, id.toUpperCase(), id.slice(0, 8), id.slice(0, 13), id.replaceAll('-', '')]) {
      expect(await client.get(given)).toMatchObject({ id });
    }
    await insertRequest(database, { id: 'abcdef01-9999-4678-9abc-def012345678' });
    await expect(client.get('abcdef01')).rejects.toMatchObject({ code: 'ambiguous_id_prefix' });
    expect(await client.get('abcdef01-2')).toMatchObject({ id });
    expect(await client.get('99999999')).toBeUndefined();
    await expect(client.cancel('99999999', NOTE)).rejects.toMatchObject({ code: 'request_not_found' });
  });

  it.each(['', 'abc', 'abcdef0', 'a-------', 'xbcdef01', `${'abcdef01'.repeat(4)}0`, '%', 7])(
    'that can’t be one (%j) is refused by name',
    async (given) => {
      await expect(client.get(given as never)).rejects.toMatchObject({
        code: 'invalid_option',
        message: expect.stringMatching(/^id: /),
      });
    },
  );
});

describe('waitForGeneration', () => {
  it.each(['succeeded', 'failed', 'rejected', 'cancelled', 'expired', 'ambiguous'] as const)(
    'resolves with a request that is %s',
    async (state) => {
      const id = await insertRequest(database, { state });
      expect(await client.waitForGeneration(id)).toMatchObject({ id, state });
    },
  );

  it('waits until the request gets there', async () => {
    const id = await insertRequest(database, { state: 'accepted' });
    const waiting = client.waitForGeneration(id);
    await database.query(
      `update onetake.generation_requests set state = 'succeeded', result_status = 'linked', settled_at = now(),
  next_poll_at = null where id = $1`,
      [id],
    );
    expect(await waiting).toMatchObject({ state: 'succeeded' });
  });

  it('ends with its signal, at once, and leaves the request alone', async () => {
    const id = await insertRequest(database);
    const controller = new AbortController();
    const waiting = client.waitForGeneration(id, { signal: controller.signal });
    const reason = new Error('the user has left');
    controller.abort(reason);
    await expect(waiting).rejects.toMatchObject({ code: 'wait_aborted', cause: reason });
    await expect(client.waitForGeneration(id, { signal: AbortSignal.abort() })).rejects.toMatchObject({
      code: 'wait_aborted',
    });
    expect(await client.get(id)).toMatchObject({ state: 'queued' });
  });

  it('knows of no request that does not exist', async () => {
    for (const id of ['99999999', randomUUID()]) {
      await expect(client.waitForGeneration(id)).rejects.toMatchObject({ code: 'request_not_found' });
    }
  });
});

describe('the operator’s calls', () => {
  it('settle frozen requests', async () => {
    const [one, other, third] = [
      await insertAmbiguous(database, { closed_at: ago(0) }),
      await insertAmbiguous(database),
      await insertAmbiguous(database),
    ];
    expect((await client.listAmbiguous({ id: one.id })).map((frozen) => frozen.id)).toEqual([one.id]);
    expect(await client.resolve({ id: one.id, as: 'not_accepted', ...NOTE })).toMatchObject({ to: 'queued' });
    const providerTaskId = `task-${other.id}`;
    expect(await client.resolve({ id: other.id, as: 'accepted', providerTaskId, ...NOTE })).toMatchObject({
      to: 'accepted',
    });
    expect(await client.resolve({ id: third.id, as: 'abandoned', ...NOTE })).toMatchObject({ to: 'failed' });
    expect(await client.cancel(one.id, NOTE)).toMatchObject({ from: 'queued', to: 'cancelled' });
  });

  it('take a word back: reopen, by a prefix too, and only an operator’s own', async () => {
    const { id } = await insertAmbiguous(database);
    await client.resolve({ id, as: 'accepted', providerTaskId: `task-${id}`, ...NOTE });
    expect(await client.reopen(id.slice(0, 13), NOTE)).toMatchObject({
      id,
      from: 'accepted',
      to: 'ambiguous',
    });
    expect(await client.get(id)).toMatchObject({ state: 'ambiguous', charge: 'possible' });
    const paid = await insertRequest(database, { state: 'accepted' });
    await expect(client.reopen(paid, NOTE)).rejects.toMatchObject({ code: 'request_not_in_state' });
    await expect(client.reopen('99999999', NOTE)).rejects.toMatchObject({ code: 'request_not_found' });
  });

  it('need an actor and a reason', async () => {
    const { id } = await insertAmbiguous(database);
    await expect(client.reopen(id, { actor: 'ada', reason: ' ' })).rejects.toMatchObject({
      code: 'operator_identity_missing',
    });
    await expect(client.resolve({ id, as: 'abandoned', actor: '', reason: '' })).rejects.toMatchObject({
      code: 'operator_identity_missing',
    });
  });
});
