import type pg from 'pg';

/** How long a statement of ours may wait for a lock, and run, unless its transaction says otherwise. */
export const LOCK_TIMEOUT_MS = 5_000;
export const STATEMENT_TIMEOUT_MS = 15_000;
/** Of statements outside our transactions, pg-boss's upkeep among them. */
const SESSION_STATEMENT_TIMEOUT_MS = 60_000;
const IDLE_IN_TRANSACTION_MS = 15_000;
/** The server gives up first; past this the connection is taken for dead, since nothing comes back. */
const READ_MARGIN_MS = 5_000;

/**
 * What our statements rely on, where role or database may say otherwise: instants that the driver can read,
 * whole numbers, strings without escapes, and no names that hide the system's. Not among them is
 * default_transaction_read_only: it is how a database is frozen before a switch-over, and a `submitting`
 * written past it would be missing on the other side.
 */
const TERMS: readonly (readonly [name: string, value: string])[] = [
  ['datestyle', "'ISO'"],
  ['extra_float_digits', '1'],
  ['standard_conforming_strings', 'on'],
  ['search_path', 'pg_catalog'],
  ['idle_in_transaction_session_timeout', String(IDLE_IN_TRANSACTION_MS)],
];

/** Only on a session that is ours for as long as it lives. */
export const SESSION_TERMS = [
  ...TERMS,
  ['default_transaction_isolation', "'read committed'"],
  ['lock_timeout', String(LOCK_TIMEOUT_MS)],
  ['statement_timeout', String(SESSION_STATEMENT_TIMEOUT_MS)],
]
  .map(([name, value]) => `set ${name} = ${value}`)
  .join(';');

const LOCAL_TERMS = TERMS.map(([name, value]) => `set local ${name} = ${value};\n`).join('');

const withTerms = new WeakSet<pg.ClientBase>();

/**
 * Sets the terms of a new connection for as long as it lives. Not through a pooler: there the session is
 * somebody else's a moment later, and every transaction says its terms itself.
 */
export async function setTerms(client: pg.ClientBase): Promise<void> {
  if (!(await isDirect(client))) return;
  await client.query(timed(SESSION_TERMS, undefined));
  withTerms.add(client);
}

export function hasTerms(client: pg.ClientBase): boolean {
  return withTerms.has(client);
}

/** A pooler hands out process ids of its own, since cancel requests come to it. Answered at once, or never. */
export async function isDirect(client: pg.ClientBase): Promise<boolean> {
  const { rows } = await client.query<{ pid: number }>(timed('select pg_backend_pid() as pid', undefined, 0));
  return rows[0]?.pid === (client as { processID?: number | null }).processID;
}

/** Whether a connection that isn't ours, as it is, hands out what our plain reads rely on. */
export async function readsAsExpected(client: pg.ClientBase): Promise<boolean> {
  const { rows } = await client.query<{ expected: boolean }>(
    timed(
      `select current_setting('datestyle') like 'ISO%' and current_setting('extra_float_digits')::int >= 0
  and current_setting('default_transaction_isolation') = 'read committed' as expected`,
      undefined,
    ),
  );
  return rows[0]?.expected ?? false;
}

export interface TransactionTerms {
  readonly lockTimeoutMs?: number;
  readonly statementTimeoutMs?: number;
}

/** One round trip. */
export function beginStatement(terms: TransactionTerms, client: pg.ClientBase): string {
  const lockMs = terms.lockTimeoutMs ?? LOCK_TIMEOUT_MS;
  const statementMs = terms.statementTimeoutMs ?? STATEMENT_TIMEOUT_MS;
  // A role or database may say synchronous_commit = off, under which a confirmed `submitting` can vanish in a
  // crash; a stricter setting than `on` is left alone.
  return `begin isolation level read committed;
set local lock_timeout = ${Math.trunc(lockMs)};
set local statement_timeout = ${Math.trunc(statementMs)};
${hasTerms(client) ? '' : LOCAL_TERMS}select pg_catalog.set_config('synchronous_commit', 'on', true)
where pg_catalog.current_setting('synchronous_commit') in ('off', 'local', 'remote_write');`;
}

export interface TimedQuery extends pg.QueryConfig {
  readonly query_timeout: number;
}

/** A statement whose answer is waited for no longer than the server may take. */
export function timed(
  text: string,
  values: unknown[] | undefined,
  statementTimeoutMs = STATEMENT_TIMEOUT_MS,
): TimedQuery {
  const query_timeout = statementTimeoutMs + READ_MARGIN_MS;
  return values === undefined ? { text, query_timeout } : { text, values, query_timeout };
}

/** As long as a session's own statement_timeout lets it run. */
export function timedUpkeep(text: string, values: unknown[]): TimedQuery {
  return timed(text, values, SESSION_STATEMENT_TIMEOUT_MS);
}
