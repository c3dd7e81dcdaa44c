import { describe, expect, it } from 'vitest';
import { rescue } from '../../src/lifecycle/rescue.ts';
import {
  answered,
  type BreakerWorld,
  COOLDOWN_MS,
  expectChain,
  openBreakerWorld,
} from '../support/breaker-world.ts';
import { waitFor } from '../support/wait-for.ts';
import { MUSIC, openWorld, waitForBlocked } from '../support/world.ts';

const fails = () => answered(502);
const accepts = () => answered(202);
const force = (world: BreakerWorld, mode: 'forced_open' | 'forced_closed' | 'released') =>
  world.client.overrideBreaker({ name: MUSIC, mode, actor: 'op', reason: 'test' });

describe('the history of a breaker', () => {
  it('tells each transition with its cause, outcome, request and generation', async () => {
    const world = await openBreakerWorld();
    await world.opened(2);
    const failed = await world.probe();
    await world.settle(failed, answered(503));
    const probe = await world.probe();
    await world.settle(probe, answered(202, { taskId: 'the-task' }));

    const history = await world.client.breakerHistory(MUSIC);
    const common = { breakerName: MUSIC, layer: 'state', actor: null, shadow: false };
    expect(history).toMatchObject([
      {
        ...common,
        number: 1,
        previousState: 'closed',
        nextState: 'open',
        cause: 'failure_threshold',
        outcomeKind: 'dependency_failure',
        httpStatus: 502,
        generation: 2,
      },
      {
        ...common,
        number: 2,
        previousState: 'open',
        nextState: 'half_open',
        cause: 'probe_granted',
        outcomeKind: null,
        httpStatus: null,
        requestId: failed.requestId,
        generation: 3,
        openedAt: null,
        retryAt: null,
      },
      {
        ...common,
        number: 3,
        previousState: 'half_open',
        nextState: 'open',
        cause: 'probe_failed',
        httpStatus: 503,
        requestId: failed.requestId,
        providerTaskId: null,
        generation: 4,
      },
      {
        ...common,
        number: 4,
        previousState: 'open',
        nextState: 'half_open',
        cause: 'probe_granted',
        requestId: probe.requestId,
        generation: 5,
      },
      {
        ...common,
        number: 5,
        previousState: 'half_open',
        nextState: 'closed',
        cause: 'probe_succeeded',
        outcomeKind: 'success',
        httpStatus: 202,
        requestId: probe.requestId,
        providerTaskId: 'the-task',
        generation: 6,
      },
    ]);
    for (const row of history) {
      expect((row.openedAt === null) === (row.nextState !== 'open')).toBe(true);
      if (row.nextState === 'open') {
        expect(row.openedAt).toEqual(row.at);
        expect(Number(row.retryAt) - Number(row.openedAt)).toBe(COOLDOWN_MS);
      }
    }
  });

  it('notes with an opening how many failures it took, whatever the threshold was by then', async () => {
    const world = await openBreakerWorld({ breaker: { failureThreshold: 5, cooldownMs: 30_000 } });
    await world.each(fails(), fails(), fails());
    // Lowered below the count that there is: the next failure opens it.
    await world.database.query('update onetake.circuit_breakers set failure_threshold = 2');
    await world.songs(2);
    await world.each(fails());
    await world.settle(await world.probe(), fails());
    await world.settle(await world.probe(), accepts());
    const rows = await world.transitions();
    expect(rows.map((row) => [row['cause'], row['failures']])).toEqual([
      ['failure_threshold', 4],
      ['probe_granted', null],
      ['probe_failed', null],
      ['probe_granted', null],
      ['probe_succeeded', null],
    ]);
  });

  it('emits each row as one event with the same fields', async () => {
    const world = await openBreakerWorld();
    await world.opened(1);
    await world.settle(await world.probe(), accepts());
    const fields = (row: object) => {
      const {
        at: _at,
        number: _number,
        openedAt: _openedAt,
        retryAt: _retryAt,
        ...rest
      } = row as Record<string, unknown>;
      return { ...rest, id: undefined };
    };
    const history = await world.client.breakerHistory(MUSIC);
    expect(world.transitionEvents().map(fields)).toEqual(history.map(fields));
  });

  it('shows the newest rows, in the order in which they happened', async () => {
    const world = await openBreakerWorld();
    await world.opened(3);
    await world.settle(await world.probe(), fails());
    await force(world, 'forced_open');
    const causes = (await world.client.breakerHistory(MUSIC, 2)).map((row) => row.cause);
    expect(causes).toEqual(['probe_failed', 'operator']);
    expect(await world.client.breakerHistory('sonilo/nothing')).toEqual([]);
  });

  it('has no gap in either layer when operators and outcomes come all at once', async () => {
    const world = await openBreakerWorld({ breaker: { failureThreshold: 1, cooldownMs: 100 } });
    await world.songs(60);
    const processes = await Promise.all([1, 2, 3].map(() => world.process()));
    const operate = async () => {
      for (let n = 0; n < 10; n++) {
        await force(world, n % 2 ? 'forced_open' : 'forced_closed');
        await force(world, 'released');
      }
    };
    const submit = async (own: (typeof processes)[number]) => {
      for (let n = 0; n < 14; n++) {
        for (const attempt of await world.round(own, 2)) {
          await world.settle(attempt, n % 2 ? accepts() : fails(), own);
        }
        await rescue(own);
      }
    };
    await Promise.all([operate(), ...processes.map(submit)]);
    await rescue(world.ctx);

    const rows = await world.transitions();
    expectChain(
      rows,
      rows.map((row) => row['cause'] as string),
    );
    expect(rows.filter((row) => row['layer'] === 'override')).toHaveLength(20);
    expect(world.transitionEvents()).toHaveLength(rows.length);
    const keys = world
      .transitionEvents()
      .map((one) => `${one.layer} ${one.previousState} ${one.nextState} ${one.generation}`);
    for (const own of rows) {
      const key = `${own['layer']} ${own['previous_state']} ${own['next_state']} ${own['generation']}`;
      expect(keys).toContain(key);
    }
  });

  it('announces what SQL did to a breaker once, whichever rescuers look for it', async () => {
    const world = await openBreakerWorld();
    for (const mode of ['forced_open', 'forced_closed', 'released'] as const) await force(world, mode);
    expect(world.transitionEvents()).toEqual([]);
    const others = await Promise.all([1, 2, 3].map(() => world.process()));
    // All of them come while the rows are locked, and none may wait for them and take them a second time.
    const holder = await world.database.pool({ max: 1 }).connect();
    await holder.query('begin');
    await holder.query('select from onetake.circuit_breaker_transitions for no key update');
    let done = false;
    const rescued = Promise.all(others.map((own) => rescue(own))).then(() => {
      done = true;
    });
    const blocked = waitForBlocked(world.database, 1).catch(() => undefined);
    await Promise.race([rescued, blocked]);
    expect(done).toBe(true);
    await holder.query('commit');
    holder.release();
    await rescued;
    await Promise.all([world.ctx, ...others].map((own) => rescue(own)));
    expect(
      world
        .transitionEvents()
        .toSorted(
          (a, b) => Number(a.previousState > b.previousState) - Number(a.previousState < b.previousState),
        ),
    ).toMatchObject([
      { previousState: 'forced_closed', nextState: 'none' },
      { previousState: 'forced_open', nextState: 'forced_closed' },
      { previousState: 'none', nextState: 'forced_open', layer: 'override', cause: 'operator', actor: 'op' },
    ]);
    await rescue(world.ctx);
    expect(world.transitionEvents()).toHaveLength(3);
  });

  // 1.57
  it('tells nothing about refusals: a hundred of them are no event and no row', async () => {
    const world = await openBreakerWorld();
    await world.opened(3);
    const before = world.events.length;
    for (let n = 0; n < 100; n++) await world.round();
    expect(world.events).toHaveLength(before);
    expectChain(await world.transitions(), ['failure_threshold']);
  });

  // 2.14, 1.54
  it('has nothing to tell when the database is away: nobody is admitted, nothing is sent', async () => {
    const world = await openBreakerWorld();
    await world.song('one');
    const ctx = await world.process();
    await ctx.stop();
    await expect(world.round(ctx)).rejects.toThrow();
    expect(await world.breaker()).toMatchObject({ state: 'closed', generation: 1 });
    expect(await world.round()).toHaveLength(1);
  });

  // 1.41
  it('and the state are one: a transition whose row can’t be written has not happened, and happens later', async () => {
    const world = await openBreakerWorld();
    await world.each(fails(), fails());
    await world.database.query(`create function refuse() returns trigger language plpgsql as $$
begin raise exception 'no'; end $$`);
    await world.database.query(`create trigger refuse before insert on onetake.circuit_breaker_transitions
for each row execute function refuse()`);
    const attempt = await world.admitted();
    await world.settle(attempt, fails());
    expect(await world.breaker()).toMatchObject({ state: 'closed', consecutive_failures: 2, transitions: 0 });
    expect(await world.effect(attempt)).toBe(null);
    expect(world.transitionEvents()).toEqual([]);
    expect(await world.request(attempt.requestId)).toMatchObject({ state: 'ambiguous' });

    await world.database.query('drop trigger refuse on onetake.circuit_breaker_transitions');
    await rescue(world.ctx);
    expect(await world.breaker()).toMatchObject({ state: 'open' });
    expectChain(await world.transitions(), ['failure_threshold']);
  });

  // 2.2
  it('is that of an incident, end to end: opened, probed in vain, probed, closed, and all songs are there', async () => {
    const world = await openWorld({
      operation: {
        breaker: { failureThreshold: 3, cooldownMs: 300 },
        deadlines: { connectMs: 4_000, firstResponseMs: 8_000, submissionMs: 9_000 },
        leaseMs: 14_000,
      },
      simulator: { script: [{ posts: [1, 4], respond: { status: 502 } }] },
    });
    await world.songs(24);
    const workers = [1, 2].map((n) =>
      world.worker({
        name: `worker ${n}`,
        config: { ...world.config, worker: { ...world.config.worker, concurrency: 1 } },
      }),
    );
    await workers[0]?.runOnce();
    await workers[1]?.runOnce();
    await workers[0]?.runOnce();
    expect(await world.breaker()).toMatchObject({ state: 'open' });
    for (const worker of workers) await worker.start();
    await waitFor(
      async () => {
        const states = Object.values(await world.states());
        return states.filter((state) => state === 'accepted').length === 20 && !states.includes('queued');
      },
      { what: 'twenty songs to be accepted and four to be frozen', timeoutMs: 40_000 },
    );
    await waitFor(async () => (await world.breaker())['state'] === 'closed', { what: 'the close' });
    expectChain(await world.transitions(), [
      'failure_threshold',
      'probe_granted',
      'probe_failed',
      'probe_granted',
      'probe_succeeded',
    ]);
    const events = world.events.filter(({ name }) => name === 'breaker:transition');
    expect(events).toHaveLength(5);
    expect(world.posts()).toBe(24);
  });
});
