/** The first signal counts; later ones change nothing, so that an impatient second Ctrl-C costs no paid POST. */
export interface Signals {
  /** SIGINT ends what waits, by the command's own hand. */
  interrupt(): AbortSignal;
  /** SIGINT, SIGTERM and a closed terminal ask a process to drain. */
  drain(): AbortSignal;
}

/** Until a command takes the signals over, an interrupt is `onInterrupt`. */
export function listenForSignals(onInterrupt: () => void): Signals {
  const interrupted = new AbortController();
  const drained = new AbortController();
  let isTaken = false;
  process.on('SIGINT', () => {
    if (!isTaken) onInterrupt();
    interrupted.abort();
    drained.abort();
  });
  return {
    interrupt() {
      isTaken = true;
      return interrupted.signal;
    },
    drain() {
      isTaken = true;
      for (const signal of ['SIGTERM', 'SIGHUP'] as const) process.on(signal, () => drained.abort());
      return drained.signal;
    },
  };
}

export function aborted(signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    if (signal.aborted) resolve();
    else signal.addEventListener('abort', () => resolve(), { once: true });
  });
}
