import { randomUUID } from 'node:crypto';
import type pg from 'pg';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import type { Sql } from '../../src/postgres/database.ts';
import { settleAccepted } from '../../src/postgres/settle-accepted.ts';
import { insertAttempt, insertRequest, settledAs } from '../support/fixtures.ts';
import { createTestDatabase, type TestDatabase } from '../support/test-database.ts';

// Inside a transaction of the test: what the one statement sets for itself can then be read after it.
let database: TestDatabase;
let client: pg.PoolClient;
let sql: Sql;
beforeAll(async () => {
  database = await createTestDatabase();
  client = await database.pool({ max: 1 }).connect();
  sql = { executeSql: (text, values) => client.query(text, values) };
});
beforeEach(() => client.query('begin isolation level read committed'));
afterEach(() => client.query('rollback'));
afterAll(async () => {
  client.release();
  await database.drop();
});

const ACCEPTED = {
  httpStatus: 202,
  arrivedBeforeMs: 1,
  windowMs: 60_250,
  closed: true,
  firstPollMs: 2_000,
  headersSent: true,
  headersSentProof: 'oracle',
  reason: 'task_accepted',
  phase: 'answered',
  readerLeaseMs: 120_000,
} as const;

async function submitting(attempts: readonly object[] = [{}]): Promise<{ requestId: string; ids: string[] }> {
  const requestId = await insertRequest(client, { state: 'submitting', submissions: attempts.length });
  const ids: string[] = [];
  for (const [i, columns] of attempts.entries()) {
    ids.push(await insertAttempt(client, requestId, { ...columns, attempt: i + 1 }));
  }
  return { requestId, ids };
}

const settle = (requestId: string, attemptId: string | undefined, taskId: string = randomUUID()) =>
  settleAccepted(sql, { requestId, attemptId: attemptId ?? '' }, { ...ACCEPTED, taskId });

const setting = async (name: string) =>
  (await client.query(`select current_setting($1) as value`, [name])).rows[0]?.value;

describe('an acceptance in one statement', () => {
  it.each([
    ['off', 'on'],
    ['local', 'on'],
    ['remote_write', 'on'],
    ['on', 'on'],
    ['remote_apply', 'remote_apply'],
  ])('is durable where the role says synchronous_commit = %s: it commits with %s', async (was, then) => {
    await client.query(`set local synchronous_commit = '${was}'`);
    const { requestId, ids } = await submitting();
    expect(await settle(requestId, ids[0])).toEqual({ healthDue: false });
    expect(await setting('synchronous_commit')).toBe(then);
  });

  it('waits 5 s for a lock and no longer, whatever the role says', async () => {
    await client.query('set local lock_timeout = 0');
    const { requestId, ids } = await submitting();
    await settle(requestId, ids[0]);
    expect(await setting('lock_timeout')).toBe('5s');
  });

  it('settles the last attempt of a request that is submitting, and nothing else', async () => {
    const twice = await submitting([{}, {}]);
    // An earlier attempt that nobody has settled yet.
    expect(await settle(twice.requestId, twice.ids[0])).toBeUndefined();
    const over = await submitting([settledAs('unknown')]);
    expect(await settle(over.requestId, over.ids[0])).toBeUndefined();
    const other = await submitting();
    expect(await settle(other.requestId, twice.ids[1])).toBeUndefined();
    const { rows } = await client.query(
      `select count(*) filter (where provider_task_id is not null)::int as tasks, count(*) filter (where state <> 'submitting')::int as moved
from onetake.generation_requests`,
    );
    expect(rows).toEqual([{ tasks: 0, moved: 0 }]);
    expect(await settle(twice.requestId, twice.ids[1], 'the-task')).toEqual({ healthDue: false });
    expect(
      (
        await client.query(
          'select state, provider_task_id, charge from onetake.generation_requests where id = $1',
          [twice.requestId],
        )
      ).rows,
    ).toEqual([{ state: 'accepted', provider_task_id: 'the-task', charge: 'charged' }]);
  });
});
