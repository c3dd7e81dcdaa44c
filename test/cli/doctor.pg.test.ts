import { mkdirSync, readdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { createSpool } from '../../src/storage/spool.ts';
import { createEmptyDatabase } from '../support/empty-database.ts';
import { createRole } from '../support/roles.ts';
import { spooledOutcome } from '../support/spooled.ts';
import { rowPrints } from '../support/world.ts';
import { type Cli, createCli, type Env, widestLine } from './cli.ts';
import { KEY, setStage } from './stage.ts';

interface Check {
  readonly name: string;
  readonly status: 'ok' | 'warn' | 'fail';
  readonly detail: string;
  readonly hint: string | null;
}

const NAMES = [
  'configuration',
  'database',
  'version',
  'durability',
  'commit',
  'standby',
  'clock',
  'session',
  'schema',
  'queue',
  'rights',
  'settings',
  'installation',
  'provider sonilo',
  'wire sonilo',
  'key default',
  'spool',
  'storage',
];

async function examined(cli: Cli, env: Env = {}): Promise<Record<string, Check>> {
  const { checks } = await cli.json<{ checks: Check[] }>(['doctor'], env);
  for (const check of checks) {
    expect(Object.keys(check)).toEqual(['name', 'status', 'detail', 'hint']);
    expect(check.hint === null, check.name).toBe(check.status === 'ok');
  }
  return Object.fromEntries(checks.map((check) => [check.name, check]));
}

describe('onetake doctor', () => {
  test('looks at everything, finds what is right, and names a server that does not sync', async () => {
    const { cli, database, simulator } = await setStage();
    await cli.run(['migrate']);
    const before = await rowPrints(database);
    const checks = await examined(cli);
    expect(Object.keys(checks)).toEqual(NAMES);
    // The servers of tests run without fsync.
    const { durability, ...others } = checks;
    expect(durability).toMatchObject({ status: 'fail', detail: expect.stringContaining('fsync') });
    expect(Object.values(others).filter(({ status }) => status !== 'ok')).toEqual([]);
    expect(checks['standby']?.detail).toContain('none is synchronous');
    expect(checks['key default']?.detail).toBe('SONILO_API_KEY is accepted by the provider');
    expect(checks['wire sonilo']?.detail).toBe('can prove what was not sent');

    expect(await rowPrints(database)).toEqual(before);
    expect(readdirSync(cli.directory)).toEqual(['onetake.config.json']);
    expect(simulator.ledger().totals.posts).toBe(0);
  });

  test('is a table of 80 columns, ends with 1 when a check fails, and shows no key and no password', async () => {
    const { cli, database } = await setStage();
    const { code, stdout, stderr } = await cli.run(['doctor'], { COLUMNS: '80' });
    expect(code).toBe(1);
    expect(stdout).toMatch(/^check +what, and what to do$/m);
    expect(stdout).toMatch(/^durability +FAIL {2}fsync/m);
    expect(stdout).toMatch(/^database +ok {4}reached directly/m);
    expect(widestLine(stdout)).toBeLessThanOrEqual(80);
    const { password, host } = new URL(database.connectionString);
    for (const secret of [KEY, password, host]) expect(stdout + stderr).not.toContain(secret);
  });

  test('looks at the rest when the database is away', async () => {
    const { cli } = await setStage();
    const checks = await examined(cli, { DATABASE_URL: 'postgres://user:hunter2@127.0.0.1:9/app' });
    expect(checks['database']).toMatchObject({
      status: 'fail',
      detail: expect.stringContaining('ECONNREFUSED'),
    });
    expect(JSON.stringify(checks)).not.toContain('hunter2');
    expect(Object.keys(checks)).toEqual([
      'configuration',
      'database',
      ...NAMES.slice(NAMES.indexOf('provider sonilo')),
    ]);
    expect((await examined(cli, { DATABASE_URL: undefined }))['database']).toMatchObject({
      status: 'fail',
      detail: 'DATABASE_URL is not set',
    });
  });

  test('names the variable of a key that is missing, and of one that is refused', async () => {
    const { cli } = await setStage({ keys: { sk_wrong: 401 } });
    expect((await examined(cli, { SONILO_API_KEY: undefined }))['key default']).toMatchObject({
      status: 'fail',
      detail: 'SONILO_API_KEY is not set',
    });
    const refused = (await examined(cli, { SONILO_API_KEY: 'sk_wrong' }))['key default'];
    expect(refused).toMatchObject({ status: 'fail', detail: 'SONILO_API_KEY is refused by the provider' });
    expect((await examined(cli, { SONILO_API_KEY: 'sk_right' }))['key default']).toMatchObject({
      status: 'ok',
    });
  });

  test('tells a provider that is out of reach, and asks it for no key', async () => {
    const { cli, simulator } = await setStage();
    await simulator.stop();
    const checks = await examined(cli);
    expect(checks['provider sonilo']).toMatchObject({ status: 'fail' });
    expect(checks['key default']).toMatchObject({ status: 'ok', detail: 'SONILO_API_KEY is set' });
  });

  test('tells rows that differ from the file, and a database that is not recognised', async () => {
    const { cli, database } = await setStage();
    await database.query('update onetake.accounts set requests_per_minute = 7');
    await database.query('update onetake.installation set database_oid = 1');
    const checks = await examined(cli);
    expect(checks['settings']).toMatchObject({
      status: 'warn',
      detail: expect.stringContaining('accounts.default'),
    });
    expect(checks['installation']).toMatchObject({
      status: 'fail',
      detail: expect.stringContaining('another_database'),
      hint: expect.stringContaining('onetake recover'),
    });
  });

  test('tells a database without our schema', async () => {
    const { cli } = await setStage();
    await using empty = await createEmptyDatabase();
    const checks = await examined(cli, { DATABASE_URL: empty.connectionString });
    expect(checks['schema']).toMatchObject({
      status: 'fail',
      hint: expect.stringContaining('onetake migrate'),
    });
    expect(checks['installation']).toBe(undefined);
    expect(checks['spool']).toMatchObject({ status: 'ok' });
  });

  test('tells a role that can’t do a worker’s work, one that is read-only, and one that commits asynchronously', async () => {
    const { cli, database } = await setStage();
    await using role = await createRole(database, {
      default_transaction_read_only: 'on',
      synchronous_commit: 'off',
    });
    await database.query(`grant usage on schema onetake, onetake_queue to ${role.name};
grant select on all tables in schema onetake, onetake_queue to ${role.name}`);
    const checks = await examined(cli, { DATABASE_URL: role.connectionString });
    expect(checks['rights']).toMatchObject({
      status: 'warn',
      detail: expect.stringContaining('no update on onetake.'),
    });
    expect(checks['database']).toMatchObject({
      status: 'fail',
      detail: expect.stringContaining('read-only'),
    });
    expect(checks['commit']).toMatchObject({
      status: 'ok',
      detail: 'synchronous_commit = off for this role; intent and outcome use on',
    });
  });

  test('counts what waits in the spool, and tells directories that can’t be written', async () => {
    const { cli } = await setStage();
    const directory = join(cli.directory, '.onetake/spool');
    const spool = createSpool({ directory, onTrouble: () => undefined });
    await spool.keep(spooledOutcome());
    expect((await examined(cli))['spool']).toMatchObject({
      status: 'warn',
      detail: '1 outcome not committed yet',
    });

    writeFileSync(join(cli.directory, 'generations'), 'a file');
    expect((await examined(cli))['storage']).toMatchObject({
      status: 'fail',
      detail: expect.stringContaining('ENOTDIR'),
    });
    const blocked = createCli({ config: { worker: { spoolDirectory: 'file/spool' } } });
    writeFileSync(join(blocked.directory, 'file'), '');
    mkdirSync(join(blocked.directory, 'other'));
    const found = await examined(blocked);
    expect(found['spool']).toMatchObject({ status: 'fail', detail: expect.stringContaining('ENOTDIR') });
    expect(found['storage']).toMatchObject({ status: 'ok', detail: expect.stringContaining('none') });
  });

  test('ends with 2 for a configuration that is wrong', async () => {
    const cli = createCli({ config: { worker: { concurrency: 0 } } });
    expect(await cli.error(['doctor'])).toMatchObject({ exitCode: 2, code: 'configuration_invalid' });
  });
});
