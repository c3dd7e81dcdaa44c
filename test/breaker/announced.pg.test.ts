import { describe, expect, it, onTestFinished } from 'vitest';
import { applyHealth } from '../../src/lifecycle/apply-health.ts';
import { recordOutcome } from '../../src/lifecycle/record-outcome.ts';
import { rescue } from '../../src/lifecycle/rescue.ts';
import { answered, type BreakerWorld, expectChain, openBreakerWorld } from '../support/breaker-world.ts';
import { COMMIT, databaseProxy } from '../support/database-proxy.ts';

/** Longer than whoever committed a transition has for its event. */
const GRACE_MS = 5_001;

const unannounced = async (world: BreakerWorld) =>
  (await world.database.query('select from onetake.circuit_breaker_transitions where not announced')).length;

/** The third failure in a row: its money is settled, its health is not applied. */
async function lastFailure(world: BreakerWorld): Promise<string> {
  await world.each(answered(502), answered(502));
  const attempt = await world.admitted();
  await world.ctx.database.transaction((tx) =>
    recordOutcome(world.ctx, tx, attempt, answered(502), 'worker'),
  );
  return attempt.attemptId;
}

describe('the event of a transition', () => {
  it('is out once, and marked so, when nothing goes wrong', async () => {
    const world = await openBreakerWorld();
    await world.opened(1);
    await world.settle(await world.probe(), answered(202));
    expect(world.transitionEvents().map(({ number }) => number)).toEqual([1, 2, 3]);
    expect(await unannounced(world)).toBe(0);
    await world.passTime(GRACE_MS);
    await rescue(world.ctx);
    expect(world.transitionEvents()).toHaveLength(3);
  });

  it.each(['before', 'after'] as const)(
    'is emitted once when the connection ends %s the COMMIT',
    async (when) => {
      const world = await openBreakerWorld();
      const attemptId = await lastFailure(world);
      const proxy = await databaseProxy(world.database.connectionString);
      onTestFinished(() => proxy.stop());
      const own = await world.process({}, { connectionString: proxy.connectionString });
      const cut = proxy.cutAt(COMMIT, when);
      await expect(applyHealth(own, attemptId)).rejects.toThrow('the outcome of a commit is unknown');
      await cut;
      // Whoever committed it may be about to tell.
      const committed = when === 'after';
      expect(await unannounced(world)).toBe(committed ? 1 : 0);
      expect(world.transitionEvents()).toHaveLength(0);
      if (committed) {
        await rescue(world.ctx);
        expect(world.transitionEvents()).toHaveLength(0);
      }
      await world.passTime(GRACE_MS);
      const rescuers = await Promise.all([1, 2, 3].map(() => world.process()));
      await Promise.all([own, ...rescuers].map((one) => rescue(one)));
      await rescue(world.ctx);
      expect(world.transitionEvents()).toMatchObject([
        { number: 1, previousState: 'closed', nextState: 'open', cause: 'failure_threshold' },
      ]);
      expectChain(await world.transitions(), ['failure_threshold']);
      expect(await unannounced(world)).toBe(0);
    },
  );

  it('comes once more, with the same number, when only the mark was lost', async () => {
    const world = await openBreakerWorld();
    await world.database.query(`create function public.refuse() returns trigger language plpgsql as
  $$ begin raise exception 'no'; end $$;
create trigger refuse before update on onetake.circuit_breaker_transitions
  for each row execute function public.refuse()`);
    await world.opened();
    expect(world.transitionEvents()).toHaveLength(1);
    expect(await unannounced(world)).toBe(1);
    expect(world.events.filter(({ name }) => name === 'process:trouble')).toEqual([]);
    await world.database.query('drop trigger refuse on onetake.circuit_breaker_transitions');
    await world.passTime(GRACE_MS);
    await rescue(world.ctx);
    const [first, second, ...more] = world.transitionEvents();
    const { openedAt: _openedAt, retryAt: _retryAt, ...same } = first as NonNullable<typeof first>;
    expect(second).toMatchObject(same);
    expect(more).toEqual([]);
  });
});
