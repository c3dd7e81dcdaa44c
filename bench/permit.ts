// What one permit costs in the closed state, with k = 1, 8 and 32 in a transaction, next to the same commits
// without the breaker, in one run: `node bench/permit.ts [repetitions] [commits in each]`.
//
// Two cases. With one lane nobody waits for anybody: the difference is the breaker's own statement. With eight
// lanes at once the breaker is the one row that they all lock until they have committed.
import { randomUUID } from 'node:crypto';
import { RATE_WINDOW_MS } from '../src/core/admission.ts';
import { admit } from '../src/lifecycle/admit.ts';
import { takeJobs } from '../src/lifecycle/take-jobs.ts';
import { lockAccountToAdmit } from '../src/postgres/accounts.ts';
import { countLoad, type Lane } from '../src/postgres/lanes.ts';
import { admitRequests } from '../src/postgres/submission-attempts.ts';
import { argument, type Bench, BREAKER, load, median, orGivesUp, percentile, startBench } from './harness.ts';

const repetitions = argument(0, 15);
const commits = argument(1, 40);
const LANES = 8;
/** As many jobs lie in a lane at the beginning of each measurement, whoever's turn it is. */
const SPARE = 200;

type Run = (bench: Bench, lane: Lane, k: number) => Promise<number>;

const withBreaker: Run = async ({ ctx }, lane, k) => {
  const result = await admit(ctx, lane, { wanted: k });
  return 'attempts' in result ? result.attempts.length : 0;
};

/** Transaction A as it is, less the breaker's lock and what it is asked. */
const withoutBreaker: Run = async ({ ctx }, lane, k) => {
  const { leaseMs, maxRunMs, rearmQuarantineMs } = ctx.settingsOf(lane.operation);
  const attemptIds = Array.from({ length: k }, () => randomUUID());
  const attempts = await ctx.database.retryingTransaction(
    async (tx) => {
      await lockAccountToAdmit(tx, lane.account, ctx.guard.mark);
      const { now } = await countLoad(tx, lane.account, lane.operation);
      const { eligible } = await takeJobs(ctx.queue, tx, lane, k, now);
      const leaseEnd = now.getTime() + leaseMs;
      return admitRequests(
        tx,
        eligible.map((requestId, n) => ({ requestId, attemptId: attemptIds[n] as string })),
        {
          breakerName: BREAKER,
          generation: 1,
          holdEpoch: 0,
          isProbe: false,
          override: null,
          worker: ctx.worker,
          startedAt: now,
          leaseExpiresAt: new Date(leaseEnd),
          windowUntil: new Date(leaseEnd + RATE_WINDOW_MS),
          slotUntil: new Date(leaseEnd + maxRunMs),
          quarantineUntil: new Date(leaseEnd + rearmQuarantineMs),
        },
      );
    },
    { lockTimeoutMs: 500, tries: 1 },
  );
  return attempts.length;
};

const RUNS = { withBreaker, withoutBreaker };

/** Everything that earlier measurements left is taken away: neither side pays for rows of the other. */
async function reset(bench: Bench, each: number): Promise<Lane[]> {
  await bench.empty();
  await bench.fill(each);
  await bench.query('analyze onetake.generation_requests');
  await bench.query('analyze onetake_queue.job');
  await bench.query('checkpoint');
  return bench.lanes();
}

/** Per commit; with several lanes, of wall time for one commit of them all. */
interface Measured {
  readonly ms: number;
  /** Waits for a lock that were given up, and begun again; their time is in `ms`. */
  readonly gaveUp: number;
}

async function measure(bench: Bench, run: Run, k: number): Promise<Measured> {
  const lanes = await reset(bench, k * commits + SPARE);
  for (const lane of lanes) await run(bench, lane, k);
  let gaveUp = 0;
  const start = performance.now();
  await Promise.all(
    lanes.map(async (lane) => {
      for (let n = 0; n < commits - 1; ) {
        const permits = await orGivesUp(() => run(bench, lane, k));
        if (permits === undefined) gaveUp++;
        else if (permits !== k) throw new Error(`${permits} permits of ${k}`);
        else n++;
      }
    }),
  );
  return { ms: (performance.now() - start) / ((commits - 1) * lanes.length), gaveUp };
}

async function compare(accounts: number): Promise<void> {
  const bench = await startBench({ accounts, connections: accounts + 2 });
  try {
    console.log(
      `\n${accounts === 1 ? 'one lane' : `${accounts} lanes at once`}: median of ${repetitions} × ${commits} commits`,
    );
    console.log('k   with the breaker       without                ratio of the pairs: median (quartiles)');
    for (const k of [1, 8, 32]) {
      const gaveUp: Record<keyof typeof RUNS, number> = { withBreaker: 0, withoutBreaker: 0 };
      const times: Record<keyof typeof RUNS, number[]> = { withBreaker: [], withoutBreaker: [] };
      for (let repetition = 0; repetition < repetitions; repetition++) {
        // In turns, and the first of a pair in turns too.
        const names = Object.keys(RUNS) as (keyof typeof RUNS)[];
        for (const name of repetition % 2 === 0 ? names : names.toReversed()) {
          const measured = await measure(bench, RUNS[name], k);
          times[name].push(measured.ms);
          gaveUp[name] += measured.gaveUp;
        }
      }
      const ratios = times.withBreaker.map((ms, n) => ms / (times.withoutBreaker[n] as number));
      const column = (ms: number) => `${ms.toFixed(2)} ms (${(ms / k).toFixed(3)})`.padEnd(23);
      const percent = (ratio: number) => `${ratio >= 1 ? '+' : ''}${((ratio - 1) * 100).toFixed(0)} %`;
      console.log(
        `${String(k).padEnd(4)}${column(median(times.withBreaker))}${column(median(times.withoutBreaker))}` +
          `${percent(median(ratios))} (${percent(percentile(ratios, 0.25))} to ${percent(percentile(ratios, 0.75))})` +
          (gaveUp.withBreaker + gaveUp.withoutBreaker === 0
            ? ''
            : `; gave up ${gaveUp.withBreaker}, without ${gaveUp.withoutBreaker}`),
      );
    }
  } finally {
    await bench.stop();
  }
}

console.log(load());
for (const accounts of [1, LANES]) await compare(accounts);
console.log(load());
