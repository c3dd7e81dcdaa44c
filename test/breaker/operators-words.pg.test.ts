import { describe, expect, it } from 'vitest';
import { createCli } from '../cli/cli.ts';
import { type BreakerWorld, openBreakerWorld } from '../support/breaker-world.ts';
import { createRole } from '../support/roles.ts';
import { MUSIC } from '../support/world.ts';

// What an operator may say to the functions in plain SQL, where no door of ours stands before them.

const force = (world: BreakerWorld, actor: unknown, reason: unknown, expiresAt: string | null = null) =>
  world.database.query('select onetake.force_breaker($1, $2, $3, $4, $5::timestamptz)', [
    MUSIC,
    'forced_open',
    actor,
    reason,
    expiresAt,
  ]);

const shown = async (world: BreakerWorld) => {
  const [row] = (await world.client.breakerStatus()).filter(({ name }) => name === MUSIC);
  return row as NonNullable<typeof row>;
};

describe('an override by an actor or with a reason', () => {
  it.each([
    ['null', null],
    ['empty', ''],
    ['blank', '   '],
    ['a tab', '\t'],
    ['line ends', ' \r\n\n'],
    ['a no-break space', '\u00a0'],
    ['an em space', '\u2003'],
    ['an ideographic space', '\u3000'],
    ['nothing that can be seen', '\u200b\u2060\ufeff'],
  ])('that is %s is refused, forced or released, and leaves no trace', async (_what, blank) => {
    const world = await openBreakerWorld();
    const missing = { code: 'OT004' };
    await world.expectUnwritten(async () => {
      await expect(force(world, blank, 'why')).rejects.toMatchObject(missing);
      await expect(force(world, 'mia', blank)).rejects.toMatchObject(missing);
    });
    await force(world, 'mia', 'why');
    const release = (actor: unknown, reason: unknown) =>
      world.database.query('select onetake.release_breaker($1, $2, $3)', [MUSIC, actor, reason]);
    await world.expectUnwritten(async () => {
      await expect(release(blank, 'why')).rejects.toMatchObject(missing);
      await expect(release('mia', blank)).rejects.toMatchObject(missing);
    });
    expect(await world.breaker()).toMatchObject({ override: 'forced_open' });
  });

  it('of many lines is kept as it was given, and is one line of one sentence', async () => {
    const world = await openBreakerWorld();
    await world.song('waiting');
    const reason = 'provider:\n\t"back at 4"\r\n\u001b[31mred\u0007';
    await force(world, ' mia\n(night) ', reason);
    const why = 'forced open by mia (night): provider: "back at 4" [31mred; underneath it is closed';
    expect(await shown(world)).toMatchObject({ overrideActor: 'mia (night)', overrideReason: reason, why });
    expect((await world.client.list())[0]).toMatchObject({
      waitingFor: 'breaker forced open by mia (night): provider: "back at 4" [31mred',
    });
    expect(await world.database.query('select actor, reason from onetake.operator_actions')).toEqual([
      { actor: 'mia (night)', reason },
    ]);
  });

  it('of a million characters is kept, and shortened where it is repeated', async () => {
    const world = await openBreakerWorld();
    await world.song('waiting');
    const reason = 'because '.repeat(125_000).trim();
    await force(world, 'mia', reason);
    const { why, overrideReason } = await shown(world);
    expect(overrideReason).toBe(reason);
    expect(why.length).toBeLessThan(300);
    expect(why).toMatch(/^forced open by mia: (because )+because…; underneath it is closed$/);
    expect((await world.client.list())[0]?.waitingFor?.length).toBeLessThan(300);
  });
});

describe('an override that ends', () => {
  it.each(['infinity', null])('at %s is one without an end', async (at) => {
    const world = await openBreakerWorld();
    await world.song('waiting');
    await force(world, 'mia', 'why', at);
    expect(await world.round()).toEqual([]);
    expect(await shown(world)).toMatchObject({
      overrideExpiresAt: null,
      why: 'forced open by mia: why; underneath it is closed',
    });
  });

  it.each(['-infinity', '4713-01-01 BC', '10000-01-01 00:00:00Z', '294276-12-31'])(
    'at %s is refused',
    async (at) => {
      const world = await openBreakerWorld();
      await world.expectUnwritten(async () => {
        await expect(force(world, 'mia', 'why', at)).rejects.toMatchObject({ code: '22023' });
      });
    },
  );

  it('on another day says which', async () => {
    const world = await openBreakerWorld();
    await force(world, 'mia', 'why', '9999-12-31 23:59:59Z');
    expect(await shown(world)).toMatchObject({
      why: 'forced open by mia until 9999-12-31 23:59:59: why; underneath it is closed',
    });
    await force(world, 'mia', 'why', new Date(Date.now() + 3_600_000).toISOString());
    expect((await shown(world)).why).toMatch(/^forced open by mia until \d\d:\d\d:\d\d: why;/);
  });

  it('can be shown and released on the command line, whatever SQL has made of it', async () => {
    const world = await openBreakerWorld();
    const cli = createCli({ env: { DATABASE_URL: world.database.connectionString } });
    for (const at of ['infinity', '9999-12-31 23:59:59Z']) {
      await force(world, 'mia', 'two\nlines', at);
      expect((await cli.run(['breaker', 'show', MUSIC])).code).toBe(0);
    }
    const row = await cli.json<Record<string, unknown>>(['breaker', 'release', MUSIC, '--reason', 'over']);
    expect(row).toMatchObject({ override: null, previousOverride: 'forced_open' });
  });
});

describe('operators who may do nothing but call the functions', () => {
  it('come together, and each act is one row of one gap-free chain', async () => {
    const world = await openBreakerWorld();
    const roles = await Promise.all([1, 2, 3, 4].map(() => createRole(world.database)));
    try {
      for (const role of roles) {
        await world.database.query(`grant usage on schema onetake to ${role.name}`);
        await world.database.query(
          `grant execute on function onetake.force_breaker, onetake.release_breaker to ${role.name}`,
        );
      }
      const acts = roles.flatMap(({ pool, name }) =>
        [1, 2, 3, 4, 5].flatMap((n) => [
          pool.query('select onetake.force_breaker($1, $2, $3, $4)', [
            MUSIC,
            n % 2 === 0 ? 'forced_open' : 'forced_closed',
            name,
            `act ${n}`,
          ]),
          pool.query('select onetake.release_breaker($1, $2, $3)', [MUSIC, name, `act ${n}`]),
        ]),
      );
      const results = await Promise.allSettled(acts);
      const refused = results.flatMap((result) => (result.status === 'rejected' ? [result.reason] : []));
      expect(refused.every((error) => error.code === 'OT002')).toBe(true);
      const done = results.length - refused.length;
      const chain = await world.transitions();
      expect(chain.map((row) => row['number'])).toEqual(Array.from({ length: done }, (_, n) => n + 1));
      let state: unknown = 'none';
      for (const row of chain) {
        expect(row).toMatchObject({ layer: 'override', previous_state: state });
        state = row['next_state'];
      }
      expect(await world.breaker()).toMatchObject({
        override: state === 'none' ? null : state,
        override_transitions: done,
        transitions: 0,
      });
      const actions = await world.database.query(
        'select actor, "session_user" from onetake.operator_actions order by id',
      );
      expect(actions).toHaveLength(done);
      for (const action of actions) expect(action['session_user']).toBe(action['actor']);
    } finally {
      for (const role of roles) await role[Symbol.asyncDispose]();
    }
  });
});
