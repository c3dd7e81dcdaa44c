import { rows, type Sql } from './database.ts';

// Accounts whose tasks can't be read just now. Whoever claims what is due to be read heeds them.

export interface ClaimTerms {
  readonly limit: number;
  readonly leaseMs: number;
  /** The wait, at most, of a task that comes due while another of its account is tried. */
  readonly intervalMs: number;
}

/**
 * What becomes of a claimed `page (account, due, is_over)`, where `is_over` says that no read is made. While the reads
 * of an account are paused its tasks move behind the pause (`waits`), each once for each pause, so that they are in
 * nobody's way; after it one of them, claimed under the lock of the pause, tries the path for all. $2 is the lease in
 * ms, $3 `intervalMs`.
 */
export const HEED_READ_PAUSES = `free_to_try as materialized (
  select account from onetake.read_pauses
  where since is not null and paused_until <= now() and (probe_until is null or probe_until <= now())
  for no key update skip locked
), heeding as materialized (
  select g.*, p.failures, greatest(p.paused_until, now()) as paused_until,
    p.account is not null and not coalesce(g.is_over, false) and (
      f.account is null
      or row_number() over (partition by g.account order by coalesce(g.is_over, false), g.due) > 1
    ) as waits
  from page g
  left join onetake.read_pauses p on p.account = g.account and p.since is not null
  left join free_to_try f on f.account = g.account
), sorted as materialized (
  select h.*, case
    when h.waits then h.paused_until + (0.1 + 0.9 * random()) * $3 * interval '1 ms'
    else now() + $2 * interval '1 ms'
  end as claimed_until
  from heeding h
), probes as (
  update onetake.read_pauses p
  set probe_until = now() + $2 * interval '1 ms'
  from sorted s
  where p.account = s.account and s.failures is not null and not s.waits and not coalesce(s.is_over, false)
)`;

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
