import { describe, expect, it } from 'vitest';
import { expectChain } from '../support/breaker-world.ts';
import {
  databaseClock,
  databaseTimePasses,
  endCooldown,
  enqueueMany,
  openBreaker,
  senderOf,
  startFleetWorker,
} from '../support/fleet.ts';
import { hold } from '../support/raw-provider.ts';
import { shiftedBy } from '../support/shifted-clock.ts';
import { waitFor } from '../support/wait-for.ts';
import { lockRows, openWorld, type Row, type World, waitForBlocked } from '../support/world.ts';

const COOLDOWN_MS = 400;
const COOLDOWNS = 10;
const HELD_MS = 2_000;
const MINUTES = 60_000;

function inZone(world: World, zone: string): string {
  const url = new URL(world.database.connectionString);
  url.searchParams.set('options', `-c timezone=${zone}`);
  return url.href;
}

const MACHINES = {
  ahead: () => ({ name: 'ahead', execArgv: shiftedBy(10 * MINUTES) }),
  behind: () => ({ name: 'behind', execArgv: shiftedBy(-10 * MINUTES) }),
  berlin: (world: World) => ({
    name: 'berlin',
    env: { TZ: 'Europe/Berlin' },
    connectionString: inZone(world, 'Europe/Berlin'),
  }),
  // Half an hour off the whole ones, and behind UTC.
  newfoundland: (world: World) => ({
    name: 'newfoundland',
    env: { TZ: 'Europe/Berlin' },
    connectionString: inZone(world, 'America/St_Johns'),
  }),
} as const;

async function openBreakerWorld(): Promise<World> {
  return openWorld({ provider: 'raw', operation: { breaker: { cooldownMs: COOLDOWN_MS } } });
}

describe('a breaker that processes with other clocks share', () => {
  it('is opened, waited for and probed by the database’s clock, whoever of them is the prober', async () => {
    const world = await openBreakerWorld();
    await openBreaker(world);
    await enqueueMany(world, 60);
    await Promise.all(Object.values(MACHINES).map((machine) => startFleetWorker(world, machine(world))));
    // Whoever is in flight is held until the database has told its time: no two instants come from one look.
    const seen: { readonly at: number; readonly by: string }[] = [];
    const before = world.posts();
    world.raw.onPost = (call) =>
      void databaseClock(world).then((at) => {
        seen.push({ at, by: senderOf(call) });
        call.answer(502);
      });
    await endCooldown(world);
    await waitFor(() => seen.length >= COOLDOWNS, { what: `${COOLDOWNS} probes`, timeoutMs: 60_000 });

    const transitions = await world.transitions();
    const openings = transitions.filter((row) => row['cause'] === 'probe_failed');
    expect(openings.length).toBeGreaterThanOrEqual(COOLDOWNS - 1);
    for (const opening of openings) {
      expect(Number(opening['retry_at']) - Number(opening['opened_at'])).toBe(COOLDOWN_MS);
      expect(Number(opening['opened_at'])).toBe(Number(opening['at']));
    }
    const instants = transitions.map((row) => Number(row['at']));
    expect(instants).toEqual(instants.toSorted((a, b) => a - b));
    for (const [n, row] of transitions.entries()) {
      const opening = transitions[n - 1];
      if (row['cause'] !== 'probe_granted' || opening?.['cause'] !== 'probe_failed') continue;
      const waited = Number(row['at']) - Number(opening['retry_at']);
      expect(waited).toBeGreaterThanOrEqual(0);
      expect(waited).toBeLessThan(MINUTES);
    }
    // A POST lies between its grant and its outcome, so what the four wrote is the time that it was.
    for (const [n, { at }] of seen.slice(0, COOLDOWNS - 1).entries()) {
      const [granted, ended] = transitions.slice(1 + 2 * n, 3 + 2 * n) as [Row, Row];
      expect([granted['cause'], ended['cause']]).toEqual(['probe_granted', 'probe_failed']);
      expect(at).toBeGreaterThanOrEqual(Number(granted['at']));
      expect(at).toBeLessThanOrEqual(Number(ended['at']) + 1);
    }
    expect(world.posts() - before).toBeLessThanOrEqual(COOLDOWNS + 2);
  }, 120_000);

  it.each(Object.keys(MACHINES) as (keyof typeof MACHINES)[])(
    'counts from the moment at which the lock was free, when somebody held it for 2 s: a machine that is %s',
    async (machine) => {
      const world = await openBreakerWorld();
      world.raw.onPost = (call) => (call.number < 3 ? call.answer(502) : hold());
      for (const n of [1, 2, 3]) await world.song(`song ${n}`);
      await startFleetWorker(world, MACHINES[machine](world));
      const third = await world.raw.post(3);
      await waitFor(async () => (await world.breaker())['consecutive_failures'] === 2, {
        what: 'two failures',
      });

      const locked = "select from onetake.circuit_breakers where name = 'sonilo/text-to-music'";
      const releaseOpening = await lockRows(world.database, locked);
      const since = await databaseClock(world);
      third.answer(502);
      await waitForBlocked(world.database, 1);
      // Its admission waits behind the outcome, and finds the breaker open.
      await world.song('the probe');
      await databaseTimePasses(world, HELD_MS, since);
      const freed = await databaseClock(world);
      await releaseOpening();

      const probe = await waitFor(() => world.raw.posts[3], { what: 'the probe' });
      const [opened, granted] = (await world.transitions()) as [Row, Row];
      expect(Number(opened['opened_at'])).toBeGreaterThanOrEqual(freed);
      expect(Number(opened['opened_at'])).toBeLessThan(freed + MINUTES);
      expect(Number(opened['retry_at']) - Number(opened['opened_at'])).toBe(COOLDOWN_MS);
      expect(Number(granted['at'])).toBeGreaterThanOrEqual(Number(opened['retry_at']));

      // Again, while the probe's outcome waits for the lock.
      const releaseReopening = await lockRows(world.database, locked);
      probe.answer(502);
      await waitForBlocked(world.database, 1);
      const again = await databaseClock(world);
      await releaseReopening();
      await waitFor(async () => (await world.transitions()).length === 3, { what: 'the re-opening' });
      const reopened = (await world.transitions())[2] as Row;
      expect(Number(reopened['opened_at'])).toBeGreaterThanOrEqual(again);
      expect(Number(reopened['retry_at']) - Number(reopened['opened_at'])).toBe(COOLDOWN_MS);
      expectChain(await world.transitions(), ['failure_threshold', 'probe_granted', 'probe_failed']);
    },
  );

  it('is not probed while somebody holds its lock over the end of a cooldown, and is once it is free', async () => {
    const world = await openBreakerWorld();
    await openBreaker(world);
    await enqueueMany(world, 10);
    const before = world.posts();
    world.raw.onPost = hold;
    await Promise.all(
      [MACHINES.ahead(), MACHINES.behind()].map((machine) => startFleetWorker(world, machine)),
    );
    const [due] = await world.database.query<{ at: Date }>(
      `update onetake.circuit_breakers set retry_at = clock_timestamp() + interval '1 s'
where state = 'open' returning retry_at as at`,
    );
    const release = await lockRows(world.database, 'select from onetake.circuit_breakers');
    await databaseTimePasses(world, HELD_MS, Number(due?.at));
    // Whoever wants the probe doesn't wait for the lock, and has written nothing.
    expect(world.posts()).toBe(before);
    const waiting = await world.database.query(
      `select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'`,
    );
    expect(waiting).toEqual([]);
    expect(await world.breaker()).toMatchObject({ state: 'open', retry_at: due?.at });
    const freed = await databaseClock(world);
    await release();
    await world.raw.post(before + 1);
    const granted = (await world.transitions()).at(-1) as Row;
    expect(granted['cause']).toBe('probe_granted');
    expect(Number(granted['at'])).toBeGreaterThanOrEqual(freed);
  });
});
