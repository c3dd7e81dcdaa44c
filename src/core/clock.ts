/**
 * This process's own clocks, for what happens inside it: deadlines, budgets, waits. Facts that processes
 * share are timed by the database's clock.
 */
export interface Clock {
  /** Wall clock, epoch ms. Can jump. */
  now(): number;
  /** Monotonic ms. Stands still while the machine is suspended. */
  monotonic(): number;
}

/**
 * Ms gone by since `start`, by whichever of the two clocks says more: a suspended machine stops the one,
 * a corrected wall clock the other.
 */
export function elapsedMs(clock: Clock, start: { wall: number; monotonic: number }): number {
  return Math.max(clock.now() - start.wall, clock.monotonic() - start.monotonic);
}

export function startOf(clock: Clock): { wall: number; monotonic: number } {
  return { wall: clock.now(), monotonic: clock.monotonic() };
}
