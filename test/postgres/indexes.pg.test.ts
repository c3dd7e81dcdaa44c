import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { claimDueTasks, nextDueInMs } from '../../src/postgres/accepted-tasks.ts';
import { listAccounts } from '../../src/postgres/account-holds.ts';
import type { Sql } from '../../src/postgres/database.ts';
import { findRequestsByKey } from '../../src/postgres/enqueue-requests.ts';
import { claimDueLooks, listUnclaimedTasks } from '../../src/postgres/followed-tasks.ts';
import { expireOverdue, isTaskIdInUse, lockJobDue } from '../../src/postgres/generation-requests.ts';
import { listBreakersWithHealthDue, takeHealthDue } from '../../src/postgres/health-due.ts';
import { countLoad, readLanes } from '../../src/postgres/lanes.ts';
import { listDecisions } from '../../src/postgres/operator-actions.ts';
import { listAmbiguousSubmissions } from '../../src/postgres/operator-functions.ts';
import {
  findIdsByPrefix,
  findRequest,
  listAttempts,
  listRequests,
} from '../../src/postgres/request-overview.ts';
import { listEndedLeases } from '../../src/postgres/submission-attempts.ts';
import { createTestDatabase, type TestDatabase } from '../support/test-database.ts';

const AN_ID = '00000000-0000-4000-8000-000000000000';

let database: TestDatabase;
beforeAll(async () => {
  database = await createTestDatabase();
  await fill(database);
});
afterAll(() => database.drop());

interface Node {
  readonly 'Node Type': string;
  readonly 'Relation Name'?: string;
  readonly 'Index Name'?: string;
  readonly Plans?: readonly Node[];
}

/** What the planner does for the statement that `run` issues, nothing executed. */
async function planOf(
  run: (sql: Sql) => Promise<unknown>,
): Promise<{ indexes: Set<string>; scanned: Set<string> }> {
  const pool = database.pool({ max: 1 });
  const nodes: Node[] = [];
  const explaining: Sql = {
    async executeSql(text, values = []) {
      const { rows } = await pool.query(`explain (format json) ${text}`, values);
      const visit = (node: Node) => {
        nodes.push(node);
        for (const child of node.Plans ?? []) visit(child);
      };
      visit(rows[0]['QUERY PLAN'][0].Plan);
      return { rows: [] };
    },
  };
  await run(explaining);
  const scans = nodes.filter((node) => node['Node Type'] === 'Seq Scan');
  return {
    indexes: new Set(nodes.flatMap((node) => node['Index Name'] ?? [])),
    scanned: new Set(scans.map((node) => node['Relation Name'] as string)),
  };
}

const QUERIES: readonly [string, (sql: Sql) => Promise<unknown>, readonly string[]][] = [
  [
    'the scan for lanes',
    (sql) => readLanes(sql, null, 50),
    ['generation_requests_dispatch', 'submission_attempts_windows', 'submission_attempts_slots'],
  ],
  [
    'the counts of window and slots',
    (sql) => countLoad(sql, 'account-1', 'text-to-music'),
    ['submission_attempts_windows', 'submission_attempts_slots'],
  ],
  ['the search for ended leases', (sql) => listEndedLeases(sql, 100), ['submission_attempts_leases']],
  ['the search for health to apply', listBreakersWithHealthDue, ['submission_attempts_health_due']],
  [
    'the outcomes that wait for a breaker',
    (sql) => takeHealthDue(sql, 'sonilo/text-to-music', 500),
    ['submission_attempts_health_due'],
  ],
  [
    'the claim of due polls',
    (sql) => claimDueTasks(sql, { limit: 50, leaseMs: 30_000, intervalMs: 3_000 }),
    ['generation_requests_due_polls'],
  ],
  [
    'money that was not returned',
    (sql) => sql.executeSql('select * from onetake.money_not_returned'),
    ['generation_requests_not_refunded'],
  ],
  [
    'the claim of due looks',
    (sql) => claimDueLooks(sql, { limit: 4, leaseMs: 30_000, intervalMs: 3_000 }),
    ['followed_tasks_due'],
  ],
  ['the next poll', nextDueInMs, ['generation_requests_due_polls', 'followed_tasks_due']],
  [
    'the list of ambiguous submissions',
    (sql) => listAmbiguousSubmissions(sql),
    ['generation_requests_ambiguous', 'submission_attempts_number_once'],
  ],
  ['the search for jobs to send', (sql) => lockJobDue(sql, 100), ['generation_requests_job_due']],
  ['the search for passed deadlines', (sql) => expireOverdue(sql, 100), ['generation_requests_deadlines']],
  [
    'the look-up by key',
    (sql) => findRequestsByKey(sql, [{ account: 'account-1', requestKey: 'key-1' }]),
    ['generation_requests_request_key_once'],
  ],
  [
    'the look-up by task id',
    (sql) => isTaskIdInUse(sql, 'account-1', 'task-1', AN_ID),
    ['generation_requests_task_once', 'followed_tasks_by_task'],
  ],
  [
    'the look-up by the beginning of an id',
    (sql) => findIdsByPrefix(sql, 'abcdef01'),
    ['generation_requests_pkey'],
  ],
  ['the overview of one request', (sql) => findRequest(sql, AN_ID), ['generation_requests_pkey']],
  ['the overview of the newest', (sql) => listRequests(sql, {}), ['generation_requests_newest']],
  [
    'the overview of the frozen',
    (sql) => listRequests(sql, { state: 'ambiguous' }),
    ['generation_requests_ambiguous'],
  ],
  [
    'the requests of one key',
    (sql) => listRequests(sql, { requestKey: 'key-1' }),
    ['generation_requests_request_key_once'],
  ],
  ['the decisions about one request', (sql) => listDecisions(sql, AN_ID), ['operator_actions_by_subject']],
  ['the attempts of one request', (sql) => listAttempts(sql, AN_ID), ['submission_attempts_number_once']],
  ['the other tasks of one request', (sql) => listUnclaimedTasks(sql, AN_ID), ['followed_tasks_pk']],
  ['the load of every account', listAccounts, ['submission_attempts_windows', 'submission_attempts_slots']],
  [
    'what wants a person',
    (sql) => sql.executeSql('select * from onetake.attention'),
    ['generation_requests_ambiguous', 'generation_requests_attention'],
  ],
  [
    'the charge of one request',
    (sql) => bodyOf(sql, 'charge_of'),
    ['submission_attempts_number_once', 'attempt_evidence_by_attempt'],
  ],
];

/** The statement inside of a function, which no plan of its caller shows. */
async function bodyOf(sql: Sql, name: string): Promise<unknown> {
  const [row] = await database.query<{ body: string }>(
    `select prosrc as body from pg_proc where proname = $1 and pronamespace = 'onetake'::regnamespace`,
    [name],
  );
  return sql.executeSql((row?.body ?? '').replaceAll(`${name}.request_id`, `'${AN_ID}'::uuid`));
}

describe('with 50,000 requests on record', () => {
  it.each(QUERIES)('%s reads its index and no table from end to end', async (_, run, expected) => {
    const { indexes, scanned } = await planOf(run);
    expect([...indexes]).toEqual(expect.arrayContaining([...expected]));
    // Small tables are read whole, and should be.
    expect([...scanned].filter((table) => LARGE.has(table))).toEqual([]);
  });
});

const LARGE = new Set(['generation_requests', 'submission_attempts', 'attempt_evidence']);

/** Months of finished work over eight accounts, and of each thing that is going on a little. */
async function fill(db: TestDatabase): Promise<void> {
  const client = await db.pool({ max: 1 }).connect();
  try {
    await client.query('set session_replication_role = replica');
    await client.query(`insert into onetake.accounts (name, provider, requests_per_minute, max_concurrent_generations)
select 'account-' || i, 'sonilo', 60, 4 from generate_series(0, 7) i`);
    await client.query(`insert into onetake.generation_requests (account, operation, request_key, state, state_reason,
  result_status, fields, payload_digest, provider_task_id, submissions, accepted_at, next_poll_at, submit_before,
  job_due, attention, attention_since, created_at, settled_at)
select 'account-' || i % 8, 'text-to-music', 'key-' || i, state, case when state = 'ambiguous' then 'transport' end,
  case when state = 'succeeded' then 'stored' end, '{"prompt": "rain"}', repeat('0', 64),
  case when state in ('succeeded', 'accepted') then 'task-' || i end, case when state = 'queued' then 0 else 1 end,
  case when state in ('succeeded', 'accepted') then at end, case when state = 'accepted' then now() end,
  case when state = 'queued' and i % 20 = 0 then now() end, state = 'queued' and i % 100 = 0,
  case when i % 5000 = 0 then 'overdue' end, case when i % 5000 = 0 then at end,
  at, case when state = 'succeeded' then at end
from (
  select i, now() - i * interval '1 minute' as at, case
    when i <= 2000 then 'queued'
    when i <= 2050 then 'submitting'
    when i <= 2200 then 'accepted'
    when i <= 2230 then 'ambiguous'
    else 'succeeded'
  end as state
  from generate_series(1, 50000) i
) made`);
    await client.query(`insert into onetake.submission_attempts (id, request_id, attempt, account, operation,
  breaker_name, generation, hold_epoch, is_probe, worker, started_at, lease_expires_at, window_until, slot_until,
  slot_freed_at, quarantine_until, settled_at, settled_by, phase, health, certainty, reason, health_applied_at,
  health_effect)
select gen_random_uuid(), id, 1, account, operation, 'sonilo/text-to-music', 1, 0, false, 'worker', created_at,
  created_at + interval '100 s', created_at + interval '160 s', created_at + interval '700 s',
  case when state = 'succeeded' then created_at end, created_at + interval '220 s',
  case when done then created_at end, case when done then 'worker' end, case when done then 'answered' end,
  case when done then 'success' end, case when done then 'accepted' end, case when done then 'accepted' end,
  case when done then created_at end, case when done then 'counted' end
from (select *, state <> 'submitting' as done from onetake.generation_requests where state <> 'queued') r`);
    await client.query(`insert into onetake.attempt_evidence (attempt_id, seen_at, source, certainty)
select id, now(), 'late_answer', 'accepted' from onetake.submission_attempts limit 5000`);
    for (const table of LARGE) await client.query(`vacuum analyze onetake.${table}`);
  } finally {
    client.release();
  }
}
