import { fileURLToPath } from 'node:url';
import { defineConfig, type TestProjectInlineConfiguration } from 'vitest/config';

const root = fileURLToPath(new URL('..', import.meta.url));
/** Where the gate wants each run's report, as JSON. */
const reports = process.env['ONETAKE_TEST_REPORTS'];

// Most of what a child process costs is reading our TypeScript: each version of a file is compiled once. Coverage would
// be less exact.
if (!process.argv.includes('--coverage')) {
  process.env['NODE_COMPILE_CACHE'] ??= `${root}node_modules/.cache/onetake-tests`;
}

/** Several processes at once, killed, stopped and cut off from each other; deadlines that are waited for; new servers. */
const LONG = [
  'test/chaos/**/*.pg.test.ts',
  'test/cli/demo/demo.pg.test.ts',
  'test/cli/processes.pg.test.ts',
  'test/cli/shutdown.pg.test.ts',
  'test/embedded/ephemeral.test.ts',
  'test/embedded/installation.test.ts',
  'test/embedded/persistent.test.ts',
  'test/lifecycle/rescue-many.pg.test.ts',
  'test/runtime/stop.pg.test.ts',
];

/** One process for many files: to load the product anew for each takes seconds. A file leaves nothing behind in it. */
const SHARED = { isolate: false, setupFiles: ['test/support/real-clocks.ts'] };

export default defineConfig({
  root,
  test: {
    ...(reports === undefined
      ? {}
      : { reporters: ['default', ['json', { outputFile: `${reports}/${process.pid}.json` }]] }),
    coverage: {
      provider: 'v8',
      include: ['src/core/**'],
      reporter: [['text', { skipFull: true }]],
      thresholds: { 'src/core/**': { lines: 100, branches: 100, functions: 100, statements: 100 } },
    },
    projects: [
      // Apart, so that the coverage of core is counted where it is shown, and slows nothing else down.
      { root, test: { name: 'core', include: ['test/core/**/*.test.ts'], ...SHARED } },
      {
        root,
        test: {
          name: 'unit',
          include: ['test/**/*.test.ts'],
          exclude: ['test/core/**', 'test/**/*.pg.test.ts', ...LONG],
          // A command line is a process, and a machine may be busy.
          testTimeout: 20_000,
        },
      },
      onPostgres('postgres', ['test/**/*.pg.test.ts'], LONG),
      onPostgres('chaos', LONG),
    ],
  },
});

function onPostgres(name: string, include: string[], exclude: string[] = []): TestProjectInlineConfiguration {
  return {
    root,
    test: {
      name,
      include,
      exclude,
      globalSetup: ['test/support/postgres-global-setup.ts'],
      testTimeout: 60_000,
      hookTimeout: 60_000,
      ...SHARED,
      // Each test has its own database, and often waits for child processes: three at once fill a two-core machine.
      maxWorkers: 3,
    },
  };
}
