import pg from 'pg';
import { CANARY } from './settings.ts';

// The database, read from the outside: one consistent view of everything that the checks look at.

export interface RequestRow {
  readonly id: string;
  readonly requestKey: string;
  readonly account: string;
  readonly state: string;
  readonly stateReason: string | null;
  readonly charge: string;
  readonly task: string | null;
  readonly submissions: number;
}

export interface AttemptRow {
  readonly id: string;
  readonly requestId: string;
  readonly attempt: number;
  readonly account: string;
  readonly breaker: string;
  readonly isProbe: boolean;
  readonly override: string | null;
  /** ms since 1970 by the database's clock, as all instants here. */
  readonly startedAt: number;
  readonly leaseExpiresAt: number;
  readonly settledAt: number | null;
  readonly closedAt: number | null;
  readonly quarantineUntil: number;
  readonly phase: string | null;
  readonly httpStatus: number | null;
  readonly certainty: string | null;
  readonly reason: string | null;
  readonly task: string | null;
}

export interface EvidenceRow {
  readonly attemptId: string;
  readonly certainty: string;
  readonly task: string | null;
}

export interface ActionRow {
  readonly action: string;
  readonly subject: string;
}

export interface TransitionRow {
  readonly breaker: string;
  readonly layer: 'state' | 'override';
  readonly number: number;
  readonly previous: string;
  readonly next: string;
  readonly cause: string;
  readonly generation: number;
  readonly at: number;
}

export interface BreakerRow {
  readonly name: string;
  readonly state: string;
  readonly probeAttemptId: string | null;
  readonly transitions: number;
  readonly overrideTransitions: number;
}

export interface Snapshot {
  readonly now: number;
  readonly requests: readonly RequestRow[];
  readonly attempts: readonly AttemptRow[];
  readonly evidence: readonly EvidenceRow[];
  readonly actions: readonly ActionRow[];
  readonly transitions: readonly TransitionRow[];
  readonly breakers: readonly BreakerRow[];
  /** Why the product takes this database for another one, or for one that has lost something. */
  readonly doubt: string | null;
  /** Tables in which a secret, a prompt or a URL was seen where it has no business. */
  readonly leaks: readonly string[];
}

const ms = (column: string) => `(extract(epoch from ${column}) * 1000)::float8`;

const QUERIES = {
  requests: `select id, request_key as "requestKey", account, state, state_reason as "stateReason", charge,
  provider_task_id as task, submissions from onetake.generation_requests`,
  attempts: `select id, request_id as "requestId", attempt, account, breaker_name as breaker, is_probe as "isProbe",
  override, ${ms('started_at')} as "startedAt", ${ms('lease_expires_at')} as "leaseExpiresAt",
  ${ms('settled_at')} as "settledAt", ${ms('closed_at')} as "closedAt",
  ${ms('quarantine_until')} as "quarantineUntil", phase, http_status as "httpStatus", certainty, reason,
  provider_task_id as task from onetake.submission_attempts order by request_id, attempt`,
  evidence: `select attempt_id as "attemptId", certainty, provider_task_id as task from onetake.attempt_evidence`,
  actions: `select action, subject from onetake.operator_actions`,
  transitions: `select breaker_name as breaker, layer, number, previous_state as previous, next_state as next, cause,
  generation, ${ms('at')} as at from onetake.circuit_breaker_transitions order by id`,
  breakers: `select name, state, probe_attempt_id as "probeAttemptId", transitions,
  override_transitions as "overrideTransitions" from onetake.circuit_breakers`,
} as const;

const TABLES_WITHOUT_SECRETS = [
  'onetake_queue.job',
  'onetake.submission_attempts',
  'onetake.attempt_evidence',
  'onetake.circuit_breakers',
  'onetake.circuit_breaker_transitions',
  'onetake.account_holds',
  'onetake.operator_actions',
];

const LEAKS = [
  ...TABLES_WITHOUT_SECRETS.map(
    (table) => `select '${table}' as place from ${table} t where t::text like $1`,
  ),
  `select 'onetake.generation_requests' from onetake.generation_requests r where (to_jsonb(r) - 'fields')::text like $1`,
  `select 'onetake.assets' from onetake.assets t where t.stored_at is not null and t::text like $1`,
].join(' union ');

/** Reads as the superuser, past every proxy. Throws when the database is away. */
export async function takeSnapshot(client: pg.Client): Promise<Snapshot> {
  await client.query('begin isolation level repeatable read read only');
  try {
    const read = async <Row>(sql: string, values: unknown[] = []) =>
      (await client.query(sql, values)).rows as Row[];
    const [clock] = await read<{ now: number }>(`select ${ms('clock_timestamp()')} as now`);
    return {
      now: clock?.now ?? 0,
      requests: await read<RequestRow>(QUERIES.requests),
      attempts: await read<AttemptRow>(QUERIES.attempts),
      evidence: await read<EvidenceRow>(QUERIES.evidence),
      actions: await read<ActionRow>(QUERIES.actions),
      transitions: await read<TransitionRow>(QUERIES.transitions),
      breakers: await read<BreakerRow>(QUERIES.breakers),
      doubt:
        (await read<{ doubt: string | null }>('select doubt from onetake.installation'))[0]?.doubt ?? null,
      leaks: (await read<{ place: string }>(LEAKS, [`%${CANARY}%`])).map(({ place }) => place),
    };
  } finally {
    await client.query('rollback');
  }
}

/** A session of the checks' own that comes back by itself after a restart; undefined while there is none. */
export class Observer {
  readonly #connectionString: string;
  #client: pg.Client | undefined;
  #turn: Promise<unknown> = Promise.resolve();

  constructor(connectionString: string) {
    this.#connectionString = connectionString;
  }

  read<T>(work: (client: pg.Client) => Promise<T>): Promise<T | undefined> {
    const done = this.#turn.then(() => this.#tryToRead(work));
    this.#turn = done;
    return done;
  }

  async close(): Promise<void> {
    await this.#turn;
    await this.#client?.end().catch(() => undefined);
  }

  async #tryToRead<T>(work: (client: pg.Client) => Promise<T>): Promise<T | undefined> {
    try {
      this.#client ??= await this.#connect();
      return await work(this.#client);
    } catch (error) {
      void this.#client?.end().catch(() => undefined);
      this.#client = undefined;
      // A wrong statement is a fault of the suite's own, and not to be waited for.
      if (/^(42|22)/.test((error as { code?: string }).code ?? '')) throw error;
      return undefined;
    }
  }

  async #connect(): Promise<pg.Client> {
    const client = new pg.Client({
      connectionString: this.#connectionString,
      application_name: 'the observer',
      connectionTimeoutMillis: 3_000,
      query_timeout: 20_000,
    });
    client.on('error', () => undefined);
    await client.connect();
    return client;
  }
}
