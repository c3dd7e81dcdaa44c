// What one permit costs in the closed state, with k = 1, 8 and 32 per transaction, next to the same commits
// without the breaker, in one run. `node bench/permit.ts [seconds per case]`, on a machine that does nothing else.
import { randomUUID } from 'node:crypto';
import { admit } from '../src/lifecycle/admit.ts';
import { takeJobs } from '../src/lifecycle/take-jobs.ts';
import { lockAccount } from '../src/postgres/accounts.ts';
import { countLoad, type Lane } from '../src/postgres/lanes.ts';
import { admitRequests } from '../src/postgres/submission-attempts.ts';
import { ACCOUNT, type Bench, OPERATION, startBench } from './harness.ts';

const seconds = Number(process.argv[2] ?? 3);
const HOUR_MS = 3_600_000;

async function withBreaker({ ctx }: Bench, lane: Lane, k: number): Promise<number> {
  const result = await admit(ctx, lane, { wanted: k });
  return 'attempts' in result ? result.attempts.length : 0;
}

/** Transaction A as it is, less the breaker's lock and decision. */
async function withoutBreaker({ ctx }: Bench, lane: Lane, k: number): Promise<number> {
  return ctx.database.transaction(async (tx) => {
    await lockAccount(tx, ACCOUNT);
    const { now } = await countLoad(tx, ACCOUNT, OPERATION);
    const eligible = await takeJobs(ctx.queue, tx, lane, k, now);
    const later = new Date(now.getTime() + HOUR_MS);
    const attempts = await admitRequests(
      tx,
      eligible.map((requestId) => ({ requestId, attemptId: randomUUID() })),
      {
        breakerName: `sonilo/${OPERATION}`,
        generation: 1,
        holdEpoch: 0,
        isProbe: false,
        override: null,
        worker: 'bench',
        startedAt: now,
        leaseExpiresAt: later,
        windowUntil: now,
        slotUntil: later,
        quarantineUntil: later,
      },
    );
    return attempts.length;
  });
}

const bench = await startBench(4);
try {
  console.log('k   with breaker            without                 cost of the breaker');
  for (const k of [1, 8, 32]) {
    const measured: Record<string, number> = {};
    // Alternating halves, so that a growing table weighs on both alike.
    for (const half of [1, 2]) {
      for (const [name, run] of Object.entries({ withBreaker, withoutBreaker })) {
        await bench.fill(k * 1_500);
        const lane = await bench.lane();
        let transactions = 0;
        const start = performance.now();
        while (performance.now() - start < (seconds * 1_000) / 2) {
          if ((await run(bench, lane, k)) < k) await bench.fill(k * 1_000);
          transactions++;
        }
        measured[name] = (measured[name] ?? 0) + (performance.now() - start) / transactions / 2;
        // Counting the window is part of admission; here it must not grow from case to case.
        await bench.ctx.database.executeSql(
          'update onetake.submission_attempts set window_until = started_at, slot_until = started_at',
        );
        await bench.ctx.database.executeSql('vacuum analyze onetake.submission_attempts');
        await bench.ctx.database.executeSql('vacuum analyze onetake.generation_requests');
        void half;
      }
    }
    const { withBreaker: a = 0, withoutBreaker: b = 0 } = measured;
    const column = (ms: number) => `${ms.toFixed(2)} ms (${(ms / k).toFixed(3)} a permit)`.padEnd(24);
    console.log(`${String(k).padEnd(4)}${column(a)}${column(b)}${((a / b - 1) * 100).toFixed(0)} %`);
  }
} finally {
  await bench.stop();
}
