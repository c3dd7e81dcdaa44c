import { rows, type Sql } from './database.ts';

// Accounts whose tasks can't be read just now. Whoever claims due tasks heeds them; see `claimDueTasks`.

export interface ReadFailure {
  readonly pauseMs: number;
  /** Pauses in a row, this one included. */
  readonly failures: number;
  /** A code. */
  readonly reason: string;
  /** The read was the one that a pause lets through, so the next pause begins with it. */
  readonly isProbe: boolean;
}

/** Begins or prolongs the pause of an account, never shortens it. True: it began. */
export async function pauseReads(tx: Sql, account: string, failure: ReadFailure): Promise<boolean> {
  const { pauseMs, failures, reason, isProbe } = failure;
  const [row] = await rows<{ began: boolean }>(
    tx,
    `with was as (
  select since from onetake.read_pauses where account = $1
)
insert into onetake.read_pauses as p (account, since, paused_until, failures, reason)
values ($1, clock_timestamp(), clock_timestamp() + $2 * interval '1 ms', $3, $4)
on conflict (account) do update
set since = coalesce(p.since, excluded.since), paused_until = greatest(p.paused_until, excluded.paused_until),
  failures = greatest(p.failures, $3), reason = $4, probe_until = case when not $5 then p.probe_until end
returning (select since from was) is null as began`,
    [account, pauseMs, failures, reason, isProbe],
  );
  return row?.began === true;
}

/** A read told something: all of the account's tasks are read again. True: there was a pause. */
export async function endReadPause(tx: Sql, account: string): Promise<boolean> {
  const ended = await rows(
    tx,
    `update onetake.read_pauses
set since = null, paused_until = clock_timestamp(), probe_until = null, failures = 0
where account = $1 and since is not null
returning account`,
    [account],
  );
  return ended.length > 0;
}
