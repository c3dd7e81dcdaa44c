import { randomUUID } from 'node:crypto';
import type { SubmissionOutcome } from '../src/core/provider.ts';
import { startEmbeddedPostgres } from '../src/embedded/start-embedded-postgres.ts';
import type { SubmissionContext } from '../src/lifecycle/context.ts';
import { Database } from '../src/postgres/database.ts';
import { type Lane, readLanes } from '../src/postgres/lanes.ts';
import { JobQueue } from '../src/queue/boss.ts';
import { migrate } from '../src/runtime/migrate.ts';
import { resolveConfig } from '../src/runtime/options.ts';
import { systemClock } from '../src/runtime/system-clock.ts';

export const OPERATION = 'text-to-music';
export const ACCOUNT = 'default';

const CONFIG = resolveConfig({
  accounts: {
    default: {
      provider: 'sonilo',
      apiKeyEnv: 'SONILO_API_KEY',
      requestsPerMinute: 1_000_000,
      maxConcurrentGenerations: 100_000,
    },
  },
});

export interface Bench {
  readonly ctx: SubmissionContext;
  readonly lane: () => Promise<Lane>;
  readonly fill: (count: number) => Promise<void>;
  readonly stop: () => Promise<void>;
}

/** A durable embedded server (fsync on), a migrated schema, a context without a provider. */
export async function startBench(connections: number): Promise<Bench> {
  const postgres = await startEmbeddedPostgres({ mode: 'ephemeral', durable: true });
  const { connectionString } = postgres;
  await migrate({ connectionString, config: CONFIG });
  const database = Database.connect(connectionString, { max: connections, applicationName: 'onetake bench' });
  const queue = new JobQueue({ executor: database, role: 'client', onError: () => {} });
  await queue.start();
  const ctx: SubmissionContext = {
    database,
    queue,
    emit: () => {},
    settingsOf: () => CONFIG.operations[OPERATION],
    clock: systemClock,
    worker: 'bench',
    providerNamed: () => undefined,
    apiKeyOf: () => 'none',
    firstPollMs: 3_600_000,
  };
  return {
    ctx,
    lane: async () => {
      const [lane] = await readLanes(database, null, 1);
      if (lane === undefined) throw new Error('the lane is empty');
      return lane;
    },
    fill: async (count) => {
      await database.executeSql(
        `with made as (
  insert into onetake.generation_requests (account, operation, request_key, fields, payload_digest)
  select $1, $2, gen_random_uuid()::text, '{}', repeat('0', 64) from generate_series(1, $3)
  returning id
)
insert into onetake_queue.job (name, data, singleton_key, policy)
select 'submit/' || $1 || '/' || $2, jsonb_build_object('requestId', id), id::text, 'exclusive' from made`,
        [ACCOUNT, OPERATION, count],
      );
    },
    stop: async () => {
      await queue.stop();
      await database.close();
      await postgres.stop();
    },
  };
}

export function accepted(): SubmissionOutcome {
  return outcome(
    { health: 'success', certainty: 'accepted', reason: 'task_accepted', alert: false },
    202,
    randomUUID(),
  );
}

export function failed(): SubmissionOutcome {
  return outcome(
    { health: 'dependency_failure', certainty: 'unknown', reason: 'server_error', alert: false },
    502,
    null,
  );
}

function outcome(
  judged: Pick<SubmissionOutcome, 'health' | 'certainty' | 'reason' | 'alert'>,
  httpStatus: number,
  providerTaskId: string | null,
): SubmissionOutcome {
  const evidence = {
    phase: 'answered',
    httpStatus,
    errorCode: null,
    providerTaskId,
    responseAgeMs: 0,
    closed: true,
  } as const;
  return { ...judged, retryAfterMs: null, evidence };
}

export function percentile(sorted: readonly number[], share: number): number {
  return sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * share))] ?? Number.NaN;
}
