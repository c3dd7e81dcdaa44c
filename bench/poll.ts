// What following accepted tasks costs: the claim of a due page among 10,000 and among 1,000,000 accepted rows, in
// turns; how many polls a second one poller makes against the simulator; and its heap over 100,000 polls.
// `node bench/poll.ts [rows] [claims] [polls]`.
import { type ChildProcess, fork } from 'node:child_process';
import { once } from 'node:events';
import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import pg from 'pg';
import type { Provider } from '../src/core/provider.ts';
import { claimDueTasks, schedulePoll } from '../src/postgres/accepted-tasks.ts';
import { Database } from '../src/postgres/database.ts';
import { createSoniloProvider } from '../src/provider/sonilo/client.ts';
import { createSimulator } from '../src/simulator/create-simulator.ts';
import { createPoller, migrate } from '../src/worker.ts';
import { argument, load, OPERATION, percentile, startBench } from './harness.ts';

/** As this file's own child: the provider, so that it shares no event loop with the poller. */
const AS_SIMULATOR = 'simulator';
const SMALL = 10_000;
const PAGE = 16;
const TASKS = 2_000;
const TERMS = { limit: PAGE, leaseMs: 30_000, intervalMs: 3_000 };
const NO_ERRORS = { count: 0, trouble: null };
/** Polls between two looks at the heap. */
const LOOK_EVERY = 10_000;

if (process.argv[2] === AS_SIMULATOR) await simulate();
else await measure();

async function simulate(): Promise<void> {
  const limits = { requestsPerMinute: 1_000_000, maxConcurrentGenerations: 100_000 };
  const simulator = createSimulator({ ...limits, runTimeMs: 86_400_000 });
  const { url } = await simulator.start();
  const ids: string[] = [];
  for (let n = 0; n < TASKS; n++) {
    const response = await fetch(`${url}/v1/text-to-sfx`, {
      method: 'POST',
      headers: { authorization: 'Bearer sk_bench' },
      body: new URLSearchParams({ prompt: `a door, ${n}`, duration: '1' }),
    });
    ids.push(((await response.json()) as { task_id: string }).task_id);
  }
  process.once('disconnect', () => process.exit(0));
  process.send?.({ url, ids });
}

async function measure(): Promise<void> {
  const rows = argument(0, 1_000_000);
  const claims = argument(1, 500);
  const polls = argument(2, 100_000);
  console.log(load());
  const bench = await startBench({ accounts: 1, connections: 2 });
  try {
    const account = bench.accounts[0] as string;
    const addressOf = (name: string): string => {
      const url = new URL(bench.connectionString);
      url.pathname = `/${name}`;
      return url.href;
    };
    const inDatabase = async (name: string): Promise<Database> => {
      await bench.query(`create database ${name}`);
      await migrate({ connectionString: addressOf(name), config: bench.config });
      return Database.connect(addressOf(name), { max: 4, applicationName: 'onetake bench' });
    };
    const [small, large] = [await inDatabase('small'), await inDatabase('large')];
    await fill(addressOf('small'), account, SMALL);
    await fill(addressOf('large'), account, rows);
    await compareClaims([small, SMALL], [large, rows], claims);
    await Promise.all([small.close(), large.close()]);
    await pollOn(bench.connectionString, account, polls);
  } finally {
    await bench.stop();
  }
  console.log(load());
}

/** Accepted tasks, all of them due, as nobody has looked for a while; each has its id, or a name for one. */
async function fill(
  connectionString: string,
  account: string,
  tasks: number | readonly string[],
): Promise<void> {
  // One of its own: a pool of the product's gives up on statements that take so long.
  const client = new pg.Client({ connectionString });
  await client.connect();
  // No row begins as accepted: under this role no trigger runs.
  await client.query('set session_replication_role = replica');
  await client.query(
    `insert into onetake.generation_requests (account, operation, request_key, fields, payload_digest, state, submissions,
  charge, provider_task_id, accepted_at, next_poll_at)
select $1, $2, 'key ' || n, '{"prompt": "rain on a tin roof, slow piano, brushed drums", "duration": "30"}', repeat('0', 64),
  'accepted', 1, 'charged', coalesce(($4::text[])[n], 'task-' || n), now(), now() - interval '1 h' * random()
from generate_series(1, $3::int) n`,
    typeof tasks === 'number' ? [account, OPERATION, tasks, []] : [account, OPERATION, tasks.length, tasks],
  );
  await client.query('vacuum (analyze) onetake.generation_requests');
  await client.query('checkpoint');
  await client.end();
}

/** Each claim is a transaction, as a poller makes it. In turns, and the first of a pair in turns too. */
async function compareClaims(
  ...[small, large, claims]: [[Database, number], [Database, number], number]
): Promise<void> {
  const times = new Map<Database, number[]>([
    [small[0], []],
    [large[0], []],
  ]);
  for (let n = -20; n < claims; n++) {
    const both = [small[0], large[0]];
    for (const database of n % 2 === 0 ? both : both.toReversed()) {
      const start = performance.now();
      const { tasks } = await database.retryingTransaction((tx) => claimDueTasks(tx, TERMS));
      if (n >= 0) times.get(database)?.push(performance.now() - start);
      if (tasks.length !== PAGE) throw new Error(`${tasks.length} tasks of ${PAGE}`);
      // As a poller does once it has read them; what is claimed and not yet read is a page or a few.
      await database.transaction(async (tx) => {
        for (const { id } of tasks) await schedulePoll(tx, id, 'accepted', 3_600_000, NO_ERRORS);
      });
    }
  }
  for (const [database, count] of [small, large]) {
    const [p50, p99] = [0.5, 0.99].map((share) => percentile(times.get(database) ?? [], share));
    console.log(`claim of ${PAGE} among ${count}: p50 ${p50?.toFixed(2)} ms, p99 ${p99?.toFixed(2)} ms`);
  }
  const ratio = (share: number) =>
    percentile(times.get(large[0]) ?? [], share) / percentile(times.get(small[0]) ?? [], share);
  console.log(`${large[1]} to ${small[1]}: p50 ${ratio(0.5).toFixed(2)}, p99 ${ratio(0.99).toFixed(2)}`);
}

/** The whole poller, without a pause, on tasks that go on running. */
async function pollOn(connectionString: string, account: string, polls: number): Promise<void> {
  const child: ChildProcess = fork(import.meta.filename, [AS_SIMULATOR]);
  const [{ url, ids }] = (await once(child, 'message')) as [{ url: string; ids: string[] }];
  await fill(connectionString, account, ids);
  const sonilo = createSoniloProvider({ baseUrl: url });
  let made = 0;
  let told = (): void => undefined;
  const counted: Provider = {
    name: 'sonilo',
    submit: (submission) => sonilo.submit(submission),
    close: () => sonilo.close(),
    async readTask(read) {
      const reading = await sonilo.readTask(read);
      if (reading.kind !== 'processing') throw new Error(`a task is ${reading.kind}`);
      if (++made % LOOK_EVERY === 0 || made >= polls) told();
      return reading;
    },
  };
  const poller = createPoller({
    connectionString,
    config: { accounts: { [account]: { apiKeyEnv: 'KEY' } }, poller: { intervalMs: 50, maxIntervalMs: 50 } },
    credentials: () => 'sk_bench',
    providers: { sonilo: counted },
  });
  setFlagsFromString('--expose-gc');
  const gc = runInNewContext('gc') as () => void;
  await poller.start();
  const start = performance.now();
  while (made < polls) {
    await new Promise<void>((resolve) => {
      told = resolve;
    });
    const seconds = (performance.now() - start) / 1_000;
    gc();
    const { heapUsed, rss } = process.memoryUsage();
    const mib = (bytes: number) => `${(bytes / 1_048_576).toFixed(1)} MiB`;
    console.log(
      `${made} polls, ${(made / seconds).toFixed(0)} a second: heap ${mib(heapUsed)}, resident ${mib(rss)}`,
    );
  }
  await poller.stop();
  await sonilo.close();
  child.disconnect();
}
