import { randomUUID } from 'node:crypto';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import {
  isLegalMove,
  LEGAL_MOVES,
  REQUEST_STATES,
  type RequestState,
} from '../../src/core/generation-request.ts';
import { columnsOf, insert, insertRequest, NO_DIGEST, setColumns } from '../support/fixtures.ts';
import { createTestDatabase, type TestDatabase } from '../support/test-database.ts';

let database: TestDatabase;
beforeAll(async () => {
  database = await createTestDatabase();
});
afterAll(() => database.drop());

const PAIRS = REQUEST_STATES.flatMap((from) => REQUEST_STATES.map((to) => [from, to] as const));

/** Every column that some state needs, so that only the guard can object to the move. */
function wholeRowOf(state: RequestState) {
  const empty = { settled_at: null, failure_reason: null, result_status: null, next_poll_at: null };
  return { ...empty, submissions: 1, state_reason: 'test', ...columnsOf(state), state };
}

describe('the table of legal moves', () => {
  it('is the same in the database and in core, for every pair of states', async () => {
    const rows = await database.query<{ from: RequestState; to: RequestState; legal: boolean }>(
      `select f as "from", t as "to", onetake.is_legal_move(f, t) as legal
from unnest($1::text[]) f cross join unnest($1::text[]) t`,
      [REQUEST_STATES],
    );
    expect(rows).toHaveLength(81);
    expect(rows.filter(({ from, to, legal }) => legal !== isLegalMove(from, to))).toEqual([]);
  });

  it('is what an UPDATE of a real row meets, for every pair of states', async () => {
    const disagreeing: string[] = [];
    for (const [from, to] of PAIRS) {
      const id = await insertRequest(database, { state: from });
      const outcome = await setColumns(database, id, wholeRowOf(to)).then(
        () => 'moved',
        (error: { code?: string }) => error.code,
      );
      const expected = from === to || LEGAL_MOVES[from].includes(to) ? 'moved' : 'OT002';
      if (outcome !== expected) disagreeing.push(`${from} → ${to}: ${outcome}, not ${expected}`);
    }
    expect(disagreeing).toEqual([]);
  });
});

describe('the guard on generation_requests', () => {
  it.each(REQUEST_STATES.filter((state) => state !== 'queued'))('refuses an INSERT as %s', async (state) => {
    const id = randomUUID();
    await expect(
      insert(database, 'generation_requests', {
        id,
        account: 'default',
        operation: 'text-to-music',
        request_key: id,
        fields: {},
        payload_digest: NO_DIGEST,
        ...wholeRowOf(state),
      }),
    ).rejects.toMatchObject({ code: 'OT002' });
  });

  it.each(REQUEST_STATES)('refuses to DELETE a request that is %s', async (state) => {
    const id = await insertRequest(database, { state });
    await expect(
      database.query('delete from onetake.generation_requests where id = $1', [id]),
    ).rejects.toMatchObject({ code: 'OT002' });
    expect(await database.query('select state from onetake.generation_requests where id = $1', [id])).toEqual(
      [{ state }],
    );
  });

  it('refuses to TRUNCATE', async () => {
    await expect(database.query('truncate onetake.generation_requests cascade')).rejects.toMatchObject({
      code: 'OT002',
    });
  });

  it('refuses another identity: id, account, operation, key, fields and digest are fixed at enqueue', async () => {
    const id = await insertRequest(database);
    const changes = {
      id: randomUUID(),
      account: 'other',
      operation: 'video-to-music',
      request_key: 'another',
      fields: { prompt: 'sun' },
      payload_digest: '1'.repeat(64),
    };
    for (const [column, value] of Object.entries(changes)) {
      await expect(setColumns(database, id, { [column]: value }), column).rejects.toMatchObject({
        code: 'OT002',
      });
    }
  });
});

describe('uniqueness', () => {
  it('lets a request key occur once per account', async () => {
    await insert(database, 'accounts', {
      name: 'second',
      provider: 'sonilo',
      requests_per_minute: 1,
      max_concurrent_generations: 1,
    });
    await insertRequest(database, { request_key: 'twice' });
    await insertRequest(database, { request_key: 'twice', account: 'second' });
    await expect(insertRequest(database, { request_key: 'twice' })).rejects.toMatchObject({
      code: '23505',
      constraint: 'generation_requests_request_key_once',
    });
  });

  it('lets a task id belong to one request per account', async () => {
    await insertRequest(database, { state: 'accepted', provider_task_id: 'task-1' });
    await insertRequest(database, { state: 'accepted', provider_task_id: 'task-1', account: 'second' });
    await expect(
      insertRequest(database, { state: 'accepted', provider_task_id: 'task-1' }),
    ).rejects.toMatchObject({ code: '23505', constraint: 'generation_requests_task_once' });
  });
});
