// What a fleet of four worker processes does behind an open breaker, for ten cooldowns, with 100,000 jobs queued:
// in one account, and spread over a thousand. Which job rows were touched, what the fleet asks of the database
// meanwhile, and how soon every slot is busy after the close. `node bench/quiet.ts [jobs] [cooldowns]`.
import { type ChildProcess, fork } from 'node:child_process';
import { once } from 'node:events';
import { createServer, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import { setTimeout as wait } from 'node:timers/promises';
import { JobQueue } from '../src/queue/boss.ts';
import { keepQueues } from '../src/queue/upkeep.ts';
import { argument, type Bench, BREAKER, load, median, startBench } from './harness.ts';
import type { QuietWorkerAnswer, QuietWorkerOptions } from './quiet-worker.ts';

const jobs = argument(0, 100_000);
const cooldowns = argument(1, 10);
const PROCESSES = 4;
const SLOTS = 8;
const COOLDOWN_MS = 3_000;
/** How long the provider takes to accept. */
const ACCEPTANCE_MS = 1_000;
const LIMIT_MS = 120_000;
/** After it, a backend that has nothing to do has told what it has done: PostgreSQL lets it take ten seconds. */
const STATISTICS_LAG_MS = 11_000;

/** Answers 502, or takes its time and accepts. Knows how many POSTs it holds. */
class Provider {
  accepts = false;
  posts = 0;
  together = 0;
  /** Whoever waits for so many at once. */
  #reached: { readonly count: number; readonly tell: (at: number) => void } | undefined;
  readonly #server: Server;

  private constructor() {
    this.#server = createServer((request, response) => {
      request.resume().once('end', () => {
        const number = ++this.posts;
        this.together++;
        if (this.together >= (this.#reached?.count ?? Number.POSITIVE_INFINITY)) {
          this.#reached?.tell(performance.now());
          this.#reached = undefined;
        }
        const answer = (status: number, body: object): void => {
          this.together--;
          response.writeHead(status, { 'content-type': 'application/json' }).end(JSON.stringify(body));
        };
        if (!this.accepts) return answer(502, {});
        setTimeout(() => answer(202, { task_id: `task-${number}`, status: 'processing' }), ACCEPTANCE_MS);
      });
    });
  }

  static async start(): Promise<Provider> {
    const provider = new Provider();
    provider.#server.listen(0, '127.0.0.1');
    await once(provider.#server, 'listening');
    return provider;
  }

  get url(): string {
    return `http://127.0.0.1:${(this.#server.address() as AddressInfo).port}`;
  }

  reaches(count: number): Promise<number> {
    return new Promise((resolve) => {
      this.#reached = { count, tell: resolve };
    });
  }

  stop(): void {
    this.#server.close();
    this.#server.closeAllConnections();
  }
}

async function until<T>(what: string, fact: () => Promise<T | undefined>): Promise<T> {
  for (const end = performance.now() + LIMIT_MS; performance.now() < end; await wait(20)) {
    const found = await fact();
    if (found !== undefined) return found;
  }
  throw new Error(`waited ${LIMIT_MS} ms for ${what}`);
}

interface TransitionRow {
  readonly cause: string;
  readonly at: Date;
  readonly previousAt: Date | null;
  readonly retryAt: Date | null;
}

/** Oldest first; `previousAt` and `retryAt` are those of the transition before. */
function transitions(bench: Bench): Promise<TransitionRow[]> {
  return bench.query(
    `select cause, at, lag(at) over (order by id) as "previousAt", lag(retry_at) over (order by id) as "retryAt"
from onetake.circuit_breaker_transitions where breaker_name = $1 order by id`,
    [BREAKER],
  );
}

async function startWorkers(bench: Bench): Promise<ChildProcess[]> {
  const workers = Array.from({ length: PROCESSES }, (_, n) => {
    const { config, connectionString } = bench;
    const options: QuietWorkerOptions = { config, connectionString, name: `bench-${n + 1}` };
    return fork(`${import.meta.dirname}/quiet-worker.ts`, [JSON.stringify(options)]);
  });
  await Promise.all(workers.map((worker) => once(worker, 'message')));
  return workers;
}

async function roundTrips(workers: readonly ChildProcess[]): Promise<number> {
  const answers = await Promise.all(
    workers.map(async (worker) => {
      const answered = once(worker, 'message');
      worker.send('count');
      return ((await answered) as [QuietWorkerAnswer])[0].roundTrips;
    }),
  );
  return answers.reduce((sum, count) => sum + count, 0);
}

/** By request: where its waiting job lies, who wrote it and who has locked it. */
async function jobPrints(bench: Bench): Promise<Map<string, string>> {
  const rows = await bench.query<{ id: string; print: string }>(
    `select singleton_key as id, concat_ws(' ', tableoid, ctid, xmin, xmax, state) as print from onetake_queue.job`,
  );
  return new Map(rows.map(({ id, print }) => [id, print]));
}

async function counters(bench: Bench, workers: readonly ChildProcess[]) {
  const [row] = await bench.query<{ commits: number; rollbacks: number; written: number; at: Date }>(
    `select xact_commit::int as commits, xact_rollback::int as rollbacks, clock_timestamp() as at,
  (tup_inserted + tup_updated + tup_deleted)::int as written
from pg_stat_database where datname = current_database()`,
  );
  if (row === undefined) throw new Error('no statistics');
  return { ...row, roundTrips: await roundTrips(workers) };
}

/** Passes over all queues, as each worker makes one each five minutes: the day's first, and one that finds that done. */
async function upkeep(bench: Bench): Promise<void> {
  let statements = 0;
  const queue = new JobQueue({
    executor: {
      executeSql: (text, values = []) => {
        statements++;
        return bench.ctx.database.upkeep.executeSql(text, values);
      },
    },
    role: 'client',
    onError: (error) => console.error(error),
  });
  await queue.start();
  for (const what of ['once a day', 'each five minutes']) {
    statements = 0;
    const start = performance.now();
    await keepQueues(queue, () => true);
    const ms = performance.now() - start;
    console.log(`  upkeep of the queues, ${what}: ${statements} statements, ${ms.toFixed(0)} ms`);
  }
  await queue.stop();
}

async function quiet(accounts: number): Promise<void> {
  const provider = await Provider.start();
  const bench = await startBench({
    accounts,
    connections: 4,
    config: {
      providers: { sonilo: { baseUrl: provider.url } },
      operations: { 'text-to-music': { breaker: { cooldownMs: COOLDOWN_MS } } },
      worker: { concurrency: SLOTS },
    },
  });
  let workers: ChildProcess[] = [];
  try {
    await bench.fill(jobs / accounts);
    await bench.query('vacuum analyze onetake.generation_requests');
    await bench.query('vacuum analyze onetake_queue.job');
    workers = await startWorkers(bench);
    // They open it themselves; what was in flight then has ended before the first of the counted cooldowns.
    const isProbeFailure = (row: TransitionRow) => row.cause === 'probe_failed';
    await until('the opening', async () => (await transitions(bench)).find(isProbeFailure));
    await wait(STATISTICS_LAG_MS);

    const jobsBefore = await jobPrints(bench);
    const before = await counters(bench, workers);
    const first = (await transitions(bench)).filter(isProbeFailure).length;
    const posts = provider.posts;
    let looks = 0;
    await until('the cooldowns', async () => {
      looks++;
      await wait(200);
      return (await transitions(bench)).filter(isProbeFailure).length >= first + cooldowns ? true : undefined;
    });
    const after = await counters(bench, workers);
    const probes = provider.posts - posts;
    const jobsAfter = await jobPrints(bench);
    const touched = [...jobsBefore].filter(([id, print]) => jobsAfter.get(id) !== print).length;
    const seconds = (after.at.getTime() - before.at.getTime()) / 1_000;
    const rate = (count: number) => (count / seconds).toFixed(1);
    const waits = (await transitions(bench))
      .filter((row) => row.cause === 'probe_granted' && row.retryAt !== null)
      .map((row) => row.at.getTime() - (row.retryAt as Date).getTime());
    console.log(`\n${jobs} jobs in ${accounts} account(s), ${PROCESSES} processes × ${SLOTS} slots`);
    console.log(`  open for ${cooldowns} cooldowns of ${COOLDOWN_MS} ms: ${seconds.toFixed(1)} s`);
    console.log(`  probes ${probes}, job rows touched ${touched}`);
    console.log(
      `  round trips of the fleet ${rate(after.roundTrips - before.roundTrips)}/s; transactions ` +
        `${rate(after.commits - before.commits - looks)}/s, rolled back ${after.rollbacks - before.rollbacks}; ` +
        `rows written in all ${after.written - before.written}`,
    );
    console.log(
      `  a probe went ${median(waits)} ms after retry_at (median; at most ${Math.max(...waits)} ms)`,
    );

    await upkeep(bench);
    const full = provider.reaches(PROCESSES * SLOTS);
    provider.accepts = true;
    const reachedAt = await Promise.race([full, wait(LIMIT_MS, undefined, { ref: false })]);
    if (reachedAt === undefined) throw new Error('the slots never filled');
    // From the database's instant of the close to this process's of the last slot: one machine, one clock.
    const closed = (await transitions(bench)).find((row) => row.cause === 'probe_succeeded');
    if (closed === undefined) throw new Error('it never closed');
    const ms = performance.timeOrigin + reachedAt - closed.at.getTime();
    console.log(
      `  after the close all ${PROCESSES * SLOTS} slots were busy in ${ms.toFixed(0)} ms: ` +
        `${(ms / ACCEPTANCE_MS).toFixed(1)} acceptances of ${ACCEPTANCE_MS} ms`,
    );
  } finally {
    await Promise.all(
      workers.map(async (worker) => {
        const ended = once(worker, 'exit');
        worker.kill('SIGKILL');
        await ended;
      }),
    );
    provider.stop();
    await bench.stop();
  }
}

console.log(load());
await quiet(1);
await quiet(1_000);
console.log(load());
