import type {
  BreakerOverride,
  CircuitBreaker,
  CircuitBreakerSettings,
  TransitionCause,
} from '../core/circuit-breaker.ts';
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
  /** As stored; `overrideAt` says whether it is in force. */
  readonly override: BreakerOverride | null;
  readonly overrideExpiresAt: Date | null;
  /** The number of its last transition in the layer `state`. */
  readonly transitions: number;
}

interface Stored extends CircuitBreakerSettings {
  name: string;
  state: CircuitBreaker['state'];
  generation: number;
  consecutiveFailures: number;
  failedProbes: number;
  rampAcceptances: number | null;
  openedAt: Date | null;
  retryAt: Date | null;
  probeAttemptId: string | null;
  override: BreakerOverride | null;
  overrideExpiresAt: Date | null;
  transitions: number;
}

const COLUMNS = `name, state, generation, consecutive_failures as "consecutiveFailures",
  failed_probes as "failedProbes", ramp_acceptances as "rampAcceptances",
  failure_threshold as "failureThreshold", cooldown_ms as "cooldownMs", cooldown_growth as "cooldownGrowth",
  max_cooldown_ms as "maxCooldownMs", jitter, shadow, opened_at as "openedAt",
  retry_at as "retryAt", probe_attempt_id as "probeAttemptId", override,
  override_expires_at as "overrideExpiresAt", transitions`;

function settingValues(name: string, settings: CircuitBreakerSettings): unknown[] {
  const { failureThreshold, cooldownMs, cooldownGrowth, maxCooldownMs, jitter, shadow } = settings;
  return [name, failureThreshold, cooldownMs, cooldownGrowth, maxCooldownMs, jitter, shadow];
}

const SETTING_COLUMNS =
  'failure_threshold, cooldown_ms, cooldown_growth, max_cooldown_ms, jitter, shadow' as const;

/**
 * Makes the row where there is none (a new operation, or somebody deleted it), and writes down that it did: a
 * breaker that is closed because its row was gone is nobody's decision. Settings of an existing one stay.
 */
export async function ensureCircuitBreaker(
  sql: Sql,
  name: string,
  settings: CircuitBreakerSettings,
): Promise<void> {
  await sql.executeSql(
    `with made as (
  insert into onetake.circuit_breakers (name, ${SETTING_COLUMNS}) values ($1, $2, $3, $4, $5, $6, $7)
  on conflict (name) do nothing
  returning name
)
insert into onetake.operator_actions (at, actor, "session_user", action, subject, reason)
select clock_timestamp(), 'onetake', session_user, 'make_breaker', name, 'it had no row' from made`,
    settingValues(name, settings),
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
    `insert into onetake.circuit_breakers as b (name, ${SETTING_COLUMNS}) values ($1, $2, $3, $4, $5, $6, $7)
on conflict (name) do update
set failure_threshold = excluded.failure_threshold, cooldown_ms = excluded.cooldown_ms,
  cooldown_growth = excluded.cooldown_growth, max_cooldown_ms = excluded.max_cooldown_ms,
  jitter = excluded.jitter, shadow = excluded.shadow, revision = b.revision + 1
where (b.failure_threshold, b.cooldown_ms, b.cooldown_growth, b.max_cooldown_ms, b.jitter, b.shadow)
  is distinct from (excluded.failure_threshold, excluded.cooldown_ms, excluded.cooldown_growth,
    excluded.max_cooldown_ms, excluded.jitter, excluded.shadow)
returning b.name`,
    settingValues(name, settings),
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
 * What the breaker says to whoever would rather not wait; undefined when it lets submissions through, has no
 * row, or a probe is due. Runs on a caller's connection, whose driver may hand instants out as it likes: so
 * as text.
 */
export async function peekRefusal(sql: Sql, name: string): Promise<{ retryAt: Date | null } | undefined> {
  const row = await firstRow<{ retryAtMs: string | null }>(
    sql,
    `select case when o.override is null then (extract(epoch from b.retry_at) * 1000)::text end as "retryAtMs"
from onetake.circuit_breakers b, lateral (
  select onetake.override_in_force(b.override, b.override_expires_at, clock_timestamp()) as override
) o
where b.name = $1::text and case
  when o.override is not null then o.override = 'forced_open'
  when b.shadow then false
  else b.state = 'half_open' or (b.state = 'open' and b.retry_at > clock_timestamp())
end`,
    [name],
  );
  if (row === undefined) return undefined;
  return { retryAt: row.retryAtMs === null ? null : new Date(Number(row.retryAtMs)) };
}

function decode(row: Stored): CircuitBreakerRow {
  const { failureThreshold, cooldownMs, cooldownGrowth, maxCooldownMs, jitter, shadow } = row;
  return {
    name: row.name,
    breaker: decodeState(row),
    settings: { failureThreshold, cooldownMs, cooldownGrowth, maxCooldownMs, jitter, shadow },
    override: row.override,
    overrideExpiresAt: row.overrideExpiresAt,
    transitions: row.transitions,
  };
}

// The CHECK circuit_breakers_state_has_its_columns makes the casts true.
function decodeState(row: Stored): CircuitBreaker {
  const { state, generation, failedProbes } = row;
  switch (state) {
    case 'closed': {
      const { consecutiveFailures, rampAcceptances } = row;
      return { state, generation, consecutiveFailures, rampAcceptances };
    }
    case 'open':
      return {
        state,
        generation,
        openedAt: row.openedAt as Date,
        retryAt: row.retryAt as Date,
        failedProbes,
      };
    case 'half_open':
      return { state, generation, probeAttemptId: row.probeAttemptId as string, failedProbes };
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

/** Counts that changed without a transition. The caller holds the row's lock. */
export async function writeCounts(
  tx: Sql,
  name: string,
  closed: Extract<CircuitBreaker, { state: 'closed' }>,
): Promise<void> {
  await tx.executeSql(
    'update onetake.circuit_breakers set consecutive_failures = $2, ramp_acceptances = $3 where name = $1',
    [name, closed.consecutiveFailures, closed.rampAcceptances],
  );
}

/**
 * Writes the next state and its transition row, numbered under the row's lock (which the caller holds), so
 * that the chain has no gap. `now` was read under that lock. Notifies, so that workers learn of it at once.
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
    transitions = $8, failed_probes = $15, ramp_acceptances = $16
  where name = $1
), noted as (
  insert into onetake.circuit_breaker_transitions (at, breaker_name, number, previous_state, next_state, cause,
    outcome_kind, http_status, opened_at, retry_at, request_id, provider_task_id, generation, shadow, failures)
  values ($9, $1, $8, $10, $2, $11, $12, $13, $4, $5, $7::uuid, $14, $3, $17, $18)
  returning breaker_name
)
select pg_notify('onetake', 'breaker') from noted`,
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
      next.state === 'closed' ? 0 : next.failedProbes,
      next.state === 'closed' ? next.rampAcceptances : null,
      row.settings.shadow,
      context.cause === 'failure_threshold' && row.breaker.state === 'closed'
        ? row.breaker.consecutiveFailures + 1
        : null,
    ],
  );
  return {
    breakerName: row.name,
    layer: 'state',
    number: row.transitions + 1,
    previousState: row.breaker.state,
    nextState: next.state,
    openedAt,
    retryAt,
    generation: next.generation,
    actor: null,
    shadow: row.settings.shadow,
    ...context,
  };
}

/** POSTs under way in one generation, of all accounts and processes. */
export async function countInFlight(tx: Sql, name: string, generation: number): Promise<number> {
  const row = await firstRow<{ count: number }>(
    tx,
    `select count(*)::int as count from onetake.submission_attempts
where breaker_name = $1 and generation = $2 and settled_at is null`,
    [name, generation],
  );
  return row?.count ?? 0;
}

/** Half-open breakers whose probe's lease is over: the reaper's list. */
export async function listOverdueProbes(
  sql: Sql,
): Promise<{ name: string; attemptId: string; requestId: string }[]> {
  return rows(
    sql,
    `select b.name, b.probe_attempt_id as "attemptId", b.probe_request_id as "requestId"
from onetake.circuit_breakers b
left join onetake.submission_attempts a on a.id = b.probe_attempt_id
where b.state = 'half_open' and (a.id is null or a.lease_expires_at <= clock_timestamp())`,
  );
}
