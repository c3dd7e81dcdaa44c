import { existsSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { MUTATIONS } from './mutation-list.ts';

const ROOT = join(import.meta.dirname, '..', '..', '..');

describe('every mutation', () => {
  it.each(MUTATIONS)('$name still applies: $breaks', ({ edits }) => {
    for (const { file, find } of edits) expect(readFileSync(join(ROOT, file), 'utf8')).toContain(find);
  });

  it('names tests that exist', () => {
    const files = MUTATIONS.flatMap(({ tests = [] }) => tests.map(({ file }) => file));
    expect(files.filter((file) => !existsSync(join(ROOT, file)))).toEqual([]);
  });

  it('is known by one name', () => {
    expect(new Set(MUTATIONS.map(({ name }) => name)).size).toBe(MUTATIONS.length);
  });
});
