import { describe, expect, it } from 'vitest';
import { dispatch } from '../../src/lifecycle/dispatch.ts';
import type { AdmittedAttempt } from '../../src/postgres/submission-attempts.ts';
import { answered, between, COOLDOWN_MS, expectChain, openBreakerWorld } from '../support/breaker-world.ts';
import { startChild } from '../support/children.ts';
import { waitFor } from '../support/wait-for.ts';
import { API_KEY, waitForBlocked } from '../support/world.ts';

const MINUTES = 60_000;
const fails = () => answered(502);

describe('an open breaker, whose clock is the database’s,', () => {
  // 1.28, 2.7
  it.each([
    ['ahead', 10 * MINUTES],
    ['behind', -10 * MINUTES],
  ])(
    'opens, refuses and probes at the same instants when the worker’s clock is 10 minutes %s',
    async (_way, ms) => {
      const world = await openBreakerWorld();
      const skewed = await world.process({
        clock: { now: () => Date.now() + ms, monotonic: () => performance.now() },
      });
      await world.songs(4);
      const [before] = await world.database.query<{ now: Date }>('select clock_timestamp() as now');
      for (let n = 0; n < 3; n++) {
        const [attempt] = (await world.round(skewed, 1)) as [AdmittedAttempt];
        await world.settle(attempt, fails(), skewed);
      }
      const row = await world.breaker();
      const [after] = await world.database.query<{ now: Date }>('select clock_timestamp() as now');
      expect(Number(row['opened_at'])).toBeGreaterThanOrEqual(Number(before?.now));
      expect(Number(row['opened_at'])).toBeLessThanOrEqual(Number(after?.now));
      expect(between(row, 'opened_at', 'retry_at')).toBe(COOLDOWN_MS);
      await world.passTime(COOLDOWN_MS - 10_000);
      expect(await world.round(skewed)).toEqual([]);
      const terms = { freeSlots: () => 1, reaches: () => true };
      const { wakeInMs } = await dispatch(skewed, null, terms, () => undefined);
      expect(wakeInMs).toBeGreaterThan(1_000);
      expect(wakeInMs).toBeLessThanOrEqual(10_001);
      await world.passTime(10_000);
      expect(await world.round(skewed)).toHaveLength(1);
    },
  );

  it('opens and probes at the same instants in a session of another time zone', async () => {
    const world = await openBreakerWorld();
    const url = new URL(world.database.connectionString);
    url.searchParams.set('options', '-c timezone=Europe/Berlin');
    const berlin = await world.process({}, { connectionString: url.href });
    const zone = await berlin.database.executeSql('show timezone');
    expect(zone.rows).toEqual([{ TimeZone: 'Europe/Berlin' }]);
    await world.songs(4);
    const from = Date.now();
    for (let n = 0; n < 3; n++) {
      const [attempt] = (await world.round(berlin, 1)) as [AdmittedAttempt];
      await world.settle(attempt, fails(), berlin);
    }
    const row = await world.breaker();
    expect(Number(row['opened_at'])).toBeGreaterThanOrEqual(from - 1_000);
    expect(Number(row['opened_at'])).toBeLessThanOrEqual(Date.now() + 1_000);
    expect(between(row, 'opened_at', 'retry_at')).toBe(COOLDOWN_MS);
    expect(await world.round(berlin)).toEqual([]);
    await world.passTime(COOLDOWN_MS);
    expect(await world.round(berlin)).toHaveLength(1);
  });

  it('opens from the moment at which it got the lock, not from that at which it began to wait', async () => {
    const world = await openBreakerWorld();
    await world.each(fails(), fails());
    const last = await world.admitted();
    const holder = await world.database.pool({ max: 1 }).connect();
    await holder.query('begin');
    await holder.query('select from onetake.circuit_breakers for no key update');
    const settled = world.settle(last, fails());
    await waitForBlocked(world.database, 1);
    const { rows } = await holder.query<{ now: Date }>(`select clock_timestamp() as now`);
    await holder.query('commit');
    holder.release();
    await settled;
    const row = await world.breaker();
    expect(Number(row['opened_at'])).toBeGreaterThanOrEqual(Number(rows[0]?.now));
    expect(between(row, 'opened_at', 'retry_at')).toBe(COOLDOWN_MS);
  });

  // 1.28
  it.each([
    ['ahead', 10 * MINUTES],
    ['behind', -10 * MINUTES],
  ])(
    'is opened, waited for and closed by a process whose whole machine is 10 minutes %s',
    async (_way, ms) => {
      const world = await openBreakerWorld();
      world.raw.onPost = (call) => call.answer(502);
      await world.songs(3);
      const shift = `const RealDate = Date;
globalThis.Date = class extends RealDate {
  constructor(...args) { if (args.length === 0) super(RealDate.now() + ${ms}); else super(...args); }
  static now() { return RealDate.now() + ${ms}; }
};`;
      await using child = startChild({
        module: `import { createWorker } from './src/worker.ts';
console.log(JSON.stringify({ now: Date.now() }));
const { config, connectionString } = JSON.parse(process.env['WORLD'] ?? '');
const worker = createWorker({ config, connectionString, name: 'shifted' });
await worker.start();`,
        execArgv: ['--import', `data:text/javascript,${encodeURIComponent(shift)}`],
        env: {
          WORLD: JSON.stringify({ config: world.config, connectionString: world.database.connectionString }),
          SONILO_API_KEY: API_KEY,
        },
      });
      const said = await child.message<{ now: number }>((message) => message.now > 0, 'its clock');
      expect(Math.abs(said.now - ms - Date.now())).toBeLessThan(MINUTES);
      await waitFor(async () => (await world.breaker())['state'] === 'open', { what: 'the opening' });
      const row = await world.breaker();
      expect(Math.abs(Number(row['opened_at']) - Date.now())).toBeLessThan(MINUTES);
      expect(between(row, 'opened_at', 'retry_at')).toBe(COOLDOWN_MS);

      world.raw.onPost = (call) => call.accept();
      const waiting = await world.song('waiting');
      await world.passTime(COOLDOWN_MS - 10_000);
      // It has been woken, and has put this one in its place: the round after the wake-up saw the other lane too.
      await world.song('video', { operation: 'video-to-music' });
      await world.raw.post(4);
      expect(await world.request(waiting)).toMatchObject({ state: 'queued' });
      await world.passTime(10_000);
      await waitFor(async () => (await world.breaker())['state'] === 'closed', { what: 'the close' });
      expectChain(await world.transitions(), ['failure_threshold', 'probe_granted', 'probe_succeeded']);
      expect(await world.request(waiting)).toMatchObject({ state: 'accepted' });
    },
  );
});
