import { describe, expect, onTestFinished, test } from 'vitest';
import type { InstallationMark } from '../../src/core/installation.ts';
import { outcomeOfResponse } from '../../src/core/outcome.ts';
import { createClient } from '../../src/index.ts';
import { admit } from '../../src/lifecycle/admit.ts';
import { InstallationGuard } from '../../src/lifecycle/guard-installation.ts';
import { recordOutcome } from '../../src/lifecycle/record-outcome.ts';
import { checkInstallation } from '../../src/postgres/installation.ts';
import type { AdmittedAttempt } from '../../src/postgres/submission-attempts.ts';
import { copyDatabase } from '../support/database-copy.ts';
import { insertAttempt, settledAs } from '../support/fixtures.ts';
import { laneOf, lifecycleContext } from '../support/lifecycle-context.ts';
import { hold } from '../support/raw-provider.ts';
import { spooledOutcome } from '../support/spooled.ts';
import type { TestDatabase } from '../support/test-database.ts';
import { waitFor } from '../support/wait-for.ts';
import { openWorld, rowPrints, type World } from '../support/world.ts';

const NOTE = [`'mia'`, `'looked at'`].join(', ');

describe('a clone that was made with TEMPLATE', () => {
  test('submits nothing, and says so once, in attention and in what requests wait for', async () => {
    const world = await openWorld({ provider: 'raw' });
    await world.songs(2);
    const clone = await copyDatabase(world.database);
    const worker = world.worker({ connectionString: clone.connectionString });
    for (let round = 0; round < 3; round++) expect(await worker.runOnce()).toBe(0);

    expect(world.posts()).toBe(0);
    expect(world.events.filter(({ name }) => name.startsWith('installation:'))).toEqual([
      {
        name: 'installation:unrecognised',
        event: { worker: expect.any(String), trouble: 'another_database' },
      },
    ]);
    expect(await clone.query('select subject_kind, what, command from onetake.attention')).toEqual([
      {
        subject_kind: 'installation',
        what: 'nothing is submitted: this is a copy of the database that was confirmed (another_database)',
        command: 'onetake recover',
      },
    ]);
    expect(await clone.query('select distinct waiting_for from onetake.request_overview')).toEqual([
      { waiting_for: 'an operator: this database is not recognised (another database)' },
    ]);

    const original = world.worker();
    expect(await original.runOnce()).toBe(2);
    expect(await world.database.query('select from onetake.attention')).toEqual([]);
  });

  test('once it is confirmed, is remembered beside the original: neither is taken for the other that went back', async () => {
    const world = await openWorld({ provider: 'raw' });
    const clone = await copyDatabase(world.database);
    await clone.query(`select onetake.resume_installation(${NOTE})`);
    const { connectionString } = clone;
    for (const [n, options] of [{ connectionString }, {}, { connectionString }].entries()) {
      const client = createClient({ connectionString: world.database.connectionString, ...options });
      onTestFinished(() => client.stop());
      await client.enqueue({ operation: 'text-to-music', fields: { prompt: 'calm' }, requestKey: `${n}` });
      // Of one directory all of them.
      const worker = world.worker(options);
      expect(await worker.runOnce()).toBe(1);
      await worker.stop();
    }
    expect(world.events.filter(({ name }) => name.startsWith('installation:'))).toEqual([]);
  });

  test('is not written to on account of that, and nothing is fetched', async () => {
    const world = await openWorld({ provider: 'raw' });
    await world.songs(3);
    const clone = await copyDatabase(world.database);
    const worker = world.worker({ connectionString: clone.connectionString });
    await worker.runOnce();
    const before = await rowPrints(clone as TestDatabase);
    for (let round = 0; round < 3; round++) await worker.runOnce();
    expect(await rowPrints(clone as TestDatabase)).toEqual(before);
  });

  test('lets enqueue and polling go on, and submits from the resumption on', async () => {
    const world = await openWorld();
    const accepted = await world.song('accepted before');
    await world.worker().runOnce();
    expect((await world.request(accepted))['state']).toBe('accepted');
    const clone = await copyDatabase(world.database);
    const { connectionString } = clone;
    const client = createClient({ connectionString });
    onTestFinished(() => client.stop());

    const fields = { prompt: 'enqueued there', duration: 5 };
    await client.enqueue({ operation: 'text-to-music', fields, requestKey: 'there' });
    const worker = world.worker({ connectionString });
    await worker.start();
    const poller = world.poller({ connectionString });
    await poller.start();
    expect((await client.waitForGeneration(accepted)).state).toBe('succeeded');
    expect(world.posts()).toBe(1);

    expect(await clone.query(`select onetake.resume_installation(${NOTE}) as was`)).toEqual([
      { was: 'another_database' },
    ]);
    await waitFor(() => world.posts() === 2, { what: 'the song of the clone to be submitted' });
    expect(world.events.filter(({ name }) => name.startsWith('installation:'))).toMatchObject([
      { name: 'installation:unrecognised' },
      { name: 'installation:recognised' },
    ]);
    expect(await clone.query('select from onetake.attention')).toEqual([]);
  });

  test('lets no request expire, since it may have been submitted', async () => {
    const world = await openWorld({ provider: 'raw' });
    await world.song('in a hurry', { submitBefore: new Date(Date.now() + 3_600_000) });
    await world.passTime(3_600_000);
    const clone = await copyDatabase(world.database);
    const worker = world.worker({ connectionString: clone.connectionString });
    await worker.runOnce();
    expect(await clone.query('select state from onetake.generation_requests')).toEqual([{ state: 'queued' }]);
    await clone.query(`select onetake.resume_installation(${NOTE})`);
    await worker.runOnce();
    expect(await clone.query('select state from onetake.generation_requests')).toEqual([
      { state: 'expired' },
    ]);
  });
});

describe('transaction A', () => {
  test.each([
    ['another_cluster', 'system_identifier = system_identifier + 1'],
    ['another_database', 'database_oid = database_oid + 1'],
    ['restored_tables', 'table_oid = table_oid + 1'],
    ['another_timeline', 'timeline = timeline + 1'],
    ['stepped_back', `doubt = 'stepped_back', doubted_at = now(), doubted_by = 'a worker'`],
    ['intent_lost', `doubt = 'intent_lost', doubted_at = now(), doubted_by = 'a worker'`],
    ['freezing', `doubt = 'freezing', doubted_at = now(), doubted_by = 'mia', freeze_before = now()`],
  ])('grants no permit when the database is in trouble: %s', async (trouble, change) => {
    const { world, ctx } = await prepared();
    const lane = await laneOf(ctx);
    await world.database.query(`update onetake.installation set ${change}`);
    const before = await rowPrints(world.database);
    expect(await admit(ctx, lane, { wanted: 1 })).toEqual({ blockedBy: 'installation' });
    expect(ctx.guard.trouble).toBe(trouble);
    // The lock of the account is all that it leaves behind.
    const written = (prints: string[]) => prints.filter((print) => !print.startsWith('onetake.accounts '));
    expect(written(await rowPrints(world.database))).toEqual(written(before));
  });

  test('grants no permit when nobody has confirmed the database', async () => {
    const { world, ctx } = await prepared();
    await world.database.query('delete from onetake.installation');
    expect(await admit(ctx, await laneOf(ctx), { wanted: 1 })).toEqual({ blockedBy: 'installation' });
    expect(ctx.guard.trouble).toBe('unconfirmed');
  });

  test('grants none to a probe either', async () => {
    const { world, ctx } = await prepared();
    await world.database.query(
      `update onetake.circuit_breakers set state = 'open', opened_at = now() - interval '1 h',
  retry_at = now() - interval '1 s'`,
    );
    const [row] = await world.database.query<{ id: string }>('select id from onetake.generation_requests');
    await world.database.query('update onetake.installation set timeline = timeline + 1');
    const probe = { wanted: 1, probeWith: row?.id as string };
    expect(await admit(ctx, await laneOf(ctx), probe)).toEqual({ blockedBy: 'installation' });
    expect((await world.breaker())['state']).toBe('open');
  });

  test('asks nothing of a server that keeps its identity to itself', async () => {
    const { world, ctx } = await prepared();
    await world.database.query('update onetake.installation set system_identifier = null, timeline = null');
    expect(await admit(ctx, await laneOf(ctx), { wanted: 1 })).toHaveProperty('attempts');
  });
});

describe('a look', () => {
  test('is made each second and after a reconnect, and each change is said once', async () => {
    const { world, ctx } = await prepared();
    const events: string[] = [];
    let at = 0;
    let looks = 0;
    const database = Object.assign(Object.create(ctx.database), {
      executeSql: (text: string, values: unknown[]) => {
        looks++;
        return ctx.database.executeSql(text, values);
      },
    });
    const clock = { now: () => at, monotonic: () => at };
    const guard = new InstallationGuard({ database, emit: (name) => events.push(name), clock, worker: 'w' });
    expect(await guard.recognises()).toBe(true);
    expect(await guard.recognises()).toBe(true);
    expect(looks).toBe(1);
    await world.database.query('update onetake.installation set timeline = timeline + 1');
    at += 999;
    expect(await guard.recognises()).toBe(true);
    at += 1;
    for (let look = 0; look < 3; look++) {
      expect(await guard.recognises()).toBe(false);
      at += 1_000;
    }
    await world.database.query('update onetake.installation set timeline = timeline - 1');
    for (let look = 0; look < 3; look++) {
      expect(await guard.recognises()).toBe(true);
      at += 1_000;
    }
    expect(events).toEqual(['installation:unrecognised', 'installation:recognised']);
    const before = looks;
    await guard.recognises();
    guard.reconnected();
    await guard.recognises();
    expect(looks).toBe(before + 2);
  });
});

describe('what a worker remembers', () => {
  test('proves that the database was put back: WAL that was flushed is not', async () => {
    const { world, ctx } = await prepared();
    const mark = await markOf(ctx);
    const behind = { ...mark, flushed: 'FFFF/0' };
    expect(await checkInstallation(ctx.database, behind)).toMatchObject({ trouble: 'stepped_back' });
    // It holds for that confirmation only.
    await world.database.query(`select onetake.confirm_installation('mia', 'looked at')`);
    expect(await checkInstallation(ctx.database, behind)).toMatchObject({ trouble: null });
  });

  test('proves that the database was put back to before its last confirmation', async () => {
    const { ctx } = await prepared();
    const mark = await markOf(ctx);
    const later = { ...mark, revision: mark.revision + 1 };
    expect(await checkInstallation(ctx.database, later)).toMatchObject({ loss: 'stepped_back' });
  });

  test('says nothing about another installation', async () => {
    const { ctx } = await prepared();
    const mark = { ...(await markOf(ctx)), installation: crypto.randomUUID(), flushed: 'FFFF/0' };
    expect(await checkInstallation(ctx.database, mark)).toMatchObject({ trouble: null, loss: null });
  });

  test('outlives it in the spool directory', async () => {
    const world = await openWorld({ provider: 'raw' });
    const id = await world.song('sent by the first');
    const first = world.worker();
    await first.runOnce();
    await first.stop();
    await forget(world, id);
    const next = world.worker();
    expect(await next.runOnce()).toBe(0);
    expect(world.posts()).toBe(1);
    expect(await world.database.query('select doubt from onetake.installation')).toEqual([
      { doubt: 'intent_lost' },
    ]);
  });

  test('stops every worker when an attempt that was committed is not there, until an operator has decided', async () => {
    const world = await openWorld({ provider: 'raw' });
    const [first] = await world.songs(1);
    const worker = world.worker({ name: 'the one that knows' });
    expect(await worker.runOnce()).toBe(1);
    await forget(world, first as string);
    await world.song('another');
    await worker.runOnce();
    await waitFor(async () => (await worker.runOnce()) === 0 && world.events.at(-1), { what: 'a look' });
    await waitFor(
      async () => (await world.database.query('select from onetake.installation where doubt is not null'))[0],
      { what: 'the doubt to be written down' },
    );

    expect(await world.database.query('select doubt, doubted_by from onetake.installation')).toEqual([
      { doubt: 'intent_lost', doubted_by: 'the one that knows' },
    ]);
    const other = world.worker();
    await world.song('yet another');
    expect(await other.runOnce()).toBe(0);
    const [row] = await world.database.query('select what, command from onetake.attention');
    expect(row?.['what']).toBe(
      'nothing is submitted: this database has lost a submission that it had confirmed (intent_lost)',
    );
    await expect(world.database.query(`select onetake.resume_installation(${NOTE})`)).rejects.toMatchObject({
      code: 'OT002',
    });
    await world.database.query(`select onetake.resume_installation(${NOTE}, force => true)`);
    await waitFor(async () => (await other.runOnce()) > 0, { what: 'the other worker to submit' });
  });
});

describe('a live worker tells a database that has lost its attempts', () => {
  test('what it has on the wire, before the outcome is known, so that nobody else submits it', async () => {
    const world = await openWorld({ provider: 'raw' });
    world.raw.onPost = hold;
    const id = await world.song('on the wire');
    const worker = world.worker({ name: 'the one that knows' });
    await worker.start();
    const call = await world.raw.post(1);
    const { id: attemptId } = await world.attempt(id);
    await forget(world, id);

    await waitFor(async () => (await world.request(id))['state'] === 'submitting', {
      what: 'the worker to tell',
    });
    expect(await world.attempts(id)).toMatchObject([{ id: attemptId, attempt: 1, settled_at: null }]);
    expect(await world.database.query('select doubt from onetake.installation')).toEqual([
      { doubt: 'intent_lost' },
    ]);
    expect(world.events).toContainEqual({
      name: 'submission:alert',
      event: { requestId: id, attemptId, reason: 'intent_lost', httpStatus: null },
    });
    await world.database.query(`select onetake.resume_installation(${NOTE}, force => true)`);
    const other = world.worker();
    for (let round = 0; round < 3; round++) expect(await other.runOnce()).toBe(0);

    call.accept('its task');
    await waitFor(async () => (await world.request(id))['state'] === 'accepted', { what: 'the acceptance' });
    expect(await world.request(id)).toMatchObject({ provider_task_id: 'its task', charge: 'charged' });
    expect(world.posts()).toBe(1);
  });

  test('what it has settled a moment ago', async () => {
    const world = await openWorld({ provider: 'raw' });
    world.raw.onPost = (call) => call.accept('its task');
    const id = await world.song('settled');
    const worker = world.worker();
    await worker.start();
    await waitFor(async () => (await world.request(id))['state'] === 'accepted', { what: 'the acceptance' });
    await forget(world, id);
    await waitFor(async () => (await world.request(id))['state'] === 'accepted', { what: 'it again' });
    expect(await world.request(id)).toMatchObject({ provider_task_id: 'its task', charge: 'charged' });
    expect(await world.attempts(id)).toHaveLength(1);
    expect(world.posts()).toBe(1);
  });

  test('what it has settled, where only the settlement is lost', async () => {
    const world = await openWorld({ provider: 'raw' });
    world.raw.onPost = (call) => call.accept('its task');
    const id = await world.song('settled');
    const worker = world.worker();
    await worker.runOnce();
    await world.database.query(`begin;
set local session_replication_role = replica;
update onetake.submission_attempts set settled_at = null, settled_by = null, phase = null, health = null, certainty = null,
  reason = null, http_status = null, provider_task_id = null, health_applied_at = null, health_effect = null;
update onetake.generation_requests
set state = 'submitting', provider_task_id = null, accepted_at = null, next_poll_at = null, charge = 'none';
update onetake.installation set timeline = timeline + 1;
commit`);
    await waitFor(
      async () => {
        await worker.runOnce();
        return (await world.request(id))['state'] === 'accepted';
      },
      { what: 'the acceptance again' },
    );
    expect(await world.database.query('select doubt from onetake.installation')).toEqual([
      { doubt: 'intent_lost' },
    ]);
  });

  test('under a later attempt that is refused while the first is on the wire: frozen, not sent a third time', async () => {
    const world = await openWorld({ provider: 'raw' });
    world.raw.onPost = hold;
    const id = await world.song('twice on the wire');
    const worker = world.worker({ name: 'the one that knows' });
    await worker.start();
    const first = await world.raw.post(1);
    // Restored, resumed in haste, and submitted by another worker, before this one can tell.
    await world.database.query(`begin;
set local session_replication_role = replica;
delete from onetake.submission_attempts where request_id = '${id}';
update onetake.generation_requests set state = 'submitting', submissions = 1 where id = '${id}';
commit`);
    const ctx = await lifecycleContext({
      connectionString: world.database.connectionString,
      config: world.config,
    });
    onTestFinished(() => ctx.stop());
    const later = await insertAttempt(world.database, id, { started_at: new Date(Date.now() + 1_000) });
    await waitFor(async () => (await world.attempts(id)).length === 2, { what: 'the worker to tell' });
    const refused = outcomeOfResponse({ status: 429, capacity: 'rate' });
    const evidence = { phase: 'answered', httpStatus: 429, errorCode: null } as const;
    await ctx.database.transaction((tx) =>
      recordOutcome(
        ctx,
        tx,
        { requestId: id, attemptId: later },
        {
          ...refused,
          retryAfterMs: null,
          evidence: { ...evidence, providerTaskId: null, responseAgeMs: 1, closed: true },
        },
        'worker',
      ),
    );
    expect(await world.request(id)).toMatchObject({ state: 'ambiguous', state_reason: 'intent_lost' });
    first.accept('its task');
    await waitFor(async () => (await world.request(id))['charge'] === 'charged', { what: 'the outcome' });
    expect(world.posts()).toBe(1);
  });

  test('by its spool, after a restart: admission stops on that proof', async () => {
    const world = await openWorld({ provider: 'raw' });
    const id = await world.song('in the spool');
    const ctx = await lifecycleContext({
      connectionString: world.database.connectionString,
      config: world.config,
    });
    onTestFinished(() => ctx.stop());
    const batch = await admit(ctx, await laneOf(ctx), { wanted: 1 });
    if (!('attempts' in batch)) throw new Error(`blocked: ${batch.blockedBy}`);
    const [{ fields, ...intent }] = batch.attempts as [AdmittedAttempt];
    await ctx.spool.keep({ intent, outcome: spooledOutcome().outcome });
    await forget(world, id);
    await world.song('another');
    expect(await world.worker().runOnce()).toBe(0);
    expect(await world.request(id)).toMatchObject({ state: 'accepted', provider_task_id: 'a-task' });
    expect(await world.database.query('select doubt from onetake.installation')).toEqual([
      { doubt: 'intent_lost' },
    ]);
    expect(fields).toBeDefined();
  });

  test('under a later attempt that was admitted meanwhile: frozen, and never sent a third time', async () => {
    const world = await openWorld({ provider: 'raw' });
    world.raw.onPost = hold;
    const id = await world.song('twice on the wire');
    const worker = world.worker({ name: 'the one that knows' });
    await worker.start();
    const first = await world.raw.post(1);
    const [{ id: attemptId, started_at: startedAt }] = (await world.attempts(id)) as [
      Record<'id' | 'started_at', unknown>,
    ];
    // Another worker submits it after a hasty resumption, and is refused.
    await world.database.query(`begin;
set local session_replication_role = replica;
delete from onetake.submission_attempts where request_id = '${id}';
update onetake.generation_requests set state = 'queued', submissions = 1 where id = '${id}';
commit`);
    await insertAttempt(world.database, id, {
      started_at: new Date(Number(startedAt) + 1),
      ...settledAs('refused', { reason: 'rate_limited', http_status: 429 }),
    });

    await waitFor(async () => (await world.request(id))['state'] === 'ambiguous', { what: 'the freeze' });
    expect(await world.request(id)).toMatchObject({ state_reason: 'intent_lost', submissions: 1 });
    expect(await world.attempts(id)).toMatchObject([{ id: attemptId, attempt: 0 }, { attempt: 1 }]);
    first.accept('its task');
    await waitFor(async () => (await world.attempts(id))[0]?.['settled_at'], { what: 'the outcome' });
    expect(await world.request(id)).toMatchObject({ state: 'ambiguous', charge: 'charged' });
    expect(world.posts()).toBe(1);
  });
});

async function prepared() {
  const world = await openWorld({ provider: 'raw' });
  const { connectionString } = world.database;
  const ctx = await lifecycleContext({ connectionString, config: world.config });
  onTestFinished(() => ctx.stop());
  await world.song('a song');
  return { world, ctx };
}

async function markOf(ctx: Awaited<ReturnType<typeof lifecycleContext>>): Promise<InstallationMark> {
  expect(await ctx.guard.recognises()).toBe(true);
  return ctx.guard.mark as InstallationMark;
}

/** The request is `queued` again and its attempt gone, as if their transactions had never been. */
async function forget(world: World, id: string): Promise<void> {
  await world.database.query(`begin;
set local session_replication_role = replica;
delete from onetake.submission_attempts where request_id = '${id}';
update onetake.generation_requests
set state = 'queued', submissions = 0, job_due = true, provider_task_id = null, accepted_at = null, next_poll_at = null, charge = 'none'
where id = '${id}';
commit`);
}
