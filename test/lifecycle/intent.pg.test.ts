import { randomUUID } from 'node:crypto';
import { describe, expect, it } from 'vitest';
import { rescue } from '../../src/lifecycle/rescue.ts';
import type { settle } from '../../src/lifecycle/settle.ts';
import { COOLDOWN_MS, openBreakerWorld } from '../support/breaker-world.ts';
import { startChild } from '../support/children.ts';
import { acceptedAs, answeredWith, refusedWith, UNSENT } from '../support/outcomes.ts';
import { openWorld } from '../support/world.ts';

const NOTE = { actor: 'mia', reason: 'not wanted any more' };

/** Enqueues one key 25 times at once, in transactions of its own begun so; tells ids and codes of errors. */
const ENQUEUER = `import pg from 'pg';
import { createClient } from './src/index.ts';
const pool = new pg.Pool({ connectionString: process.env.TEST_URL, max: 25 });
const client = createClient({ pool });
const { TEST_KEY: requestKey, TEST_BEGIN: begin } = process.env;
const once = async () => {
  for (let tries = 1; ; tries++) {
    const tx = await pool.connect();
    try {
      await tx.query(begin);
      await tx.query('select count(*) from onetake.accounts');
      const result = await client.enqueue({ operation: 'text-to-music', fields: { prompt: 'rain' }, requestKey }, { tx });
      await tx.query('commit');
      return result;
    } catch (error) {
      await tx.query('rollback');
      if (error.code !== 'serialization_failure' || error.name !== 'OnetakeError' || tries > 50) {
        return { error: error.code + ' ' + error.name };
      }
    } finally {
      tx.release();
    }
  }
};
await pool.query('select 1');
console.log(JSON.stringify({ ready: true }));
process.stdin.once('data', async () => {
  console.log(JSON.stringify({ results: await Promise.all(Array.from({ length: 25 }, once)) }));
  await pool.end();
  process.stdin.destroy();
});`;

describe('fifty enqueues of one key through two processes', () => {
  it.each(['begin isolation level read committed', 'begin isolation level repeatable read'])(
    'in transactions of theirs (%s) make one row and one POST, and no error of the database’s own',
    async (begin) => {
      const world = await openWorld();
      const env = { TEST_URL: world.database.connectionString, TEST_KEY: 'order 12', TEST_BEGIN: begin };
      await using one = startChild({ module: ENQUEUER, env });
      await using other = startChild({ module: ENQUEUER, env });
      type Said = { ready?: true; results?: { id?: string; created?: boolean; error?: string }[] };
      const both = [one, other];
      await Promise.all(both.map((child) => child.message<Said>((said) => said.ready === true, 'ready')));
      for (const child of both) child.send('go');
      const said = await Promise.all(
        both.map((child) => child.message<Said>((answer) => answer.results !== undefined, 'the results')),
      );
      const results = said.flatMap((answer) => answer.results ?? []);
      expect(results.filter(({ error }) => error !== undefined)).toEqual([]);
      expect(results).toHaveLength(50);
      expect(new Set(results.map(({ id }) => id)).size).toBe(1);
      expect(results.filter(({ created }) => created)).toHaveLength(1);
      const workers = [world.worker(), world.worker()];
      for (let round = 0; round < 3; round++) await Promise.all(workers.map((worker) => worker.runOnce()));
      expect(world.posts()).toBe(1);
      expect(await world.states()).toEqual({ 'order 12': 'accepted' });
    },
  );
});

describe('a new intent that supersedes another', () => {
  it('is linked to it, and cancels nothing: both are submitted', async () => {
    const world = await openWorld();
    const first = await world.song('first');
    const result = await world.client.enqueue({
      operation: 'text-to-music',
      fields: { prompt: 'another' },
      requestKey: 'second',
      supersedes: first,
    });
    await world.worker().runOnce();
    expect(await world.states()).toEqual({ first: 'accepted', second: 'accepted' });
    expect(await world.request((result as { id: string }).id)).toMatchObject({ supersedes: first });
    expect(world.posts()).toBe(2);
  });
});

describe('a request that nobody waits for any more', () => {
  const overdue = async (block: (world: Awaited<ReturnType<typeof openWorld>>) => Promise<unknown>) => {
    const world = await openWorld({ provider: 'raw' });
    await block(world);
    const id = await world.song('late', { submitBefore: new Date(Date.now() + 60_000) });
    await world.worker().runOnce();
    expect(await world.request(id)).toMatchObject({ state: 'queued' });
    await world.passTime(60_001);
    return { world, id };
  };

  it.each([
    [
      'the account is held',
      `insert into onetake.account_holds (account, kind, since, epoch) values ('default', 'payment_required', now(), 0)`,
      `select onetake.release_account('default', null, 'mia', 'paid')`,
    ],
    [
      'the breaker is open',
      `update onetake.circuit_breakers set state = 'open', opened_at = now(), retry_at = now() + interval '1 day'`,
      `update onetake.circuit_breakers set state = 'closed', opened_at = null, retry_at = null`,
    ],
    [
      'the breaker is forced open',
      `select onetake.force_breaker('sonilo/text-to-music', 'forced_open', 'mia', 'looks bad')`,
      `select onetake.release_breaker('sonilo/text-to-music', 'mia', 'is good')`,
    ],
    [
      'the account is paused',
      `update onetake.accounts set paused_until = now() + interval '1 day', pause_kind = 'rate'`,
      'update onetake.accounts set paused_until = null, pause_kind = null',
    ],
  ])('expires while %s, and is never sent after', async (_, block, release) => {
    const { world, id } = await overdue((opened) => opened.database.query(block));
    await world.worker().runOnce();
    expect(await world.request(id)).toMatchObject({ state: 'expired', charge: 'none' });
    await world.database.query(release);
    for (let round = 0; round < 3; round++) await world.worker().runOnce();
    expect(await world.request(id)).toMatchObject({ state: 'expired', submissions: 0 });
    expect(world.posts()).toBe(0);
  });

  it('is not sent either when nobody has expired it before the lane opens', async () => {
    const { world, id } = await overdue((opened) =>
      opened.database.query(
        `update onetake.accounts set paused_until = now() + interval '50 s', pause_kind = 'rate'`,
      ),
    );
    // Its job is the first thing that admission meets.
    expect(await world.request(id)).toMatchObject({ state: 'queued' });
    await world.worker().runOnce();
    expect(await world.request(id)).toMatchObject({ state: 'expired' });
    expect(world.posts()).toBe(0);
  });
});

describe('a cancellation', () => {
  const answerFor = async (outcome: Parameters<typeof settle>[2] | undefined) => {
    const world = await openBreakerWorld();
    const attempt = await world.admitted();
    if (outcome !== undefined) await world.settle(attempt, outcome);
    const before = await world.request(attempt.requestId);
    const error = await world.client.cancel(attempt.requestId, NOTE).then(
      () => undefined,
      (thrown: Error & { code: string; hint: string }) => thrown,
    );
    const after = await world.request(attempt.requestId);
    if (error !== undefined) expect(after).toEqual(before);
    return { error, after };
  };

  it.each([
    ['on the way', undefined, 'submitting', /on the way.*can't cancel.*charged/],
    ['accepted', acceptedAs('task-1'), 'accepted', /can't cancel.*charged/],
    ['of unknown outcome', answeredWith(502), 'ambiguous', /may have been accepted.*--no-resubmit/],
    ['over', refusedWith(422), 'rejected', /has ended/],
  ] as const)('of what is %s is refused, and says what that means', async (_, outcome, state, hint) => {
    const { error } = await answerFor(outcome);
    expect(error).toMatchObject({
      code: 'request_not_in_state',
      message: expect.stringContaining(`is ${state}`),
      hint: expect.stringMatching(hint),
    });
  });

  it('of what was proven unsent ends it, and nothing is charged', async () => {
    const { error, after } = await answerFor(UNSENT);
    expect(error).toBeUndefined();
    expect(after).toMatchObject({ state: 'cancelled', charge: 'none' });
  });
});

describe('the charge over all attempts', () => {
  it('stays possible through a re-arm, a refusal, a cancellation and an expiry', async () => {
    const world = await openBreakerWorld();
    const rearmed = async () => {
      const attempt = await world.admitted({ prompt: randomUUID() });
      await world.settle(attempt, answeredWith(500));
      await world.client.resolve({ id: attempt.requestId, as: 'not_accepted', ...NOTE });
      expect(await world.request(attempt.requestId)).toMatchObject({ state: 'queued', charge: 'possible' });
      return attempt.requestId;
    };
    const cancelled = await rearmed();
    await world.client.cancel(cancelled, NOTE);
    expect(await world.request(cancelled)).toMatchObject({ state: 'cancelled', charge: 'possible' });

    const expired = await rearmed();
    await world.database.query(
      `update onetake.generation_requests set submit_before = now() where id = '${expired}'`,
    );
    await rescue(world.ctx);
    expect(await world.request(expired)).toMatchObject({ state: 'expired', charge: 'possible' });

    const refused = await rearmed();
    await world.passTime(COOLDOWN_MS);
    await rescue(world.ctx);
    const [again] = await world.round();
    expect(again).toMatchObject({ requestId: refused, attempt: 2 });
    await world.settle(again as NonNullable<typeof again>, refusedWith(422));
    expect(await world.request(refused)).toMatchObject({ state: 'rejected', charge: 'possible' });
  });
});
