import { describe, expect, test } from 'vitest';
import type { TestDatabase } from '../support/test-database.ts';
import { widestLine } from './cli.ts';
import { setStage } from './stage.ts';

const MUSIC = 'sonilo/text-to-music';
const BECAUSE = ['--reason', 'provider maintenance'];

async function breaker(database: TestDatabase): Promise<Readonly<Record<string, unknown>>> {
  const [row] = await database.query('select * from onetake.circuit_breakers where name = $1', [MUSIC]);
  return row as Readonly<Record<string, unknown>>;
}

const actions = (database: TestDatabase) =>
  database.query('select actor, action, subject, reason from onetake.operator_actions order by id');

describe('onetake breaker force-open, force-closed and release', () => {
  test('say as JSON what the breaker is now, and what was in force before', async () => {
    const { cli } = await setStage();
    const run = (verb: string, ...more: string[]) =>
      cli.json(['breaker', verb, 'text-to-music', ...BECAUSE, ...more]);
    expect(await run('force-open')).toEqual({
      name: MUSIC,
      state: 'closed',
      effectiveState: 'forced_open',
      why: 'forced open by ada: provider maintenance; underneath it is closed',
      since: expect.stringMatching(/Z$/),
      consecutiveFailures: 0,
      openedAt: null,
      retryAt: null,
      retryInMs: null,
      override: 'forced_open',
      overrideActor: 'ada',
      overrideReason: 'provider maintenance',
      overrideExpiresAt: null,
      probeRequestId: null,
      shadow: false,
      notClosedSince: null,
      failureThreshold: 3,
      cooldownMs: 30_000,
      cooldownGrowth: 1,
      maxCooldownMs: 600_000,
      jitter: 0,
      previousOverride: 'none',
    });
    expect(await run('force-closed', '--actor', 'grace')).toMatchObject({
      effectiveState: 'forced_closed',
      overrideActor: 'grace',
      previousOverride: 'forced_open',
    });
    expect(await run('release')).toMatchObject({
      effectiveState: 'closed',
      override: null,
      overrideReason: null,
      previousOverride: 'forced_closed',
    });
    const history = await cli.json<object[]>(['breaker', 'history', MUSIC]);
    expect(history).toMatchObject([
      { layer: 'override', previousState: 'none', nextState: 'forced_open', cause: 'operator', actor: 'ada' },
      { previousState: 'forced_open', nextState: 'forced_closed', actor: 'grace' },
      { previousState: 'forced_closed', nextState: 'none', actor: 'ada' },
    ]);
  });

  test('say it to a person in two lines, and show and history tell it, in 80 columns', async () => {
    const { cli, database } = await setStage();
    await database.query(`insert into onetake.circuit_breaker_transitions (at, breaker_name, number, previous_state,
  next_state, cause, http_status, generation) values (now(), '${MUSIC}', 1, 'closed', 'open', 'failure_threshold', 502, 2)`);
    const forced = await cli.run(['breaker', 'force-open', MUSIC, ...BECAUSE, '--expires-in', '600']);
    expect(forced.code).toBe(0);
    expect(forced.stdout).toMatch(
      /^sonilo\/text-to-music: none -> forced_open\nforced open by ada until \d\d:\d\d:\d\d: provider maintenance; underneath it is closed\n$/,
    );
    const shown = (await cli.run(['breaker', 'show', MUSIC])).stdout;
    expect(shown).toMatch(/^state +forced open$/m);
    expect(shown).toMatch(/^override +forced open$/m);
    expect(shown).toMatch(/^by +ada$/m);
    expect(shown).toMatch(/^reason +provider maintenance$/m);
    expect(shown).toMatch(/^until +2/m);
    const released = await cli.run(['breaker', 'release', MUSIC, ...BECAUSE]);
    expect(released.stdout).toBe('sonilo/text-to-music: forced_open -> none\nclosed: submissions flow\n');
    const history = (await cli.run(['breaker', 'history', MUSIC])).stdout;
    expect(history).toMatch(/ none -> forced open +operator/);
    expect(history).toMatch(/ forced open -> none +operator/);
    expect(history).toMatch(/ closed -> open +failure threshold +502/);
    expect(widestLine(history)).toBeLessThanOrEqual(80);
  });

  test('let it end by itself, after so many seconds of the database’s clock or at an instant', async () => {
    const { cli, database } = await setStage();
    const force = (...expiry: string[]) =>
      cli.json<{ overrideExpiresAt: string }>(['breaker', 'force-closed', MUSIC, ...BECAUSE, ...expiry]);
    const left = async () => {
      const [row] = await database.query<{ ms: number }>(
        `select (extract(epoch from override_expires_at - clock_timestamp()) * 1000)::float8 as ms
from onetake.circuit_breakers where name = $1`,
        [MUSIC],
      );
      return row?.ms ?? 0;
    };
    await force('--expires-in', '600');
    expect(await left()).toBeLessThanOrEqual(600_000);
    expect(await left()).toBeGreaterThan(540_000);
    const { overrideExpiresAt } = await force('--expires-at', '2096-01-01T12:00:00+02:00');
    expect(overrideExpiresAt).toBe('2096-01-01T10:00:00.000Z');
    expect((await breaker(database))['override_expires_at']).toEqual(new Date('2096-01-01T10:00:00Z'));
  });

  test('act as $ONETAKE_ACTOR, as --actor before it, and else as the system user', async () => {
    const { cli, database } = await setStage();
    await cli.run(['breaker', 'force-open', MUSIC, ...BECAUSE]);
    await cli.run(['breaker', 'force-open', MUSIC, ...BECAUSE, '--actor', 'grace']);
    await cli.run(['breaker', 'release', MUSIC, ...BECAUSE], { ONETAKE_ACTOR: undefined });
    const done = await actions(database);
    expect(done).toMatchObject([
      { actor: 'ada', action: 'force_breaker_forced_open', subject: MUSIC, reason: 'provider maintenance' },
      { actor: 'grace', action: 'force_breaker_forced_open' },
      { actor: expect.stringMatching(/^\w/), action: 'release_breaker' },
    ]);
    expect(['ada', 'grace']).not.toContain(done[2]?.['actor']);
  });

  test.each<[string, string[], RegExp, RegExp?]>([
    [
      'both ways to expire',
      ['--expires-in', '60', '--expires-at', '2096-01-01T12:00:00Z'],
      /give one of them/,
    ],
    ['no whole number of seconds', ['--expires-in', '1.5'], /^--expires-in: expected a whole number/],
    ['an instant without its offset', ['--expires-at', '2096-01-01T12:00:00'], /with its offset/],
    [
      'an instant that is over',
      ['--expires-at', '2026-01-01T12:00:00Z'],
      /^The override would .*\.$/,
      /the database's clock/,
    ],
  ])('refuse %s', async (_what, expiry, message, hint?: RegExp) => {
    const { cli, database } = await setStage();
    expect(await cli.error(['breaker', 'force-open', MUSIC, ...BECAUSE, ...expiry])).toMatchObject({
      code: 'invalid_option',
      message: expect.stringMatching(message),
      ...(hint === undefined ? {} : { hint: expect.stringMatching(hint) }),
      exitCode: 2,
    });
    expect(await breaker(database)).toMatchObject({ override: null, override_transitions: 0 });
  });

  test('refuse what has no reason, no breaker, or nothing to release', async () => {
    const { cli, database } = await setStage();
    const refused = (...args: string[]) => cli.error(['breaker', ...args]);
    expect(await refused('force-open', MUSIC)).toMatchObject({ code: 'invalid_option', exitCode: 2 });
    expect(await refused('force-open', MUSIC, '--reason', ' ')).toMatchObject({
      code: 'operator_identity_missing',
      exitCode: 2,
    });
    expect(await refused('force-open', 'text-to-musik', ...BECAUSE)).toMatchObject({
      code: 'unknown_breaker',
      message: 'There is no breaker of that name. Did you mean "text-to-music"?',
      exitCode: 2,
    });
    expect(await refused('force-open', ...BECAUSE)).toMatchObject({
      code: 'invalid_option',
      message: 'Which breaker? Give its name.',
      exitCode: 2,
    });
    expect(await refused('release', MUSIC, ...BECAUSE)).toMatchObject({
      code: 'breaker_not_overridden',
      message: `Breaker "${MUSIC}" is not overridden.`,
      hint: expect.stringContaining('onetake breaker list'),
      exitCode: 1,
    });
    expect(await refused('release', MUSIC, ...BECAUSE, '--expires-in', '60')).toMatchObject({
      code: 'invalid_option',
      exitCode: 2,
    });
    expect(await actions(database)).toEqual([]);
  });
});
