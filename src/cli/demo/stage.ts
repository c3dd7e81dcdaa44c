import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { startEmbeddedPostgres } from '../../embedded/start-embedded-postgres.ts';
import { Database } from '../../postgres/database.ts';
import { type Client, createClient } from '../../runtime/client.ts';
import type { OnetakeConfig } from '../../runtime/define-config.ts';
import { migrate } from '../../runtime/migrate.ts';
import { createSimulator } from '../../simulator/create-simulator.ts';
import { type ChildSurroundings, startService } from './children.ts';
import { DemoFailure } from './failure.ts';
import { OUTAGE } from './faults.ts';

/** Everything that plays: started as one, stopped as one. */
export interface Stage {
  readonly connectionString: string;
  readonly providerUrl: string;
  readonly database: Database;
  readonly client: Client;
  /** What the CLI's commands are run with. */
  readonly surroundings: ChildSurroundings;
  readonly processes: readonly ProcessNote[];
}

export interface ProcessNote {
  readonly name: string;
  readonly pid: number;
  readonly note: string;
}

export interface StageOptions {
  /** Absolute; where the songs go. */
  readonly directory: string;
  readonly signal: AbortSignal;
  readonly onEvent: (process: string, line: Readonly<Record<string, unknown>>) => void;
  readonly onDeath: (failure: DemoFailure) => void;
  /** Told how to put away what was just started, also when a later step fails. Last in, first out. */
  readonly defer: (stop: () => Promise<unknown>) => void;
}

export const CONFIG_FILE = 'onetake.config.json';
export const ENV_FILE = 'demo.env';
/** Of no account anywhere: the simulator takes any key of this form. */
const KEY = 'sk_demo';
const DATABASE_VARIABLE = 'ONETAKE_DEMO_DATABASE_URL';
const KEY_VARIABLE = 'ONETAKE_DEMO_KEY';
export const SLOTS = 4;
const LIMITS = { requestsPerMinute: 600, maxConcurrentGenerations: SLOTS };
const DEADLINES = { connectMs: 1_500, firstResponseMs: 2_500, submissionMs: 4_000 };
export const BREAKER_SETTINGS = { failureThreshold: 3, cooldownMs: 3_000 };
const READY_LIMIT_MS = 30_000;

export async function setStage(options: StageOptions): Promise<Stage> {
  const { signal, defer } = options;
  const [postgres, simulator] = await Promise.all([
    startEmbeddedPostgres({ mode: 'ephemeral' }).then((started) => {
      defer(() => started.stop());
      return started;
    }),
    startProvider(defer),
  ]);
  signal.throwIfAborted();

  const { connectionString } = postgres;
  const config = configuration(simulator.url, options.directory);
  const surroundings = await writeSurroundings(config, connectionString, defer);
  await migrate({ connectionString, config });
  signal.throwIfAborted();

  const database = Database.connect(connectionString, { max: 2, applicationName: 'onetake demo' });
  defer(() => database.close());
  const client = createClient({ connectionString, config });
  defer(() => client.stop());
  const children = await startChildren(options, surroundings);
  return {
    connectionString,
    providerUrl: simulator.url,
    database,
    client,
    surroundings,
    processes: [
      { name: 'demo', pid: process.pid, note: `the provider is in here: ${simulator.url}` },
      {
        name: 'postgres',
        pid: postgres.postmasterPid,
        note: `127.0.0.1:${postgres.port}, empty, its own`,
      },
      ...children,
    ],
  };
}

async function startProvider(defer: StageOptions['defer']): Promise<{ readonly url: string }> {
  const simulator = createSimulator({
    ...LIMITS,
    runTimeMs: 1_500,
    runTimeJitter: 0.4,
    keys: { [KEY]: { account: 'demo' } },
    script: OUTAGE,
  });
  defer(() => simulator.stop());
  return simulator.start();
}

function configuration(providerUrl: string, directory: string): OnetakeConfig {
  return {
    database: { connectionStringEnv: DATABASE_VARIABLE },
    providers: { sonilo: { baseUrl: providerUrl } },
    accounts: { default: { provider: 'sonilo', apiKeyEnv: KEY_VARIABLE, ...LIMITS } },
    operations: {
      'text-to-music': {
        breaker: BREAKER_SETTINGS,
        deadlines: DEADLINES,
        leaseMs: 8_000,
        rearmQuarantineMs: 1_000,
        // A POST without an answer holds its slot for as long as a song may run: here, that isn't long.
        maxRunMs: 4_000,
      },
    },
    worker: { concurrency: 4, rescueIntervalMs: 500 },
    poller: { intervalMs: 300, maxIntervalMs: 1_000 },
    storage: { directory, allowPrivateHosts: true },
  };
}

/** A directory in which the real commands find the demo's configuration, and two variables of our own. */
async function writeSurroundings(
  config: OnetakeConfig,
  connectionString: string,
  defer: StageOptions['defer'],
): Promise<ChildSurroundings> {
  const directory = await mkdtemp(join(tmpdir(), 'onetake-demo-'));
  defer(() => rm(directory, { recursive: true, force: true }));
  const variables = { [DATABASE_VARIABLE]: connectionString, [KEY_VARIABLE]: KEY };
  const lines = Object.entries(variables).map(([name, value]) => `${name}=${value}\n`);
  await writeFile(join(directory, CONFIG_FILE), `${JSON.stringify(config, null, 2)}\n`, { mode: 0o600 });
  await writeFile(join(directory, ENV_FILE), lines.join(''), { mode: 0o600 });
  return { directory, environment: { ...variables, ONETAKE_ACTOR: 'demo operator' } };
}

async function startChildren(
  { signal, onEvent, onDeath, defer }: StageOptions,
  surroundings: ChildSurroundings,
): Promise<ProcessNote[]> {
  const casting = [
    { name: 'worker 1', command: ['worker'], note: 'submits' },
    { name: 'worker 2', command: ['worker'], note: 'submits' },
    { name: 'poller', command: ['poller'], note: 'follows the tasks, stores the files' },
  ];
  const started = casting.map(({ name, command, note }) => {
    const ready = Promise.withResolvers<void>();
    const child = startService({
      ...surroundings,
      name,
      command,
      onEvent: (line) => {
        if (line['event'] === 'process:started') ready.resolve();
        onEvent(name, line);
      },
      onDeath,
    });
    return { child, note, ready: ready.promise };
  });
  defer(() => Promise.all(started.map(({ child }) => child.stop())));
  await within(READY_LIMIT_MS, signal, Promise.all(started.map(({ ready }) => ready)));
  return started.map(({ child, note }) => ({ name: child.name, pid: child.pid, note }));
}

async function within<T>(limitMs: number, signal: AbortSignal, promise: Promise<T>): Promise<T> {
  const limit = AbortSignal.any([signal, AbortSignal.timeout(limitMs)]);
  const late = new Promise<never>((_resolve, reject) => {
    const fail = () =>
      reject(signal.aborted ? signal.reason : new DemoFailure('The processes did not get ready in time.'));
    if (limit.aborted) fail();
    else limit.addEventListener('abort', fail, { once: true });
  });
  return Promise.race([promise, late]);
}
