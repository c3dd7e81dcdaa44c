import { randomUUID } from 'node:crypto';
import type { Database, Sql } from './database.ts';
import { keepsItsSession } from './pooling.ts';
import { hasTerms, timed } from './session.ts';

const CHANNEL = 'onetake';
/** Begins what a listener sends to itself: everybody else ignores it. */
const BEAT = 'beat ';
const BEAT_EVERY_MS = 15_000;
const BEAT_TIMEOUT_MS = 5_000;

/** Delivered when the transaction commits; a hint only, everybody polls as well. */
export async function notify(sql: Sql, what: 'lane' | 'slot' | 'notice'): Promise<void> {
  await sql.executeSql('select pg_notify($1, $2)', [CHANNEL, what]);
}

export interface ListenOptions {
  readonly onNotice: (what: string) => void;
  /** Called once when the connection dies, or is found dead; the caller may listen again. */
  readonly onLost: () => void;
  /** How often the connection is proven. Default 15 s. */
  readonly beatEveryMs?: number;
}

/**
 * Listens on a connection of its own, taken out of the pool for good. Resolves to a function that ends it, or
 * to undefined where no notification would come: through a pooler that gives the session to others.
 *
 * A connection that a network has swallowed looks like one on which nothing happens, for hours. So the
 * listener notifies itself now and then, and gives a connection up on which that doesn't arrive.
 */
export async function listen(database: Database, options: ListenOptions): Promise<(() => void) | undefined> {
  const client = await database.takeOut();
  const ownBeat = `${BEAT}${randomUUID()}`;
  let ended = false;
  let beating: NodeJS.Timeout | undefined;
  let heard: (() => void) | undefined;
  const end = (lost: boolean) => {
    if (ended) return;
    ended = true;
    clearTimeout(beating);
    heard?.();
    client.release(true);
    if (lost) options.onLost();
  };
  client.on('error', () => end(true));
  client.on('end', () => end(true));
  client.on('notification', ({ payload = '' }) => {
    if (payload === ownBeat) heard?.();
    else if (!payload.startsWith(BEAT)) options.onNotice(payload);
  });
  /** True when the notification that it sends comes back to it. */
  const beat = async (): Promise<boolean> => {
    let timer: NodeJS.Timeout | undefined;
    const arrived = new Promise<boolean>((resolve) => {
      heard = () => resolve(!ended);
      timer = setTimeout(() => resolve(false), BEAT_TIMEOUT_MS);
    });
    try {
      await client.query(timed('select pg_notify($1, $2)', [CHANNEL, ownBeat], 0));
      return await arrived;
    } finally {
      clearTimeout(timer);
      heard = undefined;
    }
  };
  /** A role may end idle sessions, and this one idles by trade. */
  const begin = async (): Promise<boolean> => {
    await client.query(
      timed(
        `select set_config('application_name', current_setting('application_name') || ' listener', false);
set idle_session_timeout = 0;
listen ${CHANNEL}`,
        undefined,
      ),
    );
    return beat();
  };
  const listens = async (): Promise<boolean> => {
    if (!(await database.withClient((other) => keepsItsSession(client, other)))) return false;
    if (await begin()) return true;
    // On a connection of our own a beat comes back, or the connection is broken.
    if (ended || hasTerms(client)) throw new Error('the connection ended');
    return false;
  };
  try {
    if (!(await listens())) {
      end(false);
      return undefined;
    }
  } catch (error) {
    end(false);
    throw error;
  }
  const beatLater = () => {
    if (ended) return;
    beating = setTimeout(() => {
      beat().then(
        (alive) => (alive ? beatLater() : end(true)),
        () => end(true),
      );
    }, options.beatEveryMs ?? BEAT_EVERY_MS);
  };
  beatLater();
  return () => end(false);
}
