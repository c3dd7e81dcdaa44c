import type { CircuitBreaker, CircuitBreakerSettings, TransitionCause } from '../core/circuit-breaker.ts';
import type { BreakerTransition } from '../core/events.ts';
import type { Health } from '../core/outcome.ts';
import { firstRow, rows, type Sql } from './database.ts';

/** `<provider>/<operation>` */
export function breakerName(provider: string, operation: string): string {
  return `${provider}/${operation}`;
}

export interface CircuitBreakerRow {
  readonly name: string;
  readonly breaker: CircuitBreaker;
  readonly settings: CircuitBreakerSettings;
  /** The number of its last transition. */
  readonly transitions: number;
}

interface Stored {
  name: string;
  state: CircuitBreaker['state'];
  generation: number;
  consecutiveFailures: number;
  failureThreshold: number;
  cooldownMs: number;
  openedAt: Date | null;
  retryAt: Date | null;
  probeAttemptId: string | null;
  transitions: number;
}

const COLUMNS = `name, state, generation, consecutive_failures as "consecutiveFailures",
  failure_threshold as "failureThreshold", cooldown_ms as "cooldownMs", opened_at as "openedAt",
  retry_at as "retryAt", probe_attempt_id as "probeAttemptId", transitions`;

/** Makes the row where there is none (a new operation, or somebody deleted it). Settings of an existing one stay. */
export async function ensureCircuitBreaker(
  sql: Sql,
  name: string,
  settings: CircuitBreakerSettings,
): Promise<void> {
  await sql.executeSql(
    `insert into onetake.circuit_breakers (name, failure_threshold, cooldown_ms) values ($1, $2, $3)
on conflict (name) do nothing`,
    [name, settings.failureThreshold, settings.cooldownMs],
  );
}

/** Writes what the configuration says; true when that changed anything. An open episode keeps its `retry_at`. */
export async function configureCircuitBreaker(
  tx: Sql,
  name: string,
  settings: CircuitBreakerSettings,
): Promise<boolean> {
  const changed = await rows(
    tx,
    `insert into onetake.circuit_breakers as b (name, failure_threshold, cooldown_ms) values ($1, $2, $3)
on conflict (name) do update
set failure_threshold = excluded.failure_threshold, cooldown_ms = excluded.cooldown_ms, revision = b.revision + 1
where (b.failure_threshold, b.cooldown_ms) is distinct from (excluded.failure_threshold, excluded.cooldown_ms)
returning b.name`,
    [name, settings.failureThreshold, settings.cooldownMs],
  );
  return changed.length > 0;
}

/**
 * Locks the row. With `skip`, whoever doesn't get the lock at once gets undefined, has lost and writes
 * nothing. Never FOR SHARE: readers that share the lock starve the one who has to open the breaker.
 */
export async function lockCircuitBreaker(
  tx: Sql,
  name: string,
  wait: 'wait' | 'skip',
): Promise<CircuitBreakerRow | undefined> {
  const clause = wait === 'skip' ? 'for no key update skip locked' : 'for no key update';
  const row = await firstRow<Stored>(
    tx,
    `select ${COLUMNS} from onetake.circuit_breakers where name = $1 ${clause}`,
    [name],
  );
  return row === undefined ? undefined : decode(row);
}

/** A look without a lock: for hints only, never for a decision. */
export async function peekCircuitBreaker(sql: Sql, name: string): Promise<CircuitBreakerRow | undefined> {
  const row = await firstRow<Stored>(sql, `select ${COLUMNS} from onetake.circuit_breakers where name = $1`, [
    name,
  ]);
  return row === undefined ? undefined : decode(row);
}

/**
 * What the breaker says to whoever would rather not wait; undefined when it is closed, has no row, or a probe
 * is due. Runs on a caller's connection, whose driver may hand instants out as it likes: so as text.
 */
export async function peekRefusal(sql: Sql, name: string): Promise<{ retryAt: Date | null } | undefined> {
  const row = await firstRow<{ retryAtMs: string | null }>(
    sql,
    `select (extract(epoch from retry_at) * 1000)::text as "retryAtMs" from onetake.circuit_breakers
where name = $1::text and (state = 'half_open' or (state = 'open' and retry_at > clock_timestamp()))`,
    [name],
  );
  if (row === undefined) return undefined;
  return { retryAt: row.retryAtMs === null ? null : new Date(Number(row.retryAtMs)) };
}

function decode(row: Stored): CircuitBreakerRow {
  return {
    name: row.name,
    breaker: decodeState(row),
    settings: { failureThreshold: row.failureThreshold, cooldownMs: row.cooldownMs },
    transitions: row.transitions,
  };
}

// The CHECK circuit_breakers_state_has_its_columns makes the casts true.
function decodeState(row: Stored): CircuitBreaker {
  const { state, generation } = row;
  switch (state) {
    case 'closed':
      return { state, generation, consecutiveFailures: row.consecutiveFailures };
    case 'open':
      return { state, generation, openedAt: row.openedAt as Date, retryAt: row.retryAt as Date };
    case 'half_open':
      return { state, generation, probeAttemptId: row.probeAttemptId as string };
  }
}

/** What the transition row tells beyond the two states. */
export interface TransitionContext {
  readonly cause: TransitionCause;
  readonly outcomeKind: Health | null;
  readonly httpStatus: number | null;
  readonly requestId: string | null;
  readonly providerTaskId: string | null;
}

/** A count that changed without a transition. The caller holds the row's lock. */
export async function writeFailureCount(tx: Sql, name: string, consecutiveFailures: number): Promise<void> {
  await tx.executeSql('update onetake.circuit_breakers set consecutive_failures = $2 where name = $1', [
    name,
    consecutiveFailures,
  ]);
}

/**
 * Writes the next state and its transition row, numbered under the row's lock (which the caller holds), so
 * that the chain has no gap. `now` was read under that lock.
 */
export async function writeTransition(
  tx: Sql,
  row: CircuitBreakerRow,
  next: CircuitBreaker,
  context: TransitionContext,
  now: Date,
): Promise<BreakerTransition> {
  const openedAt = next.state === 'open' ? next.openedAt : null;
  const retryAt = next.state === 'open' ? next.retryAt : null;
  const probeAttemptId = next.state === 'half_open' ? next.probeAttemptId : null;
  await tx.executeSql(
    `with moved as (
  update onetake.circuit_breakers
  set state = $2, generation = $3, consecutive_failures = 0, opened_at = $4, retry_at = $5,
    probe_attempt_id = $6, probe_request_id = case when $6::uuid is null then null else $7::uuid end,
    transitions = $8
  where name = $1
)
insert into onetake.circuit_breaker_transitions (at, breaker_name, number, previous_state, next_state, cause,
  outcome_kind, http_status, opened_at, retry_at, request_id, provider_task_id, generation)
values ($9, $1, $8, $10, $2, $11, $12, $13, $4, $5, $7::uuid, $14, $3)`,
    [
      row.name,
      next.state,
      next.generation,
      openedAt,
      retryAt,
      probeAttemptId,
      context.requestId,
      row.transitions + 1,
      now,
      row.breaker.state,
      context.cause,
      context.outcomeKind,
      context.httpStatus,
      context.providerTaskId,
    ],
  );
  return {
    breakerName: row.name,
    previousState: row.breaker.state,
    nextState: next.state,
    openedAt,
    retryAt,
    generation: next.generation,
    actor: null,
    ...context,
  };
}

/** Half-open breakers whose probe's lease is over: the reaper's list. */
export async function listOverdueProbes(sql: Sql): Promise<{ name: string; attemptId: string }[]> {
  return rows(
    sql,
    `select b.name, b.probe_attempt_id as "attemptId"
from onetake.circuit_breakers b
left join onetake.submission_attempts a on a.id = b.probe_attempt_id
where b.state = 'half_open' and (a.id is null or a.lease_expires_at <= clock_timestamp())`,
  );
}

export interface BreakerStatus {
  readonly name: string;
  readonly state: CircuitBreaker['state'];
  readonly effectiveState: string;
  readonly why: string;
  readonly since: Date;
  readonly consecutiveFailures: number;
  readonly failureThreshold: number;
  readonly cooldownMs: number;
  readonly openedAt: Date | null;
  readonly retryAt: Date | null;
  readonly retryInMs: number | null;
  readonly override: string | null;
  readonly probeRequestId: string | null;
}

export async function listBreakerStatus(sql: Sql): Promise<BreakerStatus[]> {
  return rows(
    sql,
    `select name, state, effective_state as "effectiveState", why, since,
  consecutive_failures as "consecutiveFailures", failure_threshold as "failureThreshold",
  cooldown_ms as "cooldownMs", opened_at as "openedAt", retry_at as "retryAt",
  retry_in_ms::float8 as "retryInMs", override, probe_request_id as "probeRequestId"
from onetake.breaker_status
order by name`,
  );
}

export interface BreakerHistoryRow extends BreakerTransition {
  readonly at: Date;
  readonly number: number;
  readonly layer: 'state' | 'override';
}

/** Newest last. */
export async function listTransitions(sql: Sql, name: string, limit: number): Promise<BreakerHistoryRow[]> {
  return rows(
    sql,
    `select * from (
  select at, layer, number, breaker_name as "breakerName", previous_state as "previousState",
    next_state as "nextState", cause, outcome_kind as "outcomeKind", http_status as "httpStatus",
    opened_at as "openedAt", retry_at as "retryAt", request_id as "requestId",
    provider_task_id as "providerTaskId", generation, actor, id
  from onetake.circuit_breaker_transitions
  where breaker_name = $1
  order by id desc
  limit $2
) newest
order by id`,
    [name, limit],
  );
}
