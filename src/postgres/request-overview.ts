import type { RequestState } from '../core/generation-request.ts';
import type { ResultDocument } from '../core/provider.ts';
import { firstRow, rows, type Sql } from './database.ts';

// What people and apps see: reads only, of the views where there is one.

export interface RequestRow {
  readonly id: string;
  readonly state: RequestState;
  readonly stateReason: string | null;
  readonly failureReason: string | null;
  /** Of `failed`: which failure, as the provider names it, or how its stream ended. Null where nobody says. */
  readonly failureCode: string | null;
  readonly resultStatus: string | null;
  readonly waitingFor: string | null;
  readonly account: string;
  readonly operation: string;
  readonly requestKey: string;
  readonly providerTaskId: string | null;
  readonly charge: string;
  readonly refunded: boolean | null;
  readonly attention: string | null;
  readonly warnings: readonly string[];
  readonly createdAt: Date;
  readonly settledAt: Date | null;
}

export interface AttemptRow {
  readonly attempt: number;
  readonly isProbe: boolean;
  readonly worker: string;
  readonly startedAt: Date;
  readonly settledAt: Date | null;
  readonly phase: string | null;
  /** Whether the first byte of the POST went out; null: nobody can tell. */
  readonly headersSent: boolean | null;
  readonly headersSentProof: string | null;
  readonly httpStatus: number | null;
  readonly errorCode: string | null;
  readonly health: string | null;
  readonly healthEffect: string | null;
  readonly certainty: string | null;
  /** Of an answer that is a stream: `complete`, or why it was not; null while it is read, and where there is none. */
  readonly streamEnd: string | null;
  readonly streamHealth: string | null;
}

export interface FileRow {
  readonly index: number;
  readonly kind: string;
  /** Of several that were ordered at once, which; from 0. */
  readonly variant: number;
  /** Null: what was ordered. Else what came with it, such as `drums`, or the language of a dubbing. */
  readonly label: string | null;
  readonly contentType: string | null;
  readonly bytes: number | null;
  readonly sha256: string | null;
  readonly location: string;
  readonly storedAt: Date | null;
}

const OVERVIEW = `id, state, state_reason as "stateReason", failure_reason as "failureReason",
  failure_code as "failureCode", result_status as "resultStatus", waiting_for as "waitingFor", account, operation, request_key as "requestKey",
  provider_task_id as "providerTaskId", charge, refunded, attention, warnings, created_at as "createdAt",
  settled_at as "settledAt"`;

export async function findRequest(sql: Sql, id: string): Promise<RequestRow | undefined> {
  return firstRow(sql, `select ${OVERVIEW} from onetake.request_overview where id = $1`, [id]);
}

export interface RequestFilter {
  readonly state?: RequestState;
  readonly account?: string;
  readonly operation?: string;
  /** Whose intent: at most one of each account. */
  readonly requestKey?: string;
  /** 1 to 1,000; default 50. */
  readonly limit?: number;
}

/** Newest first. */
export async function listRequests(sql: Sql, filter: RequestFilter): Promise<RequestRow[]> {
  // By the unique index of accounts and keys, which has no entry by the key alone.
  const source =
    filter.requestKey === undefined
      ? 'onetake.generation_requests r'
      : 'onetake.accounts a join onetake.generation_requests r on r.account = a.name and r.request_key = $5';
  return rows(
    sql,
    // The page first: over the view, the planner works out what every request waits for and then sorts.
    `select ${OVERVIEW} from onetake.request_overview
where id = any(array(
  select r.id from ${source}
  where ($1::text is null or r.state = $1) and ($2::text is null or r.account = $2)
    and ($3::text is null or r.operation = $3)
  order by r.created_at desc
  limit $4
))
order by created_at desc`,
    [
      filter.state ?? null,
      filter.account ?? null,
      filter.operation ?? null,
      filter.limit ?? 50,
      ...(filter.requestKey === undefined ? [] : [filter.requestKey]),
    ],
  );
}

export interface UnrefundedRow {
  readonly requestId: string;
  readonly account: string;
  readonly operation: string;
  readonly requestKey: string;
  /** Null of a stream, which has no task. */
  readonly providerTaskId: string | null;
  /** Why the request failed; `unclaimed`: a task that belongs to no request. */
  readonly why: 'provider' | 'stream_interrupted' | 'abandoned' | 'unclaimed';
  readonly since: Date;
  /** False: the provider's last word so far; null: it has said nothing. */
  readonly refunded: false | null;
  /** Null: nobody looks any more. */
  readonly watchedUntil: Date | null;
}

export interface UnrefundedFilter {
  readonly account?: string;
  /** 1 to 1,000; default 50. */
  readonly limit?: number;
}

/** Oldest first. */
export async function listUnrefunded(sql: Sql, filter: UnrefundedFilter): Promise<UnrefundedRow[]> {
  return rows(
    sql,
    `select request_id as "requestId", account, operation, request_key as "requestKey",
  provider_task_id as "providerTaskId", why, since, refunded, watched_until as "watchedUntil"
from onetake.money_not_returned
where $1::text is null or account = $1
order by since
limit $2`,
    [filter.account ?? null, filter.limit ?? 50],
  );
}

export async function listAttempts(sql: Sql, requestId: string): Promise<AttemptRow[]> {
  return rows(
    sql,
    `select attempt, is_probe as "isProbe", worker, started_at as "startedAt", settled_at as "settledAt", phase,
  headers_sent as "headersSent", headers_sent_proof as "headersSentProof", http_status as "httpStatus", error_code as "errorCode", health, health_effect as "healthEffect", certainty,
  stream_end as "streamEnd", stream_health as "streamHealth"
from onetake.submission_attempts where request_id = $1 order by attempt`,
    [requestId],
  );
}

export async function listFiles(sql: Sql, requestId: string): Promise<FileRow[]> {
  return rows(
    sql,
    `select index, kind, variant, label, content_type as "contentType", bytes::float8 as bytes, sha256, location,
  stored_at as "storedAt"
from onetake.assets where request_id = $1 order by index`,
    [requestId],
  );
}

/** A result that is no file; null where there is none. */
export async function readDocument(sql: Sql, requestId: string): Promise<ResultDocument | null> {
  const row = await firstRow<{ document: ResultDocument | null }>(
    sql,
    'select document from onetake.generation_requests where id = $1',
    [requestId],
  );
  return row?.document ?? null;
}

/** Ids that begin with `prefix` (hexadecimal digits and dashes), at most two: enough to say "ambiguous". */
export async function findIdsByPrefix(sql: Sql, prefix: string): Promise<string[]> {
  const found = await rows<{ id: string }>(
    sql,
    'select id from onetake.generation_requests where id between $1::uuid and $2::uuid order by id limit 2',
    [pad(prefix, '0'), pad(prefix, 'f')],
  );
  return found.map((row) => row.id);
}

function pad(prefix: string, digit: string): string {
  const digits = prefix.replaceAll('-', '').toLowerCase().padEnd(32, digit);
  return digits.replace(/^(.{8})(.{4})(.{4})(.{4})(.{12})$/, '$1-$2-$3-$4-$5');
}
