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
 * Ms gone by since it was started, at most a few too many. Between any two readings the clock counts that says
 * more: a suspended machine stops the one, a corrected wall clock the other, and one may follow on the other.
 */
export function stopwatch(clock: Clock): () => number {
  let elapsed = 0;
  let [wall, monotonic] = [clock.now(), clock.monotonic()];
  return () => {
    const [wallBefore, monotonicBefore] = [wall, monotonic];
    [wall, monotonic] = [clock.now(), clock.monotonic()];
    elapsed += Math.max(0, wall - wallBefore, monotonic - monotonicBefore);
    return elapsed;
  };
}
