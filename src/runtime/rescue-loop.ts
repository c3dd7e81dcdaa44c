import type { RescueContext } from '../lifecycle/context.ts';
import { rescue, sweepVanishedJobs } from '../lifecycle/rescue.ts';
import { isPassing, isRetryable } from '../postgres/errors.ts';
import { Loop, type LoopOptions } from './loop.ts';

const SWEEP_INTERVAL_MS = 60_000;

/** Rescue each `intervalMs`, and the slow sweep for vanished jobs a page at a time. */
export function rescueLoop(
  ctx: RescueContext,
  intervalMs: number,
  reports: Omit<LoopOptions, 'round'>,
): { loop: Loop; once: () => Promise<number> } {
  let nextSweep = performance.now() + SWEEP_INTERVAL_MS;
  let sweepAfter: string | null = null;
  let isFailing = false;
  /** A row that can't be put right is told each time, and slows down nothing of what can be. */
  const rescueOrReport = async (): Promise<void> => {
    try {
      await rescue(ctx);
      if (isFailing) reports.onRecovered?.();
      isFailing = false;
    } catch (error) {
      if (isPassing(error) && !isRetryable(error)) throw error;
      isFailing = true;
      reports.onTrouble(error);
    }
  };
  const loop = new Loop({
    round: async () => {
      await rescueOrReport();
      if (performance.now() >= nextSweep) {
        sweepAfter = await sweepVanishedJobs(ctx, sweepAfter);
        if (sweepAfter === null) nextSweep = performance.now() + SWEEP_INTERVAL_MS;
      }
      return intervalMs;
    },
    ...reports,
  });
  return { loop, once: () => rescue(ctx) };
}
