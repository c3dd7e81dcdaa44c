import type { AccountLimits } from '../core/admission.ts';
import type { BreakerOverride, CircuitBreaker } from '../core/circuit-breaker.ts';
import { firstRow, rows, type Sql } from './database.ts';
import { trialInFlight } from './hold-trials.ts';

/** An account and an operation with queued work, as a plain read saw it. A hint: admission counts again. */
export interface Lane extends AccountLimits {
  readonly account: string;
  readonly operation: string;
  readonly provider: string;
  /** The earliest `not_before` of its queued requests. */
  readonly notBefore: Date;
  readonly windowCount: number;
  /** When the oldest POST leaves the window; null when none is in it. */
  readonly windowOpensAt: Date | null;
  readonly slotCount: number;
  readonly pausedUntil: Date | null;
  readonly held: boolean;
  readonly trialInFlight: number | null;
  /** Null: the breaker has no row yet. */
  readonly breakerState: CircuitBreaker['state'] | null;
  readonly retryAt: Date | null;
  /** In force when it was read. */
  readonly override: BreakerOverride | null;
  readonly shadow: boolean;
  readonly rampAcceptances: number | null;
  /** POSTs under way in the breaker's generation; counted only during a ramp. */
  readonly inFlight: number;
  readonly now: Date;
}

/** What a lane is read from: a CTE `page` of (account, operation, not_before). */
export const LANE_JOINS = `from (select clock_timestamp() as now) s
cross join page p
join onetake.accounts a on a.name = p.account
left join onetake.circuit_breakers b on b.name = a.provider || '/' || p.operation
cross join lateral (
  select count(*)::int as count, min(x.window_until) as opens_at
  from onetake.submission_attempts x
  where x.account = p.account and x.window_until > s.now
) w`;

export const LANE_COLUMNS = `p.account, p.operation, p.not_before as "notBefore", s.now,
  a.provider, a.requests_per_minute as "requestsPerMinute",
  a.max_concurrent_generations as "maxConcurrentGenerations", a.paused_until as "pausedUntil",
  w.count as "windowCount", w.opens_at as "windowOpensAt",
  (
    select count(*)::int from onetake.submission_attempts x
    where x.account = p.account and x.slot_freed_at is null and x.slot_until > s.now
  ) as "slotCount",
  exists (
    select from onetake.account_holds h
    where h.account = p.account and h.ended_at is null and (h.until is null or h.until > s.now)
      and (h.operation is null or h.operation = p.operation)
  ) as held,
  ${trialInFlight('p.account', 'p.operation')} as "trialInFlight",
  b.state as "breakerState", b.retry_at as "retryAt",
  onetake.override_in_force(b.override, b.override_expires_at, s.now) as override,
  coalesce(b.shadow, false) as shadow, b.ramp_acceptances as "rampAcceptances",
  case when b.ramp_acceptances is null then 0 else (
    select count(*)::int from onetake.submission_attempts x
    where x.breaker_name = b.name and x.generation = b.generation and x.settled_at is null
  ) end as "inFlight"`;

/**
 * One page of lanes after the given one, by name. A loose scan over the partial index
 * generation_requests_dispatch: one descent per lane, however many requests wait in it.
 */
export async function readLanes(
  sql: Sql,
  after: Pick<Lane, 'account' | 'operation'> | null,
  limit: number,
): Promise<Lane[]> {
  return rows(
    sql,
    `with recursive lanes as (
  (
    select account, operation, not_before
    from onetake.generation_requests
    where state = 'queued' and (account, operation) > ($1, $2)
    order by account, operation, not_before
    limit 1
  )
  union all
  select n.account, n.operation, n.not_before
  from lanes l
  cross join lateral (
    select r.account, r.operation, r.not_before
    from onetake.generation_requests r
    where r.state = 'queued' and (r.account, r.operation) > (l.account, l.operation)
    order by r.account, r.operation, r.not_before
    limit 1
  ) n
), page as materialized (
  select * from lanes limit $3
)
select ${LANE_COLUMNS}
${LANE_JOINS}
order by p.account, p.operation`,
    [after?.account ?? '', after?.operation ?? '', limit],
  );
}

export interface LaneLoadRow {
  readonly now: Date;
  readonly windowCount: number;
  readonly slotCount: number;
  readonly held: boolean;
  readonly trialInFlight: number | null;
}

/** Counts, holds and clock in a statement that begins after the account's lock is held. */
export async function countLoad(tx: Sql, account: string, operation: string): Promise<LaneLoadRow> {
  const row = await firstRow<LaneLoadRow>(
    tx,
    `select s.now,
  (
    select count(*)::int from onetake.submission_attempts x
    where x.account = $1 and x.window_until > s.now
  ) as "windowCount",
  (
    select count(*)::int from onetake.submission_attempts x
    where x.account = $1 and x.slot_freed_at is null and x.slot_until > s.now
  ) as "slotCount",
  exists (
    select from onetake.account_holds h
    where h.account = $1 and h.ended_at is null and (h.until is null or h.until > s.now)
      and (h.operation is null or h.operation = $2)
  ) as held,
  ${trialInFlight('$1', '$2')} as "trialInFlight"
from (select clock_timestamp() as now) s`,
    [account, operation],
  );
  return row as LaneLoadRow;
}
