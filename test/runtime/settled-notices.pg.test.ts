import { expect, it, onTestFinished } from 'vitest';
import { createClient, type RequestDetails } from '../../src/index.ts';
import { startChild } from '../support/children.ts';
import { ago, insertRequest, setColumns } from '../support/fixtures.ts';
import { waitFor } from '../support/wait-for.ts';
import { openWorld, type World } from '../support/world.ts';

const NOTE = { actor: 'ada', reason: 'looked it up' };

function anotherClient(world: World) {
  const client = createClient({ connectionString: world.database.connectionString });
  onTestFinished(() => client.stop());
  return client;
}
const jobs = (world: World) =>
  world.database.query<{ id: string; name: string; state: string; retries: number }>(
    `select data ->> 'requestId' as id, name, state, retry_count as retries from onetake_queue.job
where name like 'settled%' order by name`,
  );

it('tells of every end, whoever made it, once; and makes no notice before somebody asks', async () => {
  const world = await openWorld();
  const poller = world.poller();
  await poller.start();
  const early = await insertRequest(world.database);
  await world.client.cancel(early, NOTE);
  expect(await world.request(early)).toMatchObject({ state: 'cancelled', settled_notice_due: false });

  const told: RequestDetails[] = [];
  await world.client.onSettled((request) => void told.push(request));
  await anotherClient(world).onSettled((request) => void told.push(request), { concurrency: 1 });

  const succeeded = await insertRequest(world.database, { state: 'accepted', next_poll_at: null });
  await world.database.query(
    `insert into onetake.assets (request_id, index, kind, location) values ($1, 0, 'audio', 'https://example.com/a')`,
    [succeeded],
  );
  await setColumns(world.database, succeeded, {
    state: 'succeeded',
    result_status: 'linked',
    settled_at: ago(0),
  });
  const cancelled = await insertRequest(world.database);
  await world.client.cancel(cancelled, NOTE);
  const withdrawn = await insertRequest(world.database, { state: 'ambiguous' });
  await world.client.resolve({ id: withdrawn, as: 'not_accepted', resubmit: false, ...NOTE });
  const abandoned = await insertRequest(world.database, { state: 'ambiguous' });
  await world.client.resolve({ id: abandoned, as: 'abandoned', ...NOTE });
  const expired = await insertRequest(world.database, { submit_before: ago(1) });
  const rejected = await insertRequest(world.database, { state: 'rejected' });
  const frozen = await insertRequest(world.database, { state: 'ambiguous' });
  await waitFor(() => told.length >= 6, { what: 'six notices' });
  await waitFor(async () => (await jobs(world)).every(({ state }) => state === 'completed'), {
    what: 'all notices to be done with',
  });

  const states = Object.fromEntries(told.map(({ id, state }) => [id, state]));
  expect(states).toEqual({
    [succeeded]: 'succeeded',
    [cancelled]: 'cancelled',
    [withdrawn]: 'cancelled',
    [abandoned]: 'failed',
    [expired]: 'expired',
    [rejected]: 'rejected',
  });
  expect(told).toHaveLength(6);
  expect(told.find(({ id }) => id === succeeded)).toMatchObject({ files: [{ index: 0 }], charge: 'none' });
  expect(await world.request(frozen)).toMatchObject({ settled_notice_due: false });
  expect((await jobs(world)).map(({ id }) => id)).not.toContain(early);

  // Nobody has asked for two weeks: none pile up.
  await world.client.stop();
  await world.database.query(`update onetake.settled_consumer set seen_at = now() - interval '15 days'`);
  const late = await insertRequest(world.database, { state: 'rejected' });
  expect(await world.request(late)).toMatchObject({ settled_notice_due: false });
});

it('tells again what a handler did not take, so many times, and then asks for a person', async () => {
  const world = await openWorld();
  await world.poller().start();
  const id = await insertRequest(world.database, { state: 'submitting' });
  const errors: unknown[] = [];
  let taken = false;
  await world.client.onSettled(
    () => {
      if (!taken) throw new Error('prompt: a secret song');
    },
    { onError: (error, requestId) => void errors.push([(error as Error).message, requestId]) },
  );
  await setColumns(world.database, id, { state: 'rejected', settled_at: ago(0) });
  const retry = () =>
    waitFor(async () => (await jobs(world)).find(({ state }) => state === 'retry'), { what: 'a retry' });
  expect(await retry()).toMatchObject({ id });
  expect(errors).toEqual([['prompt: a secret song', id]]);
  const output = await world.database.query(
    `select output::text from onetake_queue.job where name = 'settled'`,
  );
  expect(JSON.stringify(output)).not.toContain('secret');

  const again = (changes = '') =>
    world.database.query(
      `update onetake_queue.job set start_after = now() ${changes} where name = 'settled' and state = 'retry'`,
    );
  await again();
  await waitFor(
    async () => (await jobs(world)).some(({ state, retries }) => state === 'retry' && retries === 1),
    {
      what: 'a second retry',
    },
  );
  await again(', retry_count = retry_limit - 1');
  await waitFor(async () => (await world.request(id))['attention'] === 'notice_undelivered', {
    what: 'a person to be asked',
  });
  expect(await world.request(id)).toMatchObject({ state: 'rejected' });
  expect(errors).toHaveLength(3);

  taken = true;
  const other = await insertRequest(world.database, { state: 'rejected' });
  await waitFor(
    async () => (await jobs(world)).some((job) => job.id === other && job.state === 'completed'),
    { what: 'the next one to be taken' },
  );
});

it('waits for handlers when it stops, and gives what a killed process had to another', async () => {
  const world = await openWorld();
  await world.poller().start();
  const module = `import { createClient } from './src/index.ts';
const client = createClient({ connectionString: process.env.TEST_URL });
await client.onSettled(({ id }) => { console.log(JSON.stringify({ told: id })); return new Promise(() => {}); });
console.log(JSON.stringify({ ready: true }));`;
  await using child = startChild({ module, env: { TEST_URL: world.database.connectionString } });
  await child.message<{ ready?: true }>((said) => said.ready === true, 'it asks');
  const id = await insertRequest(world.database, { state: 'rejected' });
  await child.message<{ told?: string }>((said) => said.told === id, 'it is told');
  await child.kill('SIGKILL');
  await world.passTime(61_000);

  const steps: string[] = [];
  let finish = () => {};
  const finished = new Promise<void>((resolve) => {
    finish = resolve;
  });
  const subscription = await world.client.onSettled(async (request) => {
    steps.push(`told ${request.id}`);
    await finished;
    steps.push('done');
  });
  await waitFor(
    async () => {
      // What was given back comes after its delay.
      await world.database.query(
        `update onetake_queue.job set start_after = now() where name = 'settled' and state = 'retry'`,
      );
      return steps.length > 0;
    },
    { what: 'another to be told' },
  );
  const stopped = Promise.all([subscription.stop(), world.client.stop()]).then(() => steps.push('stopped'));
  finish();
  await stopped;
  expect(steps).toEqual([`told ${id}`, 'done', 'stopped']);
  expect(await jobs(world)).toMatchObject([{ id, state: 'completed' }]);
  await expect(world.client.onSettled(() => {})).rejects.toMatchObject({ code: 'stopped' });
});

it.each<[object, string]>([
  [{ handler: 'no' }, 'handler'],
  [{ options: { concurrency: 0 } }, 'concurrency'],
  [{ options: { conurrency: 1 } }, 'conurrency'],
  [{ options: { onError: 'log' } }, 'onError'],
])('refuses %j before any database is looked at, and names %s', async (given, named) => {
  const { handler = () => {}, options } = given as { handler?: () => void; options?: object };
  await using client = createClient({ connectionString: 'postgresql://127.0.0.1:1/nowhere' });
  await expect(client.onSettled(handler, options)).rejects.toMatchObject({
    code: 'invalid_option',
    message: expect.stringContaining(named),
  });
});
