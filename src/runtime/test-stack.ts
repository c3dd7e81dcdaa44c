import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { type EmbeddedPostgres, startEmbeddedPostgres } from '../embedded/start-embedded-postgres.ts';
import { createSimulator, type Simulator } from '../simulator/create-simulator.ts';
import type { SimulatorOptions } from '../simulator/options.ts';
import { type Client, createClient } from './client.ts';
import type { OnetakeConfig } from './define-config.ts';
import { checkConnectionString } from './environment.ts';
import type { EventListener } from './event-bus.ts';
import { migrate } from './migrate.ts';
import { checkKeys } from './option-object.ts';
import { createPoller } from './poller-process.ts';
import { createWorker } from './worker-process.ts';

export interface TestStackOptions {
  /** A migrated or empty database of yours. Default: an embedded PostgreSQL of its own. */
  readonly connectionString?: string;
  /** Over the stack's own provider and storage. */
  readonly config?: Omit<OnetakeConfig, 'providers' | 'storage'>;
  /** Default: tasks that finish after 50 ms. */
  readonly simulator?: SimulatorOptions;
  /** Where finished files go. Default: none, so that results are `linked`. */
  readonly directory?: string;
  readonly onEvent?: EventListener;
}

export interface TestStack {
  readonly connectionString: string;
  readonly client: Client;
  /** The provider: its ledger, its script, its faults. */
  readonly simulator: Simulator;
  stop(): Promise<void>;
  [Symbol.asyncDispose](): Promise<void>;
}

/**
 * Everything that an app's own tests need, on loopback: a database, the simulator, a worker and a poller in
 * this process, and a client. Ask for faults by script, or by a magic prompt in a single request.
 */
export async function startTestStack(options: TestStackOptions = {}): Promise<TestStack> {
  checkKeys(options, ['connectionString', 'config', 'simulator', 'directory', 'onEvent']);
  if (options.connectionString !== undefined) checkConnectionString(options.connectionString);
  const ends: (() => Promise<void>)[] = [];
  const stop = async (): Promise<void> => {
    for (let end = ends.pop(); end !== undefined; end = ends.pop()) await end();
  };
  try {
    const connectionString = options.connectionString ?? (await startDatabase(ends)).connectionString;
    const simulator = createSimulator({ runTimeMs: 50, ...options.simulator });
    ends.push(() => simulator.stop());
    const { url } = await simulator.start();
    const spoolDirectory = await mkdtemp(join(tmpdir(), 'onetake-spool-'));
    ends.push(() => rm(spoolDirectory, { recursive: true, force: true }));
    const config: OnetakeConfig = {
      poller: { intervalMs: 50, maxIntervalMs: 500 },
      ...options.config,
      worker: { spoolDirectory, ...options.config?.worker },
      providers: { sonilo: { baseUrl: url } },
      storage: {
        allowPrivateHosts: true,
        ...(options.directory === undefined ? {} : { directory: options.directory }),
      },
    };
    await migrate({ connectionString, config });
    const common = {
      config,
      connectionString,
      credentials: () => 'sk_test',
      ...(options.onEvent === undefined ? {} : { onEvent: options.onEvent }),
    };
    const worker = createWorker(common);
    ends.push(() => worker.stop());
    const poller = createPoller(common);
    ends.push(() => poller.stop());
    await Promise.all([worker.start(), poller.start()]);
    const client = createClient({ connectionString, config });
    ends.push(() => client.stop());
    return { connectionString, client, simulator, stop, [Symbol.asyncDispose]: stop };
  } catch (error) {
    await stop();
    throw error;
  }
}

async function startDatabase(ends: (() => Promise<void>)[]): Promise<EmbeddedPostgres> {
  const postgres = await startEmbeddedPostgres({ mode: 'ephemeral' });
  ends.push(() => postgres.stop());
  return postgres;
}
