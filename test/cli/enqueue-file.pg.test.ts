import { randomUUID } from 'node:crypto';
import { writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { setStage } from './stage.ts';

async function fileOf(lines: readonly unknown[]): Promise<string> {
  const path = join(tmpdir(), `onetake-${randomUUID()}.ndjson`);
  await writeFile(
    path,
    lines.map((line) => (typeof line === 'string' ? line : JSON.stringify(line))).join('\n'),
  );
  return path;
}

const song = (n: number, more: object = {}) => ({
  operation: 'text-to-music',
  fields: { prompt: 'hunter2canary waltz' },
  requestKey: `order ${n}`,
  ...more,
});

test('a file is enqueued by its lines, and again without making anything twice', async () => {
  const { cli, database } = await setStage();
  const path = await fileOf([
    ...Array.from({ length: 1_200 }, (_, n) => song(n)),
    '',
    song(7),
    song(5_000, { submitBefore: '2096-01-01T10:00:00Z', priority: 5 }),
  ]);
  const first = await cli.json(['enqueue', '--file', path]);
  expect(first).toEqual({ lines: 1_202, created: 1_201, existing: 1, refused: [] });
  expect(await cli.json(['enqueue', '--file', path])).toMatchObject({ created: 0, existing: 1_202 });
  const [row] = await database.query(
    `select count(*)::int as count, max(submit_before) as until from onetake.generation_requests`,
  );
  expect(row).toEqual({ count: 1_201, until: new Date('2096-01-01T10:00:00Z') });
});

test('what is refused is told by its line, without a word of a customer, and ends with 1', async () => {
  const { cli } = await setStage();
  const path = await fileOf([
    song(1),
    song(2, { fields: { prompt: 'hunter2canary', duraton: 3 } }),
    7,
    song(3),
  ]);
  const run = await cli.run(['enqueue', '--file', path]);
  expect(run.code).toBe(1);
  expect(run.stdout).toMatch(/created\s+2\n.*\n?.*refused\s+2/);
  expect(run.stderr).toMatch(/line 2: .*duration/);
  expect(run.stderr).toContain('line 3: ');
  expect(`${run.stdout}${run.stderr}`).not.toContain('canary');
});

test('what can’t be done with a file is said', async () => {
  const { cli } = await setStage();
  const broken = await fileOf([song(1), '{"operation": "hunter2canary']);
  for (const [args, said] of [
    [['--file', broken], /line 2 is no JSON/],
    [['--file', '/nonexistent/jobs'], /^error: --file: there is no such file\.$/m],
    [['--file', tmpdir()], /expected a file/],
    [['text-to-music', '--file', broken], /an operation can't be given too/],
    [['--mode', 'stream', '--file', broken], /--mode can't be given too/],
    [['--key', 'x', '--file', broken], /--key can't be given too/],
    [[], /operation: missing/],
  ] as const) {
    const run = await cli.run(['enqueue', ...args]);
    expect(run.code, run.stderr).toBe(2);
    expect(run.stderr).toMatch(said);
    expect(run.stderr).not.toContain('canary');
  }
});
