import { randomUUID } from 'node:crypto';
import type pg from 'pg';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { REQUEST_STATES, type RequestState } from '../../src/core/generation-request.ts';
import type { Sql } from '../../src/postgres/database.ts';
import {
  abandonRequest,
  cancelRequest,
  type Resolution,
  releaseAccount,
  resolveAsAccepted,
  resolveAsNotAccepted,
} from '../../src/postgres/operator-functions.ts';
import {
  ago,
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

  it.each(['', 'x'.repeat(256), 'line\nbreak', null as unknown as string])(
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

  it('keeps the customer’s deadline while it lies ahead, and drops one that would end the request at once', async () => {
    const ahead = ago(-3_600_000);
    const { id: early } = await insertAmbiguous(database, {}, { submit_before: ahead });
    const { id: late } = await insertAmbiguous(database, {}, { submit_before: ago(1_000) });
    await resolveAsNotAccepted(sql, early, NOTE);
    await resolveAsNotAccepted(sql, late, NOTE);
    expect((await row(early))['submit_before']).toEqual(ahead);
    expect((await row(late))['submit_before']).toBeNull();
  });

  it('goes by the last attempt', async () => {
    const { id } = await insertAmbiguous(database, { http_status: 202, closed_at: ago(0) });
    const until = ago(-50_000);
    await insertAttempt(database, id, { ...settledAs('unknown'), attempt: 2, quarantine_until: until });
    expect((await resolveAsNotAccepted(sql, id, NOTE)).notBefore).toEqual(until);
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

describe('whoever listens', () => {
  it('is told what became due, when the decision commits', async () => {
    const listener = await database.pool({ max: 1 }).connect();
    const heard: string[] = [];
    listener.on('notification', (notice) => void heard.push(notice.payload ?? ''));
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
