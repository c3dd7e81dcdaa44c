// How long it takes for the breaker to open, from the call of the settle that reaches the threshold, while 32
// slots admit and settle without pause. `node bench/opening.ts [rounds]`.
import { admit } from '../src/lifecycle/admit.ts';
import { settle } from '../src/lifecycle/settle.ts';
import { accepted, failed, percentile, startBench } from './harness.ts';

const rounds = Number(process.argv[2] ?? 20);
const SLOTS = 32;
const THRESHOLD = 3;

const bench = await startBench(SLOTS + 8);
const { ctx } = bench;
const latencies: number[] = [];
try {
  await bench.fill(200);
  for (let round = 0; round < rounds; round++) {
    await ctx.database.executeSql(
      `update onetake.circuit_breakers set state = 'closed', generation = generation + 1, opened_at = null,
  retry_at = null, probe_attempt_id = null, probe_request_id = null, failed_probes = 0, consecutive_failures = 0`,
    );
    await bench.fill(2_000);
    const lane = await bench.lane();
    const doomed = await admit(ctx, lane, { wanted: THRESHOLD });
    if (!('attempts' in doomed)) throw new Error('nothing was admitted');
    let hammering = true;
    const hammer = async (): Promise<void> => {
      while (hammering) {
        const batch = await admit(ctx, lane, { wanted: 1 });
        if (!('attempts' in batch)) return;
        for (const attempt of batch.attempts) await settle(ctx, attempt, { ...accepted(), health: 'none' });
      }
    };
    const slots = Array.from({ length: SLOTS }, hammer);
    const start = performance.now();
    await Promise.all(doomed.attempts.map((attempt) => settle(ctx, attempt, failed())));
    latencies.push(performance.now() - start);
    hammering = false;
    await Promise.all(slots);
    const { rows } = await ctx.database.executeSql(
      `select state from onetake.circuit_breakers where name = 'sonilo/text-to-music'`,
    );
    if ((rows[0] as { state: string }).state !== 'open') throw new Error('the breaker is not open');
  }
  latencies.sort((a, b) => a - b);
  const [p50, p95] = [percentile(latencies, 0.5), percentile(latencies, 0.95)];
  console.log(
    `opened in p50 ${p50.toFixed(1)} ms, p95 ${p95.toFixed(1)} ms, ${rounds} rounds, ${SLOTS} slots`,
  );
} finally {
  await bench.stop();
}
