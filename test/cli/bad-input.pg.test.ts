import { describe, expect, inject, test } from 'vitest';
import { createClient } from '../../src/index.ts';
import { createCli } from './cli.ts';
import { KEY, setStage } from './stage.ts';

const ENQUEUE = ['enqueue', 'text-to-music', '--key', 'k1', '--field'];

describe('bad input on a database', () => {
  test.each([
    ['worker'],
    ['poller'],
    ['start'],
    ['requests', 'list'],
    ['ambiguous', 'list'],
    ['breaker', 'list'],
    ['accounts', 'list'],
    [...ENQUEUE, 'prompt=rain'],
  ])('%s on a database without the schema names the remedy', async (...args) => {
    // The maintenance database of the server: nobody migrates it.
    const { connectionString } = inject('postgres');
    const cli = createCli({ env: { DATABASE_URL: connectionString, SONILO_API_KEY: KEY } });
    const { port, pathname } = new URL(connectionString);
    expect(await cli.error(args)).toMatchObject({
      code: 'schema_not_migrated',
      exitCode: 1,
      hint: expect.stringMatching(
        `onetake migrate.* DATABASE_URL leads to the database ${pathname.slice(1)} at \\S+:${port}\\.$`,
      ),
    });
  });

  test('a database that does not exist, and a role that does not exist, are told apart', async () => {
    const wrong = (change: (url: URL) => void) => {
      const url = new URL(inject('postgres').connectionString);
      change(url);
      return createCli({ env: { DATABASE_URL: url.href } }).error(['requests', 'list']);
    };
    const noDatabase = await wrong((url) => {
      url.pathname = '/nowhere';
    });
    expect(noDatabase).toMatchObject({ code: 'database_unreachable', exitCode: 1 });
    expect(noDatabase.message).toContain("doesn't exist");
    const noRole = await wrong((url) => {
      url.username = 'nobody_at_all';
    });
    expect(noRole).toMatchObject({ code: 'database_unreachable', exitCode: 1 });
    expect(noRole.message).toContain('refuses this user or password');
  });

  test('a key with another payload is refused with the id of its request; nothing is lost or added', async () => {
    const { cli, database } = await setStage();
    const first = await cli.json<{ id: string }>([...ENQUEUE, 'prompt=rain']);
    const error = await cli.error([...ENQUEUE, 'prompt=hunter2canary']);
    expect(error).toMatchObject({ code: 'intent_mismatch', exitCode: 1 });
    expect(error.message).toContain(first.id);
    expect(JSON.stringify(error)).not.toContain('hunter2canary');
    expect(await database.query('select id, state from onetake.generation_requests')).toEqual([
      { id: first.id, state: 'queued' },
    ]);
  });

  test('an unknown field, account or blank prompt is refused before there is a row', async () => {
    const { cli, database } = await setStage();
    expect(await cli.error([...ENQUEUE, 'prompt=rain', '--field', 'promt=rain'])).toMatchObject({
      code: 'unknown_field',
      message: expect.stringContaining('Did you mean "prompt"?'),
      exitCode: 2,
    });
    expect(await cli.error([...ENQUEUE, 'prompt=rain', '--account', 'defalt'])).toMatchObject({
      code: 'unknown_account',
      message: expect.stringContaining('Did you mean "default"?'),
      exitCode: 2,
    });
    expect(await cli.error([...ENQUEUE, 'prompt= '])).toMatchObject({ code: 'invalid_field', exitCode: 2 });
    expect(await database.query('select id from onetake.generation_requests')).toEqual([]);
  });

  test.each([
    ['NUL', 'rain\u0000', 'NUL character'],
    ['a lone surrogate', 'rain\ud83c', 'lone surrogate'],
  ])('a prompt with %s is refused by the library by its field', async (_what, prompt, said) => {
    const { database } = await setStage();
    const client = createClient({ connectionString: database.connectionString });
    try {
      await expect(
        client.enqueue({ operation: 'text-to-music', fields: { prompt }, requestKey: 'k1' }),
      ).rejects.toMatchObject({ code: 'invalid_field', message: expect.stringContaining(said) });
    } finally {
      await client.stop();
    }
    expect(await database.query('select id from onetake.generation_requests')).toEqual([]);
  });
});

describe('onetake migrate', () => {
  test('says what it changed, and the second time that there was nothing', async () => {
    const { cli } = await setStage();
    expect(await cli.json(['migrate'])).toEqual({ from: 'current', changed: [], trouble: null });
    const { code, stdout } = await cli.run(['migrate']);
    expect([code, stdout.split('\n')[0]]).toEqual([0, 'The schema is up to date.']);
  });
});
