import type { InstallationLoss, InstallationMark, InstallationReading } from '../core/installation.ts';
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
