import type { Emit } from '../core/events.ts';
import type { PollSettings } from '../core/poll-schedule.ts';
import type { TaskReading } from '../core/provider.ts';
import { nextReadPauseMs, pausesAtOnce, READ_FAILURES, readPathWorks, troubleOf } from '../core/read-path.ts';
import type { Database } from '../postgres/database.ts';
import { endReadPause, pauseReads } from '../postgres/read-pauses.ts';

export interface ReadPathContext {
  readonly database: Database;
  readonly emit: Emit;
  readonly schedule: PollSettings;
  readonly random: () => number;
  /** Failures in a row that this process has seen, by account. */
  readonly readFailures: Map<string, number>;
}

export interface ReadOf {
  readonly account: string;
  /** Pauses in a row so far, where this read is the one that a pause lets through. */
  readonly probeOf: number | null;
}

/**
 * What one read tells of the read path of its account: too many failures in a row pause all its reads, so that a
 * provider in trouble isn't asked about each task; one read goes through after each pause, and ends it when it tells
 * something. Submissions neither ask nor hear of it.
 */
export async function noteReadPath(ctx: ReadPathContext, of: ReadOf, reading: TaskReading): Promise<void> {
  const { account, probeOf } = of;
  if (readPathWorks(reading)) {
    ctx.readFailures.delete(account);
    if (probeOf === null) return;
    if (await ctx.database.retryingTransaction((tx) => endReadPause(tx, account))) {
      ctx.emit('reads:resumed', { account });
    }
    return;
  }
  const inARow = (ctx.readFailures.get(account) ?? 0) + 1;
  ctx.readFailures.set(account, inARow);
  if (reading.kind !== 'unreadable') return;
  if (probeOf === null && inARow < READ_FAILURES && !pausesAtOnce(reading)) return;
  const failures = (probeOf ?? 0) + 1;
  const reason = troubleOf(reading);
  const pauseMs = nextReadPauseMs(ctx.schedule, failures, reading.retryAfterMs, ctx.random());
  const began = await ctx.database.retryingTransaction((tx) =>
    pauseReads(tx, account, { pauseMs, failures, reason, isProbe: probeOf !== null }),
  );
  if (began) ctx.emit('reads:paused', { account, reason });
}
