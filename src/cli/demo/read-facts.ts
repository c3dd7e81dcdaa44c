import { firstRow, rows, type Sql } from '../../postgres/database.ts';
import type { Ledger } from '../../simulator/ledger.ts';
import type { AttemptFacts, DatabaseFacts, FileFacts, TransitionFacts } from './facts.ts';
import { DemoFailure } from './failure.ts';

/** Everything at one instant, for the display and for the next step of the story. */
export interface Snapshot {
  readonly states: readonly { readonly id: string; readonly state: string; readonly submissions: number }[];
  readonly breakerState: string;
  readonly retryInMs: number | null;
  /** How often the breaker has moved so far. */
  readonly transitions: number;
}

export async function readSnapshot(sql: Sql): Promise<Snapshot> {
  const snapshot = await firstRow<Snapshot>(
    sql,
    `select (
    select json_agg(json_build_object('id', r.id, 'state', r.state, 'submissions', r.submissions)
      order by r.request_key)
    from onetake.generation_requests r
  ) as states,
  b.state as "breakerState", b.retry_in_ms::float8 as "retryInMs",
  (
    select count(*)::int from onetake.circuit_breaker_transitions t where t.breaker_name = b.name
  ) as transitions
from onetake.breaker_status b
where b.name = $1`,
    [BREAKER],
  );
  return snapshot ?? { states: [], breakerState: 'closed', retryInMs: null, transitions: 0 };
}

/** The only breaker that the demo's songs ask. */
export const BREAKER = 'sonilo/text-to-music';

export async function readDatabase(sql: Sql): Promise<DatabaseFacts> {
  const requests = await rows<Omit<DatabaseFacts['requests'][number], 'attempts' | 'files'>>(
    sql,
    `select id, fields ->> 'prompt' as prompt, state, charge, provider_task_id as "providerTaskId"
from onetake.generation_requests
order by request_key`,
  );
  const attempts = await rows<AttemptFacts & { readonly requestId: string }>(
    sql,
    `select request_id as "requestId", attempt, generation, is_probe as "isProbe", http_status as "httpStatus",
  health, certainty
from onetake.submission_attempts
order by request_id, attempt`,
  );
  const files = await rows<FileFacts & { readonly requestId: string }>(
    sql,
    `select request_id as "requestId", location, bytes::float8 as bytes, sha256
from onetake.assets
where stored_at is not null
order by request_id, index`,
  );
  const transitions = await rows<TransitionFacts>(
    sql,
    `select number, at, previous_state as "previousState", next_state as "nextState", cause,
  http_status as "httpStatus", generation
from onetake.circuit_breaker_transitions
where breaker_name = $1 and layer = 'state'
order by number`,
    [BREAKER],
  );
  const actions = await rows<DatabaseFacts['actions'][number]>(
    sql,
    'select action, subject from onetake.operator_actions order by id',
  );
  const { breakerState } = await readSnapshot(sql);
  return {
    requests: requests.map((request) => ({
      ...request,
      attempts: attempts.filter(({ requestId }) => requestId === request.id),
      files: files.filter(({ requestId }) => requestId === request.id),
    })),
    transitions,
    breakerState,
    actions,
  };
}

/** Over HTTP, as anybody could read it. */
export async function readLedger(providerUrl: string, signal: AbortSignal): Promise<Ledger> {
  const response = await fetch(`${providerUrl}/__simulator/ledger`, { signal });
  if (!response.ok) throw new DemoFailure(`The simulator answered ${response.status} to GET ledger.`);
  return (await response.json()) as Ledger;
}

export async function putScript(providerUrl: string, rules: unknown, signal: AbortSignal): Promise<void> {
  const response = await fetch(`${providerUrl}/__simulator/script`, {
    method: 'PUT',
    body: JSON.stringify(rules),
    signal,
  });
  if (!response.ok) throw new DemoFailure(`The simulator answered ${response.status} to PUT script.`);
}
