import { describe, expect, it } from 'vitest';
import { rescue } from '../../src/lifecycle/rescue.ts';
import { answered, type BreakerWorld, openBreakerWorld } from '../support/breaker-world.ts';
import { LEASE_MS, MUSIC } from '../support/world.ts';

const fails = () => answered(502);
const force = (world: BreakerWorld, mode: 'forced_open' | 'forced_closed' | 'released') =>
  world.client.overrideBreaker({ name: MUSIC, mode, actor: 'op', reason: 'test' });

describe('the sentence that says why', () => {
  const cases: readonly [string, (world: BreakerWorld) => Promise<unknown>, string, RegExp][] = [
    ['closed', async () => undefined, 'closed', /^closed: submissions flow$/],
    ['counting', (world) => world.each(fails()), 'closed', /^closed: 1 of 3 dependency failures in a row$/],
    [
      'open',
      (world) => world.opened(),
      'open',
      /^open since \S+: 3 dependency failures in a row \(last answer 502\), next probe at \S+$/,
    ],
    [
      'open after a failed probe',
      async (world) => {
        await world.opened(1);
        await world.settle(await world.probe(), answered(504));
      },
      'open',
      /^open since \S+: the probe failed \(last answer 504\), next probe at \S+$/,
    ],
    [
      'open after a neutral probe',
      async (world) => {
        await world.opened(1);
        await world.settle(await world.probe(), answered(429));
      },
      'open',
      /^open since \S+: the probe told nothing \(last answer 429\), next probe at \S+$/,
    ],
    [
      'open after a lost probe',
      async (world) => {
        await world.opened(1);
        await world.probe();
        await world.passTime(LEASE_MS + 1);
        await rescue(world.ctx);
      },
      'open',
      /^open since \S+: the probe's worker was lost, next probe at \S+$/,
    ],
    [
      'ramping up',
      (world) => world.closedAgain(),
      'closed',
      /^closed: ramping up, at most 2 submissions in flight$/,
    ],
    [
      'forced open over an open one',
      async (world) => {
        await world.opened();
        await force(world, 'forced_open');
      },
      'forced_open',
      /^forced open by op: test; underneath it is open$/,
    ],
    [
      'forced closed over a half-open one',
      async (world) => {
        await world.opened(1);
        await world.probe();
        await force(world, 'forced_closed');
      },
      'forced_closed',
      /^forced closed by op: test; underneath it is half open$/,
    ],
  ];
  it.each(cases)(
    'is right for one that is %s, in the library as in SQL',
    async (_what, arrange, effective, why) => {
      const world = await openBreakerWorld();
      await arrange(world);
      const row = await world.status();
      expect(row).toMatchObject({ effective_state: effective });
      expect(row['why']).toMatch(why);
      const [shown] = (await world.client.breakerStatus()).filter(({ name }) => name === MUSIC);
      expect(shown).toMatchObject({ effectiveState: effective, why: row['why'], state: row['state'] });
      if (shown?.retryInMs !== null) expect(shown?.retryInMs).toBeGreaterThanOrEqual(0);
    },
  );
});

describe('the instant since which it is not closed', () => {
  const notClosedSince = async (world: BreakerWorld) => {
    const { not_closed_since: inSql } = await world.status();
    const [shown] = (await world.client.breakerStatus()).filter(({ name }) => name === MUSIC);
    expect(shown?.notClosedSince).toEqual(inSql);
    return inSql;
  };

  it('is that of the opening over all its probes, and ends with the close', async () => {
    const world = await openBreakerWorld();
    expect(await notClosedSince(world)).toBe(null);
    await world.opened(3);
    const openedAt = async () => (await world.transitions())[0]?.['at'];
    expect(await notClosedSince(world)).toEqual(await openedAt());
    const failed = await world.probe();
    expect(await notClosedSince(world)).toEqual(await openedAt());
    await world.settle(failed, fails());
    const row = await world.status();
    expect(Number(row['opened_at'])).toBeGreaterThan(Number(await openedAt()));
    expect(await notClosedSince(world)).toEqual(await openedAt());
    await world.settle(await world.probe(), answered(202));
    expect(await notClosedSince(world)).toBe(null);
  });

  it('is not that of an earlier outage', async () => {
    const world = await openBreakerWorld({ breaker: { failureThreshold: 1, cooldownMs: 30_000 } });
    await world.closedAgain();
    await world.opened();
    const last = (await world.transitions()).at(-1);
    expect(last).toMatchObject({ cause: 'failure_threshold', number: 4 });
    expect(await notClosedSince(world)).toEqual(last?.['at']);
  });

  it('runs on under an override, which is none of its business', async () => {
    const world = await openBreakerWorld();
    await world.opened();
    await force(world, 'forced_closed');
    expect(await notClosedSince(world)).toEqual((await world.transitions())[0]?.['at']);
  });

  it('brings the breaker to attention after five minutes, and a close takes it away', async () => {
    const world = await openBreakerWorld();
    const attention = () =>
      world.database.query(`select subject, what from onetake.attention where subject_kind = 'breaker'`);
    await world.opened(2);
    await world.settle(await world.probe(), fails());
    expect(await attention()).toEqual([]);
    await world.passTime(300_000);
    expect(await attention()).toEqual([
      { subject: MUSIC, what: `not closed for long: ${String((await world.status())['why'])}` },
    ]);
    await world.settle(await world.probe(), answered(202));
    expect(await attention()).toEqual([]);
  });
});
