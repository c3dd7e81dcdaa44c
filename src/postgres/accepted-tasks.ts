import type { EncodedFields } from '../core/operations.ts';
import type { ResultDocument } from '../core/provider.ts';
import { END_ATTENTION } from './attention.ts';
import { rows, type Sql } from './database.ts';
import { type ClaimTerms, HEED_READ_PAUSES } from './read-pauses.ts';

// Accepted tasks and refund watches, as the poller sees them. Nothing here knows of breakers.

export interface DueTask {
  readonly id: string;
  readonly account: string;
  readonly operation: string;
  readonly provider: string;
  readonly taskId: string;
  readonly fields: EncodedFields;
  readonly state: 'accepted' | 'failed';
  readonly ageMs: number;
  /** Since it failed; null while it is accepted. */
  readonly sinceFailureMs: number | null;
  readonly pollErrors: number;
  /** Since it was first read as finished; null before. */
  readonly sinceFinishedMs: number | null;
  readonly refundWatchIsOver: boolean;
  /** Pauses in a row, where this is the one read that the account's pause lets through; else null. */
  readonly probeOf: number | null;
}

/** No poller is at request `r`. Looked up row by row: as a join it might read all leases, or lose the index's order. */
const IS_FREE = `coalesce(
  (select l.lease_expires_at <= now() from onetake.poll_leases l where l.request_id = r.id), true)`;

export interface Claim {
  readonly tasks: readonly DueTask[];
  /** So many were due, and wait because the reads of their account are paused. */
  readonly deferred: number;
}

/**
 * Claims due tasks: those at the front of the index generation_requests_due_polls, whatever accounts they belong to,
 * that are neither locked nor leased. The lease is a row of its own, since a claim that changed the request would write
 * to each of its indexes; a poller that dies leaves nothing to repair. `now()` is this statement's own transaction's
 * start; SKIP LOCKED never waits, so it is not stale. Another poller's lease that was committed after this statement's
 * snapshot is met by the upsert.
 */
export async function claimDueTasks(sql: Sql, terms: ClaimTerms): Promise<Claim> {
  const claimed = await rows<DueTask & { waits: boolean }>(
    sql,
    `with page as materialized (
  select r.id, r.account, r.operation, r.provider_task_id, r.fields, r.state, r.poll_errors,
    r.next_poll_at as due, coalesce(r.refund_watch_until <= now(), false) as watch_is_over,
    r.state = 'failed' and r.refund_watch_until <= now() as is_over,
    now() - coalesce(r.accepted_at, r.created_at) as age, now() - r.settled_at as since_failure,
    now() - r.provider_finished_at as since_finished
  from onetake.generation_requests r
  where r.next_poll_at <= now() and ${IS_FREE}
  order by r.next_poll_at
  limit $1
  for no key update of r skip locked
), ${HEED_READ_PAUSES}, moved as (
  update onetake.generation_requests r
  set next_poll_at = s.claimed_until
  from sorted s
  where s.waits and r.id = s.id
), leased as (
  insert into onetake.poll_leases as l (request_id, lease_expires_at)
  select s.id, s.claimed_until from sorted s where not s.waits
  on conflict (request_id) do update
  set lease_expires_at = excluded.lease_expires_at
  where l.lease_expires_at <= now()
  returning l.request_id
)
select s.id, s.account, s.operation, a.provider, s.provider_task_id as "taskId", s.fields, s.state,
  (extract(epoch from s.age) * 1000)::float8 as "ageMs",
  (extract(epoch from s.since_failure) * 1000)::float8 as "sinceFailureMs",
  (extract(epoch from s.since_finished) * 1000)::float8 as "sinceFinishedMs",
  s.poll_errors as "pollErrors", s.watch_is_over as "refundWatchIsOver", s.failures as "probeOf", s.waits
from sorted s
join onetake.accounts a on a.name = s.account
left join leased l on l.request_id = s.id
where s.waits or l.request_id is not null`,
    [terms.limit, terms.leaseMs, terms.intervalMs],
  );
  const tasks = claimed.filter(({ waits }) => !waits);
  return { tasks, deferred: claimed.length - tasks.length };
}

/** The earliest instant at which a task is due, a request's own or another, for the loop's sleep. */
export async function nextDueInMs(sql: Sql): Promise<number | null> {
  const [row] = await rows<{ ms: number | null }>(
    sql,
    `select (extract(epoch from least(
  (
    select r.next_poll_at from onetake.generation_requests r
    where r.next_poll_at is not null and ${IS_FREE}
    order by r.next_poll_at
    limit 1
  ),
  (select min(next_look_at) from onetake.followed_tasks where next_look_at is not null)
) - clock_timestamp()) * 1000)::float8 as ms`,
  );
  return row?.ms ?? null;
}

/** Schedules the next read. Only while the row still is what was polled: a state moved by others wins. */
export async function schedulePoll(
  sql: Sql,
  id: string,
  state: 'accepted' | 'failed',
  delayMs: number,
  errors: { readonly count: number; readonly trouble: string | null },
): Promise<void> {
  await sql.executeSql(
    `update onetake.generation_requests
set next_poll_at = clock_timestamp() + $3 * interval '1 ms', poll_errors = $4, poll_trouble = $5
where id = $1 and state = $2 and provider_task_id is not null`,
    [id, state, delayMs, errors.count, errors.trouble],
  );
}

/** The claim goes on: its task's files are being fetched. */
export async function prolongClaim(sql: Sql, id: string, forMs: number): Promise<void> {
  await sql.executeSql(
    `update onetake.poll_leases set lease_expires_at = clock_timestamp() + $2 * interval '1 ms'
where request_id = $1`,
    [id, forMs],
  );
}

/** The provider is done with it: noted before hand-off begins, whose time the claim is prolonged by. */
export async function markProviderFinished(tx: Sql, id: string, handOffMs: number): Promise<void> {
  await tx.executeSql(
    `with leased as (
  insert into onetake.poll_leases (request_id, lease_expires_at)
  values ($1, clock_timestamp() + $2 * interval '1 ms')
  on conflict (request_id) do update set lease_expires_at = excluded.lease_expires_at
)
update onetake.generation_requests
set provider_finished_at = coalesce(provider_finished_at, clock_timestamp())
where id = $1`,
    [id, handOffMs],
  );
}

/** Counts a read that said `succeeded` and named no file; says which one it was. */
export async function countEmptyRead(sql: Sql, id: string): Promise<number> {
  const [row] = await rows<{ reads: number }>(
    sql,
    `update onetake.generation_requests set empty_reads = empty_reads + 1
where id = $1 and state = 'accepted'
returning empty_reads as reads`,
    [id],
  );
  return row?.reads ?? 0;
}

export async function failRequest(
  tx: Sql,
  id: string,
  told: { readonly failureCode: string | null; readonly refunded: boolean | null },
  watch: { readonly forMs: number; readonly nextMs: number } | null,
): Promise<void> {
  await tx.executeSql(
    `update onetake.generation_requests
set state = 'failed', failure_reason = 'provider', failure_code = $5, settled_at = clock_timestamp(),
  provider_finished_at = coalesce(provider_finished_at, clock_timestamp()), refunded = $2,
  charge = onetake.charge_of(id), poll_errors = 0, poll_trouble = null, ${END_ATTENTION},
  refund_watch_until = clock_timestamp() + $3 * interval '1 ms',
  next_poll_at = clock_timestamp() + $4 * interval '1 ms'
where id = $1`,
    [id, told.refunded, watch?.forMs ?? null, watch?.nextMs ?? null, told.failureCode],
  );
}

/**
 * The last word of the refund watch so far; without a next look the watch ends. Money of a failed task that has not
 * come back by then is for a person to ask for.
 */
export async function noteRefundLook(
  tx: Sql,
  id: string,
  refunded: boolean | null,
  nextMs: number | null,
): Promise<void> {
  await tx.executeSql(
    `update onetake.generation_requests
set refunded = coalesce($2, refunded), charge = onetake.charge_of(id),
  next_poll_at = clock_timestamp() + $3 * interval '1 ms',
  attention = coalesce(attention, case when x.is_lost then 'not_refunded' end),
  attention_since = coalesce(attention_since, case when x.is_lost then clock_timestamp() end)
from (
  select id as request_id, $3::float8 is null and failure_reason = 'provider' and coalesce($2, refunded) is not true as is_lost
  from onetake.generation_requests where id = $1
) x
where id = x.request_id`,
    [id, refunded, nextMs],
  );
}

export interface NewAsset {
  readonly index: number;
  readonly kind: string;
  readonly variant: number;
  readonly label: string | null;
  readonly contentType: string | null;
  readonly bytes: number | null;
  readonly sha256: string | null;
  readonly location: string;
  readonly stored: boolean;
}

/** How far the file has come that is being fetched; for whoever looks. */
export async function noteHandOff(
  sql: Sql,
  id: string,
  { bytes, totalBytes }: { readonly bytes: number; readonly totalBytes: number | null },
): Promise<void> {
  await sql.executeSql(
    `update onetake.generation_requests set hand_off_bytes = $2, hand_off_total_bytes = $3
where id = $1 and state = 'accepted'`,
    [id, bytes, totalBytes],
  );
}

/** Recorded before the request says `succeeded`; again harmless, and under the request's lock the later one holds. */
export async function insertAssets(tx: Sql, requestId: string, assets: readonly NewAsset[]): Promise<void> {
  await tx.executeSql(
    `insert into onetake.assets (request_id, index, kind, variant, label, content_type, bytes, sha256, location,
  stored_at)
select $1, t.index, t.kind, t.variant, t.label, t.content_type, t.bytes, t.sha256, t.location,
  case when t.stored then clock_timestamp() end
from jsonb_to_recordset($2::jsonb) as t (index integer, kind text, variant integer, label text, content_type text, bytes bigint,
  sha256 text, location text, stored boolean)
on conflict (request_id, index) do update
set kind = excluded.kind, variant = excluded.variant, label = excluded.label, content_type = excluded.content_type,
  bytes = excluded.bytes, sha256 = excluded.sha256, location = excluded.location, stored_at = excluded.stored_at`,
    [
      requestId,
      JSON.stringify(assets.map(({ contentType, ...asset }) => ({ ...asset, content_type: contentType }))),
    ],
  );
}

export async function succeedRequest(
  tx: Sql,
  id: string,
  result: {
    readonly status: 'stored' | 'linked' | 'empty' | 'lost';
    readonly document: ResultDocument | null;
    readonly warnings: readonly string[];
  },
): Promise<void> {
  await tx.executeSql(
    `update onetake.generation_requests
set state = 'succeeded', result_status = $2, settled_at = clock_timestamp(), next_poll_at = null, reader_lease_until = null,
  poll_errors = 0, poll_trouble = null, warnings = $3::text[], document = $4::jsonb, charge = onetake.charge_of(id),
  attention = coalesce(onetake.lasting_attention(attention),
    case when $2 in ('empty', 'lost') then 'result_' || $2 end),
  attention_since = case
    when onetake.lasting_attention(attention) is not null then attention_since
    when $2 in ('empty', 'lost') then clock_timestamp()
  end
where id = $1`,
    [id, result.status, result.warnings, result.document === null ? null : JSON.stringify(result.document)],
  );
}
