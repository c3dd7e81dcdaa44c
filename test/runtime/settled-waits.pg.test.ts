import { afterAll, afterEach, beforeAll, describe, expect, it } from 'vitest';
import { type Client, createClient, type RequestDetails } from '../../src/index.ts';
import { startChild } from '../support/children.ts';
import { insertRequest, setColumns } from '../support/fixtures.ts';
import { findPgbouncer, startPgbouncer } from '../support/pgbouncer.ts';
import { type PostgresProxy, postgresProxy } from '../support/postgres-proxy.ts';
import { createTestDatabase, type TestDatabase } from '../support/test-database.ts';
import { waitFor } from '../support/wait-for.ts';

let database: TestDatabase;
let proxy: PostgresProxy;
const clients: Client[] = [];
beforeAll(async () => {
  database = await createTestDatabase();
  proxy = await postgresProxy(database.connectionString);
});
afterEach(() => Promise.all(clients.splice(0).map((client) => client.stop())));
afterAll(async () => {
  await proxy.stop();
  await database.drop();
});

function open(connectionString = database.connectionString): Client {
  const client = createClient({ connectionString });
  clients.push(client);
  return client;
}
const listeners = () =>
  database.query<{ pid: number }>(
    `select pid from pg_stat_activity where datname = current_database() and application_name like '%client listener'`,
  );
const isListening = () =>
  waitFor(async () => (await listeners()).length === 1, { what: 'one connection that listens' });
const settle = (id: string) =>
  setColumns(database, id, { state: 'rejected', state_reason: 'http_400', settled_at: new Date() });

describe('many waits', () => {
  it('share one connection, hear of their ends before they look, and leave nothing', async () => {
    const client = open(proxy.connectionString);
    const ids = await Promise.all(Array.from({ length: 50 }, () => insertRequest(database)));
    const waits = ids.map((id) => client.waitForGeneration(id));
    await isListening();
    await waitFor(() => proxy.statements.filter((text) => text.includes('unnest($1::uuid[])')).length >= 2, {
      what: 'a look after it has begun to listen',
    });
    const from = proxy.statements.length;
    await Promise.all(ids.map(settle));
    const ended = await Promise.all(waits);
    expect(ended.map(({ id, state }) => [id, state])).toEqual(ids.map((id) => [id, 'rejected']));
    // Told, not looked for: at most the look that was on its way.
    const looks = proxy.statements.slice(from).filter((text) => text.includes('unnest($1::uuid[])'));
    expect(looks.length).toBeLessThanOrEqual(2);
    await waitFor(async () => (await listeners()).length === 0, { what: 'the connection to be given up' });
  });

  it('end when the request does so while the listener is away, by looking', async () => {
    const client = open();
    const id = await insertRequest(database);
    const waiting = client.waitForGeneration(id);
    await isListening();
    await database.query(
      `select pg_terminate_backend(pid) from pg_stat_activity where application_name like '%client listener'`,
    );
    await settle(id);
    expect(await waiting).toMatchObject({ state: 'rejected' });
  });

  it('are told their progress, and again when a request has gone on after all', async () => {
    const client = open();
    const id = await insertRequest(database);
    const seen: string[] = [];
    const onProgress = ({ state }: RequestDetails) => void seen.push(state);
    const waiting = client.waitForGeneration(id, { onProgress });
    await waitFor(() => seen.includes('queued'), { what: 'the first progress' });
    await setColumns(database, id, { state: 'submitting', submissions: 1 });
    await waitFor(() => seen.includes('submitting'), { what: 'the next progress' });
    await setColumns(database, id, { state: 'ambiguous', state_reason: 'transport' });
    expect(await waiting).toMatchObject({ state: 'ambiguous' });
  });

  it('end, each with its own code, when their signal or their client does', async () => {
    const client = open();
    const id = await insertRequest(database);
    const controller = new AbortController();
    const [aborted, other] = [
      client.waitForGeneration(id, { signal: controller.signal }),
      client.waitForGeneration(id),
    ].map((wait) => wait.catch((error: unknown) => error));
    await isListening();
    controller.abort();
    expect(await aborted).toMatchObject({ code: 'wait_aborted' });
    await isListening();
    await client.stop();
    expect(await other).toMatchObject({ code: 'stopped' });
    await expect(
      open().waitForGeneration(id, { sginal: AbortSignal.abort() } as never),
    ).rejects.toMatchObject({
      code: 'invalid_option',
    });
  });

  it('look in turns, and take no connection, where an app has few of them', async () => {
    const pool = database.pool({ max: 1 });
    const client = createClient({ pool });
    clients.push(client);
    const ids = [await insertRequest(database), await insertRequest(database)];
    const waits = ids.map((id) => client.waitForGeneration(id));
    await client.list();
    await Promise.all(ids.map(settle));
    expect((await Promise.all(waits)).map(({ state }) => state)).toEqual(['rejected', 'rejected']);
    expect(await listeners()).toEqual([]);
  });

  it.skipIf('missing' in findPgbouncer())('look where a pooler lets nothing be heard', async () => {
    await using pooler = await startPgbouncer(database.connectionString, { mode: 'transaction' });
    const client = open(pooler.connectionString);
    const id = await insertRequest(database);
    const waiting = client.waitForGeneration(id);
    await client.get(id);
    await settle(id);
    expect(await waiting).toMatchObject({ state: 'rejected' });
    await client.stop();
  });
});

describe('a script', () => {
  it.each([
    ['has waited', ''],
    ['has given up waiting', '{ signal: AbortSignal.timeout(300) }'],
  ])('ends by itself once it %s', async (_, options) => {
    const id = await insertRequest(database, options === '' ? {} : { state: 'submitting' });
    const module = `import { createClient } from './src/index.ts';
const client = createClient({ connectionString: process.env.TEST_URL });
console.log(JSON.stringify({ waits: true }));
const ended = await client.waitForGeneration(process.env.TEST_ID, ${options || '{}'}).then(({ state }) => state, ({ code }) => code);
console.log(JSON.stringify({ ended, at: Date.now() }));
process.on('exit', () => console.log(JSON.stringify({ exitedAt: Date.now() })));`;
    await using child = startChild({ module, env: { TEST_URL: database.connectionString, TEST_ID: id } });
    if (options === '') {
      await isListening();
      await settle(id);
    }
    const { ended, at } = await child.message<{ ended: string; at: number }>(
      (said) => said.ended !== undefined,
      'its end',
    );
    expect(ended).toBe(options === '' ? 'rejected' : 'wait_aborted');
    const { exitedAt } = await child.message<{ exitedAt: number }>(
      (said) => said.exitedAt !== undefined,
      'its exit',
    );
    expect(await child.exited).toEqual({ code: 0, signal: null });
    expect(exitedAt - at).toBeLessThan(7_000);
  });
});
