import { execFileSync } from 'node:child_process';
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import type { LoadConfigOptions, LoadedConfig } from '../../src/runtime/load-config.ts';
import { resolveConfig } from '../../src/runtime/options.ts';

const CANARY = 'canary5e1fSECRET';
const ESM = { 'package.json': '{ "type": "module" }' };
const COMMONJS = { 'package.json': '{ "type": "commonjs" }' };
const PLAIN = 'export default { worker: { concurrency: 3 } };\n';
const TYPED = 'const three: number = 3;\nexport default { worker: { concurrency: three } };\n';

type Answer = LoadedConfig | { code: string; message: string; hint?: string; cause?: string };
interface Case {
  readonly files: Readonly<Record<string, string>>;
  readonly path?: string;
}

/**
 * Each case is a folder. A plain Node process loads them all: under vitest an `import()` of the product
 * would go through vitest's own loader, which takes what Node refuses.
 */
const CASES = {
  nothing: { files: ESM },
  ts: { files: { ...ESM, 'onetake.config.ts': TYPED } },
  mts: { files: { ...COMMONJS, 'onetake.config.mts': TYPED } },
  js: { files: { ...ESM, 'onetake.config.js': PLAIN } },
  mjs: { files: { ...COMMONJS, 'onetake.config.mjs': PLAIN } },
  json: { files: { 'onetake.config.json': '\uFEFF{ "worker": { "concurrency": 3 } }' } },
  commonJsExport: {
    files: { ...COMMONJS, 'onetake.config.js': 'module.exports = { worker: { concurrency: 3 } };' },
  },
  given: {
    files: { ...ESM, 'sub/staging.mts': TYPED, 'onetake.config.json': '{}' },
    path: 'sub/staging.mts',
  },
  notFound: { files: ESM, path: 'conf/missing.config.ts' },
  folderGiven: { files: { ...ESM, 'conf/x.txt': '' }, path: 'conf' },
  otherKind: { files: { 'onetake.yaml': 'worker: {}' }, path: 'onetake.yaml' },
  several: { files: { ...ESM, 'onetake.config.ts': TYPED, 'onetake.config.json': '{}' } },
  problems: {
    files: { ...ESM, 'onetake.config.ts': 'export default { worker: { concurrency: "60" }, x: 1 };' },
  },
  jsonProblems: { files: { 'onetake.config.json': '{ "worker": { "concurrency": null } }' } },
  jsonArray: { files: { 'onetake.config.json': '[]' } },
  brokenTs: {
    files: { ...ESM, 'onetake.config.ts': 'export default {\n  worker: { concurrency: 3 ;\n};\n' },
  },
  brokenMjs: { files: { 'onetake.config.mjs': `export default { a: "${CANARY}" "${CANARY}" };` } },
  bareText: { files: { 'onetake.config.mjs': `export default { a: sk ${CANARY} };` } },
  brokenPattern: { files: { 'onetake.config.mjs': `export default { a: /${CANARY}(/ };` } },
  brokenJson: { files: { 'onetake.config.json': `{ "database": "${CANARY}", ${CANARY} }` } },
  shortJson: { files: { 'onetake.config.json': CANARY } },
  emptyJson: { files: { 'onetake.config.json': '' } },
  enumTs: { files: { ...ESM, 'onetake.config.ts': 'enum A { B }\nexport default {};\n' } },
  noDefault: { files: { ...ESM, 'onetake.config.ts': 'export const config = {};\n' } },
  emptyTs: { files: { ...ESM, 'onetake.config.ts': '' } },
  aFunction: { files: { ...ESM, 'onetake.config.ts': 'export default () => ({});\n' } },
  tsInCommonJs: { files: { ...COMMONJS, 'onetake.config.ts': TYPED } },
  importInCommonJs: { files: { ...COMMONJS, 'onetake.config.js': `import 'node:fs';\n${PLAIN}` } },
  importsOnetake: {
    files: {
      ...ESM,
      'onetake.config.ts': "import { defineConfig } from 'onetake';\nexport default defineConfig({});\n",
    },
  },
  importsNothing: { files: { ...ESM, 'onetake.config.ts': "import './settings.ts';\nexport default {};\n" } },
  throws: {
    files: {
      ...ESM,
      'onetake.config.ts': `\nthrow new Error('no stage is set for https://u:${CANARY}@x.example/');\nexport default {};\n`,
    },
  },
  throwsText: { files: { ...ESM, 'onetake.config.ts': `throw '${CANARY}';\n` } },
  quotesText: { files: { ...ESM, 'onetake.config.ts': `export default JSON.parse('${CANARY}');\n` } },
} as const satisfies Record<string, Case>;

type CaseName = keyof typeof CASES;

const LOADER = `
  const { loadConfig } = await import(process.argv[1]);
  const answers = {};
  for (const [name, options] of Object.entries(JSON.parse(process.argv[2]))) {
    answers[name] = await loadConfig(options).catch((error) => ({
      code: error.code, message: error.message, hint: error.hint, cause: error.cause && String(error.cause),
    }));
  }
  console.log(JSON.stringify(answers));
`;

const root = mkdtempSync(join(tmpdir(), 'onetake-config-'));
let answers: Record<CaseName, Answer>;

beforeAll(() => {
  const options: Record<string, LoadConfigOptions> = {};
  for (const [name, { files, path }] of Object.entries<Case>(CASES)) {
    const cwd = join(root, name);
    for (const [file, content] of Object.entries(files)) {
      mkdirSync(join(cwd, file, '..'), { recursive: true });
      writeFileSync(join(cwd, file), content);
    }
    options[name] = path === undefined ? { cwd } : { cwd, path };
  }
  const module = new URL('../../src/runtime/load-config.ts', import.meta.url).href;
  const args = ['--no-warnings', '--input-type=module', '--eval', LOADER, module, JSON.stringify(options)];
  answers = JSON.parse(execFileSync(process.execPath, args, { encoding: 'utf8', timeout: 30_000 }));
});

afterAll(() => rmSync(root, { recursive: true }));

function loaded(name: CaseName): LoadedConfig {
  const answer = answers[name];
  if ('code' in answer) throw new Error(answer.message);
  return answer;
}

function refused(name: CaseName) {
  const answer = answers[name];
  if (!('code' in answer)) throw new Error(`${name} was loaded`);
  return answer;
}

describe('loadConfig', () => {
  it('takes the defaults where there is no file', () => {
    expect(loaded('nothing').path).toBeNull();
    expect(loaded('nothing').config).toEqual(resolveConfig({}));
  });

  it.each(['ts', 'mts', 'js', 'mjs', 'json'] as const)('finds and loads onetake.config.%s', (kind) => {
    expect(loaded(kind).path).toBe(join(root, kind, `onetake.config.${kind}`));
    expect(loaded(kind).config.worker.concurrency).toBe(3);
  });

  it('loads what a CommonJS file exports', () => {
    expect(loaded('commonJsExport').config.worker.concurrency).toBe(3);
  });

  it('loads the file that is named, from the working directory, and no other', () => {
    expect(loaded('given').path).toBe(join(root, 'given', 'sub', 'staging.mts'));
    expect(loaded('given').config.worker.concurrency).toBe(3);
  });

  it.each(['notFound', 'folderGiven'] as const)(
    'names the path that was given and is no file (%s)',
    (name) => {
      expect(refused(name).code).toBe('configuration_not_found');
      expect(refused(name).message).toBe(`Configuration ${CASES[name].path}: there is no such file.`);
      expect(refused(name).hint).toBeDefined();
    },
  );

  it.each([
    ['otherKind', 'Configuration onetake.yaml: expected a file that ends in .ts, .mts, .js, .mjs, .json.'],
    ['several', 'There are several configurations: onetake.config.ts, onetake.config.json.'],
    ['jsonArray', 'onetake.config.json has 1 problem:\n  expected an object, got a list.'],
    ['aFunction', 'onetake.config.ts has 1 problem:\n  expected an object, got a function.'],
    ['brokenTs', "Configuration onetake.config.ts: can't be loaded: Expected ',', got ';' (line 2)."],
    ['brokenMjs', "Configuration onetake.config.mjs: can't be loaded: Unexpected string."],
    ['noDefault', 'Configuration onetake.config.ts: has no default export.'],
    ['emptyTs', 'Configuration onetake.config.ts: has no default export.'],
    ['shortJson', "Configuration onetake.config.json: isn't valid JSON."],
    ['emptyJson', "Configuration onetake.config.json: isn't valid JSON."],
    ['throwsText', "Configuration onetake.config.ts: can't be loaded: it threw something that is no error."],
    ['throws', "Configuration onetake.config.ts: can't be loaded: no stage is set for (a URL) (line 2)."],
    [
      'importsOnetake',
      "Configuration onetake.config.ts: imports 'onetake', which isn't installed beside it.",
    ],
    [
      'tsInCommonJs',
      'Configuration onetake.config.ts: is an ES module, but its package.json makes it CommonJS.',
    ],
    [
      'importInCommonJs',
      'Configuration onetake.config.js: is an ES module, but its package.json makes it CommonJS.',
    ],
  ] as const)('refuses %s in one message with its reason', (name, message) => {
    expect(refused(name).code).toBe('configuration_invalid');
    expect(refused(name).message).toBe(message);
  });

  it('tells the reason of what Node cannot load', () => {
    expect(refused('enumTs').message).toContain('enum is not supported');
    expect(refused('importsNothing').message).toContain('settings.ts');
    expect(refused('brokenJson').message).toContain("isn't valid JSON (line 1 column ");
    expect(refused('brokenJson').hint).toContain('no comments');
  });

  it('says what to do about CommonJS and about a missing onetake', () => {
    expect(refused('tsInCommonJs').hint).toContain('Rename it to onetake.config.mts');
    expect(refused('importInCommonJs').hint).toContain('Rename it to onetake.config.mjs');
    expect(refused('importsOnetake').hint).toContain('`export default { … }` without the import');
    expect(refused('noDefault').hint).toContain('export default');
  });

  it('tells every problem of the content under the name of the file', () => {
    expect(refused('problems').message).toBe(
      [
        'onetake.config.ts has 2 problems:',
        '  x: unknown setting. Known here: database, providers, accounts, operations, worker, poller, storage.',
        '  worker.concurrency: expected a whole number from 1 to 1,000, got "60".',
      ].join('\n'),
    );
    expect(refused('jsonProblems').message).toContain('worker.concurrency: ');
  });

  it('repeats no text of the file, holds no cause and shows no stack', () => {
    for (const name of Object.keys(CASES) as CaseName[]) {
      const text = JSON.stringify(answers[name]);
      expect(text).not.toContain(CANARY);
      expect(text).not.toMatch(/\\n\s+at /);
      expect(answers[name]).not.toHaveProperty('cause');
    }
  });
});
