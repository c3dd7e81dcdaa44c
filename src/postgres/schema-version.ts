import { OnetakeError } from '../core/errors.ts';
import { firstRow, type Sql } from './database.ts';

/**
 * The newest migration of this build, as its journal dates it (epoch ms). A constant, since a bundled
 * client has no migrations beside it; a test holds it equal to the journal.
 */
export const NEWEST_MIGRATION = 1_796_053_416_696;

export type SchemaStatus = 'missing' | 'older' | 'current' | 'newer' | 'unreadable';

/** Fails no statement, so that it may run in a caller's transaction, whatever it finds. */
export async function readSchemaStatus(sql: Sql): Promise<SchemaStatus> {
  const found = await firstRow<{ readable: boolean }>(
    sql,
    `select has_schema_privilege(n.oid, 'usage') and has_table_privilege(c.oid, 'select') as readable
from pg_catalog.pg_namespace n
join pg_catalog.pg_class c on c.relnamespace = n.oid and c.relname = 'schema_migrations'
where n.nspname = 'onetake'`,
  );
  if (found === undefined) return 'missing';
  if (!found.readable) return 'unreadable';
  const row = await firstRow<{ newest: string | null }>(
    sql,
    'select max(created_at)::text as newest from onetake.schema_migrations',
  );
  const applied = Number(row?.newest ?? 0);
  // The migrator makes its table first: one that died there has migrated nothing.
  if (applied === 0) return 'missing';
  if (applied === NEWEST_MIGRATION) return 'current';
  return applied < NEWEST_MIGRATION ? 'older' : 'newer';
}

/** Refuses a database that this build can't work with, and says what to do. A newer schema is accepted. */
export async function requireSchema(sql: Sql): Promise<void> {
  switch (await readSchemaStatus(sql)) {
    case 'missing':
      throw new OnetakeError('schema_not_migrated', 'The database has no onetake schema yet.', {
        hint: 'Run `onetake migrate` once, with a role that may create schemas.',
      });
    case 'older':
      throw new OnetakeError(
        'schema_too_old',
        'The onetake schema in the database is older than this build.',
        {
          hint: 'Run `onetake migrate` from the new release before its workers start.',
        },
      );
    case 'unreadable':
    case 'current':
    case 'newer':
      // A role with narrow rights is no reason to refuse: what it may not do, the database will say.
      return;
  }
}
