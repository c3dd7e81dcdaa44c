import { drizzle } from 'drizzle-orm/node-postgres';
import { drizzle as postgresJs } from 'drizzle-orm/postgres-js';
import postgres from 'postgres';
import { describe, expect, it, onTestFinished } from 'vitest';
import type { CallerTransaction } from '../../src/index.ts';
import type { AdmittedAttempt } from '../../src/postgres/submission-attempts.ts';
import { answered, type BreakerWorld, COOLDOWN_MS, openBreakerWorld } from '../support/breaker-world.ts';
import { MUSIC, rowPrints } from '../support/world.ts';

const accepts = () => answered(202);

/** Drizzle's two drivers: one hands instants out as Date, the other one as text. */
const DRIVERS: Readonly<
  Record<string, (world: BreakerWorld, work: (tx: CallerTransaction) => Promise<void>) => Promise<unknown>>
> = {
  pg: (world, work) => drizzle(world.database.pool({ max: 1 })).transaction((tx) => work(tx)),
  'postgres-js': (world, work) => {
    const js = postgres(world.database.connectionString, { max: 1, onnotice: () => undefined });
    onTestFinished(() => js.end());
    return postgresJs(js).transaction((tx) => work(tx));
  },
};

describe('a breaker that an app asks before it enqueues', () => {
  const ask = (world: BreakerWorld, requestKey: string) =>
    world.client.enqueue({
      operation: 'text-to-music',
      fields: { prompt: 'rain', duration: 5 },
      requestKey,
      whenOpen: 'refuse',
    });

  // 1.55
  it('refuses with retry_at, as a value, and makes no row', async () => {
    const world = await openBreakerWorld();
    const { retry_at: retryAt } = await world.opened();
    const prints = await rowPrints(world.database);
    expect(await ask(world, 'one')).toEqual({ refused: 'breaker_open', retryAt });
    expect(await rowPrints(world.database)).toEqual(prints);
  });

  it('takes the request once a probe is due: it may be the probe', async () => {
    const world = await openBreakerWorld();
    await world.opened();
    await world.passTime(COOLDOWN_MS);
    expect(await ask(world, 'one')).toMatchObject({ state: 'queued', created: true });
    await world.settle((await world.round())[0] as AdmittedAttempt, accepts());
    expect(await world.breaker()).toMatchObject({ state: 'closed' });
  });

  it('refuses while the probe is in flight, without an instant', async () => {
    const world = await openBreakerWorld();
    await world.opened(1);
    await world.probe();
    expect(await ask(world, 'one')).toEqual({ refused: 'breaker_open', retryAt: null });
  });

  it('answers by what is in force: an override goes before the state', async () => {
    const world = await openBreakerWorld();
    const force = (mode: 'forced_open' | 'forced_closed') =>
      world.client.overrideBreaker({ name: MUSIC, mode, actor: 'op', reason: 'test' });
    await force('forced_open');
    expect(await ask(world, 'one')).toEqual({ refused: 'breaker_open', retryAt: null });
    await force('forced_closed');
    await world.database.query(`update onetake.circuit_breakers
set state = 'open', opened_at = now(), retry_at = now() + interval '30 s'`);
    expect(await ask(world, 'two')).toMatchObject({ state: 'queued' });
  });

  describe.each(Object.entries(DRIVERS))('in its own drizzle transaction over %s', (_driver, transact) => {
    const askIn = (world: BreakerWorld, tx: CallerTransaction, requestKey: string) =>
      world.client.enqueue(
        {
          operation: 'text-to-music',
          fields: { prompt: 'rain', duration: 5 },
          requestKey,
          whenOpen: 'refuse',
        },
        { tx },
      );

    it('refuses with the instant of retry_at, and leaves the transaction as it was', async () => {
      const world = await openBreakerWorld();
      const { retry_at: retryAt } = await world.opened();
      const asked = await world.database.query('select count(*)::int as n from onetake.generation_requests');
      await transact(world, async (tx) => {
        expect(await askIn(world, tx, 'one')).toEqual({ refused: 'breaker_open', retryAt });
        expect(await askIn(world, tx, 'one')).toEqual({ refused: 'breaker_open', retryAt });
      });
      expect(
        await world.database.query('select count(*)::int as n from onetake.generation_requests'),
      ).toEqual(asked);
    });

    it('asks what is in force: a forced state, one that has expired, and a shadow that refuses nothing', async () => {
      const world = await openBreakerWorld();
      const force = (mode: 'forced_open' | 'forced_closed' | 'released', expiresInMs?: number) =>
        world.client.overrideBreaker({
          name: MUSIC,
          mode,
          actor: 'op',
          reason: 'test',
          ...(expiresInMs === undefined ? {} : { expiresInMs }),
        });
      const { retry_at: retryAt } = await world.opened();
      const answers: unknown[] = [];
      const askOnce = (key: string) =>
        transact(world, async (tx) => {
          answers.push(await askIn(world, tx, key));
        });
      await force('forced_open');
      await askOnce('under forced open');
      await force('forced_closed', 5_000);
      await askOnce('under forced closed');
      await world.passTime(5_001);
      await askOnce('after its end');
      await world.database.query('update onetake.circuit_breakers set shadow = true');
      await askOnce('in shadow');
      await force('forced_open');
      await askOnce('forced open in shadow');
      const queued = { id: expect.any(String), state: 'queued', created: true };
      expect(answers).toEqual([
        { refused: 'breaker_open', retryAt: null },
        queued,
        { refused: 'breaker_open', retryAt: new Date(Number(retryAt) - 5_001) },
        queued,
        { refused: 'breaker_open', retryAt: null },
      ]);
    });
  });
});
