import { randomUUID } from 'node:crypto';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import {
  isLegalMove,
  LEGAL_MOVES,
  REQUEST_STATES,
  type RequestState,
} from '../../src/core/generation-request.ts';
import { resolveAsNotAccepted } from '../../src/postgres/operator-functions.ts';
import {
  ago,
  type Columns,
  columnsOf,
  insert,
  insertAmbiguous,
  insertAttempt,
  insertRequest,
  NO_DIGEST,
  setColumns,
  settledAs,
} from '../support/fixtures.ts';
import { createTestDatabase, type TestDatabase } from '../support/test-database.ts';

let database: TestDatabase;
beforeAll(async () => {
  database = await createTestDatabase();
});
afterAll(() => database.drop());

const PAIRS = REQUEST_STATES.flatMap((from) => REQUEST_STATES.map((to) => [from, to] as const));

/** Legal, and refused to a plain UPDATE: what they take is told below. */
const PERMITS_A_POST = ['ambiguous → queued', 'submitting → queued'];

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
      const legal = LEGAL_MOVES[from].includes(to) && !PERMITS_A_POST.includes(`${from} → ${to}`);
      const expected = from === to || legal ? 'moved' : 'OT002';
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

describe('a way back to queued, which permits another paid POST', () => {
  const OPERATOR = { actor: 'ada', reason: 'the provider has nothing' };
  const stateOf = async (id: string) =>
    (await database.query('select state from onetake.generation_requests where id = $1', [id]))[0];

  it('from ambiguous leads through the function that asks for a name and a reason', async () => {
    const { id } = await insertAmbiguous(database);
    await expect(setColumns(database, id, { state: 'queued' })).rejects.toMatchObject({
      code: 'OT002',
      message: expect.stringContaining('may have been paid'),
      hint: expect.stringContaining('resolve_as_not_accepted'),
    });
    expect(await stateOf(id)).toEqual({ state: 'ambiguous' });
  });

  it('that the function opened is open to that one request, and shut again when it returns', async () => {
    const { id } = await insertAmbiguous(database);
    const { id: other } = await insertAmbiguous(database);
    const client = await database.pool({ max: 1 }).connect();
    const plain = async (request: string) => {
      await client.query('savepoint plain');
      const code = await setColumns(client, request, { state: 'queued' }).then(
        () => 'moved',
        (error: { code?: string }) => error.code,
      );
      await client.query('rollback to savepoint plain');
      return code;
    };
    await client.query('begin');
    await resolveAsNotAccepted({ executeSql: (text, values) => client.query(text, values) }, id, OPERATOR);
    expect(await plain(other)).toBe('OT002');
    await setColumns(client, id, { state: 'ambiguous', job_due: false });
    expect(await plain(id)).toBe('OT002');
    // The setting lets through the one request that it names.
    await client.query(`select set_config('onetake.rearming', $1, true)`, [id]);
    expect(await plain(other)).toBe('OT002');
    expect(await plain(id)).toBe('moved');
    await client.query('rollback');
    client.release();
  });

  it.each<[string, boolean, Columns[]]>([
    ['an attempt that was refused', true, [settledAs('refused')]],
    ['an attempt that was not sent', true, [settledAs('unsent')]],
    ['a refused attempt after an unknown one', true, [settledAs('unknown'), settledAs('refused')]],
    ['no attempt', false, []],
    ['an attempt in flight', false, [{}]],
    ['an attempt of unknown outcome', false, [settledAs('unknown')]],
    ['an accepted attempt', false, [settledAs('accepted', { provider_task_id: 'bought' })]],
    ['an unknown attempt after a refused one', false, [settledAs('refused'), settledAs('unknown')]],
  ])('from submitting, after %s: %s', async (_what, open, attempts) => {
    const id = await insertRequest(database, {
      state: 'submitting',
      submissions: Math.max(1, attempts.length),
    });
    for (const [i, columns] of attempts.entries()) {
      await insertAttempt(database, id, { ...columns, attempt: i + 1 });
    }
    const moved = setColumns(database, id, { state: 'queued', not_before: ago(0) });
    if (open) await moved;
    else await expect(moved).rejects.toMatchObject({ code: 'OT002' });
    expect(await stateOf(id)).toEqual({ state: open ? 'queued' : 'submitting' });
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
