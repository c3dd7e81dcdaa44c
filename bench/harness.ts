import { loadavg } from 'node:os';
import { outcomeOfResponse } from '../src/core/outcome.ts';
import type { SubmissionOutcome } from '../src/core/provider.ts';
import { startEmbeddedPostgres } from '../src/embedded/start-embedded-postgres.ts';
import type { SubmissionContext } from '../src/lifecycle/context.ts';
import { InstallationGuard } from '../src/lifecycle/guard-installation.ts';
import { Database } from '../src/postgres/database.ts';
import { isRetryable } from '../src/postgres/errors.ts';
import { type Lane, readLanes } from '../src/postgres/lanes.ts';
import { JobQueue } from '../src/queue/boss.ts';
import type { OnetakeConfig } from '../src/runtime/define-config.ts';
import { migrate } from '../src/runtime/migrate.ts';
import { resolveConfig } from '../src/runtime/options.ts';
import { systemClock } from '../src/runtime/system-clock.ts';
import { createSpool } from '../src/storage/spool.ts';

export const OPERATION = 'text-to-music';
export const BREAKER = `sonilo/${OPERATION}`;

export interface BenchOptions {
  /** Lanes, one account each. */
  readonly accounts: number;
  readonly connections: number;
  /** Its accounts are ours to add. */
  readonly config?: OnetakeConfig;
}

export interface Bench {
  readonly ctx: SubmissionContext;
  readonly connectionString: string;
  readonly config: OnetakeConfig;
  readonly accounts: readonly string[];
  /** Each lane with queued work, as dispatch sees it. */
  readonly lanes: () => Promise<Lane[]>;
  /** So many more queued requests, each with its job, in every lane. */
  readonly fill: (each: number) => Promise<void>;
  /** Takes all requests, attempts and jobs away, and the dead rows of everything else. */
  readonly empty: () => Promise<void>;
  readonly query: <Row>(text: string, values?: unknown[]) => Promise<Row[]>;
  readonly stop: () => Promise<void>;
}

/** A durable embedded server (fsync on), a migrated schema, and what a worker is made of but for its provider. */
export async function startBench(options: BenchOptions): Promise<Bench> {
  const accounts = Array.from({ length: options.accounts }, (_, n) => `account-${n + 1}`);
  const config: OnetakeConfig = {
    ...options.config,
    accounts: Object.fromEntries(
      accounts.map((name) => [
        name,
        {
          provider: 'sonilo',
          apiKeyEnv: 'SONILO_API_KEY',
          requestsPerMinute: 1_000_000,
          maxConcurrentGenerations: 100_000,
        },
      ]),
    ),
  };
  const resolved = resolveConfig(config);
  const postgres = await startEmbeddedPostgres({ mode: 'ephemeral', durable: true });
  const { connectionString } = postgres;
  await migrate({ connectionString, config });
  const database = Database.connect(connectionString, {
    max: options.connections,
    applicationName: 'onetake bench',
  });
  const queue = new JobQueue({ executor: database, role: 'client', onError: () => {} });
  await queue.start();
  const query = async <Row>(text: string, values: unknown[] = []): Promise<Row[]> =>
    (await database.executeSql(text, values)).rows as Row[];
  const ctx: SubmissionContext = {
    database,
    queue,
    emit: (name, event) => {
      if (name === 'process:trouble' || name === 'submission:unsettled') console.error(name, event);
    },
    settingsOf: () => resolved.operations[OPERATION],
    clock: systemClock,
    guard: new InstallationGuard({ database, emit: () => undefined, clock: systemClock, worker: 'bench' }),
    worker: 'bench',
    providerNamed: () => undefined,
    apiKeyOf: () => 'none',
    storage: null,
    spool: createSpool({ directory: '/nonexistent/spool', onTrouble: () => {} }),
    firstPollMs: 3_600_000,
  };
  return {
    ctx,
    connectionString,
    config,
    accounts,
    query,
    lanes: () => readLanes(database, null, options.accounts),
    fill: async (each) => {
      await query(
        `with made as (
  insert into onetake.generation_requests (account, operation, request_key, fields, payload_digest)
  select account, $2, gen_random_uuid()::text, '{"prompt": "a song"}', repeat('0', 64)
  from unnest($1::text[]) account, generate_series(1, $3::int)
  returning id, account
)
insert into onetake_queue.job (name, data, singleton_key, policy)
select 'submit/' || account || '/' || $2, jsonb_build_object('requestId', id), id::text, 'exclusive' from made`,
        [accounts, OPERATION, each],
      );
    },
    empty: async () => {
      // The guards refuse: these are records of money. Under this role no trigger runs.
      await query(`begin;
set local session_replication_role = replica;
truncate onetake.generation_requests, onetake.submission_attempts cascade;
truncate onetake_queue.job;
select onetake.confirm_installation('bench', 'emptied on purpose');
commit`);
      for (const table of ['circuit_breakers', 'accounts']) await query(`vacuum onetake.${table}`);
    },
    stop: async () => {
      await queue.stop();
      await database.close();
      await postgres.stop();
    },
  };
}

/** The provider's fault: it counts. */
export const failed = (): SubmissionOutcome => answered(502);

/** The request's own fault: it counts for nothing. */
export const refused = (): SubmissionOutcome => answered(422);

/** What the adapter makes of an answer without a task. */
function answered(httpStatus: number): SubmissionOutcome {
  return {
    ...outcomeOfResponse({ status: httpStatus, taskId: undefined }),
    retryAfterMs: null,
    evidence: {
      phase: 'answered',
      httpStatus,
      errorCode: null,
      providerTaskId: null,
      responseAgeMs: 0,
      closed: true,
    },
  };
}

/**
 * Undefined: a lock didn't come within admission's patience. A worker goes on with its next lane then, and comes
 * back in its next round.
 */
export async function orGivesUp<Result>(admission: () => Promise<Result>): Promise<Result | undefined> {
  try {
    return await admission();
  } catch (error) {
    if (isRetryable(error)) return undefined;
    throw error;
  }
}

/** The value that `share` of them don't exceed. */
export function percentile(values: readonly number[], share: number): number {
  const sorted = values.toSorted((a, b) => a - b);
  return sorted[Math.max(0, Math.ceil(sorted.length * share) - 1)] ?? Number.NaN;
}

export const median = (values: readonly number[]): number => percentile(values, 0.5);

/** Say it beside every figure: on a busy machine none of them means much. */
export function load(): string {
  return `load average ${(loadavg()[0] ?? 0).toFixed(1)}`;
}

/** A positive whole number from the command line. */
export function argument(position: number, standard: number): number {
  const text = process.argv[2 + position];
  if (text === undefined) return standard;
  const value = Number(text);
  if (!Number.isInteger(value) || value < 1) throw new Error(`${text} is not a positive whole number`);
  return value;
}
