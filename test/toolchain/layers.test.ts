import { execFile } from 'node:child_process';
import { cp, mkdir, mkdtemp, readFile, rm, symlink, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { badFiles, goodFiles } from './bad-files.ts';

interface Diagnostic {
  readonly category: string;
  readonly message: string;
  readonly location: { readonly path: string };
}

interface Configuration {
  readonly plugins: readonly { readonly path: string }[];
  readonly overrides: readonly {
    readonly includes: readonly string[];
    readonly linter?: { readonly rules: { readonly style?: { readonly noRestrictedImports?: unknown } } };
  }[];
}

const root = path.resolve(import.meta.dirname, '../..');
let tree = '';
let found: readonly Diagnostic[] = [];

beforeAll(async () => {
  // The real configuration over a tree of its own: all files are linted in one run, as in a checkout.
  tree = await mkdtemp(path.join(tmpdir(), 'onetake-layers-'));
  for (const name of ['.biome.json', '.biome', '.gitignore', 'package.json']) {
    await cp(path.join(root, name), path.join(tree, name), { recursive: true });
  }
  await symlink(path.join(root, 'node_modules'), path.join(tree, 'node_modules'));
  const files = [...Object.entries(goodFiles), ...badFiles.map((file) => [file.path, file.source] as const)];
  for (const [name, source] of files) {
    await mkdir(path.dirname(path.join(tree, name)), { recursive: true });
    await writeFile(path.join(tree, name), `${source}\n`);
  }
  found = await lint(tree);
});

afterAll(() => rm(tree, { recursive: true, force: true }));

async function lint(directory: string): Promise<readonly Diagnostic[]> {
  const biome = path.join(root, 'node_modules/@biomejs/biome/bin/biome');
  const report = await new Promise<string>((resolve) => {
    execFile(
      process.execPath,
      [biome, 'lint', '--reporter=json', '--max-diagnostics=none'],
      { cwd: directory, maxBuffer: 64 * 1024 * 1024 },
      (_error, stdout) => resolve(stdout),
    );
  });
  return (JSON.parse(report) as { diagnostics: readonly Diagnostic[] }).diagnostics;
}

const ofFile = (name: string) => found.filter((diagnostic) => diagnostic.location.path === name);

describe('the linter refuses', () => {
  test.each(badFiles)('$breaks ($path)', ({ path: name, rule, message = '' }) => {
    const matching = ofFile(name).filter(
      (diagnostic) => diagnostic.category === rule && diagnostic.message.startsWith(message),
    );
    expect(matching, JSON.stringify(ofFile(name))).not.toHaveLength(0);
  });
});

describe('the linter accepts', () => {
  test.each(Object.keys(goodFiles))('%s', (name) => {
    expect(ofFile(name)).toEqual([]);
  });
});

describe('the configuration', () => {
  test('has a bad file for every layer rule', async () => {
    const { overrides } = JSON.parse(await readFile(path.join(root, '.biome.json'), 'utf8')) as Configuration;
    const layers = overrides.filter((override) => override.linter?.rules.style?.noRestrictedImports);
    const untried = layers.filter(
      ({ includes }) =>
        !badFiles.some(
          (file) =>
            file.rule === 'lint/style/noRestrictedImports' &&
            includes.some((glob) => path.matchesGlob(file.path, glob)),
        ),
    );
    expect(layers.length).toBeGreaterThan(20);
    expect(untried.map(({ includes }) => includes)).toEqual([]);
  });

  test('has a bad file for every plugin', async () => {
    const { plugins } = JSON.parse(await readFile(path.join(root, '.biome.json'), 'utf8')) as Configuration;
    const tried = new Set(badFiles.filter((file) => file.rule === 'plugin').map((file) => file.message));
    for (const { path: name } of plugins) {
      const source = await readFile(path.join(root, name), 'utf8');
      expect(
        [...tried].some((message) => source.includes(message ?? name)),
        name,
      ).toBe(true);
    }
  });
});
