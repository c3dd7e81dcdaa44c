import type { StreamVerdict } from '../core/stream.ts';
import { END_ATTENTION } from './attention.ts';
import { rows, type Sql } from './database.ts';

// Requests whose answer is a stream: accepted, without a task, and read by the worker that sent the POST. Nothing here
// knows of breakers.

/** Under the request's lock, after the attempt's outcome was written. Only that attempt's reader may read it. */
export async function acceptStream(tx: Sql, id: string, attemptId: string, leaseMs: number): Promise<void> {
  await tx.executeSql(
    `update onetake.generation_requests
set state = 'accepted', state_reason = null, provider_task_id = null, stream_attempt_id = $2, accepted_at = clock_timestamp(),
  next_poll_at = null, reader_lease_until = clock_timestamp() + $3 * interval '1 ms', poll_errors = 0,
  job_due = false, charge = onetake.charge_of(id), ${END_ATTENTION}
where id = $1`,
    [id, attemptId, leaseMs],
  );
}

/**
 * The reader is there still, and so far: its lease goes on, and its slot with it. False: the request isn't this
 * attempt's to read, or not any more. Locks in the order of everybody else.
 */
export async function renewReader(
  sql: Sql,
  ids: { readonly requestId: string; readonly attemptId: string },
  { leaseMs, bytes }: { readonly leaseMs: number; readonly bytes: number },
): Promise<boolean> {
  const renewed = await rows(
    sql,
    `with reading as (
  update onetake.generation_requests r
  set reader_lease_until = clock_timestamp() + $3 * interval '1 ms', reader_missed_at = null, hand_off_bytes = $4
  where r.id = $1 and r.stream_attempt_id = $2 and r.reader_lease_until is not null
  returning r.id, r.reader_lease_until
)
update onetake.submission_attempts a
set slot_until = greatest(a.slot_until, reading.reader_lease_until)
from reading
where a.id = $2
returning a.id`,
    [ids.requestId, ids.attemptId, leaseMs, bytes],
  );
  return renewed.length > 0;
}

/**
 * The second evidence of an attempt: how its stream ended. Once; the caller holds the attempt's lock. What says nothing
 * of the provider has nothing to apply; nor has what came of an attempt whose worker was given up.
 */
export async function writeStreamEnd(
  tx: Sql,
  attemptId: string,
  { code, health }: Pick<StreamVerdict, 'code' | 'health'>,
): Promise<{ healthDue: boolean; freedSlot: boolean }> {
  const [row] = await rows<{ healthDue: boolean; freedSlot: boolean }>(
    tx,
    `update onetake.submission_attempts a
set stream_ended_at = s.now, stream_end = $2, stream_health = s.health,
  stream_health_applied_at = case when s.health = 'none' then s.now end,
  stream_health_effect = case when s.health = 'none' then 'nothing_to_apply' end,
  override_at_stream_end = (
    select onetake.override_in_force(b.override, b.override_expires_at, s.now)
    from onetake.circuit_breakers b where b.name = a.breaker_name
  ),
  slot_freed_at = coalesce(a.slot_freed_at, s.now)
from (
  select clock_timestamp() as now, x.slot_freed_at is null as freed,
    case when x.settled_by = 'worker' and x.health_effect is distinct from 'intent_lost' then $3 else 'none' end as health
  from onetake.submission_attempts x where x.id = $1
) s
where a.id = $1 and a.stream_ended_at is null
returning a.stream_health_applied_at is null as "healthDue", s.freed as "freedSlot"`,
    [attemptId, code, health],
  );
  return row ?? { healthDue: false, freedSlot: false };
}

/** Paid for, and no request's: it can't be read any more, and nobody can look what becomes of its money. */
export async function noteUnclaimedStream(tx: Sql, attemptId: string): Promise<void> {
  await tx.executeSql(
    'update onetake.submission_attempts set stream_unclaimed_at = clock_timestamp() where id = $1',
    [attemptId],
  );
}

interface Failure {
  readonly failureReason: 'provider' | 'stream_interrupted';
  /** Null: nobody says. */
  readonly code: string | null;
}

/**
 * After what the attempt tells of it was written. It is paid for, and nobody can look whether the money comes back: that is for a person to ask.
 */
export async function failStream(tx: Sql, id: string, { failureReason, code }: Failure): Promise<void> {
  await tx.executeSql(
    `update onetake.generation_requests r
set state = 'failed', failure_reason = $2, failure_code = $3, settled_at = clock_timestamp(), reader_lease_until = null,
  provider_finished_at = coalesce(provider_finished_at, clock_timestamp()), charge = onetake.charge_of(r.id),
  attention = coalesce(onetake.lasting_attention(attention), 'not_refunded'),
  attention_since = case
    when onetake.lasting_attention(attention) is not null then attention_since else clock_timestamp()
  end
where r.id = $1`,
    [id, failureReason, code ?? 'stream_error'],
  );
}

/** Gives readers whose lease has ended so much longer, once: nobody could renew it while the database was away. */
export async function noteMissedReaders(tx: Sql, limit: number, graceMs: number): Promise<void> {
  await tx.executeSql(
    `update onetake.generation_requests r
set reader_missed_at = clock_timestamp(), reader_lease_until = clock_timestamp() + $2 * interval '1 ms'
from (
  select id from onetake.generation_requests
  where reader_lease_until <= now() and reader_missed_at is null
  order by reader_lease_until
  limit $1
  for no key update skip locked
) missed
where r.id = missed.id`,
    [limit, graceMs],
  );
}

/** Streams whose reader has not been heard of for a lease, or for the grace after it, with the attempt that it was. */
export async function listLostReaders(
  tx: Sql,
  limit: number,
  passedOver: readonly string[] = [],
): Promise<{ attemptId: string; requestId: string }[]> {
  return rows(
    tx,
    // The lock is given back at once: it only leaves out what somebody holds.
    `select r.id as "requestId", r.stream_attempt_id as "attemptId"
from onetake.generation_requests r
where r.reader_lease_until <= now() and r.id <> all($2::uuid[])
order by r.reader_lease_until
limit $1
for no key update of r skip locked`,
    [limit, passedOver],
  );
}
