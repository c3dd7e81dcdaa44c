import { randomUUID } from 'node:crypto';
import { mkdtempSync, readdirSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { beforeEach, describe, expect, onTestFinished, test } from 'vitest';
import type { InstallationMark } from '../../src/core/installation.ts';
import { createMarkFile } from '../../src/storage/mark-file.ts';

let directory: string;
beforeEach(() => {
  directory = mkdtempSync(join(tmpdir(), 'onetake-marks-'));
  onTestFinished(() => rmSync(directory, { recursive: true, force: true }));
});

const markOf = (changes: Partial<InstallationMark> = {}): InstallationMark => ({
  installation: randomUUID(),
  revision: 1_796_000_000_000,
  flushed: '16/B374D848',
  attemptId: randomUUID(),
  ...changes,
});
const path = () => join(directory, 'installations.json');

describe('the marks of a machine', () => {
  test('are what was kept last of each installation, for this user alone', async () => {
    const file = createMarkFile(directory);
    const [one, other] = [markOf(), markOf({ flushed: null, attemptId: null })];
    await file.keep(one);
    await file.keep(other);
    const later = { ...one, attemptId: randomUUID() };
    await file.keep(later);
    expect(await createMarkFile(directory).load()).toEqual([later, other]);
    expect(readdirSync(directory)).toEqual(['installations.json']);
    expect(statSync(path()).mode & 0o777).toBe(0o600);
  });

  test('are of few installations: the oldest goes', async () => {
    const file = createMarkFile(directory);
    const marks = Array.from({ length: 10 }, () => markOf());
    for (const mark of marks) await file.keep(mark);
    expect(await file.load()).toEqual(marks.slice(2).reverse());
  });

  test.each([
    ['nothing', undefined],
    ['an empty file', ''],
    ['half a file', '[{"installation":"'],
    ['another value', '{"marks":[]}'],
  ])('are none with %s, and are kept again', async (_, content) => {
    if (content !== undefined) writeFileSync(path(), content);
    const file = createMarkFile(directory);
    expect(await file.load()).toEqual([]);
    const mark = markOf();
    await file.keep(mark);
    expect(await file.load()).toEqual([mark]);
  });

  test.each([
    { installation: 'mine' },
    { installation: 7 },
    { revision: 1.5 },
    { revision: '1' },
    { flushed: "0/0'; drop table x" },
    { flushed: 12 },
    { attemptId: 'a' },
    { attemptId: undefined },
  ])('leave out what no statement would take: %j', async (changes) => {
    const good = markOf();
    writeFileSync(path(), JSON.stringify([{ ...markOf(), ...changes }, null, 'x', good]));
    expect(await createMarkFile(directory).load()).toEqual([good]);
  });

  test('that can’t be kept leave no trace and make no trouble', async () => {
    const file = createMarkFile(join(directory, 'missing'));
    await file.keep(markOf());
    expect(await file.load()).toEqual([]);
    expect(readdirSync(directory)).toEqual([]);
  });

  test('survive two writers at once, whole', async () => {
    const files = [createMarkFile(directory), createMarkFile(directory)];
    const marks = [markOf(), markOf()];
    await Promise.all(
      Array.from({ length: 50 }, (_, n) => files[n % 2]?.keep(marks[n % 2] as InstallationMark)),
    );
    const found = await createMarkFile(directory).load();
    expect(found.length).toBeGreaterThan(0);
    for (const mark of found) expect(marks).toContainEqual(mark);
    expect(JSON.parse(readFileSync(path(), 'utf8'))).toEqual(found);
  });
});
