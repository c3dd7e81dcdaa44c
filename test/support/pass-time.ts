import type pg from 'pg';

const SCHEMAS = ['onetake', 'onetake_queue'];
const RETRIES = 10;
const INSUFFICIENT_PRIVILEGE = '42501';
const DEADLOCK = '40P01';

/** Statements by pool: the catalog is read once per database. */
const known = new WeakMap<pg.Pool, Promise<string[]>>();

/**
 * Moves the clock without waiting, and without a second clock in the product: the database's time stays, and every
 * stored instant goes back. Triggers are off, so that no guard or notification sees a change that nobody made.
 */
export async function passTime(pool: pg.Pool, ms: number): Promise<void> {
  const shifts = known.get(pool) ?? shiftsOf(pool);
  known.set(pool, shifts);
  const statements = await shifts;
  for (let attempt = 1; ; attempt += 1) {
    try {
      await shift(pool, statements, ms);
      return;
    } catch (error) {
      // Workers that run meanwhile lock the same rows, in their own order.
      if ((error as pg.DatabaseError).code !== DEADLOCK || attempt === RETRIES) throw error;
    }
  }
}

async function shift(pool: pg.Pool, statements: readonly string[], ms: number): Promise<void> {
  const client = await pool.connect();
  try {
    await client.query('begin isolation level read committed');
    await turnTriggersOff(client);
    for (const statement of statements) await client.query(statement, [ms]);
    await client.query('commit');
  } catch (error) {
    await client.query('rollback');
    throw error;
  } finally {
    client.release();
  }
}

/** Needs a superuser; without one the triggers run, and the state guard lets times change. */
async function turnTriggersOff(client: pg.PoolClient): Promise<void> {
  await client.query('savepoint triggers');
  try {
    await client.query('set local session_replication_role = replica');
  } catch (error) {
    if ((error as pg.DatabaseError).code !== INSUFFICIENT_PRIVILEGE) throw error;
    await client.query('rollback to savepoint triggers');
  }
}

/** One update per table. A partitioned table is updated through its root, a generated column follows by itself. */
async function shiftsOf(pool: pg.Pool): Promise<string[]> {
  const { rows } = await pool.query<{ statement: string }>(
    `
    select format('update %I.%I set %s', n.nspname, c.relname, string_agg(
      format('%1$I = %1$I - make_interval(secs => $1::double precision / 1000)', a.attname), ', '
      order by a.attnum)) as statement
    from pg_class c
    join pg_namespace n on n.oid = c.relnamespace
    join pg_attribute a on a.attrelid = c.oid
    where n.nspname = any($1) and c.relkind in ('r', 'p') and not c.relispartition
      and a.attnum > 0 and not a.attisdropped and a.attgenerated = ''
      and a.atttypid = 'timestamptz'::regtype
    group by n.nspname, c.relname
    order by n.nspname, c.relname`,
    [SCHEMAS],
  );
  return rows.map(({ statement }) => statement);
}
