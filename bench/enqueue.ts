// What an enqueue costs inside a transaction of the caller, beside pg-boss's bare `send` in the same, and what many in
// one call cost. `node bench/enqueue.ts [transactions] [repetitions] [connections]`.
import { randomUUID } from 'node:crypto';
import pg from 'pg';
import { PgBoss } from 'pg-boss';
import { createClient, type EnqueueInput } from '../src/index.ts';
import { QUEUE_OPTIONS, QUEUE_SCHEMA } from '../src/queue/jobs.ts';
import { argument, load, median, OPERATION, percentile, startBench } from './harness.ts';

const transactions = argument(0, 2_000);
const repetitions = argument(1, 7);
const connections = argument(2, 4);
const BULK_ROWS = [100, 1_000, 10_000];
const BARE_QUEUE = 'bench/bare';

const bench = await startBench({ accounts: 1, connections: 4 });
const account = bench.accounts[0] as string;
const pool = new pg.Pool({ connectionString: bench.connectionString, max: connections });
const client = createClient({ connectionString: bench.connectionString });
const boss = new PgBoss({
  connectionString: bench.connectionString,
  schema: QUEUE_SCHEMA,
  migrate: false,
  supervise: false,
  schedule: false,
  registerInstance: false,
});
boss.on('error', (error) => console.error(error));
await boss.start();
await boss.createQueue(BARE_QUEUE, { ...QUEUE_OPTIONS });

const intent = (): EnqueueInput => ({
  operation: OPERATION,
  fields: { prompt: 'rain on a tin roof, slow piano, brushed drums', duration: 30 },
  requestKey: randomUUID(),
  account,
});

type Run = (tx: pg.PoolClient) => Promise<unknown>;
const RUNS = {
  enqueue: (tx) => client.enqueue(intent(), { tx }),
  send: (tx) => {
    const requestId = randomUUID();
    return boss.send(
      BARE_QUEUE,
      { requestId },
      { singletonKey: requestId, db: { executeSql: (text, values) => tx.query(text, values) } },
    );
  },
  nothing: (tx) => tx.query('select 1'),
} satisfies Record<string, Run>;

/** Transactions per second: BEGIN, one call, COMMIT. */
async function rate(run: Run, count: number, lanes: number): Promise<number> {
  let left = count;
  const start = performance.now();
  await Promise.all(
    Array.from({ length: lanes }, async () => {
      const tx = await pool.connect();
      while (left-- > 0) {
        await tx.query('begin');
        await run(tx);
        await tx.query('commit');
      }
      tx.release();
    }),
  );
  return count / ((performance.now() - start) / 1_000);
}

/** One call, one transaction of ours. */
async function bulk(count: number): Promise<void> {
  const rates: number[] = [];
  for (let repetition = 0; repetition < Math.min(repetitions, 5); repetition++) {
    await bench.empty();
    const inputs = Array.from({ length: count }, intent);
    const start = performance.now();
    const results = await client.enqueue(inputs);
    rates.push(count / ((performance.now() - start) / 1_000));
    if (!results.every((result) => 'created' in result && result.created)) throw new Error('not all made');
  }
  console.log(`${count} in one call: ${median(rates).toFixed(0)} rows/s`);
}

async function compare(lanes: number): Promise<void> {
  const rates: Record<string, number[]> = { enqueue: [], send: [], nothing: [] };
  for (let repetition = 0; repetition < repetitions; repetition++) {
    const names = Object.keys(RUNS) as (keyof typeof RUNS)[];
    for (const name of repetition % 2 === 0 ? names : names.toReversed()) {
      // Neither side pays for rows of the other.
      await bench.empty();
      await rate(RUNS[name], 50, lanes);
      rates[name]?.push(await rate(RUNS[name], transactions, lanes));
    }
  }
  const ratios = (rates['enqueue'] ?? []).map((value, n) => value / (rates['send']?.[n] ?? Number.NaN));
  const shown = (name: string) => `${name} ${median(rates[name] ?? []).toFixed(0)}/s`;
  console.log(
    `${lanes} connection(s): ${shown('enqueue')}, ${shown('send')}, ${shown('nothing')}; ` +
      `enqueue at ${median(ratios).toFixed(2)} of send ` +
      `(quartiles ${percentile(ratios, 0.25).toFixed(2)} to ${percentile(ratios, 0.75).toFixed(2)})`,
  );
}

try {
  console.log(load());
  console.log(`median of ${repetitions} × ${transactions} transactions of BEGIN, one call, COMMIT`);
  for (const lanes of [1, connections]) await compare(lanes);
  for (const count of BULK_ROWS) await bulk(count);
  console.log(load());
} finally {
  await client.stop();
  await boss.stop({ graceful: false });
  await pool.end();
  await bench.stop();
}
