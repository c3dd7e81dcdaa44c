import { afterAll, beforeAll, describe, expect, it, onTestFinished } from 'vitest';
import type { Child } from '../support/children.ts';
import { type PostgresProxy, postgresProxy } from '../support/postgres-proxy.ts';
import { type Manner, type PrivateServer, startPrivateServer } from '../support/private-server.ts';
import { cpuMs } from '../support/process-figures.ts';
import { hold } from '../support/raw-provider.ts';
import { openTestDatabase } from '../support/test-database.ts';
import { waitFor } from '../support/wait-for.ts';
import { openWorld, type World } from '../support/world.ts';

// PostgreSQL itself ends, in every manner, under real processes with POSTs on the wire.

const POSTS = 10;
/** What a test waits for while the database is away: attempts to reach it, not time. About ten seconds in the last. */
const KNOCKS: Readonly<Record<Manner, number>> = { fast: 6, immediate: 6, kill: 40 };

let server: PrivateServer;
beforeAll(async () => {
  server = await startPrivateServer();
}, 120_000);
afterAll(() => server?.[Symbol.asyncDispose]());

interface Line {
  readonly name?: string;
  readonly event?: { readonly loop?: string; readonly errorCode?: string };
}
const linesOf = (child: Child, name: string) =>
  (child.messages as Line[]).filter((line) => line.name === name);

async function fleet(): Promise<{ world: World; proxy: PostgresProxy; worker: Child; poller: Child }> {
  const world = await openWorld({
    provider: 'raw',
    database: await server.createDatabase(),
    config: { worker: { concurrency: POSTS, rescueIntervalMs: 100 } },
  });
  const proxy = await postgresProxy(world.database.connectionString);
  onTestFinished(() => proxy.stop());
  const { connectionString } = proxy;
  const worker = await world.child('worker', { connectionString });
  const poller = await world.child('poller', { connectionString });
  return { world, proxy, worker, poller };
}

const all = async (world: World, state: string, count: number) => {
  const states = Object.values(await world.states());
  return states.length === count && states.every((one) => one === state);
};

describe.each<Manner>(['fast', 'immediate', 'kill'])(
  'PostgreSQL that ends (%s) with ten POSTs on the wire',
  (manner) => {
    it('is waited for in peace; every outcome is stored, each paid once, and work goes on', {
      timeout: 120_000,
    }, async () => {
      const { world, proxy, worker, poller } = await fleet();
      world.raw.onPost = hold;
      await world.songs(POSTS);
      await world.raw.post(POSTS);

      await server.stop(manner);
      const [begun, cpu, tried] = [
        performance.now(),
        cpuMs(worker.pid) + cpuMs(poller.pid),
        proxy.attempts.length,
      ];
      for (const call of world.raw.posts) call.accept();
      await waitFor(() => proxy.attempts.length >= tried + KNOCKS[manner], {
        what: `${KNOCKS[manner]} attempts to reach it`,
      });
      const awayMs = performance.now() - begun;
      const knocks = proxy.attempts.length - tried;
      const usedMs = cpuMs(worker.pid) + cpuMs(poller.pid) - cpu;
      await server.start();

      await waitFor(() => all(world, 'accepted', POSTS).catch(() => false), {
        what: 'all outcomes to be stored',
        timeoutMs: 60_000,
      });
      expect(world.posts()).toBe(POSTS);
      // Three pools, each of which bursts once with what it has under way and then knocks once a second.
      expect(knocks).toBeLessThan(60 + 4 * (awayMs / 1_000));
      expect(usedMs).toBeLessThan(2_500 + awayMs / 2);

      world.raw.onPost = (call) => call.accept();
      world.raw.onGet = (call) =>
        call.answer(200, {
          task_id: call.path.split('/').at(-1),
          status: 'failed',
          error: { code: 'x' },
          refunded: true,
        });
      await world.passTime(31_000);
      await world.song('afterwards');
      await waitFor(() => all(world, 'failed', POSTS + 1), { what: 'all tasks to end', timeoutMs: 60_000 });
      expect(world.posts()).toBe(POSTS + 1);
      for (const attempt of await world.database.query('select * from onetake.submission_attempts')) {
        expect(attempt).toMatchObject({
          certainty: 'accepted',
          health: 'success',
          settled_by: 'worker',
          attempt: 1,
        });
      }
      expect(await world.breaker()).toMatchObject({
        state: 'closed',
        consecutive_failures: 0,
        generation: 1,
      });
      await listens(world);
      for (const child of [worker, poller]) {
        expect(child.process.exitCode).toBeNull();
        expect(child.stderr()).toBe('');
        expect(linesOf(child, 'process:trouble').length).toBeLessThan(12);
      }
    });
  },
);

describe('a primary that a hot standby takes over from, with a POST on the wire', () => {
  it('holds submissions back while nobody takes writes, and the outcome is stored by whoever does', {
    timeout: 120_000,
  }, async () => {
    await using standby = await server.addStandby();
    const { world, proxy, worker, poller } = await fleet();
    world.raw.onPost = hold;
    const id = await world.song('one');
    const call = await world.raw.post(1);
    const name = new URL(world.database.connectionString).pathname;
    const url = new URL(standby.connectionString);
    url.pathname = name;
    const promoted = openTestDatabase(url.href, async () => undefined);
    onTestFinished(() => promoted.drop());
    const stored = async (of: string) =>
      (
        await promoted.query(
          'select state, provider_task_id as task from onetake.generation_requests where id = $1',
          [of],
        )
      )[0];
    await waitFor(
      async () =>
        (
          await promoted
            .query(`select from onetake.generation_requests where state = 'submitting'`)
            .catch(() => [])
        ).length === 1,
      { what: 'the standby to have the intent' },
    );
    // The address leads to the standby now, which nobody has promoted yet.
    proxy.pass(standby.port);
    const later = await world.song('later');
    await waitFor(async () => (await stored(later))?.['state'] === 'queued', {
      what: 'the standby to have the next',
    });
    call.accept('paid-for');
    const inTrouble = (child: Child) =>
      linesOf(child, 'process:trouble').some((line) => line.event?.errorCode === '25006');
    await waitFor(() => inTrouble(worker) && inTrouble(poller), {
      what: 'both to find it read-only',
      timeoutMs: 40_000,
    });
    expect(await promoted.query('select pg_is_in_recovery() as standby')).toEqual([{ standby: true }]);

    await server.stop('immediate');
    await standby.query('select pg_promote()');
    await waitFor(async () => (await stored(id))?.['state'] === 'accepted', {
      what: 'the outcome to be stored by the new primary',
      timeoutMs: 40_000,
    });
    expect(await stored(id)).toEqual({ state: 'accepted', task: 'paid-for' });
    expect(world.posts()).toBe(1);
    expect(
      await promoted.query(
        'select consecutive_failures from onetake.circuit_breakers where consecutive_failures > 0',
      ),
    ).toEqual([]);
    for (const child of [worker, poller]) expect(child.stderr()).toBe('');
  });
});

/** Both processes hear notifications again. */
async function listens(world: World): Promise<void> {
  await waitFor(
    async () =>
      (
        await world.database.query(
          `select from pg_stat_activity where datname = current_database() and application_name like 'onetake % listener'`,
        )
      ).length === 2,
    { what: 'both to listen again', timeoutMs: 40_000 },
  );
}
