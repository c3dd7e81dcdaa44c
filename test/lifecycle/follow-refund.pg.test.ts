import { beforeEach, describe, expect, it } from 'vitest';
import { rescue } from '../../src/lifecycle/rescue.ts';
import { settle } from '../../src/lifecycle/settle.ts';
import { type Attempt, type AttemptWorld, OPERATOR, openAttemptWorld } from '../support/attempts.ts';
import { acceptedAs, answeredWith, refusedWith, UNSENT } from '../support/outcomes.ts';
import { hold, type ProviderCall } from '../support/raw-provider.ts';
import { waitFor } from '../support/wait-for.ts';
import type { Row } from '../support/world.ts';

type Answer = (call: ProviderCall) => void;

const HOUR_MS = 3_600_000;

let world: AttemptWorld;
let answers: Record<string, Answer>;
beforeEach(async () => {
  // A pause of an account's reads lasts for seconds here, however long a test takes from one round to the next.
  world = await openAttemptWorld({ config: { poller: { intervalMs: 500, maxIntervalMs: 60_000 } } });
  answers = {};
  world.raw.onGet = (call) => {
    const taskId = call.path.split('/').at(-1) as string;
    (answers[taskId] ?? processing)(call);
  };
});

const reading = (call: ProviderCall, body: object) =>
  call.answer(200, { task_id: call.path.split('/').at(-1), ...body });
const processing: Answer = (call) => reading(call, { status: 'processing' });
const succeeded: Answer = (call) =>
  reading(call, {
    status: 'succeeded',
    audio: [{ stream_index: 0, url: 'https://files.example.com/a.wav', content_type: 'audio/wav' }],
  });
const failed =
  (refunded?: boolean): Answer =>
  (call) =>
    reading(call, {
      status: 'failed',
      error: { code: 'x' },
      ...(refunded === undefined ? {} : { refunded }),
    });

/** One request paid for twice: its own task is `second`, and `first` is nobody's. */
async function paidTwice(): Promise<Attempt> {
  const first = await world.lost('one');
  const second = await world.again(first);
  await settle(world.ctx, first, acceptedAs('first'));
  await settle(world.ctx, second, acceptedAs('second'));
  expect(await world.request(first.requestId)).toMatchObject({
    state: 'accepted',
    provider_task_id: 'second',
    attention: 'possibly_paid_twice',
    charge: 'charged',
  });
  return first;
}

/** So much later; every read that is due by then is made, each at most once. */
async function later(ms: number): Promise<void> {
  await world.passTime(ms);
  await world.poller().runOnce();
}

const followed = (): Promise<Row[]> =>
  world.database.query('select * from onetake.followed_tasks order by since');
const reads = (taskId: string) => world.raw.gets.filter(({ path }) => path.endsWith(`/${taskId}`)).length;

describe('a task that was paid for a second time', () => {
  it('is followed to its refund, beside the request’s own; then the alarm ends', async () => {
    const { requestId } = await paidTwice();
    await later(1_000);
    expect([reads('first'), reads('second')]).toEqual([1, 1]);
    answers = { first: failed(), second: succeeded };
    await later(60_000);
    expect(await world.request(requestId)).toMatchObject({ state: 'succeeded', charge: 'charged' });
    expect(await followed()).toMatchObject([
      { provider_task_id: 'first', outcome: 'failed', refunded: null },
    ]);

    answers = { first: failed(false) };
    await later(60_000);
    expect(await followed()).toMatchObject([{ refunded: false }]);
    expect(await world.request(requestId)).toMatchObject({ attention: 'possibly_paid_twice' });

    answers = { first: failed(true) };
    await later(60_000);
    expect(await followed()).toMatchObject([{ outcome: 'failed', refunded: true, next_look_at: null }]);
    // The other one was delivered, and is charged.
    expect(await world.request(requestId)).toMatchObject({
      attention: null,
      attention_since: null,
      charge: 'charged',
      refunded: null,
    });
    const refunds = world.events.filter(({ name }) => name === 'task:refunded');
    expect(refunds.map(({ event }) => event)).toEqual([{ requestId, providerTaskId: 'first' }]);
    const seen = reads('first');
    await later(HOUR_MS);
    expect(reads('first')).toBe(seen);
  });

  it('leaves the request refunded only when both are', async () => {
    const { requestId } = await paidTwice();
    answers = { second: failed(true) };
    await later(1_000);
    expect(await world.request(requestId)).toMatchObject({
      state: 'failed',
      refunded: true,
      charge: 'charged',
      attention: 'possibly_paid_twice',
    });
    answers = { first: failed(true) };
    await later(60_000);
    expect(await world.request(requestId)).toMatchObject({ charge: 'refunded', attention: null });
  });

  it('is one of two: the alarm ends with the refund of both', async () => {
    const first = await world.lost('one');
    const second = await world.again(first);
    await settle(world.ctx, second, answeredWith(502));
    await settle(world.ctx, first, acceptedAs('first'));
    const third = await world.again(second, { force: true });
    await settle(world.ctx, third, acceptedAs('third'));
    await world.ctx.database.executeSql(
      `insert into onetake.attempt_evidence (attempt_id, seen_at, source, certainty, provider_task_id)
values ($1, now(), 'late_answer', 'accepted', 'second')`,
      [second.attemptId],
    );
    await world.ctx.database.executeSql('select onetake.follow_other_tasks($1)', [first.requestId]);
    answers = { first: failed(true) };
    await later(1_000);
    expect(await followed()).toMatchObject([{ refunded: true }, { refunded: null }]);
    expect(await world.request(first.requestId)).toMatchObject({ attention: 'possibly_paid_twice' });
    answers = { second: failed(true) };
    await later(60_000);
    expect(await world.request(first.requestId)).toMatchObject({ attention: null, charge: 'charged' });
  });

  it('that is delivered stays charged and keeps the alarm, and is looked at no more', async () => {
    const { requestId } = await paidTwice();
    answers = { first: succeeded, second: failed(true) };
    await later(1_000);
    expect(await followed()).toMatchObject([{ outcome: 'succeeded', refunded: false, next_look_at: null }]);
    expect(await world.request(requestId)).toMatchObject({
      state: 'failed',
      charge: 'charged',
      attention: 'possibly_paid_twice',
    });
    // Its files are nobody's.
    expect(await world.database.query('select * from onetake.assets')).toEqual([]);
  });

  it('frees the slot of its own attempt when it ends, and no other', async () => {
    const { requestId } = await paidTwice();
    const freed = async () => (await world.attempts(requestId)).map(({ slot_freed_at: at }) => at !== null);
    answers = { first: failed() };
    await later(1_000);
    expect(await freed()).toEqual([true, false]);
    answers = { second: succeeded };
    await later(60_000);
    expect(await freed()).toEqual([true, true]);
  });

  it('is asked again after reads that tell nothing, more and more rarely, and at last no more', async () => {
    await paidTwice();
    const own = world.request.bind(world);
    answers = { first: (call) => call.answer(502, 'bad gateway') };
    for (let n = 1; n <= 3; n++) {
      await later(60_000);
      expect(await followed()).toMatchObject([{ look_errors: n, outcome: null, refunded: null }]);
    }
    answers = { first: processing };
    await later(60_000);
    expect(await followed()).toMatchObject([{ look_errors: 0 }]);
    // Its maximum run time and an hour for the refund.
    const [row] = (await followed()) as [Row];
    const attempt = (await world.attempts(row['request_id'] as string))[0] as Row;
    expect(Number(row['follow_until']) - Number(attempt['slot_until'])).toBe(HOUR_MS);
    await world.passTime(Number(row['follow_until']) - Date.now() + 1_000);
    const seen = reads('first');
    await world.poller().runOnce();
    expect(reads('first')).toBe(seen);
    expect(await followed()).toMatchObject([{ next_look_at: null, refunded: null }]);
    expect(await own(row['request_id'] as string)).toMatchObject({ attention: 'possibly_paid_twice' });
  });

  it('waits while the reads of its account are paused, and tries them for all after it', async () => {
    const { requestId } = await paidTwice();
    await world.passTime(1_000);
    await world.database.query(
      `insert into onetake.read_pauses (account, since, paused_until, failures, reason)
values ('default', clock_timestamp(), clock_timestamp() + interval '1 min', 3, 'http_503')`,
    );
    const poller = world.poller();
    while ((await poller.runOnce()) > 0);
    expect(world.raw.gets).toEqual([]);
    const waiting =
      'select next_look_at > paused_until as behind from onetake.followed_tasks, onetake.read_pauses';
    expect(await world.database.query(waiting)).toEqual([{ behind: true }]);

    answers = { first: (call) => call.answer(429, {}) };
    await world.passTime(120_000);
    while ((await poller.runOnce()) > 0);
    // It alone, and it prolongs the pause.
    expect([reads('first'), reads('second')]).toEqual([1, 0]);
    const [pause] = await world.database.query(
      'select failures, reason, probe_until from onetake.read_pauses',
    );
    expect(pause).toEqual({ failures: 4, reason: 'http_429', probe_until: null });

    answers = { first: failed(true), second: succeeded };
    for (let n = 0; n < 2; n++) await later(400_000);
    expect(await world.request(requestId)).toMatchObject({ state: 'succeeded', attention: null });
    expect(await world.database.query('select since from onetake.read_pauses')).toEqual([{ since: null }]);
  });

  it('is watched for an hour from its end', async () => {
    await paidTwice();
    answers = { first: failed() };
    await later(1_000);
    const [row] = (await followed()) as [Row];
    expect(Number(row['follow_until']) - Number(row['finished_at'])).toBe(HOUR_MS);
    const since = row['finished_at'];
    await later(30 * 60_000);
    expect((await followed())[0]?.['outcome']).toBe('failed');
    await world.passTime(30 * 60_000);
    const seen = reads('first');
    await world.poller().runOnce();
    expect(reads('first')).toBe(seen);
    expect(since).not.toBeNull();
  });

  it('whose acceptance comes after all of that time is still followed for an hour', async () => {
    const first = await world.lost('one');
    await world.again(first);
    await world.passTime(24 * HOUR_MS);
    await settle(world.ctx, first, acceptedAs('first'));
    answers = { first: failed(true) };
    await later(1_000);
    expect(await followed()).toMatchObject([{ outcome: 'failed', refunded: true }]);
  });

  it('is read once by however many pollers', async () => {
    await paidTwice();
    world.raw.onGet = hold;
    const pollers = [world.poller(), world.poller(), world.poller()];
    await world.passTime(1_000);
    const ran = Promise.all(pollers.map((poller) => poller.runOnce()));
    await waitFor(() => world.raw.gets.length === 2, { what: 'both tasks to be read' });
    for (const call of world.raw.gets) failed()(call);
    expect((await ran).reduce((sum, count) => sum + count, 0)).toBe(2);
    expect([reads('first'), reads('second')]).toEqual([1, 1]);
  });

  it('is found again by another poller when the one that reads it is killed', async () => {
    await paidTwice();
    world.raw.onGet = hold;
    const child = await world.child('poller');
    await waitFor(() => reads('first') === 1, { what: 'the task to be read' });
    await child.kill('SIGKILL');
    world.raw.onGet = failed(true);
    await later(31_000);
    expect(await followed()).toMatchObject([{ refunded: true }]);
  });

  it('leaves the other three quarters of a poller to the requests’ own tasks', async () => {
    const poller = { intervalMs: 50, maxIntervalMs: 50, concurrency: 4 };
    world = await openAttemptWorld({ config: { poller } });
    world.raw.onGet = hold;
    for (let n = 0; n < 3; n++) {
      const first = await world.lost(`twice ${n}`);
      const second = await world.again(first);
      await settle(world.ctx, first, acceptedAs(`first-${n}`));
      await settle(world.ctx, second, acceptedAs(`second-${n}`));
    }
    await world.passTime(1_000);
    const ran = world.poller().runOnce();
    await waitFor(() => world.raw.gets.length === 4, { what: 'four reads' });
    expect(world.raw.gets.filter(({ path }) => path.includes('first'))).toHaveLength(1);
    for (const call of world.raw.gets) failed()(call);
    expect(await ran).toBe(4);
  });
});

describe('an acceptance of a request that had ended', () => {
  it.each([
    ['cancelled', { as: 'not_accepted', resubmit: false }],
    ['failed', { as: 'abandoned' }],
  ] as const)('as %s: is followed for its refund', async (state, how) => {
    const attempt = await world.lost('one');
    await world.client.resolve({ id: attempt.requestId, ...how, ...OPERATOR });
    await settle(world.ctx, attempt, acceptedAs('first'));
    expect(await world.request(attempt.requestId)).toMatchObject({
      state,
      charge: 'charged',
      attention: 'paid_though_withdrawn',
    });
    answers = { first: failed(true) };
    await later(1_000);
    expect(await world.request(attempt.requestId)).toMatchObject({
      state,
      charge: 'refunded',
      attention: null,
      provider_task_id: null,
    });
  });
});

describe('a task that its request takes for its own after all', () => {
  it('because the later attempt bought nothing: is polled as such, once', async () => {
    const first = await world.lost('one');
    const second = await world.again(first);
    await settle(world.ctx, first, acceptedAs('first'));
    await settle(world.ctx, second, refusedWith(422));
    expect(await world.request(first.requestId)).toMatchObject({
      state: 'accepted',
      provider_task_id: 'first',
    });
    answers = { first: failed(true) };
    await later(1_000);
    expect(reads('first')).toBe(1);
    expect(await world.request(first.requestId)).toMatchObject({
      state: 'failed',
      charge: 'refunded',
      refunded: true,
    });
    expect((await world.client.get(first.requestId))?.otherTasks).toEqual([]);
  });

  it('is not taken once its money has come back: the intent may go again', async () => {
    const first = await world.lost('one');
    const second = await world.again(first);
    await settle(world.ctx, first, acceptedAs('first'));
    answers = { first: failed(true) };
    await later(1_000);
    await settle(world.ctx, second, UNSENT);
    expect(await world.request(first.requestId)).toMatchObject({ state: 'queued', charge: 'refunded' });
  });

  it('is followed again when an operator takes his word back', async () => {
    const first = await world.lost('one');
    const second = await world.again(first);
    await settle(world.ctx, second, answeredWith(502));
    await settle(world.ctx, first, acceptedAs('first'));
    const { requestId: id } = first;
    await world.client.resolve({ id, as: 'accepted', providerTaskId: 'first', ...OPERATOR });
    await later(1_000);
    expect(await followed()).toMatchObject([{ next_look_at: null }]);
    await world.client.reopen(id, OPERATOR);
    expect(await followed()).toMatchObject([{ provider_task_id: 'first', outcome: null }]);
    expect((await followed())[0]?.['next_look_at']).not.toBeNull();
    answers = { first: failed(true) };
    await later(1_000);
    // What became of the second POST nobody knows.
    expect(await world.request(id)).toMatchObject({ state: 'ambiguous', charge: 'possible' });
    expect(await world.client.listAmbiguous({ id })).toMatchObject([
      { evidence: expect.stringContaining('task first failed refunded') },
    ]);
  });

  it('that the provider itself named to a worker is followed once the operator’s word is taken back', async () => {
    const attempt = await world.lost('one');
    const { requestId: id } = attempt;
    await world.client.resolve({ id, as: 'accepted', providerTaskId: 'first', ...OPERATOR });
    await settle(world.ctx, attempt, acceptedAs('first'));
    expect(await followed()).toEqual([]);
    await world.client.reopen(id, OPERATOR);
    expect(await followed()).toMatchObject([{ provider_task_id: 'first' }]);
  });
});

describe('two tasks of one attempt', () => {
  it('count each for itself', async () => {
    const attempt = await world.lost('one');
    const { requestId: id } = attempt;
    await world.client.resolve({ id, as: 'accepted', providerTaskId: 'by-hand', ...OPERATOR });
    answers = { 'by-hand': failed(true) };
    await later(1_000);
    expect(await world.request(id)).toMatchObject({ state: 'failed', charge: 'refunded' });
    await settle(world.ctx, attempt, acceptedAs('first'));
    expect(await world.request(id)).toMatchObject({ charge: 'charged', attention: 'possibly_paid_twice' });
    answers = { first: failed(true) };
    await later(1_000);
    expect(await world.request(id)).toMatchObject({ charge: 'refunded', attention: null });
  });
});

describe('a followed task', () => {
  it('belongs to its request: nobody else’s answer and no operator can claim it', async () => {
    await paidTwice();
    const other = await world.song('other');
    const attempt = await world.admitted();
    expect(attempt.requestId).toBe(other);
    await settle(world.ctx, attempt, acceptedAs('first'));
    expect(await world.request(other)).toMatchObject({
      state: 'ambiguous',
      state_reason: 'task_id_conflict',
    });
    await expect(
      world.client.resolve({ id: other, as: 'accepted', providerTaskId: 'first', ...OPERATOR }),
    ).rejects.toMatchObject({ code: 'task_id_in_use' });
  });

  it('whose id another request has taken meanwhile is not taken a second time', async () => {
    const first = await world.lost('one');
    const second = await world.again(first);
    await settle(world.ctx, first, acceptedAs('first'));
    const other = await world.song('other');
    const third = await world.admitted();
    // As if both answers had been settled in the same moment.
    await world.database.query(
      `update onetake.generation_requests set provider_task_id = 'first', state = 'accepted', accepted_at = now(), state_reason = null where id = $1`,
      [third.requestId],
    );
    await settle(world.ctx, second, UNSENT);
    expect(await world.request(first.requestId)).toMatchObject({ state: 'queued', submissions: 2 });
    expect(await world.request(other)).toMatchObject({ state: 'accepted' });
  });

  it('is shown with its request, and in SQL', async () => {
    const { requestId: id } = await paidTwice();
    expect(await world.client.get(id)).toMatchObject({
      providerTaskId: 'second',
      otherTasks: [
        {
          providerTaskId: 'first',
          attempt: 1,
          status: 'processing',
          refunded: null,
          followedUntil: expect.any(Date),
        },
      ],
    });
    expect(await world.database.query('select * from onetake.unclaimed_tasks')).toMatchObject([
      { request_id: id, provider_task_id: 'first', task_of_request: 'second', state: 'accepted' },
    ]);
  });
});

describe('an operator who has looked', () => {
  it('ends the alarm; the task is followed as before, and the charge says what it said', async () => {
    const { requestId: id } = await paidTwice();
    expect(await world.client.acknowledge(id, OPERATOR)).toMatchObject({ from: 'accepted', to: 'accepted' });
    expect(await world.request(id)).toMatchObject({ attention: null, charge: 'charged' });
    await expect(world.client.acknowledge(id, OPERATOR)).rejects.toMatchObject({
      code: 'request_not_in_state',
    });
    answers = { first: failed() };
    await later(1_000);
    expect(await followed()).toMatchObject([{ outcome: 'failed' }]);
    expect(await world.request(id)).toMatchObject({ attention: null });
    expect(await rescue(world.ctx)).toBe(0);
    expect(
      await world.database.query(
        'select action, actor, reason from onetake.operator_actions where action = $1',
        ['acknowledge'],
      ),
    ).toEqual([{ action: 'acknowledge', ...OPERATOR }]);
  });
});
