import { randomBytes } from 'node:crypto';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { createClient } from '../../src/index.ts';
import { createSimulator } from '../../src/simulator.ts';
import { createPoller, createWorker } from '../../src/worker.ts';
import { createTestDatabase, type TestDatabase } from '../support/test-database.ts';
import { waitFor } from '../support/wait-for.ts';
import { codeBlocks, readPage } from './pages.ts';

const sqlBlocks = codeBlocks(readPage('docs/operations.md')).filter(({ language }) => language === 'sql');
// Roles belong to the whole server, so each run has its own.
const suffix = randomBytes(4).toString('hex');
const role = (name: string) => `onetake_${name}_${suffix}`;
const login = (name: string) => `login_${name}_${suffix}`;
const ROLES = ['app', 'worker', 'operator', 'consumer'];
const PASSWORD = 'correct-horse';

let database: TestDatabase;

beforeAll(async () => {
  database = await createTestDatabase();
  const grants = sqlBlocks.find(({ code }) => code.includes('create role'))?.code ?? '';
  await database.query(
    grants.replace(/onetake_(app|worker|operator|consumer)\b/g, (_, name: string) => role(name)),
  );
  for (const name of ROLES) {
    await database.query(`create role ${login(name)} login password '${PASSWORD}' in role ${role(name)}`);
  }
});

afterAll(async () => {
  for (const name of ROLES) {
    await database.query(`drop role ${login(name)}`);
    await database.query(`drop owned by ${role(name)}`);
    await database.query(`drop role ${role(name)}`);
  }
  await database.drop();
});

function connectionString(name: string): string {
  const url = new URL(database.connectionString);
  url.username = login(name);
  url.password = PASSWORD;
  return url.href;
}

test('app, worker, poller and operator do their work with the rights of docs/operations.md and no more', async () => {
  await using simulator = createSimulator({ runTimeMs: 50 });
  const { url } = await simulator.start();
  const common = {
    config: { providers: { sonilo: { baseUrl: url } }, poller: { intervalMs: 50 } },
    connectionString: connectionString('worker'),
    credentials: () => 'sk_test',
  };
  await using worker = createWorker(common);
  await using poller = createPoller(common);
  await using app = createClient({ connectionString: connectionString('app') });
  await using operator = createClient({ connectionString: connectionString('operator') });
  await using consumer = createClient({ connectionString: connectionString('consumer') });
  const told: string[] = [];
  await consumer.onSettled(({ id }) => void told.push(id));
  await expect(app.onSettled(() => {})).rejects.toMatchObject({ code: 'database_refused' });
  const note = { actor: 'mia', reason: 'the provider has nothing' };
  const signal = AbortSignal.timeout(30_000);
  const order = async (requestKey: string, prompt: string) => {
    const fields = { prompt, duration: 5 };
    const result = await app.enqueue({ operation: 'text-to-music', fields, requestKey, whenOpen: 'refuse' });
    if (!('id' in result)) throw new Error('refused');
    return result.id;
  };

  const withdrawn = await order('withdrawn', 'a quiet lake');
  // Its own rights were enough for the job too; else rescue would have to send it.
  expect(await database.query('select job_due from onetake.generation_requests')).toEqual([
    { job_due: false },
  ]);
  expect(await app.cancel(withdrawn, note)).toMatchObject({ to: 'cancelled' });
  await Promise.all([worker.start(), poller.start()]);
  const frozen = await order('frozen', 'a storm [simulate status=502 times=1]');
  expect((await app.waitForGeneration(frozen, { signal })).state).toBe('ambiguous');

  await expect(app.resolve({ id: frozen, as: 'abandoned', ...note })).rejects.toMatchObject({
    code: 'database_refused',
  });
  const stolen = { operation: 'text-to-music', fields: { prompt: 'a song' }, requestKey: 'stolen' } as const;
  await expect(operator.enqueue(stolen)).rejects.toMatchObject({ code: 'database_refused' });

  expect(await operator.listAmbiguous()).toHaveLength(1);
  // Somebody else's word taken back, and then the right one given.
  await operator.resolve({ id: frozen, as: 'accepted', providerTaskId: 'of-another-song', ...note });
  expect(await operator.reopen(frozen, note)).toMatchObject({ to: 'ambiguous' });
  expect(await operator.resolve({ id: frozen, as: 'not_accepted', ...note })).toMatchObject({ to: 'queued' });
  expect(await operator.releaseAccount('default', null, note)).toBe(0);
  const override = { name: 'sonilo/text-to-music', actor: 'mia', reason: 'maintenance' } as const;
  await expect(app.overrideBreaker({ ...override, mode: 'forced_open' })).rejects.toMatchObject({
    code: 'database_refused',
  });
  expect(await operator.overrideBreaker({ ...override, mode: 'forced_closed', expiresInMs: 60_000 })).toBe(
    'none',
  );
  // Its end is the clock's doing, which a worker writes down.
  await database.passTime(60_000);
  await waitFor(
    async () => {
      const causes = (await operator.breakerHistory(override.name)).map(({ cause }) => cause);
      return causes.includes('override_expired');
    },
    { what: 'the end of the override to be noted' },
  );
  await operator.overrideBreaker({ ...override, mode: 'forced_closed' });
  expect(await operator.overrideBreaker({ ...override, mode: 'released' })).toBe('forced_closed');
  expect((await app.waitForGeneration(frozen, { signal })).state).toBe('succeeded');
  await waitFor(() => told.length === 2, { what: 'both ends to be told' });
  expect(told.sort()).toEqual([withdrawn, frozen].sort());
  expect(
    await database.query('select distinct "session_user" from onetake.operator_actions order by 1'),
  ).toEqual([{ session_user: login('app') }, { session_user: login('operator') }]);
});

test('the queries of the pages run', async () => {
  const pages = ['docs/operations.md', 'docs/breaker.md', 'docs/ambiguous-submissions.md'].map(readPage);
  const queries = pages
    .flatMap(codeBlocks)
    .filter(({ language, code }) => language === 'sql' && !code.includes('create role'))
    .flatMap(({ code }) => code.split(/;\s*$/m).filter((query) => query.trim() !== ''));
  expect(queries.length).toBeGreaterThan(9);
  for (const query of queries) await database.query(query);
});
