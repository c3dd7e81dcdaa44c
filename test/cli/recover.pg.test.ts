import { describe, expect, test } from 'vitest';
import { insertRequest } from '../support/fixtures.ts';
import type { TestDatabase } from '../support/test-database.ts';
import { widestLine } from './cli.ts';
import { setStage } from './stage.ts';

const disown = (database: TestDatabase) =>
  database.query('update onetake.installation set timeline = timeline + 1');

describe('onetake recover', () => {
  test('shows a database that is recognised, and ends with 0', async () => {
    const { cli, database } = await setStage();
    await insertRequest(database);
    expect(await cli.json(['recover'])).toMatchObject({
      recognised: true,
      trouble: null,
      present: { timeline: 1, systemIdentifier: expect.stringMatching(/^\d+$/) },
      confirmed: { by: 'test', reason: 'a clone of the template', at: expect.stringMatching(/Z$/) },
      doubt: null,
      queued: 1,
      submitting: 0,
    });
    const { code, stdout, stderr } = await cli.run(['recover']);
    expect(code).toBe(0);
    expect(stdout).toMatch(/^database {3}recognised$/m);
    expect(stderr).toBe('');
  });

  test('shows what is wrong with one that is not, and the two ways out, in 80 columns, and ends with 1', async () => {
    const { cli, database } = await setStage();
    await insertRequest(database);
    await disown(database);
    const { code, stdout, stderr } = await cli.run(['recover']);
    expect(code).toBe(1);
    expect(stdout).toContain('NOT recognised (another_timeline)');
    expect(stdout).toContain('or a standby took over');
    expect(stderr).toContain('onetake recover --freeze');
    expect(stderr).toContain('onetake recover --resume');
    expect(Math.max(widestLine(stdout), widestLine(stderr))).toBeLessThanOrEqual(80);
  });

  test('freezes, with a name and a reason, when it need not ask', async () => {
    const { cli, database } = await setStage();
    const id = await insertRequest(database);
    await disown(database);
    const freeze = ['recover', '--freeze', '--reason', 'restored the backup of 04:00'];
    expect(await cli.error(freeze)).toMatchObject({
      exitCode: 2,
      code: 'invalid_option',
      message: expect.stringContaining('1 queued request'),
      hint: expect.stringContaining('--yes'),
    });
    expect(await cli.json([...freeze, '--yes'])).toEqual({
      mode: 'freeze',
      was: 'another_timeline',
      frozen: 1,
    });
    expect(await database.query('select id, state, state_reason from onetake.generation_requests')).toEqual([
      { id, state: 'ambiguous', state_reason: 'recovered' },
    ]);
    expect(await database.query('select actor, reason from onetake.operator_actions')).toEqual([
      { actor: 'ada', reason: 'restored the backup of 04:00' },
    ]);
    const { stdout, stderr } = await cli.run([...freeze, '--yes', '--actor', 'mia']);
    expect(stdout).toContain('It was recognised before.');
    expect(stdout).toContain('Frozen: 0.');
    expect(stderr).toBe('');
  });

  test('leaves what was enqueued after the restore', async () => {
    const { cli, database } = await setStage();
    await insertRequest(database);
    const before = new Date(Date.now() - 60_000).toISOString();
    const freeze = ['recover', '--freeze', '--reason', 'r', '--yes', '--enqueued-before', before];
    expect(await cli.json(freeze)).toMatchObject({ frozen: 0 });
  });

  test('resumes, and after a proven loss only by force', async () => {
    const { cli, database } = await setStage();
    await disown(database);
    const resume = ['recover', '--resume', '--reason', 'switched over to db-2', '--yes'];
    expect(await cli.json(resume)).toEqual({ mode: 'resume', was: 'another_timeline', frozen: 0 });
    await database.query(
      `update onetake.installation set doubt = 'intent_lost', doubted_at = now(), doubted_by = 'host-7:12'`,
    );
    expect(await cli.error(resume)).toMatchObject({
      exitCode: 1,
      code: 'installation_in_doubt',
      hint: expect.stringMatching(/^Freeze it\./),
    });
    expect((await cli.run(['recover'])).stdout).toContain('host-7:12');
    expect(await cli.json([...resume, '--force'])).toMatchObject({ was: 'intent_lost' });
  });

  test.each([
    [['--freeze', '--resume', '--reason', 'r'], /one of them/],
    [['--freeze'], /needs --reason/],
    [['--resume', '--yes'], /needs --reason/],
    [['--reason', 'r'], /--freeze or --resume/],
    [['--freeze', '--force', '--reason', 'r'], /--force belongs to --resume/],
    [['--resume', '--enqueued-before', '2026-01-01T00:00:00Z', '--reason', 'r'], /belongs to --freeze/],
    [['--freeze', '--enqueued-before', 'yesterday', '--reason', 'r'], /--enqueued-before/],
  ])('refuses %j', async (given, message) => {
    const { cli, database } = await setStage();
    await disown(database);
    const error = await cli.error(['recover', ...given]);
    expect(error).toMatchObject({ exitCode: 2, code: 'invalid_option' });
    expect(error.message).toMatch(message);
    expect(await database.query('select from onetake.operator_actions')).toEqual([]);
  });

  test('is where a migration of a copy points to', async () => {
    const { cli, database } = await setStage();
    await disown(database);
    const { code, stderr } = await cli.run(['migrate']);
    expect(code).toBe(0);
    expect(stderr).toContain('onetake recover');
    expect(await cli.json(['migrate'])).toMatchObject({ trouble: 'another_timeline' });
  });
});
