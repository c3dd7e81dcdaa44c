import { setTimeout as delay } from 'node:timers/promises';
import { inspect } from 'node:util';

export interface WaitForOptions {
  /** Completes the sentence "waited for …". */
  readonly what: string;
  readonly timeoutMs?: number;
}

type NotYet = undefined | null | false;

/**
 * Resolves with the first answer of `fact` that isn't undefined, null or false. An error of `fact` ends the wait.
 * The one timer of the test side: everything else waits through here or for an event.
 */
export async function waitFor<T>(
  fact: () => Promise<T | NotYet> | T | NotYet,
  options: WaitForOptions,
): Promise<T> {
  const { what, timeoutMs = 20_000 } = options;
  // A fact that hangs must not hide what was waited for.
  const limit = new AbortController();
  const expired = delay(timeoutMs, 'expired' as const, { signal: limit.signal });
  expired.catch(() => undefined);
  let last: T | NotYet;
  try {
    for (let pauseMs = 5; ; pauseMs = Math.min(pauseMs + 2, 25)) {
      const answer = await Promise.race([Promise.resolve(fact()).then((value) => ({ value })), expired]);
      if (answer !== 'expired') {
        last = answer.value;
        if (last !== undefined && last !== null && last !== false) return last;
      }
      const pause =
        answer === 'expired' ? answer : await Promise.race([delay(pauseMs, 'paused' as const), expired]);
      if (pause === 'expired')
        throw new Error(`waited ${timeoutMs} ms for ${what}; last seen: ${inspect(last)}`);
    }
  } finally {
    limit.abort();
  }
}
