import { describe, expect, it, onTestFinished } from 'vitest';
import type { SubmissionOutcome } from '../../src/core/provider.ts';
import { admit } from '../../src/lifecycle/admit.ts';
import { rescue } from '../../src/lifecycle/rescue.ts';
import { settle } from '../../src/lifecycle/settle.ts';
import { openAttemptWorld } from '../support/attempts.ts';
import { databaseProxy } from '../support/database-proxy.ts';
import { roundsOr, tell } from '../support/fleet.ts';
import { laneOf, lifecycleContext } from '../support/lifecycle-context.ts';
import { acceptedAs, answeredWith, refusedWith } from '../support/outcomes.ts';
import { hold } from '../support/raw-provider.ts';
import { waitFor } from '../support/wait-for.ts';
import { LEASE_MS, openWorld, type World } from '../support/world.ts';

const IN_A_ROUND = 30;

type Told = (task: string) => SubmissionOutcome;
const TOLD: readonly Told[] = [acceptedAs, () => answeredWith(502), () => refusedWith(422)];

describe('a worker and two rescuers that settle one attempt in the same moment', () => {
  it('settle it once: a request is never both, and an acceptance is never lost', async () => {
    const world = await openAttemptWorld({ operation: { breaker: { failureThreshold: 1_000 } } });
    const others = await Promise.all(
      [1, 2].map(() =>
        lifecycleContext({ connectionString: world.database.connectionString, config: world.config }),
      ),
    );
    onTestFinished(async () => void (await Promise.all(others.map((other) => other.stop()))));
    await world.database.query(
      `create table public.moves (id uuid, from_state text, to_state text, n serial)`,
    );
    await world.database.query(`create function public.note_move() returns trigger language plpgsql as
$$ begin insert into public.moves (id, from_state, to_state) values (new.id, old.state, new.state); return new; end $$`);
    await world.database.query(
      `create trigger note_move after update on onetake.generation_requests for each row when (old.state <> new.state) execute function public.note_move()`,
    );
    const winners = { worker: 0, rescue: 0 };
    // As many rounds as it takes for both to have won some, and no fewer than this.
    const least = roundsOr(4);
    for (let round = 1; round <= least || winners.worker === 0 || winners.rescue === 0; round++) {
      expect(round, JSON.stringify(winners)).toBeLessThan(least + 40);
      await world.songs(IN_A_ROUND, `round ${round}`);
      const batch = await admit(world.ctx, await laneOf(world.ctx), { wanted: IN_A_ROUND });
      if (!('attempts' in batch)) throw new Error(`not admitted: ${batch.blockedBy}`);
      await world.passTime(LEASE_MS + 1);
      const told = (n: number): Told => TOLD[n % TOLD.length] as Told;
      await Promise.all([
        ...batch.attempts.map((attempt, n) =>
          settle(world.ctx, attempt, told(n)(`task ${attempt.requestId}`)),
        ),
        ...others.map((other) => rescue(other)),
      ]);
      for (const [n, { requestId: id }] of batch.attempts.entries()) {
        const request = await world.request(id);
        const [attempt] = await world.attempts(id);
        const by = attempt?.['settled_by'] as 'worker' | 'rescue';
        winners[by]++;
        const end = ['accepted', 'ambiguous', 'rejected'][n % TOLD.length];
        expect(request['state'], by).toBe(end);
        expect(request['provider_task_id']).toBe(end === 'accepted' ? `task ${id}` : null);
        const moves = await world.database.query(
          'select from_state, to_state from public.moves where id = $1 order by n',
          [id],
        );
        const path = ['queued', ...moves.map((move) => move['to_state'])];
        expect(moves.map((move) => move['from_state'])).toEqual(path.slice(0, -1));
        const straight = ['queued', 'submitting', end];
        const around = ['queued', 'submitting', 'ambiguous', ...(end === 'ambiguous' ? [] : [end])];
        expect(path).toEqual(by === 'worker' ? straight : around);
        const late = await world.database.query(
          'select * from onetake.attempt_evidence where attempt_id = $1',
          [attempt?.['id']],
        );
        expect(late).toHaveLength(by === 'worker' ? 0 : 1);
      }
    }
    tell(`races: ${JSON.stringify(winners)}`);
    expect(world.posts()).toBe(0);
  }, 600_000);
});

describe('a fleet without a worker', () => {
  it('freezes by its pollers what the last worker left', async () => {
    const world = await openWorld({ provider: 'raw' });
    world.raw.onPost = hold;
    const ids = await world.songs(3);
    const worker = await world.child('worker');
    await world.raw.post(3);
    await worker.kill('SIGKILL');
    const poller = await world.child('poller');
    for (const id of ids) expect(await world.request(id)).toMatchObject({ state: 'submitting' });
    await world.passTime(LEASE_MS + 1);
    await waitFor(async () => Object.values(await world.states()).every((state) => state === 'ambiguous'), {
      what: 'the poller to freeze them',
      timeoutMs: 10_000,
    });
    expect(await poller.kill('SIGTERM')).toEqual({ code: 0, signal: null });
    expect(world.posts()).toBe(3);
  });
});

const A = 'insert into onetake.submission_attempts';
const B1 = 'with terms as materialized';

interface Moment {
  /** The connection, or the whole process, ends there. What it resolves to, if anything, comes after the kill. */
  readonly until: (world: World, proxy: Awaited<ReturnType<typeof databaseProxy>>) => Promise<unknown>;
  readonly states: readonly string[];
  readonly posts: number;
}

/** What came of it when the worker dies in that moment; SIGKILL, as soon as it is reached. */
const MOMENTS: Readonly<Record<string, Moment>> = {
  'before its claim is committed': {
    until: (_world, proxy) => proxy.cutAt('commit', 'before', A),
    // Nothing was written: another one sends it.
    states: ['accepted'],
    posts: 1,
  },
  'after its claim, before it knows of it': {
    until: async (_world, proxy) => {
      const commit = await proxy.holdAt('commit', A);
      return () => commit.release();
    },
    states: ['ambiguous'],
    posts: 0,
  },
  'after it has sent': {
    until: (world) => world.raw.post(1),
    states: ['ambiguous'],
    posts: 1,
  },
  'after the 202, before it is stored': {
    until: async (world, proxy) => {
      const stored = proxy.cutAt(B1, 'before');
      (await world.raw.post(1)).accept();
      await stored;
    },
    // Its spool may have been written by then.
    states: ['ambiguous', 'accepted'],
    posts: 1,
  },
  'after the id is stored, before it knows of it': {
    until: async (world, proxy) => {
      const storing = proxy.holdAt(B1);
      (await world.raw.post(1)).accept();
      await (await storing).release();
    },
    states: ['accepted'],
    posts: 1,
  },
  'between the money and the health': {
    until: async (world, proxy) => {
      const applying = proxy.cutAt('health_applied_at is null', 'before', 'begin');
      (await world.raw.post(1)).answer(502);
      await applying;
    },
    states: ['ambiguous'],
    posts: 1,
  },
};

describe('a worker that is killed', () => {
  it.each(Object.entries(MOMENTS))(
    '%s: at most one POST, whatever others do afterwards',
    async (_, moment) => {
      const world = await openWorld({ provider: 'raw' });
      const proxy = await databaseProxy(world.database.connectionString);
      onTestFinished(() => proxy.stop());
      world.raw.onPost = hold;
      const id = await world.song('one');
      const child = await world.child('worker', { connectionString: proxy.connectionString, obeys: true });
      const reached = moment.until(world, proxy);
      child.send({ giveKey: true });
      const afterwards = await reached;
      await child.kill('SIGKILL');
      if (typeof afterwards === 'function') await afterwards();
      world.raw.onPost = (call) => call.accept();
      await world.passTime(LEASE_MS + 1);
      const others = [world.worker(), world.worker()];
      for (let n = 0; n < 3; n++) {
        for (const other of others) await other.runOnce();
        await world.passTime(60_000);
      }
      const request = await world.request(id);
      expect(moment.states).toContain(request['state']);
      expect(world.posts()).toBe(moment.posts);
      expect(
        await world.database.query('select from onetake.submission_attempts where health_applied_at is null'),
      ).toEqual([]);
    },
  );
});
