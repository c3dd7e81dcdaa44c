import { existsSync, mkdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, it } from 'vitest';
import { claimDirectory } from '../../src/embedded/persistent-directory.ts';
import { useOwnTemporaryDirectory } from './own-temporary-directory.ts';

const temporary = useOwnTemporaryDirectory();

it('keeps a new directory out of git, since the password lies in it, and one of the user as it is', async () => {
  const made = await claimDirectory(join(temporary.path, 'app', 'postgres'));
  expect(readFileSync(join(made, '.gitignore'), 'utf8')).toBe('*\n');
  expect(existsSync(join(temporary.path, 'app', '.gitignore'))).toBe(false);

  mkdirSync(join(temporary.path, 'theirs'));
  const theirs = await claimDirectory(join(temporary.path, 'theirs'));
  expect(existsSync(join(theirs, '.gitignore'))).toBe(false);
});
