// How long the breaker takes to open while 32 slots admit and settle without a pause, from the call of the settle
// that reaches the threshold to its return, after the commit; and what was still let in meanwhile. Beside it the
// same settle with nobody about. `node bench/opening.ts [rounds]`.
//
// Two cases: all slots in one lane, and each slot in a lane of its own, where they meet at the breaker alone.
import { admit } from '../src/lifecycle/admit.ts';
import { settle } from '../src/lifecycle/settle.ts';
import {
  argument,
  type Bench,
  BREAKER,
  failed,
  load,
  orGivesUp,
  percentile,
  refused,
  startBench,
} from './harness.ts';

const rounds = argument(0, 30);
const SLOTS = 32;
const THRESHOLD = 3;
/** Settled by the slots before the failures begin, so that they are all under way. */
const WARM_UP = SLOTS * 4;

interface Round {
  readonly openedMs: number;
  /** Admitted by the slots after the settle was called: the price of the latency. */
  readonly letIn: number;
  /** Admissions that waited for a lock in vain, warm-up included. */
  readonly gaveUp: number;
}

async function open(bench: Bench, hammered: boolean): Promise<Round> {
  const { ctx, query } = bench;
  await query(
    `update onetake.circuit_breakers set state = 'closed', generation = generation + 1, opened_at = null,
  retry_at = null, probe_attempt_id = null, probe_request_id = null, failed_probes = 0, consecutive_failures = 0,
  ramp_acceptances = null`,
  );
  await bench.empty();
  await bench.fill(Math.ceil(4_000 / bench.accounts.length));
  await query('vacuum analyze onetake_queue.job');
  const lanes = await bench.lanes();
  const [first] = lanes;
  if (first === undefined) throw new Error('nothing is queued');
  const doomed = await admit(ctx, first, { wanted: THRESHOLD });
  if (!('attempts' in doomed)) throw new Error('nothing was admitted');
  const last = doomed.attempts.at(-1);
  if (last === undefined || doomed.attempts.length !== THRESHOLD) throw new Error('too few were admitted');

  let hammering = hammered;
  let settled = 0;
  let admitted = 0;
  let gaveUp = 0;
  let warm = (): void => {};
  const warmedUp = new Promise<void>((resolve) => {
    warm = resolve;
  });
  const hammer = async (slot: number): Promise<void> => {
    const lane = lanes[slot % lanes.length] ?? first;
    while (hammering) {
      const batch = await orGivesUp(() => admit(ctx, lane, { wanted: 1 }));
      if (batch === undefined) {
        gaveUp++;
        continue;
      }
      if (!('attempts' in batch)) return;
      admitted += batch.attempts.length;
      // Counts for nothing, and yet goes to the breaker's lock, as each failure does.
      for (const attempt of batch.attempts) await settle(ctx, attempt, refused());
      if (++settled === WARM_UP) warm();
    }
  };
  const slots = Promise.all(Array.from({ length: hammered ? SLOTS : 0 }, (_, slot) => hammer(slot)));
  try {
    if (hammered) await Promise.race([warmedUp, slots]);
    for (const attempt of doomed.attempts.slice(0, -1)) await settle(ctx, attempt, failed());
    const before = admitted;
    const start = performance.now();
    await settle(ctx, last, failed());
    const openedMs = performance.now() - start;
    const letIn = admitted - before;
    const [row] = await query<{ state: string }>(
      'select state from onetake.circuit_breakers where name = $1',
      [BREAKER],
    );
    if (row?.state !== 'open') throw new Error(`the breaker is ${row?.state}`);
    return { openedMs, letIn, gaveUp };
  } finally {
    hammering = false;
    await slots;
  }
}

function say(what: string, measured: readonly Round[]): void {
  const ms = measured.map((round) => round.openedMs);
  const letIn = measured.map((round) => round.letIn);
  const at = (share: number) => percentile(ms, share).toFixed(1);
  console.log(
    `${what.padEnd(34)}p50 ${at(0.5)} ms, p95 ${at(0.95)} ms, at most ${at(1)} ms; ` +
      `let in meanwhile p50 ${percentile(letIn, 0.5)}, at most ${percentile(letIn, 1)}; ` +
      `admissions that gave up ${measured.reduce((sum, round) => sum + round.gaveUp, 0)}`,
  );
}

console.log(`${load()}; ${rounds} rounds, ${SLOTS} slots`);
for (const accounts of [1, SLOTS]) {
  const bench = await startBench({ accounts, connections: SLOTS + 8 });
  try {
    const measured: Record<'idle' | 'hammered', Round[]> = { idle: [], hammered: [] };
    for (let round = 0; round < rounds; round++) {
      measured.idle.push(await open(bench, false));
      measured.hammered.push(await open(bench, true));
    }
    const where = accounts === 1 ? 'one lane' : `${accounts} lanes`;
    say(`${where}, nobody about:`, measured.idle);
    say(`${where}, ${SLOTS} slots at it:`, measured.hammered);
  } finally {
    await bench.stop();
  }
}
console.log(load());
