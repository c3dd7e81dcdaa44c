import { createInterface } from 'node:readline';
import { dispatch } from '../../src/lifecycle/dispatch.ts';
import { admitProbe } from '../../src/lifecycle/probe.ts';
import { settle } from '../../src/lifecycle/settle.ts';
import { submit } from '../../src/lifecycle/submit.ts';
import { databaseErrorCode } from '../../src/postgres/errors.ts';
import type { Lane } from '../../src/postgres/lanes.ts';
import type { OnetakeConfig } from '../../src/runtime/define-config.ts';
import { laneOf, lifecycleContext } from './lifecycle-context.ts';

// Many would-be probers in one process, each with a connection of its own. For each line of stdin, all of
// them come for the probe at once; the answer is how many were admitted.

/** In the environment variable ONETAKE_TEST_PROBERS, as JSON. */
export interface ProberChildOptions {
  readonly connectionString: string;
  readonly config: OnetakeConfig;
  readonly probers: number;
}

const options = JSON.parse(process.env['ONETAKE_TEST_PROBERS'] ?? '{}') as ProberChildOptions;
const ctx = await lifecycleContext({ ...options, poolMax: options.probers });
const say = (line: object): void => void process.stdout.write(`${JSON.stringify(line)}\n`);

/** Half of them look first, as dispatch does; the others have looked a moment ago and come with what they saw. */
async function comeForProbe(prober: number, seen: Lane): Promise<number> {
  let admitted = 0;
  const perform = async (lane: Lane, batch: Parameters<Parameters<typeof dispatch>[3]>[1]): Promise<void> => {
    admitted += batch.attempts.length;
    for (const attempt of batch.attempts) {
      await settle(ctx, attempt, await submit(ctx, attempt, lane.provider, () => batch.maySend(attempt)));
    }
  };
  if (prober % 2 === 0) {
    const performed: Promise<void>[] = [];
    await dispatch(
      ctx,
      null,
      { freeSlots: () => 1 - performed.length, reaches: () => true },
      (lane, batch) => void performed.push(perform(lane, batch)),
    );
    await Promise.all(performed);
  } else {
    const probe = await admitProbe(ctx, seen.provider, seen.operation).catch(notInTime);
    if (probe !== undefined) await perform(probe.lane, probe.batch);
  }
  return admitted;
}

/** Patience with a lock is short, and in this crowd not everybody gets it in time: those have lost. */
function notInTime(error: unknown): undefined {
  if (databaseErrorCode(error) !== '55P03') throw error;
}

say({ ready: process.pid });
for await (const line of createInterface({ input: process.stdin })) {
  const { round } = JSON.parse(line) as { round: number };
  const seen = await laneOf(ctx);
  const admitted = await Promise.all(
    Array.from({ length: options.probers }, (_, prober) => comeForProbe(prober, seen)),
  );
  say({ round, admitted: admitted.reduce((sum, count) => sum + count, 0) });
}
await ctx.stop();
