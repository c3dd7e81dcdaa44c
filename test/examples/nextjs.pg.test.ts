import { readFileSync } from 'node:fs';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { build } from 'esbuild';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { startTestStack, type TestStack } from '../../src/testing.ts';
import { createTestDatabase, type TestDatabase } from '../support/test-database.ts';

const REPOSITORY = join(import.meta.dirname, '..', '..');
const EXAMPLE = join(REPOSITORY, 'examples', 'nextjs');

interface Routes {
  POST(request: Request): Promise<Response>;
  GET(request: Request, context: { params: Promise<{ id: string }> }): Promise<Response>;
}

let database: TestDatabase;
let stack: TestStack;
let directory: string;
let routes: Routes;

beforeAll(async () => {
  database = await createTestDatabase();
  stack = await startTestStack({ connectionString: database.connectionString });
  await database.query(readFileSync(join(EXAMPLE, 'schema.sql'), 'utf8'));
  directory = await mkdtemp(join(tmpdir(), 'onetake-nextjs-'));
  const bundle = join(directory, 'routes.mjs');
  // What a framework does: both routes, the example's own files and onetake in one bundle.
  await build({
    stdin: {
      contents: `export { POST } from '@/app/api/generations/route'; export { GET } from '@/app/api/generations/[id]/route';
        export { pool } from '@/lib/database';`,
      resolveDir: EXAMPLE,
    },
    tsconfig: join(EXAMPLE, 'tsconfig.json'),
    alias: { '@': EXAMPLE, onetake: join(REPOSITORY, 'src', 'index.ts') },
    outfile: bundle,
    bundle: true,
    platform: 'node',
    format: 'esm',
    external: ['pg-native'],
    banner: {
      js: "import { createRequire } from 'node:module'; const require = createRequire(import.meta.url);",
    },
  });
  const before = process.env['DATABASE_URL'];
  process.env['DATABASE_URL'] = database.connectionString;
  const { pool, ...loaded } = (await import(bundle)) as Routes & { pool: { end(): Promise<void> } };
  if (before === undefined) delete process.env['DATABASE_URL'];
  else process.env['DATABASE_URL'] = before;
  routes = loaded;
  endPool = () => pool.end();
});
let endPool: () => Promise<void> = () => Promise.resolve();

afterAll(async () => {
  await endPool();
  await stack.stop();
  await database.drop();
  await rm(directory, { recursive: true, force: true });
});

const post = (body: unknown, userId?: string) =>
  routes.POST(
    new Request('http://app.test/api/generations', {
      method: 'POST',
      headers: userId === undefined ? {} : { 'x-user-id': userId },
      body: JSON.stringify(body),
    }),
  );
const get = (id: string, userId: string) =>
  routes.GET(new Request(`http://app.test/api/generations/${id}`, { headers: { 'x-user-id': userId } }), {
    params: Promise.resolve({ id }),
  });
const songs = () => database.query<{ title: string }>('select title from songs order by title');

test('orders a song once per click, and tells its owner what became of it', async () => {
  const click = { title: 'Harbour', prompt: 'a harbour at dawn', intent: 'click-1' };
  const first = await post(click, 'ada');
  const { id } = (await first.json()) as { id: string };
  const again = await post(click, 'ada');

  expect(first.status).toBe(202);
  expect(await again.json()).toMatchObject({ id });
  await stack.client.waitForGeneration(id, { signal: AbortSignal.timeout(30_000) });
  expect(await (await get(id, 'ada')).json()).toMatchObject({
    id,
    title: 'Harbour',
    state: 'succeeded',
    done: true,
    files: [{ index: 0 }],
  });
  expect((await get(id, 'eve')).status).toBe(404);
  expect((await get('nonsense', 'ada')).status).toBe(404);
  expect(await songs()).toEqual([{ title: 'Harbour' }]);
  expect(stack.simulator.ledger().totals.posts).toBe(1);
});

test('answers 4xx for what is wrong, and keeps neither a song nor a request of it', async () => {
  const before = [await songs(), (await stack.client.list()).length];

  expect((await post({ title: 'T', prompt: 'p', intent: 'c' })).status).toBe(401);
  expect((await post({ title: 'T' }, 'ada')).status).toBe(400);
  expect((await post({ title: 'T', prompt: 'cut \u0000 off', intent: 'c' }, 'ada')).status).toBe(400);
  expect((await post({ title: 'T', prompt: 'another', intent: 'click-1' }, 'ada')).status).toBe(409);
  expect([await songs(), (await stack.client.list()).length]).toEqual(before);
});

test('takes the request back when the row of the app cannot be written', async () => {
  const before = (await stack.client.list()).length;
  await database.query("alter table songs add constraint short check (title <> 'Too long')");

  await expect(post({ title: 'Too long', prompt: 'p', intent: 'click-2' }, 'ada')).rejects.toThrow();
  expect(await stack.client.list()).toHaveLength(before);
});
