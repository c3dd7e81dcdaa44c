import { describe, expect, it } from 'vitest';
import { hold } from '../support/raw-provider.ts';
import { waitFor } from '../support/wait-for.ts';
import { LEASE_MS, openWorld, type World } from '../support/world.ts';

// SIGKILL, at the worst moments, of real children.

/** Several processes do what they can, for a good while of the database's clock. */
async function letEverybodyTry(world: World): Promise<void> {
  const workers = [world.worker(), world.worker(), world.worker()];
  for (let n = 0; n < 3; n++) {
    await Promise.all(workers.map((worker) => worker.runOnce()));
    await world.passTime(30_000);
  }
}

describe('kill -9 of a worker', () => {
  it('that has posted: ambiguous, one POST, and the slot stays taken until the task can’t be running', async () => {
    const world = await openWorld({ provider: 'raw', limits: { maxConcurrentGenerations: 1 } });
    world.raw.onPost = hold;
    const [lost, waiting] = (await world.songs(2)) as [string, string];
    const child = await world.child('worker');
    await world.raw.post(1);
    expect(await world.request(lost)).toMatchObject({ state: 'submitting' });

    expect(await child.kill('SIGKILL')).toMatchObject({ signal: 'SIGKILL' });

    const worker = world.worker();
    await worker.runOnce();
    expect(await world.request(lost)).toMatchObject({ state: 'submitting' });
    await world.passTime(LEASE_MS + 1);
    await letEverybodyTry(world);
    expect(await world.request(lost)).toMatchObject({
      state: 'ambiguous',
      state_reason: 'worker_lost',
      charge: 'possible',
      submissions: 1,
    });
    expect(await world.attempts(lost)).toMatchObject([
      { phase: 'lease_over', settled_by: 'rescue', slot_freed_at: null, closed_at: null, health: 'none' },
    ]);
    expect(await world.request(waiting)).toMatchObject({ state: 'queued', submissions: 0 });
    expect(world.posts()).toBe(1);

    world.raw.onPost = (call) => call.accept();
    await world.passTime(600_000);
    await worker.runOnce();
    expect(await world.request(waiting)).toMatchObject({ state: 'accepted' });
    expect(await world.request(lost)).toMatchObject({ state: 'ambiguous' });
    expect(world.posts()).toBe(2);
  });

  it('between its commit and its POST: ambiguous all the same, and nothing was sent', async () => {
    const world = await openWorld({ provider: 'raw' });
    const id = await world.song('one');
    const child = await world.child('worker', { withholdKey: true });
    await waitFor(async () => (await world.request(id))['state'] === 'submitting', { what: 'the intent' });
    await child.kill('SIGKILL');
    await world.passTime(LEASE_MS + 1);
    await letEverybodyTry(world);
    expect(await world.request(id)).toMatchObject({
      state: 'ambiguous',
      state_reason: 'worker_lost',
      charge: 'possible',
    });
    expect(world.posts()).toBe(0);
  });

  it('whose POST was the probe: the breaker opens again, and another request is the next probe', async () => {
    const world = await openWorld({ provider: 'raw' });
    world.raw.onPost = hold;
    const [first, second] = (await world.songs(2)) as [string, string];
    await world.database.query(
      `update onetake.circuit_breakers set state = 'open', opened_at = now(), retry_at = now() where name = 'sonilo/text-to-music'`,
    );
    const child = await world.child('worker');
    await world.raw.post(1);
    await child.kill('SIGKILL');
    await world.passTime(LEASE_MS + 1);
    const worker = world.worker();
    await worker.runOnce();
    expect(await world.breaker()).toMatchObject({ state: 'open' });
    world.raw.onPost = (call) => call.accept();
    await world.passTime(30_000);
    await worker.runOnce();
    expect(await world.breaker()).toMatchObject({ state: 'closed' });
    expect(await world.request(first)).toMatchObject({ state: 'ambiguous' });
    expect(await world.request(second)).toMatchObject({ state: 'accepted' });
    const causes = (await world.transitions()).map((row) => row['cause']);
    expect(causes).toEqual(['probe_granted', 'probe_lost', 'probe_granted', 'probe_succeeded']);
  });
});

describe('kill -9 of a poller', () => {
  it('in the middle of its reads: every accepted task still ends', async () => {
    const world = await openWorld({ provider: 'raw' });
    world.raw.onGet = hold;
    await world.songs(8);
    const worker = world.worker();
    await worker.runOnce();
    const child = await world.child('poller');
    await waitFor(() => world.raw.gets.length === 8, { what: 'all eight to be read' });
    await child.kill('SIGKILL');
    expect(new Set(Object.values(await world.states()))).toEqual(new Set(['accepted']));

    world.raw.onGet = (call) =>
      call.answer(200, {
        task_id: call.path.split('/').at(-1),
        status: 'failed',
        error: { code: 'x' },
        refunded: true,
      });
    await world.passTime(31_000);
    await world.child('poller');

    await waitFor(async () => Object.values(await world.states()).every((state) => state === 'failed'), {
      what: 'every task to end',
    });
    expect(world.posts()).toBe(8);
  });
});

describe('SIGTERM of a worker', () => {
  it('with a POST in flight: it waits, settles it, and only then ends', async () => {
    const world = await openWorld({ provider: 'raw' });
    world.raw.onPost = hold;
    const id = await world.song('one');
    const child = await world.child('worker');
    const call = await world.raw.post(1);
    child.process.kill('SIGTERM');
    await child.message<{ name?: string }>((line) => line.name === 'process:stopping', 'it stops');
    const other = await world.song('another');
    call.accept();
    expect(await child.exited).toEqual({ code: 0, signal: null });
    expect(await world.request(id)).toMatchObject({ state: 'accepted' });
    expect(await world.request(other)).toMatchObject({ state: 'queued' });
    expect(world.posts()).toBe(1);
  });
});
