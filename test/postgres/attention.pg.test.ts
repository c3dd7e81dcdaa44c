import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import type { RequestState } from '../../src/core/generation-request.ts';
import { failRequest, succeedRequest } from '../../src/postgres/accepted-tasks.ts';
import type { Sql } from '../../src/postgres/database.ts';
import {
  acceptRequest,
  expireOverdue,
  noteAttention,
  rejectRequest,
} from '../../src/postgres/generation-requests.ts';
import { settleAccepted } from '../../src/postgres/settle-accepted.ts';
import { ago, insertAttempt, insertRequest } from '../support/fixtures.ts';
import { createTestDatabase, type TestDatabase } from '../support/test-database.ts';

let database: TestDatabase;
let sql: Sql;
beforeAll(async () => {
  database = await createTestDatabase();
  const pool = database.pool({ max: 1 });
  sql = { executeSql: (text, values) => pool.query(text, values) };
});
afterAll(() => database.drop());

type Move = (id: string) => Promise<unknown>;

const MOVES: Readonly<Record<string, readonly [RequestState, Move]>> = {
  acceptance: ['submitting', (id) => acceptRequest(sql, id, `task-${id}`, 1_000)],
  'acceptance in one statement': [
    'submitting',
    async (id) => {
      const attemptId = await insertAttempt(database, id);
      const terms = {
        httpStatus: 202,
        arrivedBeforeMs: 0,
        windowMs: 60_250,
        closed: true,
        firstPollMs: 1_000,
        headersSent: true,
        headersSentProof: 'oracle',
        reason: 'task_accepted',
        phase: 'answered',
        readerLeaseMs: 120_000,
      } as const;
      return settleAccepted(sql, { attemptId, requestId: id }, { taskId: `task-${id}`, ...terms });
    },
  ],
  rejection: ['submitting', (id) => rejectRequest(sql, id, 'request_refused')],
  failure: ['accepted', (id) => failRequest(sql, id, { failureCode: null, refunded: null }, null)],
  success: ['accepted', (id) => succeedRequest(sql, id, { status: 'linked', document: null, warnings: [] })],
  'success without a file': [
    'accepted',
    (id) => succeedRequest(sql, id, { status: 'empty', document: null, warnings: [] }),
  ],
  expiry: [
    'queued',
    async (id) => {
      await database.query('update onetake.generation_requests set submit_before = now() where id = $1', [
        id,
      ]);
      await expireOverdue(sql, 100);
    },
  ],
};

async function attentionAfter(from: RequestState, move: Move, attention: string | null) {
  const since = ago(60_000);
  const noted = attention === null ? {} : { attention, attention_since: since };
  const id = await insertRequest(database, { state: from, ...noted });
  await move(id);
  const [row] = await database.query<{ state: string; attention: string | null; attention_since: Date }>(
    'select state, attention, attention_since from onetake.generation_requests where id = $1',
    [id],
  );
  expect(row?.state).not.toBe(from);
  return { attention: row?.attention, kept: row?.attention_since?.getTime() === since.getTime() };
}

describe.each(Object.entries(MOVES))('what asks for a person, after %s', (name, [from, move]) => {
  it.each(['possibly_paid_twice', 'paid_though_withdrawn', 'repeated_send'])(
    'stays when it is money: %s',
    async (attention) => {
      expect(await attentionAfter(from, move, attention)).toEqual({ attention, kept: true });
    },
  );

  it('is over when it was about the way there', async () => {
    const attention = name === 'success without a file' ? 'result_empty' : null;
    expect(await attentionAfter(from, move, 'returned_many_times')).toMatchObject({ attention });
    expect(await attentionAfter(from, move, null)).toMatchObject({ attention });
  });
});

describe('noteAttention', () => {
  it('puts a newer reason in the place of an older one, but never in the place of money', async () => {
    const since = ago(60_000);
    const read = async (id: string) =>
      (
        await database.query(
          'select attention, attention_since from onetake.generation_requests where id = $1',
          [id],
        )
      )[0];
    const id = await insertRequest(database, {
      state: 'accepted',
      attention: 'poll_failing',
      attention_since: since,
    });
    await noteAttention(sql, id, 'poll_failing');
    expect(await read(id)).toEqual({ attention: 'poll_failing', attention_since: since });
    await noteAttention(sql, id, 'overdue');
    expect(await read(id)).toMatchObject({ attention: 'overdue' });
    await noteAttention(sql, id, 'possibly_paid_twice');
    const money = await read(id);
    expect(money).toMatchObject({ attention: 'possibly_paid_twice' });
    await noteAttention(sql, id, 'overdue');
    expect(await read(id)).toEqual(money);
  });
});
