import { setTimeout as wait } from 'node:timers/promises';
import { CommitUnknownError, retryDelayMs } from '../postgres/database.ts';
import { isLostConnection, isRetryable } from '../postgres/errors.ts';
import { explainDatabaseError } from './database-errors.ts';

/** No further try begins after this. */
const BLIP_MS = 2_000;

/**
 * Runs `call` again after the loss of its connection and after locks and time-outs, for a moment: pooled
 * connections die with a restarted server, and the next one works. Throws what is left in the caller's terms.
 * `call` must do nothing by halves; a commit whose outcome is unknown ends it.
 */
export async function throughBlips<Result>(call: () => Promise<Result>): Promise<Result> {
  const begun = performance.now();
  for (let tried = 1; ; tried++) {
    try {
      return await call();
    } catch (error) {
      const passing = isLostConnection(error) || isRetryable(error);
      if (!passing || error instanceof CommitUnknownError || performance.now() - begun > BLIP_MS) {
        throw explainDatabaseError(error);
      }
      await wait(retryDelayMs(tried));
    }
  }
}
