import { firstRow, rows, type Sql } from './database.ts';

/** A live 401 hold whose key is to be tried with a free call. */
export interface KeyToCheck {
  readonly holdId: number;
  readonly account: string;
  readonly provider: string;
  /** Checks made so far, this one included. */
  readonly checks: number;
}

const LIVE = `kind = 'key_refused' and ended_at is null and (until is null or until > clock_timestamp())`;

export interface KeyDue extends Omit<KeyToCheck, 'checks'> {
  /** To the microsecond, as the database writes it. */
  readonly dueAt: string;
}

/** Plain read, longest due first, of those that come after the given one. */
export async function listKeysToCheck(sql: Sql, after: KeyDue | null, limit: number): Promise<KeyDue[]> {
  return rows(
    sql,
    `select h.id::float8 as "holdId", h.account, a.provider, d.due_at::text as "dueAt"
from onetake.account_holds h
join onetake.accounts a on a.name = h.account
cross join lateral (select coalesce(h.next_check_at, h.since) as due_at) d
where h.trial_ended_at is null and ${LIVE} and d.due_at <= clock_timestamp()
  and ($1::text is null or (d.due_at, h.id) > ($1::timestamptz, $2::bigint))
order by d.due_at, h.id
limit $3`,
    [after?.dueAt ?? null, after?.holdId ?? null, limit],
  );
}

/** So that of all processes one makes the check: the next is due after `firstMs` at the earliest. */
export async function claimKeyCheck(sql: Sql, holdId: number, firstMs: number): Promise<number | undefined> {
  const row = await firstRow<{ checks: number }>(
    sql,
    `update onetake.account_holds
set checks = checks + 1, next_check_at = clock_timestamp() + $2 * interval '1 ms'
where id = $1 and ${LIVE} and coalesce(next_check_at, since) <= clock_timestamp()
returning checks`,
    [holdId, firstMs],
  );
  return row?.checks;
}

/** The provider refused the key, or could not be asked: the next check comes after `delayMs`. */
export async function noteKeyCheck(
  sql: Sql,
  holdId: number,
  wasRefused: boolean,
  delayMs: number,
): Promise<void> {
  await sql.executeSql(
    `update onetake.account_holds
set check_refused_at = case when $2 then coalesce(check_refused_at, clock_timestamp()) else check_refused_at end,
  next_check_at = clock_timestamp() + $3 * interval '1 ms'
where id = $1 and ended_at is null`,
    [holdId, wasRefused, delayMs],
  );
}

/**
 * Ends the hold if a check of its key was refused while it held: a check that passes from the start proves
 * nothing, since the POST was refused all the same. Like an operator's release it begins a new epoch, so that
 * answers from before can't set the hold again. False: the hold stays.
 */
export async function endHoldByCheck(tx: Sql, key: { readonly holdId: number; readonly account: string }) {
  // The account's lock first, as in every other change of holds.
  await tx.executeSql('select from onetake.accounts where name = $1 for no key update', [key.account]);
  const ended = await firstRow<{ operation: string | null }>(
    tx,
    `with ended as (
  update onetake.account_holds
  set ended_at = clock_timestamp(), ended_by = 'key_check'
  where id = $1 and ${LIVE} and check_refused_at is not null
  returning account, operation
), moved as (
  update onetake.accounts a set hold_epoch = a.hold_epoch + 1 from ended where a.name = ended.account
)
select operation from ended`,
    [key.holdId],
  );
  return ended;
}
