import { mkdirSync, writeFileSync } from 'node:fs';
import { join, resolve } from 'node:path';
import type { Command } from 'commander';
import { OnetakeError } from '../core/errors.ts';
import type { OnetakeConfig } from '../runtime/define-config.ts';
import type { ResolvedConfig } from '../runtime/options.ts';
import type { Simulator, SimulatorAddress } from '../simulator/create-simulator.ts';
import type { SimulatorOptions } from '../simulator/options.ts';
import type { Context, Runner } from './context.ts';
import { EXIT } from './errors.ts';
import { eventPrinter } from './event-lines.ts';
import type { Terminal } from './output.ts';
import { createService, serve } from './run.ts';
import { SIMULATOR_FILES_PORT, SIMULATOR_PORT } from './simulate.ts';

const HOME = '.onetake';
const DATABASE_DIRECTORY = '.onetake/postgres';
const GENERATIONS_DIRECTORY = 'generations';
/** Beside that of a real worker: the two know different requests. */
const SPOOL_DIRECTORY = '.onetake/dev-spool';

export function addDev(program: Command, run: Runner): void {
  program
    .command('dev')
    .summary('database, provider simulator, worker and poller for your app, on this machine')
    .description(
      'Runs what an app needs while you write it: an embedded PostgreSQL with a stable port, the provider simulator, ' +
        'a worker and a poller. Whatever the environment holds, nothing leaves this machine and nothing is charged. ' +
        `The data stay in ${DATABASE_DIRECTORY}, songs go to ./${GENERATIONS_DIRECTORY}.`,
    )
    .action(run((context) => dev(context)));
}

async function dev(context: Context): Promise<number> {
  const { terminal, signals, cwd } = context;
  const { config: given } = await context.config();
  // From the first moment: a Ctrl-C while the database starts must stop it too.
  const drain = signals.drain();
  const ends: (() => Promise<void>)[] = [];
  try {
    const { locateBinaries } = await import('../embedded/binaries.ts');
    locateBinaries();
    makeHome(resolve(cwd, HOME));
    terminal.note('Starting PostgreSQL ...');
    const { startEmbeddedPostgres } = await import('../embedded/start-embedded-postgres.ts');
    const postgres = await startEmbeddedPostgres({
      mode: 'persistent',
      directory: resolve(cwd, DATABASE_DIRECTORY),
      onNotice: (message) => terminal.note(message),
    });
    ends.push(() => postgres.stop());
    const { simulator, url } = await startSimulator(given, terminal);
    ends.push(() => simulator.stop());
    const config = devConfig(given, url, cwd);
    const { connectionString } = postgres;
    const { migrate } = await import('../runtime/migrate.ts');
    await migrate({ connectionString, config });
    if (drain.aborted) return EXIT.done;
    const options = { config, connectionString, credentials: keyOf, onEvent: eventPrinter(terminal) };
    announce(terminal, connectionString, url);
    const services = [await createService('worker', options), await createService('poller', options)];
    return await serve(context, services);
  } finally {
    for (let end = ends.pop(); end !== undefined; end = ends.pop()) await end();
  }
}

/** The password of the database and what was spooled are nothing for a repository. */
function makeHome(directory: string): void {
  const isNew = mkdirSync(directory, { recursive: true }) !== undefined;
  if (isNew) writeFileSync(join(directory, '.gitignore'), '*\n');
}

/** A key that only the simulator takes: the real one is never read. */
function keyOf(account: string): string {
  return `sk_dev_${account}`;
}

/** Limits, deadlines and breakers are the app's own; every address is one of this machine. */
function devConfig(given: ResolvedConfig, url: string, cwd: string): OnetakeConfig {
  return {
    ...given,
    providers: Object.fromEntries(Object.keys(given.providers).map((name) => [name, { baseUrl: url }])),
    poller: { ...given.poller, intervalMs: Math.min(given.poller.intervalMs, 1_000) },
    worker: { ...given.worker, spoolDirectory: resolve(cwd, SPOOL_DIRECTORY) },
    storage: { directory: resolve(cwd, GENERATIONS_DIRECTORY), allowPrivateHosts: true },
  };
}

/** On its usual ports; on free ones when another program has those. */
async function startSimulator(
  config: ResolvedConfig,
  terminal: Terminal,
): Promise<SimulatorAddress & { readonly simulator: Simulator }> {
  const options: SimulatorOptions = {
    keys: Object.fromEntries(
      Object.entries(config.accounts).map(([name, { requestsPerMinute, maxConcurrentGenerations }]) => [
        keyOf(name),
        { account: name, requestsPerMinute, maxConcurrentGenerations },
      ]),
    ),
  };
  const { createSimulator } = await import('../simulator/create-simulator.ts');
  const simulator = createSimulator({ ...options, port: SIMULATOR_PORT, filesPort: SIMULATOR_FILES_PORT });
  try {
    return { simulator, ...(await simulator.start()) };
  } catch (error) {
    if (!(error instanceof OnetakeError) || error.code !== 'simulator_failed') throw error;
    terminal.note(
      `Port ${SIMULATOR_PORT} or ${SIMULATOR_FILES_PORT} is taken: the simulator uses free ones.`,
    );
    const elsewhere = createSimulator(options);
    return { simulator: elsewhere, ...(await elsewhere.start()) };
  }
}

function announce(terminal: Terminal, connectionString: string, url: string): void {
  if (!terminal.isInteractive || terminal.json) {
    const directory = `./${GENERATIONS_DIRECTORY}`;
    terminal.print(
      JSON.stringify({ event: 'dev:ready', databaseUrl: connectionString, simulatorUrl: url, directory }),
    );
    return;
  }
  terminal.print(
    '',
    'For your app, and for onetake in another terminal:',
    '',
    terminal.paint('bold', `DATABASE_URL=${connectionString}`),
    '',
    'For example:',
    '',
    `  DATABASE_URL='${connectionString}' \\`,
    "    npx onetake enqueue text-to-music --field prompt='a slow waltz' --wait",
    '',
    `Provider: the simulator at ${url}; nothing is charged.`,
    `Songs:    ./${GENERATIONS_DIRECTORY}`,
    '',
  );
}
