import type { HoldKind } from '../core/admission.ts';
import { rows, type Sql } from './database.ts';
import { type HoldTrial, supersedeTrials, TRIALS_OF_ACCOUNT } from './hold-trials.ts';

export interface NewHold {
  readonly account: string;
  readonly operation: string | null;
  readonly kind: HoldKind;
  readonly code: string | null;
  readonly epoch: number;
}

/** One live hold per lane and kind; false when there is one already. The caller holds the account's lock. */
export async function insertHold(tx: Sql, hold: NewHold): Promise<boolean> {
  // One whose time is over holds nothing any more, and must not stand in the way of the next.
  await tx.executeSql(
    `update onetake.account_holds set ended_at = until, ended_by = 'until'
where account = $1 and ended_at is null and until <= clock_timestamp()`,
    [hold.account],
  );
  await supersedeTrials(tx, hold.account, hold.operation);
  const inserted = await rows(
    tx,
    `insert into onetake.account_holds (account, operation, kind, code, since, epoch)
values ($1, $2, $3, $4, clock_timestamp(), $5)
on conflict (account, coalesce(operation, ''), kind) where ended_at is null do nothing
returning id`,
    [hold.account, hold.operation, hold.kind, hold.code, hold.epoch],
  );
  return inserted.length > 0;
}

export interface AccountOverview {
  readonly name: string;
  readonly provider: string;
  readonly requestsPerMinute: number;
  readonly maxConcurrentGenerations: number;
  readonly window: number;
  readonly slots: number;
  /** Of these, so many belong to submissions whose outcome is unknown: perhaps nothing runs there. */
  readonly unknownSlots: number;
  readonly pausedUntil: Date | null;
  readonly pauseKind: string | null;
  readonly holds: readonly {
    readonly operation: string | null;
    readonly kind: HoldKind;
    readonly code: string | null;
    readonly since: string;
  }[];
  /** What one request goes first in, alone, since a hold has ended and nothing was accepted yet. */
  readonly trials: readonly HoldTrial[];
}

export async function listAccounts(sql: Sql): Promise<AccountOverview[]> {
  return rows(
    sql,
    `select a.name, a.provider, a.requests_per_minute as "requestsPerMinute",
  a.max_concurrent_generations as "maxConcurrentGenerations",
  (
    select count(*)::int from onetake.submission_attempts w
    where w.account = a.name and w.window_until > s.now
  ) as window,
  g.slots, g.unknown as "unknownSlots",
  case when a.paused_until > s.now then a.paused_until end as "pausedUntil",
  case when a.paused_until > s.now then a.pause_kind end as "pauseKind",
  coalesce((
    select jsonb_agg(jsonb_build_object('operation', h.operation, 'kind', h.kind, 'code', h.code,
      'since', h.since) order by h.since)
    from onetake.account_holds h
    where h.account = a.name and h.ended_at is null and (h.until is null or h.until > s.now)
  ), '[]') as holds,
  ${TRIALS_OF_ACCOUNT} as trials
from (select clock_timestamp() as now) s
cross join onetake.accounts a
cross join lateral (
  select count(*)::int as slots, count(*) filter (where w.certainty = 'unknown')::int as unknown
  from onetake.submission_attempts w
  where w.account = a.name and w.slot_freed_at is null and w.slot_until > s.now
) g
order by a.name`,
  );
}
