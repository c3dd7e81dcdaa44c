import { setTimeout as delay } from 'node:timers/promises';
import pg from 'pg';
import type { Ledger } from './ledger.ts';
import { type Random, randomOf } from './random.ts';
import { ACCOUNT_NAMES, BREAKERS } from './settings.ts';
import type { Timeline } from './timeline.ts';

const ROUND_MS = 700;
const AT_ONCE = 6;
const RELEASE_TRIES = 20;
const REASON = 'looked it up in the ledger';

interface Frozen {
  readonly id: string;
  readonly request_key: string;
  readonly attempt: number | null;
  readonly age_ms: number;
  readonly reason: string;
}

type Word = 'accepted' | 'rearm' | 'end' | 'abandon';

export interface OperatorOptions {
  readonly seed: string;
  readonly connectionString: string;
  readonly ledger: Ledger;
  readonly timeline: Timeline;
  readonly onFault: (what: string) => void;
}

/** Two people who look up frozen requests in the provider's books, often the same one at once. */
export class Operator {
  readonly counts = new Map<string, number>();
  readonly #options: OperatorOptions;
  readonly #people: readonly [pg.Pool, pg.Pool];
  readonly #ending = new AbortController();
  #running: Promise<void> | undefined;
  /** Everything that is left is settled, at once and by what the books say. */
  isClearing = false;

  constructor(options: OperatorOptions) {
    this.#options = options;
    this.#people = [person(options.connectionString), person(options.connectionString)];
  }

  run(): Promise<void> {
    this.#running = this.#rounds();
    return this.#running;
  }

  async #rounds(): Promise<void> {
    for (let round = 1; !this.#ending.signal.aborted; round++) {
      await this.#round(round).catch((error: unknown) => this.#excuse('a round of the operator', error));
      await delay(ROUND_MS, undefined, { signal: this.#ending.signal }).catch(() => undefined);
    }
  }

  async stop(): Promise<void> {
    this.#ending.abort();
    await this.#running;
    await Promise.all(this.#people.map((pool) => pool.end()));
  }

  async force(
    breaker: string,
    mode: 'forced_open' | 'forced_closed',
    expiresInMs: number | null,
  ): Promise<void> {
    const sql = `select onetake.force_breaker($1, $2, $3, $4, clock_timestamp() + $5::float8 * interval '1 ms')`;
    await this.#both(sql, [breaker, mode, 'an operator', REASON, expiresInMs]);
  }

  /** Until it is done: an override that outlives its operator's connection would silence all that follows. */
  async release(breaker: string): Promise<void> {
    for (let tried = 1; tried <= RELEASE_TRIES; tried++) {
      const sql = 'select onetake.release_breaker($1, $2, $3)';
      const done = await this.#both(sql, [breaker, 'an operator', REASON]);
      if (done.includes(true)) return;
      await delay(ROUND_MS, undefined, { signal: this.#ending.signal }).catch(() => undefined);
    }
  }

  async releaseHolds(): Promise<void> {
    for (const account of ACCOUNT_NAMES) {
      const sql = `select onetake.release_account($1, null, $2, $3) where exists (
        select from onetake.account_holds h where h.account = $1 and h.ended_at is null)`;
      await this.#act(0, sql, [account, 'an operator', REASON]);
    }
  }

  /** Whatever still lies over a state or an account. */
  async releaseEverything(): Promise<void> {
    await this.releaseHolds();
    for (const breaker of BREAKERS) {
      const sql = `select onetake.release_breaker($1, $2, $3)
        from onetake.circuit_breakers b where b.name = $1 and b.override is not null`;
      await this.#act(0, sql, [breaker, 'an operator', REASON]);
    }
  }

  async #round(round: number): Promise<void> {
    if (this.isClearing) await this.releaseEverything();
    const { rows } = await this.#people[0].query<Frozen>(
      `select s.id, r.request_key, s.attempt, s.age_ms::float8 as age_ms, s.reason
from onetake.ambiguous_submissions s join onetake.generation_requests r on r.id = s.id
order by s.settled_at limit 100`,
    );
    const ripe = rows.filter((row) => this.isClearing || row.age_ms > this.#patienceMs(row));
    await Promise.all(ripe.slice(0, AT_ONCE).map((row) => this.#settle(row)));
    const random = randomOf(this.#options.seed, 'cancel', round);
    if (!this.isClearing && random.chance(0.08)) await this.#cancelOne(random.pick(ACCOUNT_NAMES));
  }

  #randomOf({ request_key: key, attempt }: Frozen): Random {
    return randomOf(this.#options.seed, 'operator', key, attempt ?? 0);
  }

  #patienceMs(row: Frozen): number {
    return this.#randomOf(row).between(0, 6_000);
  }

  /** Mostly what the books say; now and then a word that is wrong, and then the money is the operator's. */
  async #settle(row: Frozen): Promise<void> {
    const random = this.#randomOf(row);
    random.next();
    const marker = Number(row.request_key.replace('order ', ''));
    const task = this.#options.ledger.tasksOf(marker).at(-1)?.id;
    const knows: Partial<Record<Word, number>> = { accepted: 85, abandon: 8, rearm: 7 };
    const knowsNothing: Partial<Record<Word, number>> = { rearm: 75, end: 10, abandon: 15 };
    const first = this.isClearing
      ? task === undefined
        ? 'rearm'
        : 'accepted'
      : random.weighted(task === undefined ? knowsNothing : knows);
    const isDoubled = random.chance(0.35);
    const second = random.chance(0.5) ? first : random.weighted<Word>({ rearm: 1, end: 1, abandon: 1 });
    const words = isDoubled && !this.isClearing ? [first, second] : [first];
    await Promise.all(words.map((word, n) => this.#say(n as 0 | 1, word, row.id, task)));
  }

  async #say(who: 0 | 1, word: Word, id: string, task: string | undefined): Promise<unknown> {
    const actor = `operator ${who + 1}`;
    if (word === 'accepted') {
      if (task === undefined) return undefined;
      return this.#act(who, 'select onetake.resolve_as_accepted($1, $2, $3, $4)', [id, task, actor, REASON]);
    }
    if (word === 'abandon') return this.#act(who, 'select onetake.abandon($1, $2, $3)', [id, actor, REASON]);
    const sql = 'select onetake.resolve_as_not_accepted($1, $2, $3, $4, true)';
    return this.#act(who, sql, [id, actor, REASON, word === 'rearm']);
  }

  async #cancelOne(account: string): Promise<void> {
    const sql = `select onetake.cancel_request(r.id, $2, $3)
from (select id from onetake.generation_requests where state = 'queued' and account = $1 order by created_at desc limit 1) r`;
    await this.#both(sql, [account, 'an operator', REASON]);
  }

  #both(sql: string, values: unknown[]): Promise<boolean[]> {
    return Promise.all([this.#act(0, sql, values), this.#act(1, sql, values)]);
  }

  /** False when nobody can say whether it was done. */
  async #act(who: 0 | 1, sql: string, values: unknown[]): Promise<boolean> {
    const what = /onetake\.(\w+)\(/.exec(sql)?.[1] ?? 'something';
    try {
      const { rowCount } = await this.#people[who].query(sql, values);
      if (rowCount === 0) return true;
      this.#count(what);
      this.#options.timeline.add('operator', `${what} ${String(values[0])}`);
      return true;
    } catch (error) {
      return this.#excuse(what, error);
    }
  }

  /** Refusals are what the second of two gets; an absent database is what an operator lives with. */
  #excuse(what: string, error: unknown): boolean {
    const { code, message } = error as { code?: string; message?: string };
    if (code?.startsWith('OT')) {
      this.#count('refused');
      return true;
    }
    const isTrouble =
      code === undefined ? /terminat|timeout|clos|connection/i.test(message ?? '') : TROUBLE.test(code);
    if (!isTrouble) this.#options.onFault(`${what}: ${code ?? ''} ${message ?? ''}`.slice(0, 300));
    return false;
  }

  #count(what: string): void {
    this.counts.set(what, (this.counts.get(what) ?? 0) + 1);
  }
}

const TROUBLE = /^(08|57|53|40|55|25P0)|^E[A-Z]+$/;

function person(connectionString: string): pg.Pool {
  const pool = new pg.Pool({
    connectionString,
    max: 4,
    connectionTimeoutMillis: 5_000,
    application_name: 'an operator',
    query_timeout: 15_000,
  });
  pool.on('error', () => undefined);
  pool.on('connect', (client) => client.on('error', () => undefined));
  return pool;
}
