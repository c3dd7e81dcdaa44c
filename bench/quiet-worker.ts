// One worker process of bench/quiet.ts. Counts what it sends to the database, and tells when asked.
import pg from 'pg';
import { createWorker, type ProcessOptions } from '../src/worker.ts';

export interface QuietWorkerOptions extends Pick<ProcessOptions, 'config' | 'connectionString' | 'name'> {}

/** Round trips: a transaction's BEGIN with its settings is one, and so is its COMMIT. */
export type QuietWorkerAnswer = { readonly roundTrips: number };

let roundTrips = 0;
const { query } = pg.Client.prototype as unknown as { query: (...parameters: unknown[]) => unknown };
Object.assign(pg.Client.prototype, {
  query(this: pg.Client, ...parameters: unknown[]) {
    roundTrips++;
    return query.apply(this, parameters);
  },
});

const worker = createWorker({
  ...(JSON.parse(process.argv[2] ?? '{}') as QuietWorkerOptions),
  credentials: () => 'sk_bench',
});
process.on('message', () => process.send?.({ roundTrips } satisfies QuietWorkerAnswer));
process.once('disconnect', () => process.exit(0));
process.once('SIGTERM', () => void worker.stop().then(() => process.exit(0)));
await worker.start();
process.send?.({ roundTrips } satisfies QuietWorkerAnswer);
