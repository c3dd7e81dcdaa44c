import { describe, expect, it, onTestFinished, vi } from 'vitest';
import { createClient } from '../../src/index.ts';
import { rescue } from '../../src/lifecycle/rescue.ts';
import type { OverrideBreakerInput } from '../../src/runtime/client-options.ts';
import {
  answered,
  type BreakerWorld,
  COOLDOWN_MS,
  expectChain,
  openBreakerWorld,
} from '../support/breaker-world.ts';
import { MUSIC } from '../support/world.ts';

const fails = () => answered(502);
const accepts = () => answered(202);
const NOTE = { actor: 'night shift', reason: 'provider told us to wait' };

type Mode = OverrideBreakerInput['mode'];

/** The same three acts, by the library and by plain SQL. */
const WAYS: Readonly<
  Record<string, (world: BreakerWorld, mode: Mode, expiresAt?: Date) => Promise<unknown>>
> = {
  library: (world, mode, expiresAt) =>
    world.client.overrideBreaker({
      name: MUSIC,
      mode,
      ...NOTE,
      ...(expiresAt === undefined ? {} : { expiresAt }),
    }),
  SQL: async (world, mode, expiresAt) => {
    const { actor, reason } = NOTE;
    const [row] =
      mode === 'released'
        ? await world.database.query('select onetake.release_breaker($1, $2, $3) as was', [
            MUSIC,
            actor,
            reason,
          ])
        : await world.database.query('select onetake.force_breaker($1, $2, $3, $4, $5) as was', [
            MUSIC,
            mode,
            actor,
            reason,
            expiresAt ?? null,
          ]);
    return row?.['was'];
  },
};
const by = WAYS['library'] as NonNullable<(typeof WAYS)[string]>;

describe.each(Object.entries(WAYS))('an override by %s', (_way, act) => {
  // 1.50, 2.20
  it('forced open refuses everybody, through cooldown and late success, until it is released', async () => {
    const world = await openBreakerWorld();
    const late = await world.admitted();
    await world.song('waiting');
    expect(await act(world, 'forced_open')).toBe('none');
    await world.passTime(COOLDOWN_MS * 3 - 80_000);
    expect(await world.round()).toEqual([]);
    await world.settle(late, accepts());
    expect(await world.round()).toEqual([]);
    expect(await world.status()).toMatchObject({
      state: 'closed',
      effective_state: 'forced_open',
      override: 'forced_open',
      override_actor: NOTE.actor,
      override_reason: NOTE.reason,
      why: 'forced open by night shift: provider told us to wait; underneath it is closed',
    });
    expect(await act(world, 'released')).toBe('forced_open');
    expect(await world.round()).toHaveLength(1);
  });

  // 1.49, 2.21
  it('forced closed admits all over an open breaker, and what comes of them counts for nothing', async () => {
    const world = await openBreakerWorld();
    const opened = await world.opened(5);
    expect(await act(world, 'forced_closed')).toBe('none');
    const attempts = await world.round();
    expect(attempts).toHaveLength(5);
    for (const [n, attempt] of attempts.entries()) await world.settle(attempt, n === 0 ? accepts() : fails());
    for (const attempt of attempts) expect(await world.effect(attempt)).toBe('under_override');
    const row = await world.breaker();
    for (const column of ['state', 'generation', 'opened_at', 'retry_at', 'transitions']) {
      expect(row[column]).toEqual(opened[column]);
    }
  });

  it('ends by itself at its instant, and the end is written down once', async () => {
    const world = await openBreakerWorld();
    await world.song('waiting');
    await act(world, 'forced_open', new Date(Date.now() + 60_000));
    expect((await world.status())['why']).toMatch(/^forced open by night shift until \d\d:\d\d:\d\d: /);
    expect(await world.round()).toEqual([]);
    await world.passTime(60_001);
    expect(await world.status()).toMatchObject({
      effective_state: 'closed',
      override: null,
      override_actor: null,
    });
    expect(await world.round()).toHaveLength(1);
    const other = await world.process();
    await Promise.all([rescue(world.ctx), rescue(other)]);
    expectChain(await world.transitions(), ['operator', 'override_expired']);
    expect(await world.breaker()).toMatchObject({
      override: null,
      override_actor: null,
      override_expires_at: null,
    });
    // Each once; two rescuers may each have taken one, and then either is first.
    const causes = world.transitionEvents().map(({ cause }) => cause);
    expect(causes.sort()).toEqual(['operator', 'override_expired']);
  });

  it('is replaced by another one, in one gap-free chain', async () => {
    const world = await openBreakerWorld();
    expect(await act(world, 'forced_open', new Date(Date.now() + 60_000))).toBe('none');
    expect(await act(world, 'forced_closed')).toBe('forced_open');
    expect(await world.breaker()).toMatchObject({ override: 'forced_closed', override_expires_at: null });
    expect(await act(world, 'forced_closed')).toBe('forced_closed');
    expect(await act(world, 'released')).toBe('forced_closed');
    const chain = await world.transitions();
    expectChain(chain, ['operator', 'operator', 'operator', 'operator']);
    expect(chain.map((row) => row['actor'])).toEqual([NOTE.actor, NOTE.actor, NOTE.actor, NOTE.actor]);
  });

  it('is recorded among the operator’s actions, with actor, session user and reason', async () => {
    const world = await openBreakerWorld();
    await act(world, 'forced_open');
    await act(world, 'released');
    const actions = await world.database.query('select * from onetake.operator_actions order by id');
    expect(actions).toMatchObject([
      { ...NOTE, action: 'force_breaker_forced_open', subject: MUSIC, session_user: 'postgres' },
      { ...NOTE, action: 'release_breaker', subject: MUSIC, session_user: 'postgres' },
    ]);
  });
});

describe('an override for so many ms', () => {
  it.each([
    ['ten minutes ahead', 600_000],
    ['ten minutes behind', -600_000],
  ])('ends by the database’s clock, though the client’s own is %s', async (_what, offset) => {
    const world = await openBreakerWorld();
    vi.useFakeTimers({ toFake: ['Date'], now: Date.now() + offset });
    onTestFinished(() => void vi.useRealTimers());
    const input = { name: MUSIC, mode: 'forced_open', ...NOTE, expiresInMs: 60_000 } as const;
    expect(await world.client.overrideBreaker(input)).toBe('none');
    const [row] = await world.database.query<{ ms: number }>(
      `select (extract(epoch from override_expires_at - at) * 1000)::float8 as ms
from onetake.circuit_breakers b join onetake.circuit_breaker_transitions t on t.breaker_name = b.name`,
    );
    // Between the two readings of that clock lies one statement.
    expect(Math.abs((row?.ms ?? 0) - 60_000)).toBeLessThan(5_000);
    await world.song('waiting');
    await world.passTime(30_000);
    expect(await world.round()).toEqual([]);
    await world.passTime(30_001);
    expect(await world.round()).toHaveLength(1);
  });

  it('is refused at the door when it makes no sense, before anything is asked', async () => {
    const nowhere = createClient({ connectionString: 'postgres://nobody@127.0.0.1:1/none' });
    onTestFinished(() => nowhere.stop());
    const input = { name: MUSIC, mode: 'released', ...NOTE, expiresInMs: 60_000 } as const;
    await expect(nowhere.overrideBreaker(input)).rejects.toMatchObject({ code: 'invalid_option' });
  });
});

describe('an override that is refused', () => {
  const cases: readonly [string, Partial<OverrideBreakerInput>, string, string][] = [
    ['without an actor', { actor: '  ' }, 'OT004', 'operator_identity_missing'],
    ['without a reason', { reason: '' }, 'OT004', 'operator_identity_missing'],
    ['of a breaker that is none', { name: 'sonilo/nothing' }, 'OT001', 'unknown_breaker'],
    ['by a mode that is none', { mode: 'open' as never }, '22023', 'invalid_option'],
    [
      'that would have expired already',
      { expiresAt: new Date(Date.now() - 60_000) },
      '22023',
      'invalid_option',
    ],
  ];
  // 1.52
  it.each(cases)(
    '%s says so by SQL and by the library, and leaves no trace',
    async (_what, change, state, code) => {
      const world = await openBreakerWorld();
      const input = { name: MUSIC, mode: 'forced_open', ...NOTE, ...change } as OverrideBreakerInput;
      await world.expectUnwritten(async () => {
        await expect(
          world.database.query('select onetake.force_breaker($1, $2, $3, $4, $5)', [
            input.name,
            input.mode,
            input.actor,
            input.reason,
            input.expiresAt ?? null,
          ]),
        ).rejects.toMatchObject({ code: state });
        await expect(world.client.overrideBreaker(input)).rejects.toMatchObject({ code });
      });
    },
  );

  it('since there is none to release says so, also once it has expired', async () => {
    const world = await openBreakerWorld();
    const release = () => world.client.overrideBreaker({ name: MUSIC, mode: 'released', ...NOTE });
    await expect(release()).rejects.toMatchObject({ code: 'breaker_not_overridden' });
    await expect(
      world.database.query('select onetake.release_breaker($1, $2, $3)', [MUSIC, 'a', 'b']),
    ).rejects.toMatchObject({ code: 'OT002' });
    await by(world, 'forced_open', new Date(Date.now() + 60_000));
    await world.passTime(60_001);
    await expect(release()).rejects.toMatchObject({ code: 'breaker_not_overridden' });
  });

  // 1.52
  it('by the end of its transaction has not happened: no row, no event', async () => {
    const world = await openBreakerWorld();
    const operator = await world.database.pool({ max: 1 }).connect();
    await operator.query('begin');
    await operator.query('select onetake.force_breaker($1, $2, $3, $4)', [MUSIC, 'forced_open', 'op', 'try']);
    await operator.query('rollback');
    operator.release();
    await rescue(world.ctx);
    expect(await world.breaker()).toMatchObject({ override: null, override_transitions: 0 });
    expect(await world.transitions()).toEqual([]);
    expect(world.transitionEvents()).toEqual([]);
  });
});
