/**
 * A deadline, ms from now, that reads what has arrived before it acts. A process that stood still (stopped, suspended,
 * a blocked event loop) finds its overdue timers before the answer that has been waiting in the kernel; acting at
 * once would throw away the id of a task that is paid for.
 */
export function afterArrivals(ms: number, act: () => void): NodeJS.Timeout {
  // Timers, then sockets, then immediates.
  return setTimeout(() => setImmediate(act), ms);
}
