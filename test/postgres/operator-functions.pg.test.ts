import { randomUUID } from 'node:crypto';
import type pg from 'pg';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { REQUEST_STATES, type RequestState } from '../../src/core/generation-request.ts';
import type { Sql } from '../../src/postgres/database.ts';
import {
  abandonRequest,
  cancelRequest,
  holdAccount,
  type Resolution,
  releaseAccount,
  reopenRequest,
  resolveAsAccepted,
  resolveAsNotAccepted,
} from '../../src/postgres/operator-functions.ts';
import {
  ago,
  type Columns,
  insert,
  insertAmbiguous,
  insertAttempt,
  insertRequest,
  settledAs,
} from '../support/fixtures.ts';
import { createTestDatabase, type TestDatabase } from '../support/test-database.ts';
import { waitFor } from '../support/wait-for.ts';

const NOTE = { actor: 'ada', reason: 'looked it up in the ledger' };

let database: TestDatabase;
let sql: Sql;
let owner: string;
beforeAll(async () => {
  database = await createTestDatabase();
  [{ owner }] = (await database.query('select session_user as owner')) as [{ owner: string }];
  sql = over(database.pool({ max: 4 }));
});
afterAll(() => database.drop());

function over(connection: pg.Pool | pg.PoolClient): Sql {
  return { executeSql: (text, values) => connection.query(text, values) };
}

async function row(id: string): Promise<Record<string, unknown>> {
  const [found] = await database.query('select * from onetake.generation_requests where id = $1', [id]);
  return found as Record<string, unknown>;
}

async function attemptRow(id: string): Promise<Record<string, unknown>> {
  const [found] = await database.query('select * from onetake.submission_attempts where id = $1', [id]);
  return found as Record<string, unknown>;
}

function actions(subject: string): Promise<Record<string, unknown>[]> {
  return database.query(
    'select actor, "session_user", action, reason, at from onetake.operator_actions where subject = $1 order by id',
    [subject],
  );
}

type Decision = (via: Sql, id: string) => Promise<Resolution>;

const DECISIONS: Readonly<
  Record<string, { decide: Decision; from: readonly RequestState[]; action: string }>
> = {
  resolve_as_accepted: {
    decide: (via, id) => resolveAsAccepted(via, id, `task-${id}`, NOTE),
    from: ['ambiguous'],
    action: 'resolve_as_accepted',
  },
  resolve_as_not_accepted: {
    decide: (via, id) => resolveAsNotAccepted(via, id, NOTE),
    from: ['ambiguous'],
    action: 'resolve_as_not_accepted',
  },
  'resolve_as_not_accepted without resubmit': {
    decide: (via, id) => resolveAsNotAccepted(via, id, NOTE, { resubmit: false }),
    from: ['ambiguous'],
    action: 'resolve_as_not_accepted_without_resubmit',
  },
  abandon: {
    decide: (via, id) => abandonRequest(via, id, NOTE),
    from: ['ambiguous', 'accepted'],
    action: 'abandon',
  },
  cancel_request: {
    decide: (via, id) => cancelRequest(via, id, NOTE),
    from: ['queued'],
    action: 'cancel_request',
  },
};

describe.each(Object.entries(DECISIONS))('%s', (_, { decide, from, action }) => {
  it.each(REQUEST_STATES)('decides about a request that is %s, or says why not', async (state) => {
    const id = await insertRequest(database, { state });
    const before = await row(id);
    if (from.includes(state)) {
      const resolution = await decide(sql, id);
      const after = await row(id);
      expect(resolution).toMatchObject({ id, from: state, to: after['state'] });
      expect(await actions(id)).toEqual([{ ...NOTE, session_user: owner, action, at: expect.any(Date) }]);
    } else {
      await expect(decide(sql, id)).rejects.toMatchObject({ code: 'request_not_in_state' });
      expect(await row(id)).toEqual(before);
      expect(await actions(id)).toEqual([]);
    }
  });

  it('decides once: the second time it is not in that state any more', async () => {
    const id = await insertRequest(database, { state: from[0] as RequestState });
    await decide(sql, id);
    const decided = await row(id);
    await expect(decide(sql, id)).rejects.toMatchObject({ code: 'request_not_in_state' });
    expect(await row(id)).toEqual(decided);
    expect(await actions(id)).toHaveLength(1);
  });

  it('lets the second of two sessions wait for the first, and refuses it then', async () => {
    const id = await insertRequest(database, { state: from[0] as RequestState });
    const first = await database.pool({ max: 1 }).connect();
    await first.query('begin');
    await decide(over(first), id);
    const second = decide(sql, id).then(
      () => 'decided',
      (error: { code: string }) => error.code,
    );
    await waitUntilBlocked();
    await first.query('commit');
    first.release();
    expect(await second).toBe('request_not_in_state');
    expect(await actions(id)).toHaveLength(1);
  });

  it('lets the second of two sessions decide when the first rolls back', async () => {
    const id = await insertRequest(database, { state: from[0] as RequestState });
    const first = await database.pool({ max: 1 }).connect();
    await first.query('begin');
    await decide(over(first), id);
    const second = decide(sql, id);
    await waitUntilBlocked();
    await first.query('rollback');
    first.release();
    expect(await second).toMatchObject({ from: from[0] });
    expect(await actions(id)).toHaveLength(1);
  });

  it('knows of no request that does not exist', async () => {
    await expect(decide(sql, randomUUID())).rejects.toMatchObject({ code: 'request_not_found' });
  });
});

async function waitUntilBlocked(): Promise<void> {
  await waitFor(
    async () =>
      (
        await database.query(
          `select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'`,
        )
      ).length > 0,
    { what: 'the second session to wait for the lock' },
  );
}

describe('an operator', () => {
  it.each([
    ['actor', { ...NOTE, actor: '  ' }],
    ['reason', { ...NOTE, reason: '' }],
    ['actor', { ...NOTE, actor: null as unknown as string }],
  ])('gives an %s for everything', async (_, note) => {
    const { id } = await insertAmbiguous(database);
    const queued = await insertRequest(database);
    for (const call of [
      () => resolveAsAccepted(sql, id, 'task', note),
      () => resolveAsNotAccepted(sql, id, note),
      () => abandonRequest(sql, id, note),
      () => reopenRequest(sql, id, note),
      () => cancelRequest(sql, queued, note),
      () => releaseAccount(sql, 'default', null, note),
    ]) {
      await expect(call()).rejects.toMatchObject({ code: 'operator_identity_missing' });
    }
    expect((await row(id))['state']).toBe('ambiguous');
  });
});

describe('resolve_as_accepted', () => {
  it('hands the request to the poller at once, with the task, the charge and the operator’s evidence', async () => {
    const { id, attemptId } = await insertAmbiguous(database, { started_at: ago(60_000) });
    const resolution = await resolveAsAccepted(sql, id, 'task-found', NOTE);
    expect(resolution).toEqual({ id, from: 'ambiguous', to: 'accepted', postsPermitted: 0, notBefore: null });
    const after = await row(id);
    expect(after).toMatchObject({ state: 'accepted', provider_task_id: 'task-found', charge: 'charged' });
    expect((after['next_poll_at'] as Date).getTime()).toBeLessThanOrEqual(Date.now() + 1_000);
    // The age that polling goes by is the task's, not the resolution's.
    expect(after['accepted_at']).toEqual((await attemptRow(attemptId))['started_at']);
    const evidence = await database.query('select * from onetake.attempt_evidence where attempt_id = $1', [
      attemptId,
    ]);
    expect(evidence).toMatchObject([
      { source: 'operator', certainty: 'accepted', provider_task_id: 'task-found' },
    ]);
  });

  it('keeps the slot of the attempt: the task may be running', async () => {
    const { id, attemptId } = await insertAmbiguous(database);
    await resolveAsAccepted(sql, id, `task-${id}`, NOTE);
    expect((await attemptRow(attemptId))['slot_freed_at']).toBeNull();
  });

  it('refuses a task id that another request of the account has', async () => {
    await insertRequest(database, { state: 'accepted', provider_task_id: 'task-taken' });
    const { id } = await insertAmbiguous(database);
    await expect(resolveAsAccepted(sql, id, 'task-taken', NOTE)).rejects.toMatchObject({
      code: 'task_id_in_use',
    });
    expect((await row(id))['state']).toBe('ambiguous');
  });

  it('gives a task id to one of two requests that ask for it at once', async () => {
    const { id: one } = await insertAmbiguous(database);
    const { id: other } = await insertAmbiguous(database);
    const first = await database.pool({ max: 1 }).connect();
    await first.query('begin');
    await resolveAsAccepted(over(first), one, 'task-once', NOTE);
    const second = resolveAsAccepted(sql, other, 'task-once', NOTE).catch(
      (error: { code: string }) => error.code,
    );
    await waitUntilBlocked();
    await first.query('commit');
    first.release();
    expect(await second).toBe('task_id_in_use');
    expect((await row(other))['state']).toBe('ambiguous');
  });

  it.each(['', ' ', ' task', 'task ', 'x'.repeat(256), 'line\nbreak', null as unknown as string])(
    'refuses a task id that can’t be one (%#)',
    async (taskId) => {
      const { id } = await insertAmbiguous(database);
      await expect(resolveAsAccepted(sql, id, taskId, NOTE)).rejects.toMatchObject({
        code: 'invalid_option',
      });
    },
  );
});

describe('resolve_as_not_accepted', () => {
  it('permits one more POST at once when the attempt is closed', async () => {
    const { id, attemptId } = await insertAmbiguous(database, { closed_at: ago(0) });
    const resolution = await resolveAsNotAccepted(sql, id, NOTE);
    expect(resolution).toMatchObject({ from: 'ambiguous', to: 'queued', postsPermitted: 1 });
    expect(resolution.notBefore?.getTime()).toBeLessThanOrEqual(Date.now() + 1_000);
    expect(await row(id)).toMatchObject({ state: 'queued', job_due: true, submit_before: null });
    // The word of an operator does not make an unknown outcome known.
    expect((await row(id))['charge']).toBe('possible');
    expect((await attemptRow(attemptId))['slot_freed_at']).not.toBeNull();
  });

  it('waits for the end of the quarantine when the attempt is not closed', async () => {
    const until = ago(-90_000);
    const { id } = await insertAmbiguous(database, { quarantine_until: until, closed_at: null });
    expect((await resolveAsNotAccepted(sql, id, NOTE)).notBefore).toEqual(until);
    expect((await row(id))['not_before']).toEqual(until);
  });

  it('does not wait for a quarantine that is over', async () => {
    const { id } = await insertAmbiguous(database, { quarantine_until: ago(5_000) });
    const { notBefore } = await resolveAsNotAccepted(sql, id, NOTE);
    expect((notBefore as Date).getTime()).toBeGreaterThan(ago(4_000).getTime());
  });

  it.each([200, 202, 299])('needs force after a %i, which most likely was paid', async (status) => {
    const { id } = await insertAmbiguous(database, { http_status: status });
    for (const resubmit of [true, false]) {
      await expect(resolveAsNotAccepted(sql, id, NOTE, { resubmit })).rejects.toMatchObject({
        code: 'request_not_in_state',
        hint: expect.stringContaining('force'),
      });
    }
    expect((await row(id))['state']).toBe('ambiguous');
    expect(await resolveAsNotAccepted(sql, id, NOTE, { force: true })).toMatchObject({ to: 'queued' });
  });

  it('ends the request as cancelled without resubmit, its charge still possible', async () => {
    const { id, attemptId } = await insertAmbiguous(database);
    expect(await resolveAsNotAccepted(sql, id, NOTE, { resubmit: false })).toEqual({
      id,
      from: 'ambiguous',
      to: 'cancelled',
      postsPermitted: 0,
      notBefore: null,
    });
    expect(await row(id)).toMatchObject({ state: 'cancelled', charge: 'possible', job_due: false });
    expect((await attemptRow(attemptId))['slot_freed_at']).not.toBeNull();
  });

  it('sets the deadline that it is given', async () => {
    const { id } = await insertAmbiguous(database);
    const submitBefore = ago(-3_600_000);
    await resolveAsNotAccepted(sql, id, NOTE, { submitBefore });
    expect((await row(id))['submit_before']).toEqual(submitBefore);
  });

  it('clears the deadline of the first submission, whether it lies ahead or not', async () => {
    for (const deadline of [ago(-3_600_000), ago(1_000)]) {
      const { id } = await insertAmbiguous(database, {}, { submit_before: deadline });
      await resolveAsNotAccepted(sql, id, NOTE);
      expect((await row(id))['submit_before']).toBeNull();
    }
  });

  const late = (attemptId: string, columns: Columns) =>
    insert(database, 'attempt_evidence', {
      attempt_id: attemptId,
      seen_at: ago(0),
      source: 'late_answer',
      certainty: 'unknown',
      ...columns,
    });

  it.each<[string, string, Columns, Columns | null]>([
    ['a late 200 without an id', 'attempt 1 was answered 200', {}, { http_status: 200 }],
    [
      'a late acceptance',
      'attempt 1 was accepted as task late-task',
      {},
      { certainty: 'accepted', provider_task_id: 'late-task' },
    ],
    [
      'an acceptance in time',
      'attempt 1 was accepted as task known-task',
      { certainty: 'accepted', provider_task_id: 'known-task' },
      null,
    ],
  ])(
    'needs force after %s, also of an earlier attempt, and says which',
    async (_what, named, attempt, evidence) => {
      const { id, attemptId } = await insertAmbiguous(database, attempt, { submissions: 2 });
      if (evidence !== null) await late(attemptId, evidence);
      await insertAttempt(database, id, settledAs('unknown', { attempt: 2, http_status: 502 }));
      for (const resubmit of [true, false]) {
        await expect(resolveAsNotAccepted(sql, id, NOTE, { resubmit })).rejects.toMatchObject({
          code: 'request_not_in_state',
          message: expect.stringContaining(named),
          hint: expect.stringContaining('force'),
        });
      }
      expect((await row(id))['state']).toBe('ambiguous');
      expect(await actions(id)).toEqual([]);
      expect(await resolveAsNotAccepted(sql, id, NOTE, { force: true })).toMatchObject({ to: 'queued' });
    },
  );

  it('needs no force after a late answer that is no 2xx, nor after a word that was taken back', async () => {
    const { id, attemptId } = await insertAmbiguous(database);
    await late(attemptId, { http_status: 502 });
    await late(attemptId, {
      source: 'operator',
      certainty: 'accepted',
      provider_task_id: 'x',
      withdrawn_at: ago(0),
    });
    expect(await resolveAsNotAccepted(sql, id, NOTE)).toMatchObject({ to: 'queued' });
  });

  it('refuses a deadline that is over, which would permit nothing', async () => {
    const { id } = await insertAmbiguous(database);
    await expect(resolveAsNotAccepted(sql, id, NOTE, { submitBefore: ago(1_000) })).rejects.toMatchObject({
      code: 'invalid_option',
    });
    expect((await row(id))['state']).toBe('ambiguous');
    expect(await actions(id)).toEqual([]);
  });

  it('waits for the last attempt, whatever became of the earlier ones', async () => {
    const { id } = await insertAmbiguous(database, { http_status: 502, closed_at: ago(0) });
    const until = ago(-50_000);
    await insertAttempt(database, id, { ...settledAs('unknown'), attempt: 2, quarantine_until: until });
    expect((await resolveAsNotAccepted(sql, id, NOTE)).notBefore).toEqual(until);
  });

  it.each([
    ['is still on the wire', {}],
    ['is unknown and not closed', settledAs('unknown')],
  ])('waits for an attempt below the last that came to light later and %s', async (_what, columns) => {
    const { id } = await insertAmbiguous(database, { http_status: 502, closed_at: ago(0) });
    const until = ago(-50_000);
    await insertAttempt(database, id, { ...columns, attempt: 0, quarantine_until: until });
    const [shown] = await database.query(
      'select rearmable_at from onetake.ambiguous_submissions where id = $1',
      [id],
    );
    expect(shown).toEqual({ rearmable_at: until });
    expect((await resolveAsNotAccepted(sql, id, NOTE)).notBefore).toEqual(until);
  });
});

describe('the attempt that a task belongs to', () => {
  const attemptOf = async (id: string, task: string) =>
    (await database.query('select onetake.attempt_of_task($1, $2) as attempt', [id, task]))[0]?.['attempt'];

  it('is the one that was answered with its id, in time or late, and else the last', async () => {
    const { id, attemptId: first } = await insertAmbiguous(database, {}, { submissions: 3 });
    const second = await insertAttempt(
      database,
      id,
      settledAs('accepted', { attempt: 2, provider_task_id: 'in-time' }),
    );
    const third = await insertAttempt(database, id, settledAs('unknown', { attempt: 3 }));
    const evidence = { attempt_id: first, seen_at: ago(0), source: 'late_answer', certainty: 'accepted' };
    await insert(database, 'attempt_evidence', { ...evidence, provider_task_id: 'late' });
    await insert(database, 'attempt_evidence', {
      ...evidence,
      source: 'operator',
      provider_task_id: 'withdrawn',
      withdrawn_at: ago(0),
    });
    expect(await attemptOf(id, 'late')).toBe(first);
    expect(await attemptOf(id, 'in-time')).toBe(second);
    expect(await attemptOf(id, 'nobody’s')).toBe(third);
    expect(await attemptOf(id, 'withdrawn')).toBe(third);
    expect(await attemptOf(randomUUID(), 'late')).toBeNull();
  });

  it('gets an operator’s word, so that one purchase counts once', async () => {
    const { id, attemptId: first } = await insertAmbiguous(
      database,
      { certainty: 'accepted', provider_task_id: 'task-of-one', started_at: ago(90_000) },
      { submissions: 2 },
    );
    const second = await insertAttempt(database, id, settledAs('unknown', { attempt: 2 }));
    await resolveAsAccepted(sql, id, 'task-of-one', NOTE);
    const after = await row(id);
    expect(after).toMatchObject({ state: 'accepted', charge: 'charged' });
    expect(after['accepted_at']).toEqual((await attemptRow(first))['started_at']);
    // The second attempt's outcome is as unknown as before: the refund of the first leaves a possible charge.
    expect(
      await database.query('select attempt_id from onetake.attempt_evidence where attempt_id = any($1)', [
        [first, second],
      ]),
    ).toEqual([{ attempt_id: first }]);
    await database.query('update onetake.submission_attempts set refunded = true where id = $1', [first]);
    expect(await database.query('select onetake.charge_of($1) as charge', [id])).toEqual([
      { charge: 'possible' },
    ]);
  });
});

describe('reopen', () => {
  /** A frozen request to which an operator has attached a task. */
  async function resolved(task: string, attempt: Columns = {}): Promise<{ id: string; attemptId: string }> {
    const frozen = await insertAmbiguous(database, attempt);
    await resolveAsAccepted(sql, frozen.id, task, NOTE);
    return frozen;
  }

  it('takes the word back: ambiguous again, the charge possible, the evidence withdrawn, the task forgotten', async () => {
    const { id, attemptId } = await resolved('mistaken');
    expect(await reopenRequest(sql, id, NOTE)).toEqual({
      id,
      from: 'accepted',
      to: 'ambiguous',
      postsPermitted: 0,
      notBefore: null,
    });
    expect(await row(id)).toMatchObject({
      state: 'ambiguous',
      state_reason: 'reopened',
      charge: 'possible',
      provider_task_id: null,
      accepted_at: null,
      next_poll_at: null,
    });
    expect(
      await database.query(
        'select source, provider_task_id, withdrawn_at from onetake.attempt_evidence where attempt_id = $1',
        [attemptId],
      ),
    ).toEqual([{ source: 'operator', provider_task_id: 'mistaken', withdrawn_at: expect.any(Date) }]);
    expect((await actions(id)).map(({ action }) => action)).toEqual(['resolve_as_accepted', 'reopen']);
  });

  it('frees the task id for the request that it belongs to, and lets the other be decided again', async () => {
    const { id: wrong } = await resolved('belongs-to-another');
    const { id: right } = await insertAmbiguous(database);
    await expect(resolveAsAccepted(sql, right, 'belongs-to-another', NOTE)).rejects.toMatchObject({
      code: 'task_id_in_use',
    });
    await reopenRequest(sql, wrong, NOTE);
    await resolveAsAccepted(sql, right, 'belongs-to-another', NOTE);
    // The word that was taken back is no evidence of a payment any more.
    expect(await resolveAsNotAccepted(sql, wrong, NOTE)).toMatchObject({ to: 'queued' });
    expect(await row(right)).toMatchObject({ state: 'accepted', provider_task_id: 'belongs-to-another' });
  });

  it('leaves what the provider itself said late, which still needs force', async () => {
    const { id, attemptId } = await insertAmbiguous(database);
    await insert(database, 'attempt_evidence', {
      attempt_id: attemptId,
      seen_at: ago(0),
      source: 'late_answer',
      certainty: 'accepted',
      provider_task_id: 'its-own',
    });
    await resolveAsAccepted(sql, id, 'mistaken-too', NOTE);
    await reopenRequest(sql, id, NOTE);
    expect((await row(id))['charge']).toBe('charged');
    await expect(resolveAsNotAccepted(sql, id, NOTE)).rejects.toMatchObject({
      message: expect.stringContaining('its-own'),
    });
  });

  it.each<[string, () => Promise<string>]>([
    ['accepted by the provider’s answer', () => insertRequest(database, { state: 'accepted' })],
    [
      'finished at the provider',
      async () => {
        const { id } = await resolved('finished');
        await database.query(
          'update onetake.generation_requests set provider_finished_at = now() where id = $1',
          [id],
        );
        return id;
      },
    ],
    ['ambiguous', async () => (await insertAmbiguous(database)).id],
    ['queued', () => insertRequest(database)],
    ['succeeded', () => insertRequest(database, { state: 'succeeded' })],
  ])('refuses one that is %s', async (_what, arrange) => {
    const id = await arrange();
    const before = await row(id);
    await expect(reopenRequest(sql, id, NOTE)).rejects.toMatchObject({ code: 'request_not_in_state' });
    expect(await row(id)).toEqual(before);
  });

  it('knows of no request that does not exist', async () => {
    await expect(reopenRequest(sql, randomUUID(), NOTE)).rejects.toMatchObject({ code: 'request_not_found' });
  });
});

describe('abandon', () => {
  it('ends a frozen request as failed, its charge still possible and its slot kept', async () => {
    const { id, attemptId } = await insertAmbiguous(database);
    await abandonRequest(sql, id, NOTE);
    expect(await row(id)).toMatchObject({
      state: 'failed',
      failure_reason: 'abandoned',
      charge: 'possible',
      next_poll_at: null,
    });
    expect((await attemptRow(attemptId))['slot_freed_at']).toBeNull();
  });

  it('refuses an accepted task that may still be running', async () => {
    const id = await insertRequest(database, { state: 'accepted', charge: 'charged' });
    await insertAttempt(database, id, { ...settledAs('accepted'), slot_until: ago(-60_000) });
    await expect(abandonRequest(sql, id, NOTE)).rejects.toMatchObject({ code: 'request_not_in_state' });
    expect((await row(id))['state']).toBe('accepted');
  });

  it('ends an accepted task past its maximum run time, and goes on watching for its refund', async () => {
    const id = await insertRequest(database, { state: 'accepted', charge: 'charged' });
    await insertAttempt(database, id, { ...settledAs('accepted'), slot_until: ago(1_000) });
    await abandonRequest(sql, id, NOTE);
    const after = await row(id);
    expect(after).toMatchObject({ state: 'failed', failure_reason: 'abandoned', charge: 'charged' });
    expect(after['next_poll_at']).not.toBeNull();
    expect((after['refund_watch_until'] as Date).getTime()).toBeGreaterThan(Date.now() + 3_500_000);
  });
});

describe('what asked for a person', () => {
  it('ends with the operator’s decision', async () => {
    const asked = { attention: 'returned_many_times', attention_since: ago(1_000) };
    const queued = await insertRequest(database, asked);
    const { id } = await insertAmbiguous(database, {}, asked);
    await cancelRequest(sql, queued, NOTE);
    await abandonRequest(sql, id, NOTE);
    expect(await row(queued)).toMatchObject({ attention: null, attention_since: null });
    expect(await row(id)).toMatchObject({ attention: null, attention_since: null });
  });

  it.each(Object.entries(DECISIONS))(
    'stays after %s when it is money that was paid twice',
    async (_, decision) => {
      const since = ago(1_000);
      const id = await insertRequest(database, {
        state: decision.from[0] as RequestState,
        attention: 'possibly_paid_twice',
        attention_since: since,
      });
      await decision.decide(sql, id);
      expect(await row(id)).toMatchObject({ attention: 'possibly_paid_twice', attention_since: since });
    },
  );
});

describe('release_account', () => {
  const hold = (operation: string | null) =>
    insert(database, 'account_holds', {
      account: 'default',
      operation,
      kind: 'key_refused',
      since: ago(0),
      epoch: 0,
    });
  const live = async () =>
    (
      await database.query<{ operation: string | null }>(
        `select operation from onetake.account_holds where account = 'default' and ended_at is null`,
      )
    ).map((found) => found.operation);

  it('ends every hold of the account, says how many, and makes older answers unable to set one again', async () => {
    await hold(null);
    await hold('text-to-music');
    const [before] = await database.query<{ hold_epoch: number }>(
      `select hold_epoch from onetake.accounts where name = 'default'`,
    );
    expect(await releaseAccount(sql, 'default', null, NOTE)).toBe(2);
    expect(await live()).toEqual([]);
    expect(await database.query(`select hold_epoch from onetake.accounts where name = 'default'`)).toEqual([
      { hold_epoch: (before?.hold_epoch ?? 0) + 1 },
    ]);
    expect(await database.query('select distinct ended_by from onetake.account_holds')).toEqual([
      { ended_by: 'ada' },
    ]);
    expect(await actions('default')).toHaveLength(1);
  });

  it('ends the holds of one operation only', async () => {
    await hold('text-to-music');
    await hold('video-to-music');
    expect(await releaseAccount(sql, 'default', 'text-to-music', NOTE)).toBe(1);
    expect(await live()).toEqual(['video-to-music']);
    expect(await releaseAccount(sql, 'default', 'text-to-music', NOTE)).toBe(0);
    await expect(releaseAccount(sql, 'default', 'text-to-musik', NOTE)).rejects.toMatchObject({
      code: 'invalid_option',
    });
    expect(await actions('default/text-to-music')).toHaveLength(2);
    await releaseAccount(sql, 'default', null, NOTE);
  });

  it('is done once by two sessions at once', async () => {
    await hold(null);
    const first = await database.pool({ max: 1 }).connect();
    await first.query('begin');
    expect(await releaseAccount(over(first), 'default', null, NOTE)).toBe(1);
    const second = releaseAccount(sql, 'default', null, NOTE);
    await waitUntilBlocked();
    await first.query('commit');
    first.release();
    expect(await second).toBe(0);
  });

  it('knows of no account that does not exist', async () => {
    await expect(releaseAccount(sql, 'nobody', null, NOTE)).rejects.toMatchObject({
      code: 'unknown_account',
    });
  });
});

describe('hold_account', () => {
  const live = () =>
    database.query(
      `select operation, kind, reason, until from onetake.account_holds where ended_at is null order by since`,
    );

  it('holds an operation or the account, in place of an earlier word, and is on record', async () => {
    const until = ago(-3_600_000);
    expect(await holdAccount(sql, 'default', 'text-to-music', until, NOTE)).toBe(false);
    expect(await holdAccount(sql, 'default', null, null, NOTE)).toBe(false);
    expect(await holdAccount(sql, 'default', null, null, { actor: 'ada', reason: 'longer' })).toBe(true);
    expect(await live()).toEqual([
      { operation: 'text-to-music', kind: 'operator', reason: NOTE.reason, until },
      { operation: null, kind: 'operator', reason: 'longer', until: null },
    ]);
    const acts = await database.query(
      `select actor, subject from onetake.operator_actions where action = 'hold_account' order by id`,
    );
    expect(acts).toEqual([
      { actor: 'ada', subject: 'default/text-to-music' },
      { actor: 'ada', subject: 'default' },
      { actor: 'ada', subject: 'default' },
    ]);
    expect(await releaseAccount(sql, 'default', null, NOTE)).toBe(2);
  });

  it('refuses an end that has passed, an unknown account and a name that is none', async () => {
    await expect(holdAccount(sql, 'default', null, ago(1_000), NOTE)).rejects.toThrow(/ended already/);
    await expect(holdAccount(sql, 'default', 'a b', null, NOTE)).rejects.toThrow(/name of an operation/);
    // Held in silence, a misspelt one would hold nothing.
    await expect(holdAccount(sql, 'default', 'text-to-musik', null, NOTE)).rejects.toMatchObject({
      code: 'invalid_option',
      message: 'there is no operation of that name',
    });
    await expect(holdAccount(sql, 'nobody', null, null, NOTE)).rejects.toMatchObject({
      code: 'unknown_account',
    });
    expect(await live()).toEqual([]);
  });
});

describe('whoever listens', () => {
  it('is told what became due, when the decision commits', async () => {
    const listener = await database.pool({ max: 1 }).connect();
    const heard: string[] = [];
    listener.on('notification', ({ payload = '' }) => {
      // Whoever waits for a request hears of it besides.
      if (!payload.startsWith('settled ')) heard.push(payload);
    });
    await listener.query('listen onetake');
    const { id: accepted } = await insertAmbiguous(database);
    const { id: rearmed } = await insertAmbiguous(database);
    const { id: ended } = await insertAmbiguous(database);
    await resolveAsAccepted(sql, accepted, `task-${accepted}`, NOTE);
    await resolveAsNotAccepted(sql, rearmed, NOTE);
    await resolveAsNotAccepted(sql, ended, NOTE, { resubmit: false });
    await releaseAccount(sql, 'default', null, NOTE);
    await waitFor(() => heard.length >= 4, { what: 'four notices' });
    listener.release(true);
    expect(heard).toEqual(['poll', 'job_due', 'slot', 'account']);
  });
});
