import { beforeEach, describe, expect, it, onTestFinished } from 'vitest';
import { outcomeOfRepeatedSend, outcomeOfResponse } from '../../src/core/outcome.ts';
import type { SubmissionOutcome } from '../../src/core/provider.ts';
import { type AdmittedBatch, admit } from '../../src/lifecycle/admit.ts';
import { recordOutcome, type Teller } from '../../src/lifecycle/record-outcome.ts';
import { rescue } from '../../src/lifecycle/rescue.ts';
import { settle } from '../../src/lifecycle/settle.ts';
import { COMMIT, databaseProxy } from '../support/database-proxy.ts';
import { type LifecycleContext, laneOf, lifecycleContext } from '../support/lifecycle-context.ts';
import { outcomeOf } from '../support/outcomes.ts';
import { waitFor } from '../support/wait-for.ts';
import { jobRows, LEASE_MS, openWorld, type World } from '../support/world.ts';

const OPERATOR = { actor: 'an operator', reason: 'looked it up in the ledger' };

const accepted = (taskId = 'a-task') => outcomeOf({}, { providerTaskId: taskId });
const BAD_GATEWAY = outcomeOf(
  { health: 'dependency_failure', certainty: 'unknown', reason: 'server_error' },
  { httpStatus: 502 },
);
const REFUSED = outcomeOf(
  { health: 'request_or_account_failure', certainty: 'refused', reason: 'request_refused' },
  { httpStatus: 422 },
);
const WITHOUT_ID = outcomeOf(
  { health: 'unknown_failure', certainty: 'unknown', reason: 'accepted_without_task_id', alert: true },
  { httpStatus: 200 },
);
const TRANSPORT = outcomeOf(
  { health: 'dependency_failure', certainty: 'unknown', reason: 'transport' },
  { phase: 'sent', httpStatus: null, errorCode: 'ECONNRESET', closed: true },
);
const UNSENT = outcomeOf(
  { health: 'dependency_failure', certainty: 'unsent', reason: 'unsent' },
  {
    phase: 'unsent',
    headersSent: false,
    headersSentProof: 'oracle',
    httpStatus: null,
    errorCode: 'ECONNREFUSED',
  },
);

let world: World;
let ctx: LifecycleContext;

beforeEach(async () => {
  world = await openWorld({ provider: 'raw', operation: { rearmQuarantineMs: 0 } });
  ctx = await lifecycleContext(
    { connectionString: world.database.connectionString, config: world.config },
    { emit: (name, event) => (world.events as object[]).push({ name, event }) },
  );
  onTestFinished(() => ctx.stop());
});

async function admitted(): Promise<AdmittedBatch['attempts'][number]> {
  const batch = await admit(ctx, await laneOf(ctx), { wanted: 1 });
  if (!('attempts' in batch)) throw new Error(`not admitted: ${batch.blockedBy}`);
  return batch.attempts[0] as AdmittedBatch['attempts'][number];
}

/** One song whose worker is gone: frozen by rescue, with the slot still taken. */
async function lostSong(): Promise<AdmittedBatch['attempts'][number]> {
  await world.song('one');
  const attempt = await admitted();
  await world.passTime(LEASE_MS + 1);
  await rescue(ctx);
  expect(await world.request(attempt.requestId)).toMatchObject({
    state: 'ambiguous',
    state_reason: 'worker_lost',
  });
  return attempt;
}

/** Permits its second POST and has it admitted. */
async function admittedAgain(
  first: AdmittedBatch['attempts'][number],
): Promise<AdmittedBatch['attempts'][number]> {
  await world.client.resolve({ id: first.requestId, as: 'not_accepted', ...OPERATOR });
  await rescue(ctx);
  const second = await admitted();
  expect(second).toMatchObject({ requestId: first.requestId, attempt: 2 });
  return second;
}

describe('one outcome', () => {
  it('settles once, however often and in however many transactions it is recorded', async () => {
    await world.song('one');
    const attempt = await admitted();
    await Promise.all(Array.from({ length: 6 }, () => settle(ctx, attempt, BAD_GATEWAY)));
    await settle(ctx, attempt, accepted());
    expect(await world.request(attempt.requestId)).toMatchObject({
      state: 'ambiguous',
      state_reason: 'server_error',
    });
    expect(await world.attempt(attempt.requestId)).toMatchObject({
      http_status: 502,
      provider_task_id: null,
    });
    expect(await world.breaker()).toMatchObject({ consecutive_failures: 1 });
    expect(await world.database.query('select * from onetake.attempt_evidence')).toEqual([]);
    expect(world.events.filter(({ name }) => name === 'submission:settled')).toHaveLength(1);
  });

  it('sends the next job in the same transaction, one job whatever was there', async () => {
    const id = await world.song('one');
    const attempt = await admitted();
    expect(await jobRows(world.database)).toEqual([]);
    await ctx.database.transaction((tx) => ctx.queue.send(tx, { ...attempt, id, jobPriority: -1 }, null));
    await settle(ctx, attempt, UNSENT);
    expect(await jobRows(world.database)).toHaveLength(1);
    expect(await world.request(id)).toMatchObject({ state: 'queued', job_due: false });
  });

  it('is recorded although its job can’t be sent: the row then asks for one', async () => {
    const id = await world.song('one');
    const attempt = await admitted();
    await world.database.query('alter table onetake_queue.job_common rename to job_away');
    await settle(ctx, attempt, UNSENT);
    await world.database.query('alter table onetake_queue.job_away rename to job_common');
    expect(await world.request(id)).toMatchObject({ state: 'queued', state_reason: 'unsent', job_due: true });
    await rescue(ctx);
    expect(await world.request(id)).toMatchObject({ job_due: false });
    expect(await jobRows(world.database)).toHaveLength(1);
  });

  it('returned to the queue twenty times asks for a person', async () => {
    const id = await world.song('one');
    await world.database.query('update onetake.generation_requests set submissions = 19');
    await settle(ctx, await admitted(), UNSENT);
    expect(await world.request(id)).toMatchObject({
      state: 'queued',
      attention: 'returned_many_times',
      submissions: 20,
    });
  });
});

describe('*unsent*', () => {
  const record = (attempt: { attemptId: string; requestId: string }, teller: Teller, told = UNSENT) =>
    ctx.database.transaction((tx) => recordOutcome(ctx, tx, attempt, told, teller));
  const FROZEN = { state: 'ambiguous', state_reason: 'worker_lost', charge: 'possible' };

  it('told by the live attempt frees the request for another POST', async () => {
    const id = await world.song('one');
    await record(await admitted(), 'worker');
    expect(await world.request(id)).toMatchObject({ state: 'queued', state_reason: 'unsent' });
    expect(await world.attempt(id)).toMatchObject({
      certainty: 'unsent',
      headers_sent: false,
      headers_sent_proof: 'oracle',
    });
    expect(await jobRows(world.database)).toHaveLength(1);
  });

  it.each<[string, Teller, number]>([
    ['by the worker after its lease', 'worker', LEASE_MS + 1],
    ['by a file after the lease', 'replay', LEASE_MS + 1],
  ])('told %s frees nothing: the request is frozen, with what was said', async (_title, teller, passed) => {
    const id = await world.song('one');
    const attempt = await admitted();
    await world.passTime(passed);
    await record(attempt, teller);
    expect(await world.request(id)).toMatchObject(FROZEN);
    expect(await world.attempt(id)).toMatchObject({
      certainty: 'unknown',
      health: 'none',
      phase: 'unsent',
      headers_sent: false,
      error_code: 'ECONNREFUSED',
    });
    expect(await jobRows(world.database)).toEqual([]);
    // And it stays so, whoever says it again.
    await record(attempt, teller);
    await rescue(ctx);
    expect(await world.request(id)).toMatchObject(FROZEN);
  });

  it('told by a file while the lease runs moves nothing: its worker may live, and its word counts', async () => {
    const id = await world.song('one');
    const attempt = await admitted();
    expect(await record(attempt, 'replay')).toMatchObject({ kind: 'wait' });
    expect(await world.request(id)).toMatchObject({ state: 'submitting' });
    expect(await world.attempt(id)).toMatchObject({ settled_at: null });
    await record(attempt, 'worker');
    expect(await world.request(id)).toMatchObject({ state: 'queued', state_reason: 'unsent' });
  });

  it('or a refusal, told after somebody has settled the attempt, returns nothing to the queue', async () => {
    const attempt = await lostSong();
    for (const status of [401, 402, 403, 429, 503]) {
      const answer = outcomeOfResponse({ status, resubmitOn: [503] });
      await record(attempt, 'worker', outcomeOf(answer, { httpStatus: status }));
      await record(attempt, 'replay', outcomeOf(answer, { httpStatus: status }));
    }
    await record(attempt, 'worker');
    await record(attempt, 'replay');
    expect(await world.request(attempt.requestId)).toMatchObject(FROZEN);
    expect(await jobRows(world.database)).toEqual([]);
    expect(await world.database.query('select * from onetake.account_holds')).toEqual([]);
  });

  it('is refused by the database, too, once the lease is over', async () => {
    const id = await world.song('one');
    const attempt = await admitted();
    await world.database.query(
      `update onetake.submission_attempts set settled_at = lease_expires_at + interval '1 ms', settled_by = 'worker',
  phase = 'unsent', health = 'none', certainty = 'unsent', reason = 'unsent' where id = $1`,
      [attempt.attemptId],
    );
    await expect(
      world.database.query(`update onetake.generation_requests set state = 'queued' where id = $1`, [id]),
    ).rejects.toMatchObject({ code: 'OT002' });
  });
});

describe('a second send that was stopped', () => {
  const record = async (told: SubmissionOutcome) => {
    const id = await world.song('one');
    await settle(ctx, await admitted(), told);
    return { id, request: await world.request(id) };
  };
  const names = () => world.events.map(({ name }) => name);

  it('is an alarm on an accepted request, and stays one', async () => {
    const answer = accepted();
    const { id, request } = await record({
      ...answer,
      alert: true,
      evidence: { ...answer.evidence, repeatedSend: true },
    });
    expect(request).toMatchObject({ state: 'accepted', attention: 'repeated_send', charge: 'charged' });
    expect(names()).toContain('submission:repeated');
    await world.database.query(
      `update onetake.generation_requests set state = 'failed', failure_reason = 'provider', next_poll_at = null,
  settled_at = clock_timestamp(), attention = onetake.lasting_attention(attention) where id = $1`,
      [id],
    );
    expect(await world.request(id)).toMatchObject({ attention: 'repeated_send' });
  });

  it('freezes any other', async () => {
    const { request } = await record(
      outcomeOf(outcomeOfRepeatedSend(UNSENT), { phase: 'sent', httpStatus: null, repeatedSend: true }),
    );
    expect(request).toMatchObject({
      state: 'ambiguous',
      state_reason: 'repeated_send',
      attention: 'repeated_send',
    });
    const alarm = world.events.find(({ name }) => name === 'submission:repeated');
    expect(Object.keys(alarm?.event ?? {}).sort()).toEqual(['attemptId', 'requestId']);
  });
});

describe('a COMMIT of an outcome whose answer is lost', () => {
  it.each(['before', 'after'] as const)('%s the server had it: the outcome is stored once', async (when) => {
    const proxy = await databaseProxy(world.database.connectionString);
    onTestFinished(() => proxy.stop());
    const shaky = await lifecycleContext({ connectionString: proxy.connectionString, config: world.config });
    onTestFinished(() => shaky.stop());
    await world.song('one');
    const attempt = await admitted();
    const cut = proxy.cutAt(COMMIT, when);

    await settle(shaky, attempt, BAD_GATEWAY);
    await cut;

    expect(await world.request(attempt.requestId)).toMatchObject({ state: 'ambiguous', charge: 'possible' });
    expect(await world.breaker()).toMatchObject({ consecutive_failures: 1 });
    expect(await world.database.query('select * from onetake.attempt_evidence')).toEqual([]);
  });

  it.each(['before', 'after'] as const)(
    '%s: an acceptance, which is one statement, is stored once too',
    async (when) => {
      const proxy = await databaseProxy(world.database.connectionString);
      onTestFinished(() => proxy.stop());
      const shaky = await lifecycleContext({
        connectionString: proxy.connectionString,
        config: world.config,
      });
      onTestFinished(() => shaky.stop());
      await world.song('one');
      const attempt = await admitted();
      const cut = proxy.cutAt('provider_task_id', when);

      await settle(shaky, attempt, accepted('paid-task'));
      await cut;

      expect(await world.request(attempt.requestId)).toMatchObject({
        state: 'accepted',
        provider_task_id: 'paid-task',
        charge: 'charged',
        attention: null,
      });
      expect(await world.attempt(attempt.requestId)).toMatchObject({
        certainty: 'accepted',
        health_effect: 'nothing_to_apply',
      });
      expect(await world.database.query('select * from onetake.attempt_evidence')).toEqual([]);
    },
  );

  it('survives a database that is away for a while, and says the task id meanwhile', async () => {
    const proxy = await databaseProxy(world.database.connectionString);
    onTestFinished(() => proxy.stop());
    const events: { name: string; event: object }[] = [];
    const shaky = await lifecycleContext(
      { connectionString: proxy.connectionString, config: world.config },
      { emit: (name, event) => void events.push({ name, event }) },
    );
    onTestFinished(() => shaky.stop());
    await world.song('one');
    const attempt = await admitted();
    await proxy.down();
    const settled = settle(shaky, attempt, accepted('paid-task'));
    await waitFor(() => events.length > 0, { what: 'the second copy in the log' });
    expect(events[0]).toMatchObject({
      name: 'submission:unsettled',
      event: { requestId: attempt.requestId, providerTaskId: 'paid-task' },
    });
    await proxy.up();
    await settled;
    expect(await world.request(attempt.requestId)).toMatchObject({
      state: 'accepted',
      provider_task_id: 'paid-task',
    });
  });
});

describe('an answer after the attempt was given up', () => {
  it('that accepts completes the frozen request, and frees nothing that still runs', async () => {
    const attempt = await lostSong();
    await settle(ctx, attempt, accepted());
    expect(await world.request(attempt.requestId)).toMatchObject({
      state: 'accepted',
      provider_task_id: 'a-task',
      charge: 'charged',
    });
    // The outcome columns are written once; what came later is evidence beside them.
    expect(await world.attempt(attempt.requestId)).toMatchObject({
      phase: 'lease_over',
      certainty: 'unknown',
      slot_freed_at: null,
    });
    expect(await world.database.query('select * from onetake.attempt_evidence')).toMatchObject([
      { source: 'late_answer', certainty: 'accepted', provider_task_id: 'a-task' },
    ]);
    expect(await world.breaker()).toMatchObject({ state: 'closed', consecutive_failures: 0 });
  });

  it('that refuses ends it; a 502 proves nothing', async () => {
    const attempt = await lostSong();
    await settle(ctx, attempt, BAD_GATEWAY);
    expect(await world.request(attempt.requestId)).toMatchObject({ state: 'ambiguous', charge: 'possible' });
    expect(await world.breaker()).toMatchObject({ consecutive_failures: 0 });
    await settle(ctx, attempt, REFUSED);
    expect(await world.request(attempt.requestId)).toMatchObject({ state: 'rejected', charge: 'none' });
  });

  it('withdraws a re-arm before it is paid', async () => {
    const attempt = await lostSong();
    await world.client.resolve({ id: attempt.requestId, as: 'not_accepted', ...OPERATOR });
    await settle(ctx, attempt, accepted());
    expect(await world.request(attempt.requestId)).toMatchObject({
      state: 'accepted',
      provider_task_id: 'a-task',
      job_due: false,
    });
    const worker = world.worker();
    await rescue(ctx);
    await worker.runOnce();
    expect(world.posts()).toBe(0);
    expect(await world.request(attempt.requestId)).toMatchObject({ state: 'accepted', submissions: 1 });
  });

  it('raises the alarm when the re-armed POST is out already', async () => {
    const first = await lostSong();
    await world.client.resolve({ id: first.requestId, as: 'not_accepted', ...OPERATOR });
    await rescue(ctx);
    const second = await admitted();
    expect(second.attempt).toBe(2);
    await settle(ctx, first, accepted('first-task'));
    expect(await world.request(first.requestId)).toMatchObject({
      state: 'submitting',
      attention: 'possibly_paid_twice',
    });
    await settle(ctx, second, accepted('second-task'));
    const request = await world.request(first.requestId);
    expect(request).toMatchObject({ state: 'accepted', provider_task_id: 'second-task', charge: 'charged' });
    expect(request['attention']).toBe('possibly_paid_twice');
  });

  it('takes the earlier attempt’s task when the later one bought nothing', async () => {
    const first = await lostSong();
    await world.client.resolve({ id: first.requestId, as: 'not_accepted', ...OPERATOR });
    await rescue(ctx);
    const second = await admitted();
    await settle(ctx, first, accepted('first-task'));
    await settle(ctx, second, UNSENT);
    expect(await world.request(first.requestId)).toMatchObject({
      state: 'accepted',
      provider_task_id: 'first-task',
      charge: 'charged',
    });
  });

  it.each<[string, SubmissionOutcome, string]>([
    ['a 200 without an id', WITHOUT_ID, 'attempt 1 was answered 200'],
    ['a 202 that names another request’s task', accepted('taken'), 'attempt 1 was answered 202'],
  ])(
    'that was most likely paid for, %s, is not called unaccepted without force',
    async (_what, late, named) => {
      const other = await world.song('other');
      await settle(ctx, await admitted(), accepted('taken'));
      expect(await world.request(other)).toMatchObject({ state: 'accepted' });
      const attempt = await lostSong();
      await settle(ctx, attempt, late);
      expect(await world.request(attempt.requestId)).toMatchObject({ state: 'ambiguous' });
      expect(await world.client.listAmbiguous()).toMatchObject([{ needsForce: true, paidEvidence: named }]);
      await expect(
        world.client.resolve({ id: attempt.requestId, as: 'not_accepted', ...OPERATOR }),
      ).rejects.toMatchObject({ code: 'request_not_in_state', message: expect.stringContaining(named) });
    },
  );

  it('that accepted an earlier attempt keeps an operator from a third POST without force', async () => {
    const first = await lostSong();
    const second = await admittedAgain(first);
    await settle(ctx, first, accepted('first-task'));
    await settle(ctx, second, BAD_GATEWAY);
    expect(await world.request(first.requestId)).toMatchObject({ state: 'ambiguous', charge: 'charged' });
    const rearm = { id: first.requestId, as: 'not_accepted', ...OPERATOR } as const;
    await expect(world.client.resolve(rearm)).rejects.toMatchObject({
      code: 'request_not_in_state',
      message: expect.stringContaining('attempt 1 was accepted as task first-task'),
    });
    expect(await world.client.resolve({ ...rearm, force: true })).toMatchObject({ to: 'queued' });
  });

  it('gives the money of its task back to its own attempt', async () => {
    const first = await lostSong();
    const second = await admittedAgain(first);
    await settle(ctx, first, accepted('first-task'));
    await settle(ctx, second, REFUSED);
    expect(await world.request(first.requestId)).toMatchObject({ state: 'accepted' });
    await refundAt('first-task');
    expect(await world.request(first.requestId)).toMatchObject({
      state: 'failed',
      charge: 'refunded',
      refunded: true,
    });
    expect((await world.attempts(first.requestId)).map((attempt) => attempt['refunded'])).toEqual([
      true,
      null,
    ]);
  });

  it('that an operator attaches counts once, and its end frees no other attempt’s slot', async () => {
    const first = await lostSong();
    const second = await admittedAgain(first);
    await settle(ctx, second, TRANSPORT);
    await settle(ctx, first, accepted('first-task'));
    await world.client.resolve({
      id: first.requestId,
      as: 'accepted',
      providerTaskId: 'first-task',
      ...OPERATOR,
    });
    expect(await world.request(first.requestId)).toMatchObject({ state: 'accepted', charge: 'charged' });
    await refundAt('first-task');
    // What became of the second POST is as unknown as it was.
    expect(await world.request(first.requestId)).toMatchObject({ state: 'failed', charge: 'possible' });
    expect(await world.attempt(first.requestId)).toMatchObject({
      attempt: 2,
      refunded: null,
      slot_freed_at: null,
    });
  });

  it.each([
    ['cancelled', { as: 'not_accepted', resubmit: false }],
    ['failed', { as: 'abandoned' }],
  ] as const)('finds it %s: paid though withdrawn', async (state, how) => {
    const attempt = await lostSong();
    await world.client.resolve({ id: attempt.requestId, ...how, ...OPERATOR });
    await settle(ctx, attempt, accepted());
    expect(await world.request(attempt.requestId)).toMatchObject({
      state,
      attention: 'paid_though_withdrawn',
      charge: 'charged',
    });
  });

  it('that names the task which an operator has attached says nothing new', async () => {
    const attempt = await lostSong();
    await world.client.resolve({
      id: attempt.requestId,
      as: 'accepted',
      providerTaskId: 'a-task',
      ...OPERATOR,
    });
    await settle(ctx, attempt, accepted());
    expect(await world.request(attempt.requestId)).toMatchObject({ state: 'accepted', attention: null });
    await settle(ctx, attempt, accepted('another-task'));
    expect(await world.request(attempt.requestId)).toMatchObject({
      attention: 'possibly_paid_twice',
      provider_task_id: 'a-task',
    });
  });

  it('is taken from the worker, not from rescue, while the lease runs', async () => {
    await world.song('one');
    const attempt = await admitted();
    await ctx.database.transaction((tx) => recordOutcome(ctx, tx, attempt, BAD_GATEWAY, 'rescue'));
    expect(await world.request(attempt.requestId)).toMatchObject({ state: 'submitting' });
  });
});

/** The provider says of the one task that is followed that it failed and was refunded. */
async function refundAt(taskId: string): Promise<void> {
  world.raw.onGet = (call) =>
    call.answer(200, { task_id: taskId, status: 'failed', error: { code: 'x' }, refunded: true });
  await world.passTime(1_000);
  expect(await world.poller().runOnce()).toBe(1);
  expect(world.raw.gets.at(-1)?.path).toBe(`/v1/tasks/${taskId}`);
}
