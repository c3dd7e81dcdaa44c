import { onTestFinished } from 'vitest';
import { createSimulator, type Simulator } from '../../src/simulator/create-simulator.ts';
import type { SimulatorOptions } from '../../src/simulator/options.ts';
import { createTestDatabase, type TestDatabase } from '../support/test-database.ts';
import { type Cli, createCli } from './cli.ts';

export interface Stage {
  readonly database: TestDatabase;
  readonly simulator: Simulator;
  readonly cli: Cli;
}

/** Shaped so that a leak of it is found wherever it went. */
export const KEY = 'sk_canary_4d1f9c';

/** A migrated database, a simulated provider, and the command line configured for both. */
export async function setStage(options: SimulatorOptions = {}): Promise<Stage> {
  const database = await createTestDatabase();
  onTestFinished(() => database.drop());
  const simulator = createSimulator({ runTimeMs: 100, ...options });
  onTestFinished(() => simulator.stop());
  const { url } = await simulator.start();
  const cli = createCli({
    config: {
      providers: { sonilo: { baseUrl: url } },
      poller: { intervalMs: 100, maxIntervalMs: 500 },
      storage: { directory: './generations', allowPrivateHosts: true },
    },
    env: { DATABASE_URL: database.connectionString, SONILO_API_KEY: KEY },
  });
  return { database, simulator, cli };
}
