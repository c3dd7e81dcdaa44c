import type pg from 'pg';
import { isDirect, timed } from './session.ts';

const ROUNDS = 5;
/** A session of one's own answers at once; one that has to be waited for is shared. */
const ANSWER_MS = 2_000;

/**
 * Whether what `client` sets, locks or listens to stays with it between two statements. Past a pooler that
 * can only be found out: with `other` in a transaction, a pooler in transaction mode must give `client`
 * another server session, or has just given its own away. (Some proxies keep sessions and still hand out
 * process ids of their own, so those prove nothing.) Leaves both connections outside a transaction; throws
 * when either dies, and what a pooler in statement mode answers to BEGIN.
 */
export async function keepsItsSession(client: pg.ClientBase, other: pg.ClientBase): Promise<boolean> {
  if (await isDirect(client)) return true;
  for (let round = 1; round <= ROUNDS; round++) {
    const before = await sessionOf(client);
    await other.query(timed('begin', undefined));
    try {
      const others = await sessionOf(other);
      if (others === before) return false;
      if ((await sessionOf(client)) !== before) return false;
    } finally {
      await other.query(timed('rollback', undefined));
    }
  }
  return true;
}

async function sessionOf(client: pg.ClientBase): Promise<number | undefined> {
  const { rows } = await client.query<{ pid: number }>(
    timed('select pg_backend_pid() as pid', undefined, ANSWER_MS),
  );
  return rows[0]?.pid;
}
