/**
 * A deadline, ms from now, that reads what has arrived before it acts. A process that stood still (stopped, suspended,
 * a blocked event loop) finds its overdue timers before the answer that has been waiting in the kernel; acting at
 * once would throw away the id of a task that is paid for. While something of ours has still to leave it does act at
 * once: that would leave in the same turn, when nobody expects it any more.
 */
export function afterArrivals(ms: number, isSending: () => boolean, act: () => void): NodeJS.Timeout {
  return setTimeout(() => {
    // Timers, then sockets, then immediates.
    if (isSending()) act();
    else setImmediate(act);
  }, ms);
}
