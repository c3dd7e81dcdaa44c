import type {
  InstallationLoss,
  InstallationMark,
  InstallationReading,
  InstallationTrouble,
} from '../core/installation.ts';
import { firstRow, type Sql } from './database.ts';

/** A function scan to join, with four parameters from number `from` on; the rest of `markValues`. */
export function installationCheck(from: number): string {
  return `onetake.check_installation($${from}::uuid, $${from + 1}::bigint, $${from + 2}::pg_lsn, $${from + 3}::uuid)`;
}

/** Its columns, of the alias `i`. */
export const INSTALLATION_COLUMNS = `i.installation, i.revision::float8 as revision, i.flushed::text as flushed,
  i.trouble, i.loss`;

/**
 * To be taken before the statement is sent: other statements may see WAL flushed meanwhile, and this one might have
 * read it before.
 */
export function markValues(mark: InstallationMark | null): unknown[] {
  return [mark?.installation ?? null, mark?.revision ?? null, mark?.flushed ?? null, mark?.attemptId ?? null];
}

/** Whether this is the database that was confirmed, in one plain read. */
export async function checkInstallation(
  sql: Sql,
  mark: InstallationMark | null,
): Promise<InstallationReading> {
  const row = await firstRow<InstallationReading>(
    sql,
    `select ${INSTALLATION_COLUMNS} from ${installationCheck(1)} i`,
    markValues(mark),
  );
  return row as InstallationReading;
}

/**
 * For the others, and until an operator says otherwise; the first doubt stays. What was lost before the last
 * confirmation (`since`: when the lost attempt began) is what that one was about. Waits for nobody: whoever holds the
 * row is about to freeze or to confirm, and may want a request that the caller has locked.
 */
export async function doubtInstallation(
  sql: Sql,
  doubt: InstallationLoss,
  by: string,
  since: Date | null = null,
): Promise<void> {
  await sql.executeSql(
    `with doubted as (
  update onetake.installation
  set doubt = $1, doubted_at = clock_timestamp(), doubted_by = $2
  where one in (
    select one from onetake.installation
    where doubt is null and ($3::timestamptz is null or $3 > confirmed_at)
    for no key update skip locked
  )
  returning one
)
select pg_notify('onetake', 'installation') from doubted`,
    [doubt, by, since],
  );
}

/** Takes the database for the installation when none was ever confirmed in it; true when that was so. */
export async function confirmFirstInstallation(sql: Sql, by: string, reason: string): Promise<boolean> {
  const row = await firstRow<{ confirmed: boolean }>(
    sql,
    `select true as confirmed from onetake.confirm_installation($1, $2)
where not exists (select from onetake.installation)`,
    [by, reason],
  );
  return row !== undefined;
}

/** What tells one copy of a database from another; null: the server keeps it to itself. */
export interface InstallationIdentity {
  readonly systemIdentifier: string | null;
  readonly timeline: number | null;
  readonly databaseOid: number;
  readonly databaseName: string;
}

/** What an operator wants to know before a decision. */
export interface InstallationStatus {
  /** Null: this is the database that was confirmed. */
  readonly trouble: InstallationTrouble | null;
  readonly present: InstallationIdentity;
  /** As it was confirmed; null: nobody has confirmed any. */
  readonly confirmed:
    | (InstallationIdentity & { readonly at: Date; readonly by: string; readonly reason: string })
    | null;
  /** Who says since when that the database has lost something, or who began a freeze. */
  readonly doubt: { readonly at: Date; readonly by: string } | null;
  /** Requests that would be submitted after a resumption, and that a freeze would freeze. */
  readonly queued: number;
  readonly submitting: number;
}

interface StatusRow {
  readonly trouble: InstallationTrouble | null;
  readonly system: string | null;
  readonly timeline: number | null;
  readonly oid: number;
  readonly name: string;
  readonly confirmed: boolean;
  readonly confirmedSystem: string | null;
  readonly confirmedTimeline: number | null;
  readonly confirmedOid: number;
  readonly confirmedName: string;
  readonly confirmedAt: Date;
  readonly confirmedBy: string;
  readonly reason: string;
  readonly doubtedAt: Date | null;
  readonly doubtedBy: string | null;
  readonly queued: number;
  readonly submitting: number;
}

export async function readInstallation(sql: Sql): Promise<InstallationStatus> {
  const row = (await firstRow<StatusRow>(
    sql,
    `select c.trouble, p.system_identifier::text as system, p.timeline, p.database_oid::float8 as oid,
  p.database_name as name, i.id is not null as confirmed, i.system_identifier::text as "confirmedSystem",
  i.timeline as "confirmedTimeline", i.database_oid::float8 as "confirmedOid", i.database_name as "confirmedName",
  i.confirmed_at as "confirmedAt", i.confirmed_by as "confirmedBy", i.reason, i.doubted_at as "doubtedAt",
  i.doubted_by as "doubtedBy",
  (select count(*)::float8 from onetake.generation_requests where state = 'queued') as queued,
  (select count(*)::float8 from onetake.submission_attempts where settled_at is null) as submitting
from onetake.check_installation() c
cross join onetake.present_installation() p
left join onetake.installation i on true`,
  )) as StatusRow;
  const { doubtedAt, doubtedBy } = row;
  return {
    trouble: row.trouble,
    present: {
      systemIdentifier: row.system,
      timeline: row.timeline,
      databaseOid: row.oid,
      databaseName: row.name,
    },
    confirmed: row.confirmed
      ? {
          systemIdentifier: row.confirmedSystem,
          timeline: row.confirmedTimeline,
          databaseOid: row.confirmedOid,
          databaseName: row.confirmedName,
          at: row.confirmedAt,
          by: row.confirmedBy,
          reason: row.reason,
        }
      : null,
    doubt: doubtedAt === null || doubtedBy === null ? null : { at: doubtedAt, by: doubtedBy },
    queued: row.queued,
    submitting: row.submitting,
  };
}
