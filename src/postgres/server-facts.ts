import type pg from 'pg';
import { isDirect, timed } from './session.ts';

/** What a server says of itself to any role, with or without our schema. */
export interface ServerFacts {
  readonly version: number;
  readonly isDirect: boolean;
  readonly inRecovery: boolean;
  /** A role's or database's default, under which nothing can be written. */
  readonly readOnly: boolean;
  readonly fsync: boolean;
  readonly fullPageWrites: boolean;
  /** As this role gets it. */
  readonly synchronousCommit: string;
  readonly hasSynchronousStandby: boolean;
  /** Connected standbys, synchronous or not. */
  readonly standbys: number;
  readonly timeZone: string;
  readonly dateStyle: string;
  /** The database's clock minus this machine's, in ms, give or take `clockErrorMs`. */
  readonly clockAheadMs: number;
  readonly clockErrorMs: number;
  /** Which rights of a worker this role lacks, as `insert on onetake.submission_attempts`; of what exists. */
  readonly lackingRights: readonly string[];
  /** pg-boss's schema version; null: there is none, or this role can't read it. */
  readonly queueVersion: number | null;
}

const RIGHTS: readonly (readonly [table: string, right: string])[] = [
  ['onetake.generation_requests', 'select'],
  ['onetake.generation_requests', 'update'],
  ['onetake.submission_attempts', 'insert'],
  ['onetake.submission_attempts', 'update'],
  ['onetake.accounts', 'update'],
  ['onetake.circuit_breakers', 'update'],
  ['onetake.installation', 'update'],
  ['onetake_queue.job', 'select'],
  ['onetake_queue.job', 'insert'],
  ['onetake_queue.job', 'update'],
  ['onetake_queue.job', 'delete'],
];

const TIMEOUT_MS = 5_000;

interface FactsRow extends Omit<ServerFacts, 'isDirect' | 'clockAheadMs' | 'clockErrorMs' | 'queueVersion'> {
  readonly nowMs: number;
  readonly hasQueue: boolean;
}

export async function readServerFacts(client: pg.ClientBase): Promise<ServerFacts> {
  const direct = await isDirect(client);
  const [asked, tick] = [Date.now(), performance.now()];
  const { rows } = await client.query<FactsRow>(
    timed(
      `select extract(epoch from clock_timestamp())::float8 * 1000 as "nowMs",
  current_setting('server_version_num')::int as version, pg_is_in_recovery() as "inRecovery",
  current_setting('default_transaction_read_only') = 'on' as "readOnly",
  current_setting('fsync') = 'on' as fsync, current_setting('full_page_writes') = 'on' as "fullPageWrites",
  current_setting('synchronous_commit') as "synchronousCommit",
  current_setting('synchronous_standby_names') <> '' as "hasSynchronousStandby",
  (select count(*)::int from pg_stat_replication) as standbys,
  current_setting('timezone') as "timeZone", current_setting('datestyle') as "dateStyle",
  array(
    select r.privilege || ' on ' || r.name
    from unnest($1::text[], $2::text[]) as r (name, privilege)
    join pg_class c on c.relname = split_part(r.name, '.', 2)
    join pg_namespace n on n.oid = c.relnamespace and n.nspname = split_part(r.name, '.', 1)
    where not (has_schema_privilege(n.oid, 'usage') and has_table_privilege(c.oid, r.privilege))
  ) as "lackingRights",
  coalesce((
    select has_schema_privilege(n.oid, 'usage') and has_table_privilege(c.oid, 'select')
    from pg_class c join pg_namespace n on n.oid = c.relnamespace
    where n.nspname = 'onetake_queue' and c.relname = 'version'
  ), false) as "hasQueue"`,
      [RIGHTS.map(([table]) => table), RIGHTS.map(([, right]) => right)],
      TIMEOUT_MS,
    ),
  );
  const { nowMs, hasQueue, ...facts } = rows[0] as FactsRow;
  // Somewhere on the way there and back the database read its clock.
  const clockErrorMs = (performance.now() - tick) / 2;
  return {
    ...facts,
    isDirect: direct,
    clockAheadMs: nowMs - (asked + clockErrorMs),
    clockErrorMs,
    queueVersion: hasQueue ? await readQueueVersion(client) : null,
  };
}

async function readQueueVersion(client: pg.ClientBase): Promise<number | null> {
  const { rows } = await client.query<{ version: number }>(
    timed('select version from onetake_queue.version limit 1', undefined, TIMEOUT_MS),
  );
  return rows[0]?.version ?? null;
}
