import { execFile } from 'node:child_process';
import { cp, mkdtemp, readdir, readFile, rm, symlink } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { describe, expect, it } from 'vitest';
import { newestMigration } from '../../src/postgres/migrate.ts';
import { NEWEST_MIGRATION } from '../../src/postgres/schema-version.ts';

const run = promisify(execFile);
const ROOT = join(import.meta.dirname, '..', '..');

async function journal(): Promise<{ idx: number; when: number; tag: string }[]> {
  return JSON.parse(await readFile(join(ROOT, 'migrations/meta/_journal.json'), 'utf8')).entries;
}

describe('migrations', () => {
  it('are dated later and later, since the migrator skips whatever is older than its last', async () => {
    const dates = (await journal()).map((entry) => entry.when);
    expect(dates.length).toBeGreaterThan(0);
    expect(dates).toEqual([...new Set(dates)].sort((a, b) => a - b));
  });

  it('are all in the journal', async () => {
    const files = (await readdir(join(ROOT, 'migrations'))).filter((name) => name.endsWith('.sql')).sort();
    expect((await journal()).map((entry) => `${entry.tag}.sql`)).toEqual(files);
  });

  it('end with the one that a client expects, which has no migrations beside it to look at', () => {
    expect(NEWEST_MIGRATION).toBe(newestMigration());
  });

  it('begin by making the schema only where the migrator has not made it', async () => {
    const [first] = (await readFile(join(ROOT, 'migrations/0000_tables.sql'), 'utf8')).split('\n');
    expect(first).toContain('CREATE SCHEMA IF NOT EXISTS "onetake"');
  });

  it('are what the schema says: drizzle-kit finds nothing to generate', { timeout: 60_000 }, async () => {
    const copy = await mkdtemp(join(tmpdir(), 'onetake-schema-'));
    try {
      for (const path of [
        'migrations',
        'drizzle.config.ts',
        'package.json',
        'tsconfig.json',
        'src/postgres',
        'src/core',
      ]) {
        await cp(join(ROOT, path), join(copy, path), { recursive: true });
      }
      await symlink(join(ROOT, 'node_modules'), join(copy, 'node_modules'));
      const kit = (command: string) =>
        run(process.execPath, [join(ROOT, 'node_modules/drizzle-kit/bin.cjs'), command], { cwd: copy });
      expect((await kit('generate')).stdout).toContain('No schema changes');
      expect((await kit('check')).stdout).toContain("Everything's fine");
    } finally {
      await rm(copy, { recursive: true, force: true });
    }
  });
});
