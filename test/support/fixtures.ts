import { randomUUID } from 'node:crypto';
import type { RequestState } from '../../src/core/generation-request.ts';

/** A test database, or a pool or client over it. */
export interface Queryable {
  // biome-ignore lint/suspicious/noExplicitAny: rows of a test database and results of a pool alike.
  query(text: string, values?: any[]): Promise<any>;
}

/** Column values by column name, as stored. */
export type Columns = Readonly<Record<string, unknown>>;

export const NO_DIGEST = '0'.repeat(64);

/** Ms before (or, negative, after) now. The machine's clock is the database's here. */
export function ago(ms: number): Date {
  return new Date(Date.now() - ms);
}

/** A legal way to each state: the trigger lets a request begin as `queued` only. */
const WAYS: Readonly<Record<RequestState, readonly RequestState[]>> = {
  queued: [],
  submitting: ['submitting'],
  accepted: ['accepted'],
  succeeded: ['accepted', 'succeeded'],
  failed: ['accepted', 'failed'],
  rejected: ['rejected'],
  ambiguous: ['ambiguous'],
  cancelled: ['cancelled'],
  expired: ['expired'],
};

/** What a row must have to be in that state. */
export function columnsOf(state: RequestState): Columns {
  const accepted = { accepted_at: ago(1_000), provider_task_id: `task-${randomUUID()}` };
  const settled = { settled_at: ago(0) };
  switch (state) {
    case 'queued':
      return {};
    case 'submitting':
      return { submissions: 1 };
    case 'accepted':
      return { submissions: 1, next_poll_at: ago(0), ...accepted };
    case 'succeeded':
      return { submissions: 1, result_status: 'linked', next_poll_at: null, ...accepted, ...settled };
    case 'failed':
      return { submissions: 1, failure_reason: 'provider', next_poll_at: null, ...accepted, ...settled };
    case 'ambiguous':
      return { submissions: 1, state_reason: 'transport' };
    default:
      return settled;
  }
}

/** A request of the account `default` in any state; its id. */
export async function insertRequest(
  db: Queryable,
  { state = 'queued', ...columns }: { readonly state?: RequestState } & Columns = {},
): Promise<string> {
  const id = (columns['id'] as string | undefined) ?? randomUUID();
  const initial = {
    id,
    account: columns['account'] ?? 'default',
    operation: columns['operation'] ?? 'text-to-music',
    request_key: columns['request_key'] ?? id,
    fields: { prompt: 'rain' },
    payload_digest: NO_DIGEST,
  };
  await insert(db, 'generation_requests', initial);
  for (const step of WAYS[state]) await setColumns(db, id, { state: step, ...columnsOf(step) });
  const { id: _, account: _account, operation: _operation, request_key: _key, ...rest } = columns;
  if (Object.keys(rest).length > 0) await setColumns(db, id, rest);
  return id;
}

export async function setColumns(db: Queryable, requestId: string, columns: Columns): Promise<void> {
  const names = Object.keys(columns);
  await db.query(
    `update onetake.generation_requests set ${names.map((name, i) => `${name} = $${i + 2}`).join(', ')}
where id = $1`,
    [requestId, ...Object.values(columns)],
  );
}

/** An attempt of the request, unsettled unless told otherwise; its id. */
export async function insertAttempt(
  db: Queryable,
  requestId: string,
  columns: Columns = {},
): Promise<string> {
  const id = randomUUID();
  await insert(db, 'submission_attempts', {
    id,
    request_id: requestId,
    attempt: 1,
    account: 'default',
    operation: 'text-to-music',
    breaker_name: 'sonilo/text-to-music',
    generation: 1,
    hold_epoch: 0,
    is_probe: false,
    worker: 'test',
    started_at: ago(0),
    lease_expires_at: ago(-100_000),
    window_until: ago(-160_250),
    slot_until: ago(-700_000),
    quarantine_until: ago(-220_000),
    ...columns,
  });
  return id;
}

/** The outcome columns of an attempt that was settled, to be spread into `insertAttempt`. */
export function settledAs(
  certainty: 'accepted' | 'refused' | 'unsent' | 'unknown',
  columns: Columns = {},
): Columns {
  return {
    settled_at: ago(0),
    settled_by: 'worker',
    phase: 'answered',
    health: 'none',
    reason: 'transport',
    health_applied_at: ago(0),
    health_effect: 'nothing_to_apply',
    certainty,
    ...columns,
  };
}

/** A frozen request with its one attempt, as a lost answer leaves it. */
export async function insertAmbiguous(
  db: Queryable,
  attempt: Columns = {},
  request: Columns = {},
): Promise<{ id: string; attemptId: string }> {
  const id = await insertRequest(db, { state: 'ambiguous', charge: 'possible', ...request });
  const attemptId = await insertAttempt(db, id, settledAs('unknown', attempt));
  return { id, attemptId };
}

export async function insert(db: Queryable, table: string, columns: Columns): Promise<void> {
  const names = Object.keys(columns);
  await db.query(
    `insert into onetake.${table} (${names.map((name) => `"${name}"`).join(', ')})
values (${names.map((_, i) => `$${i + 1}`).join(', ')})`,
    Object.values(columns),
  );
}
