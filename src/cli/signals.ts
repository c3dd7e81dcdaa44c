/** The first signal counts; later ones change nothing, so that an impatient second Ctrl-C costs no paid POST. */
export interface Signals {
  /** SIGINT ends what waits, by the command's own hand. */
  interrupt(): AbortSignal;
  /** SIGINT, SIGTERM and a closed terminal ask a process to drain. */
  drain(): AbortSignal;
}

/** What a shell reports of a process that one of these has ended. */
const EXIT_OF = { SIGTERM: 143, SIGHUP: 129 } as const;

/**
 * Until a command takes the signals over, an interrupt is `onInterrupt`, and the others end the process: said
 * here, since the first process of a container has no defaults, and a signal that nobody listens to is lost.
 */
export function listenForSignals(onInterrupt: () => void): Signals {
  const interrupted = new AbortController();
  const drained = new AbortController();
  let isTaken = false;
  let isDrained = false;
  process.on('SIGINT', () => {
    if (!isTaken) onInterrupt();
    interrupted.abort();
    drained.abort();
  });
  for (const signal of ['SIGTERM', 'SIGHUP'] as const) {
    process.on(signal, () => {
      if (!isDrained) process.exit(EXIT_OF[signal]);
      drained.abort();
    });
  }
  return {
    interrupt() {
      isTaken = true;
      return interrupted.signal;
    },
    drain() {
      isTaken = true;
      isDrained = true;
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
