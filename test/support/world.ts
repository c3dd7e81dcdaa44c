import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { onTestFinished } from 'vitest';
import type { OnetakeEventName, OnetakeEvents } from '../../src/core/events.ts';
import { type Client, createClient } from '../../src/index.ts';
import type { OnetakeConfig, OperationConfig } from '../../src/runtime/define-config.ts';
import { createSimulator, type Simulator } from '../../src/simulator/create-simulator.ts';
import type { SimulatorOptions } from '../../src/simulator/options.ts';
import {
  createPoller,
  createWorker,
  migrate,
  type Poller,
  type ProcessOptions,
  type Worker,
} from '../../src/worker.ts';
import { type Child, startChild } from './children.ts';
import { type RawProvider, rawProvider } from './raw-provider.ts';
import { createTestDatabase, type TestDatabase } from './test-database.ts';
import { waitFor } from './wait-for.ts';

/** To start one: modules to load, on a machine that may be busy. */
const CHILD_MS = 60_000;
export const API_KEY = 'sk_test_key';
export const MUSIC = 'sonilo/text-to-music';

/** Under the cooldown, and far over what a busy machine takes to answer or to send. */
export const LEASE_MS = 25_000;

/** Long enough for a busy machine, short enough for a test that hangs to be seen. */
export const OPERATION: OperationConfig = {
  deadlines: { connectMs: 4_000, firstResponseMs: 14_000, submissionMs: 15_000 },
  leaseMs: LEASE_MS,
};

/** For a provider that stays silent: the deadline is what is waited for. */
export const IMPATIENT: OperationConfig = {
  deadlines: { connectMs: 2_000, firstResponseMs: 2_300, submissionMs: 2_400 },
  leaseMs: 8_000,
};

export interface WorldOptions {
  /** `raw`: no simulator but a provider that does what the test says. A URL: that address. */
  readonly provider?: 'simulator' | 'raw' | URL;
  readonly simulator?: SimulatorOptions;
  readonly limits?: { readonly requestsPerMinute?: number; readonly maxConcurrentGenerations?: number };
  /** Of every operation, on top of `OPERATION`. */
  readonly operation?: OperationConfig;
  readonly config?: OnetakeConfig;
  /** An empty database, of a server of the test's own perhaps. Default: a new one on the run's server. */
  readonly database?: TestDatabase;
}

export type SeenEvent = {
  [Name in OnetakeEventName]: { readonly name: Name; readonly event: OnetakeEvents[Name] };
}[OnetakeEventName];

/** One row as Postgres has it: names in snake case. */
export type Row = Readonly<Record<string, unknown>>;

export interface World {
  readonly database: TestDatabase;
  readonly config: OnetakeConfig;
  readonly client: Client;
  readonly simulator: Simulator;
  readonly raw: RawProvider;
  /** Of every process of this world, in order. */
  readonly events: readonly SeenEvent[];
  /** POSTs that arrived at the provider. */
  readonly posts: () => number;
  worker(options?: Partial<ProcessOptions>): Worker;
  poller(options?: Partial<ProcessOptions>): Poller;
  /** A worker or poller in an operating-system process of its own, killed with the test; resolves when it runs. */
  child(
    role: 'worker' | 'poller',
    options?: {
      readonly withholdKey?: boolean;
      readonly obeys?: boolean;
      readonly connectionString?: string;
    },
  ): Promise<Child>;
  /** Enqueues one song; its prompt is the key unless one is given. */
  song(requestKey: string, options?: SongOptions): Promise<string>;
  /** So many songs, one after another, so that their order is known. */
  songs(count: number, prefix?: string): Promise<string[]>;
  request(id: string): Promise<Row>;
  attempts(id: string): Promise<Row[]>;
  /** The last attempt. */
  attempt(id: string): Promise<Row>;
  breaker(name?: string): Promise<Row>;
  transitions(name?: string): Promise<Row[]>;
  states(): Promise<Record<string, string>>;
  /** Ours and the simulator's. */
  passTime(ms: number): Promise<void>;
}

export interface SongOptions {
  readonly prompt?: string;
  readonly account?: string;
  readonly operation?: 'text-to-music' | 'video-to-music';
  readonly mode?: 'async' | 'stream';
  readonly submitBefore?: Date;
}

/** A database, a provider and a configuration of one test's own; everything ends with the test. */
export async function openWorld(options: WorldOptions = {}): Promise<World> {
  let clockOffset = 0;
  const simulator = createSimulator({
    runTimeMs: 1_000,
    requestsPerMinute: 1_000_000,
    maxConcurrentGenerations: 100_000,
    clock: { now: () => Date.now() + clockOffset },
    ...options.simulator,
  });
  const raw = await rawProvider();
  // Before the processes stop: a POST that is held would keep them waiting for its deadline.
  const stopProviders = () => Promise.all([simulator.stop(), raw.stop()]);
  onTestFinished(async () => void (await stopProviders()));
  const provider = options.provider ?? 'simulator';
  const baseUrl =
    provider instanceof URL ? provider.origin : provider === 'raw' ? raw.url : (await simulator.start()).url;
  const operation = { ...OPERATION, ...options.operation };
  const spoolDirectory = await mkdtemp(join(tmpdir(), 'onetake-spool-'));
  onTestFinished(() => rm(spoolDirectory, { recursive: true, force: true, maxRetries: 5 }));
  const config: OnetakeConfig = {
    providers: { sonilo: { baseUrl } },
    accounts: {
      default: {
        apiKeyEnv: 'SONILO_API_KEY',
        requestsPerMinute: 1_000,
        maxConcurrentGenerations: 100,
        ...options.limits,
      },
    },
    operations: { 'text-to-music': operation, 'video-to-music': operation },
    poller: { intervalMs: 100, maxIntervalMs: 100 },
    ...options.config,
    worker: { rescueIntervalMs: 300, spoolDirectory, ...options.config?.worker },
  };
  const write = (connectionString: string) => migrate({ connectionString, config });
  const database = options.database ?? (await createTestDatabase({ key: rowsOf(config), write }));
  onTestFinished(() => database.drop());
  if (options.database !== undefined) await write(database.connectionString);
  const client = createClient({ connectionString: database.connectionString, config });
  onTestFinished(() => client.stop());
  const events: SeenEvent[] = [];
  const processOptions = (more: Partial<ProcessOptions>): ProcessOptions => ({
    config,
    connectionString: database.connectionString,
    credentials: () => API_KEY,
    onEvent: (name, event) => events.push({ name, event } as SeenEvent),
    ...more,
    ...(more.config === undefined ? {} : { config: withSpool(more.config as OnetakeConfig) }),
  });
  // The default one is shared by all tests of a run, and what it remembers of one database is taken for another's:
  // all are clones of one template.
  const withSpool = (own: OnetakeConfig): OnetakeConfig => ({
    ...own,
    worker: { spoolDirectory, ...own.worker },
  });
  const one = async (text: string, values: readonly unknown[]): Promise<Row> => {
    const [row] = await database.query(text, values);
    if (row === undefined) throw new Error(`no row: ${text} (${values.join(', ')})`);
    return row;
  };

  const world: World = {
    database,
    config,
    client,
    simulator,
    raw,
    events,
    posts: () => (provider === 'raw' ? raw.posts.length : simulator.ledger().totals.posts),
    worker(more = {}) {
      const worker = createWorker(processOptions(more));
      onTestFinished(async () => {
        await stopProviders();
        await worker.stop();
      });
      return worker;
    },
    poller(more = {}) {
      const poller = createPoller(processOptions(more));
      onTestFinished(async () => {
        await stopProviders();
        await poller.stop();
      });
      return poller;
    },
    async child(role, more = {}) {
      const child = startChild({
        file: join(import.meta.dirname, 'worker-child.ts'),
        env: {
          ONETAKE_TEST_CHILD: JSON.stringify({
            role,
            config,
            connectionString: database.connectionString,
            apiKey: API_KEY,
            ...more,
          }),
        },
      });
      onTestFinished(() => child[Symbol.asyncDispose]());
      await child.message<{ ready?: number }>(
        (message) => message.ready === child.pid,
        `the ${role} runs`,
        CHILD_MS,
      );
      return child;
    },
    async song(requestKey, { prompt = requestKey, operation: name = 'text-to-music', ...more } = {}) {
      const fields =
        name === 'text-to-music'
          ? { operation: name, fields: { prompt, duration: 5 } }
          : { operation: name, fields: { prompt, video_url: 'https://example.com/a.mp4' } };
      const result = await client.enqueue({ ...fields, requestKey, ...more });
      if (!('id' in result)) throw new Error('refused');
      return result.id;
    },
    async songs(count, prefix = 'song') {
      const ids: string[] = [];
      for (let n = 1; n <= count; n++) ids.push(await world.song(`${prefix} ${n}`));
      return ids;
    },
    request: (id) => one('select * from onetake.generation_requests where id = $1', [id]),
    attempts: (id) =>
      database.query('select * from onetake.submission_attempts where request_id = $1 order by attempt', [
        id,
      ]),
    attempt: (id) =>
      one('select * from onetake.submission_attempts where request_id = $1 order by attempt desc limit 1', [
        id,
      ]),
    breaker: (name = MUSIC) => one('select * from onetake.circuit_breakers where name = $1', [name]),
    transitions: (name = MUSIC) =>
      database.query(
        'select * from onetake.circuit_breaker_transitions where breaker_name = $1 order by id',
        [name],
      ),
    states: async () =>
      Object.fromEntries(
        (
          await database.query<{ request_key: string; state: string }>(
            'select request_key, state from onetake.generation_requests order by created_at',
          )
        ).map((row) => [row.request_key, row.state]),
      ),
    async passTime(ms) {
      clockOffset += ms;
      await database.passTime(ms);
    },
  };
  return world;
}

/** Of a configuration what becomes rows: the limits of accounts and the settings of breakers. */
function rowsOf({ accounts, operations = {} }: OnetakeConfig): string {
  const breakers = Object.entries(operations).map(([name, { breaker }]) => [name, breaker]);
  return JSON.stringify([accounts, breakers]);
}

/** Every waiting or active job with everything that a touch would change. */
export function jobRows(database: TestDatabase): Promise<Row[]> {
  return database.query(
    `select xmin::text, ctid::text, to_jsonb(j) as job from onetake_queue.job j
where name like 'submit/%' and state < 'completed' order by id`,
  );
}

/**
 * Every row of our tables and of pg-boss's jobs with what any touch changes: its place, who wrote it and who has
 * locked it. Two equal answers mean that nothing was written in between, nor locked.
 */
export async function rowPrints(database: TestDatabase): Promise<string[]> {
  const tables = await database.query<{ name: string }>(
    `select format('%I.%I', schemaname, tablename) as name from pg_tables
where schemaname = 'onetake' or (schemaname = 'onetake_queue' and tablename like 'job%') order by 1`,
  );
  const selects = tables.map(
    ({ name }) => `select '${name}' || ' ' || ctid || ' ' || xmin || ' ' || xmax as print from only ${name}`,
  );
  const prints = await database.query<{ print: string }>(`${selects.join(' union all ')} order by 1`);
  return prints.map(({ print }) => print);
}

/** Ends every other session of the database, which also makes the server count what they have done. */
export async function endSessions(database: TestDatabase): Promise<void> {
  await waitFor(
    async () => {
      const left = await database.query(
        `select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()`,
      );
      return left.length === 0;
    },
    { what: 'all other sessions to be gone' },
  );
}

/** Deadlocks that the server has resolved in this database, in sessions that have ended. */
export async function deadlocks(database: TestDatabase): Promise<number> {
  await endSessions(database);
  const [row] = await database.query<{ deadlocks: number }>(
    'select deadlocks::int from pg_stat_database where datname = current_database()',
  );
  return row?.deadlocks ?? -1;
}

/** Holds the lock of rows, as a stuck transaction of somebody else would; gives them back when called. */
export async function lockRows(
  database: TestDatabase,
  select: string,
  values: unknown[] = [],
): Promise<() => Promise<void>> {
  const client = await database.pool({ max: 1 }).connect();
  client.on('error', () => undefined);
  await client.query('begin');
  await client.query(`${select} for update`, values);
  return async () => {
    await client.query('rollback');
    client.release();
  };
}

/** So many sessions wait for a lock. */
export function waitForBlocked(database: TestDatabase, count: number): Promise<unknown> {
  return waitFor(
    async () => {
      const blocked = await database.query(
        `select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'`,
      );
      return blocked.length >= count;
    },
    { what: `${count} sessions to wait for a lock` },
  );
}

/** Sessions of onetake's processes that hold a transaction, or a lock on a row, at this moment. */
export function openTransactions(database: TestDatabase): Promise<Row[]> {
  return database.query(
    `select a.application_name, a.state, a.xact_start, a.backend_xid::text, a.query
from pg_stat_activity a
where a.datname = current_database() and a.application_name like 'onetake %'
  and (a.xact_start is not null or exists (
    select from pg_locks l
    where l.pid = a.pid and l.granted and l.locktype in ('relation', 'tuple', 'transactionid')
  ))`,
  );
}
