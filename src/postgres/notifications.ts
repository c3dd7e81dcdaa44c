import type pg from 'pg';
import type { Sql } from './database.ts';

const CHANNEL = 'onetake';

/** Delivered when the transaction commits; a hint only, everybody polls as well. */
export async function notify(sql: Sql, what: 'lane' | 'slot' | 'settled'): Promise<void> {
  await sql.executeSql('select pg_notify($1, $2)', [CHANNEL, what]);
}

/**
 * Listens on a connection of its own, taken out of the pool for good. Resolves to a function that ends it;
 * `onLost` is called once when the connection dies, and the caller may listen again.
 */
export async function listen(
  pool: pg.Pool,
  onNotice: (what: string) => void,
  onLost: () => void,
): Promise<() => void> {
  const client = await pool.connect();
  let ended = false;
  const end = (lost: boolean) => {
    if (ended) return;
    ended = true;
    client.release(true);
    if (lost) onLost();
  };
  client.on('error', () => end(true));
  client.on('end', () => end(true));
  client.on('notification', (notice) => onNotice(notice.payload ?? ''));
  try {
    await client.query(`listen ${CHANNEL}`);
  } catch (error) {
    end(false);
    throw error;
  }
  return () => end(false);
}
