import { chmodSync, existsSync, mkdtempSync, readdirSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, vi } from 'vitest';
import { waitFor } from '../support/wait-for.ts';

/** Of the binaries: there whenever the checkout lies where the database user can't enter. */
const COPY = 'onetake-pgbinaries-';

/** A temporary directory for each test alone, so that what a server leaves behind can be counted. */
export function useOwnTemporaryDirectory(): {
  readonly path: string;
  entries(): string[];
  copies(): string[];
} {
  let path = '';
  beforeEach(() => {
    path = mkdtempSync(join(tmpdir(), 'own-tmp-'));
    chmodSync(path, 0o777);
    vi.stubEnv('TMPDIR', path);
  });
  afterEach(async () => {
    vi.unstubAllEnvs();
    // A supervisor whose parent the test has killed may still be removing the same files.
    await waitFor(
      () => {
        rmSync(path, { recursive: true, force: true, maxRetries: 5 });
        return !existsSync(path);
      },
      { what: 'the temporary directory to be gone' },
    );
  });
  return {
    get path() {
      return path;
    },
    entries: () =>
      readdirSync(path)
        .filter((name) => !name.startsWith(COPY))
        .sort(),
    copies: () => readdirSync(path).filter((name) => name.startsWith(COPY)),
  };
}
