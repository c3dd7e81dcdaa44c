import type { BreakerOverride, CircuitBreaker } from '../core/circuit-breaker.ts';
import type { BreakerTransition } from '../core/events.ts';
import { rows, type Sql } from './database.ts';

export interface BreakerStatus {
  readonly name: string;
  readonly state: CircuitBreaker['state'];
  readonly effectiveState: string;
  readonly why: string;
  readonly since: Date;
  /** Over all its probes; null while it is closed. */
  readonly notClosedSince: Date | null;
  readonly consecutiveFailures: number;
  readonly failureThreshold: number;
  readonly cooldownMs: number;
  readonly cooldownGrowth: number;
  readonly maxCooldownMs: number;
  readonly jitter: number;
  readonly shadow: boolean;
  readonly openedAt: Date | null;
  readonly retryAt: Date | null;
  readonly retryInMs: number | null;
  readonly override: BreakerOverride | null;
  readonly overrideActor: string | null;
  readonly overrideReason: string | null;
  readonly overrideExpiresAt: Date | null;
  readonly probeRequestId: string | null;
}

export async function listBreakerStatus(sql: Sql): Promise<BreakerStatus[]> {
  return rows(
    sql,
    `select name, state, effective_state as "effectiveState", why, since,
  not_closed_since as "notClosedSince", consecutive_failures as "consecutiveFailures", failure_threshold as "failureThreshold",
  cooldown_ms as "cooldownMs", cooldown_growth as "cooldownGrowth", max_cooldown_ms as "maxCooldownMs", jitter,
  shadow, opened_at as "openedAt", retry_at as "retryAt", retry_in_ms::float8 as "retryInMs", override,
  override_actor as "overrideActor", override_reason as "overrideReason",
  override_expires_at as "overrideExpiresAt", probe_request_id as "probeRequestId"
from onetake.breaker_status
order by name`,
  );
}

export interface BreakerHistoryRow extends BreakerTransition {
  readonly at: Date;
}

const HISTORY = `at, layer, number, breaker_name as "breakerName", previous_state as "previousState",
  next_state as "nextState", cause, outcome_kind as "outcomeKind", http_status as "httpStatus",
  opened_at as "openedAt", retry_at as "retryAt", request_id as "requestId",
  provider_task_id as "providerTaskId", generation, actor, shadow`;

/** Newest last. */
export async function listTransitions(sql: Sql, name: string, limit: number): Promise<BreakerHistoryRow[]> {
  return rows(
    sql,
    `select * from (
  select ${HISTORY}, id
  from onetake.circuit_breaker_transitions
  where breaker_name = $1
  order by id desc
  limit $2
) newest
order by id`,
    [name, limit],
  );
}

/** Overrides whose time is over and that nobody has noted. */
export async function listExpiredOverrides(sql: Sql): Promise<string[]> {
  const expired = await rows<{ name: string }>(
    sql,
    `select name from onetake.circuit_breakers
where override is not null and override_expires_at <= clock_timestamp()`,
  );
  return expired.map((row) => row.name);
}

/** Ends an expired override in the row and its chain; harmless when somebody else was first. */
export async function noteExpiredOverride(sql: Sql, name: string): Promise<void> {
  await sql.executeSql('select onetake.note_expired_override($1)', [name]);
}

/** Whoever wrote a transition has this long to emit its event. */
const ANNOUNCE_WITHIN_MS = 5_000;

/**
 * Transitions whose event nobody has emitted: what SQL functions did, and what a process committed that then
 * died, or lost the COMMIT's answer. They stay the caller's until its transaction ends, so that of all
 * rescuers one emits. Served by the partial index circuit_breaker_transitions_unannounced.
 */
export async function takeUnannounced(tx: Sql): Promise<BreakerHistoryRow[]> {
  return rows(
    tx,
    `with taken as (
  update onetake.circuit_breaker_transitions t
  set announced = true
  from (
    select id from onetake.circuit_breaker_transitions
    where not announced
      and (layer = 'override' or at < clock_timestamp() - $1 * interval '1 millisecond')
    order by id
    for no key update skip locked
  ) due
  where t.id = due.id
  returning t.*
)
select ${HISTORY} from taken order by id`,
    [ANNOUNCE_WITHIN_MS],
  );
}

/** Its event is out. */
export async function markAnnounced(
  sql: Sql,
  { breakerName, layer, number }: Pick<BreakerTransition, 'breakerName' | 'layer' | 'number'>,
): Promise<void> {
  await sql.executeSql(
    `update onetake.circuit_breaker_transitions
set announced = true
where breaker_name = $1 and layer = $2 and number = $3 and not announced`,
    [breakerName, layer, number],
  );
}
