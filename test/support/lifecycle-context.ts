import { resolve } from 'node:path';
import { OPERATIONS, type OperationName } from '../../src/core/operations.ts';
import type { SubmissionContext } from '../../src/lifecycle/context.ts';
import { InstallationGuard } from '../../src/lifecycle/guard-installation.ts';
import { Database } from '../../src/postgres/database.ts';
import { type Lane, readLanes } from '../../src/postgres/lanes.ts';
import { createSoniloProvider } from '../../src/provider/sonilo/client.ts';
import { JobQueue } from '../../src/queue/boss.ts';
import type { OnetakeConfig } from '../../src/runtime/define-config.ts';
import { resolveConfig } from '../../src/runtime/options.ts';
import { systemClock } from '../../src/runtime/system-clock.ts';
import { createSpool } from '../../src/storage/spool.ts';

export interface LifecycleContext extends SubmissionContext {
  readonly database: Database;
  stop(): Promise<void>;
}

/** What a worker is made of, for tests that call one phase by itself. */
export async function lifecycleContext(
  options: {
    readonly connectionString: string;
    readonly config: OnetakeConfig;
    readonly poolMax?: number;
    readonly queue?: new (...args: ConstructorParameters<typeof JobQueue>) => JobQueue;
  },
  changes: Partial<SubmissionContext> = {},
): Promise<LifecycleContext> {
  const config = resolveConfig(options.config);
  const database = Database.connect(options.connectionString, {
    max: options.poolMax ?? 8,
    applicationName: 'onetake context',
  });
  const queue = new (options.queue ?? JobQueue)({
    executor: database,
    role: 'client',
    onError: () => undefined,
  });
  await queue.start();
  const provider = createSoniloProvider({ baseUrl: config.providers['sonilo']?.baseUrl ?? '' });
  return {
    database,
    queue,
    emit: () => undefined,
    settingsOf: (operation) =>
      config.operations[operation in OPERATIONS ? (operation as OperationName) : 'text-to-music'],
    clock: systemClock,
    guard: new InstallationGuard({ database, emit: () => undefined, clock: systemClock, worker: 'test' }),
    worker: 'test',
    providerNamed: () => provider,
    apiKeyOf: () => 'sk_test_key',
    storage: null,
    spool: createSpool({ directory: resolve(config.worker.spoolDirectory), onTrouble: () => undefined }),
    firstPollMs: config.poller.intervalMs,
    ...changes,
    async stop() {
      await queue.stop();
      await provider.close();
      await database.close();
    },
  };
}

/** The lane as dispatch would see it now. */
export async function laneOf(
  ctx: SubmissionContext,
  operation = 'text-to-music',
  account = 'default',
): Promise<Lane> {
  const lanes = await readLanes(ctx.database, null, 100);
  const lane = lanes.find((one) => one.account === account && one.operation === operation);
  if (lane === undefined) throw new Error(`nothing is queued in ${account}/${operation}`);
  return lane;
}
