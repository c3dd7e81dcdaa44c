import { beforeEach, describe, expect, it, onTestFinished } from 'vitest';
import { admit } from '../../src/lifecycle/admit.ts';
import { rescue, sweepVanishedJobs } from '../../src/lifecycle/rescue.ts';
import { type LifecycleContext, laneOf, lifecycleContext } from '../support/lifecycle-context.ts';
import { jobRows, LEASE_MS, lockRows, openWorld, rowPrints, type World } from '../support/world.ts';

const OPERATOR = { actor: 'an operator', reason: 'looked it up in the ledger' };

let world: World;
let ctx: LifecycleContext;
const done: { rescued: string; count: number }[] = [];

beforeEach(async () => {
  world = await openWorld({ provider: 'raw' });
  done.length = 0;
  ctx = await lifecycleContext(
    { connectionString: world.database.connectionString, config: world.config },
    { emit: (name, event) => void (name === 'rescue:done' && done.push(event as never)) },
  );
  onTestFinished(() => ctx.stop());
});

async function admitAll(count: number): Promise<void> {
  const batch = await admit(ctx, await laneOf(ctx), { wanted: count });
  expect('attempts' in batch && batch.attempts.length).toBe(count);
}

describe('rescue', () => {
  it('leaves a lease that runs alone', async () => {
    await world.songs(3);
    await admitAll(3);
    await world.passTime(LEASE_MS - 2_000);
    const before = await rowPrints(world.database);
    expect(await rescue(ctx)).toBe(0);
    expect(await rowPrints(world.database)).toEqual(before);
  });

  it('freezes each request of a lost worker once, however many rescue it at the same time', async () => {
    const ids = await world.songs(12);
    await admitAll(12);
    await world.passTime(LEASE_MS + 1);

    await Promise.all(Array.from({ length: 4 }, () => rescue(ctx)));

    for (const id of ids) {
      expect(await world.request(id)).toMatchObject({
        state: 'ambiguous',
        state_reason: 'worker_lost',
        charge: 'possible',
      });
      expect(await world.attempts(id)).toMatchObject([
        {
          settled_by: 'rescue',
          phase: 'lease_over',
          certainty: 'unknown',
          health: 'none',
          slot_freed_at: null,
          closed_at: null,
        },
      ]);
    }
    expect(
      done.filter(({ rescued }) => rescued === 'ended_leases').reduce((sum, { count }) => sum + count, 0),
    ).toBe(12);
    // Somebody's crash says nothing of the provider.
    expect(await world.breaker()).toMatchObject({ state: 'closed', consecutive_failures: 0 });
    expect(await rescue(ctx)).toBe(0);
    expect(await jobRows(world.database)).toEqual([]);
  });

  it('is not held up by a row that somebody has locked', async () => {
    const [locked, free] = (await world.songs(2)) as [string, string];
    await admitAll(2);
    const expiring = await world.song('expiring', { submitBefore: new Date(Date.now() + 1_000) });
    await world.passTime(LEASE_MS + 1);
    const unlock = await lockRows(world.database, 'select from onetake.generation_requests where id = $1', [
      locked,
    ]);

    const started = performance.now();
    await rescue(ctx);
    expect(performance.now() - started).toBeLessThan(20_000);

    expect((await world.request(free))['state']).toBe('ambiguous');
    expect((await world.request(expiring))['state']).toBe('expired');
    expect((await world.request(locked))['state']).toBe('submitting');
    await unlock();
    await rescue(ctx);
    expect((await world.request(locked))['state']).toBe('ambiguous');
  });

  it('is not held up by a breaker that somebody has locked: everything else is put right', async () => {
    world.raw.onPost = (call) => call.answer(502);
    const [settled] = (await world.songs(1, 'settled')) as [string];
    await world.worker().runOnce();
    // As a worker leaves it that died between the money and the health.
    await world.database.query(
      'update onetake.submission_attempts set health_applied_at = null, health_effect = null',
    );
    const lost = await world.song('lost');
    await admitAll(1);
    const expiring = await world.song('expiring', { submitBefore: new Date(Date.now() + 1_000) });
    const waiting = await world.song('waiting');
    await world.database.query(`delete from onetake_queue.job where singleton_key = $1`, [waiting]);
    await world.database.query('update onetake.generation_requests set job_due = true where id = $1', [
      waiting,
    ]);
    await world.passTime(LEASE_MS + 1);
    const unlock = await lockRows(world.database, 'select from onetake.circuit_breakers');

    const started = performance.now();
    await rescue(ctx);
    expect(performance.now() - started).toBeLessThan(20_000);

    expect(await world.request(lost)).toMatchObject({ state: 'ambiguous' });
    expect(await world.request(expiring)).toMatchObject({ state: 'expired' });
    expect(await world.request(waiting)).toMatchObject({ job_due: false });
    expect((await world.attempt(settled))['health_applied_at']).toBeNull();
    await unlock();
    await rescue(ctx);
    expect((await world.attempt(settled))['health_applied_at']).not.toBeNull();
    expect((await world.attempt(lost))['health_applied_at']).not.toBeNull();
  });

  it('tells what fails when everything else has had its turn', async () => {
    const expiring = await world.song('expiring', { submitBefore: new Date(Date.now() + 1_000) });
    await world.passTime(1_001);
    await world.database.query('alter table onetake.circuit_breaker_transitions rename to away');
    await expect(rescue(ctx)).rejects.toMatchObject({ code: '42P01' });
    expect(await world.request(expiring)).toMatchObject({ state: 'expired' });
    await world.database.query('alter table onetake.away rename to circuit_breaker_transitions');
    expect(await rescue(ctx)).toBe(0);
  });

  it('sends the job of a re-armed request, once, for when it may go', async () => {
    const id = await world.song('one');
    await admitAll(1);
    await world.passTime(LEASE_MS + 1);
    await rescue(ctx);
    const { notBefore } = await world.client.resolve({ id, as: 'not_accepted', ...OPERATOR });

    await Promise.all(Array.from({ length: 4 }, () => rescue(ctx)));

    expect(await jobRows(world.database)).toHaveLength(1);
    expect(await world.request(id)).toMatchObject({ state: 'queued', job_due: false });
    const worker = world.worker();
    await world.passTime(Number(notBefore) - Date.now() - 20_000);
    await worker.runOnce();
    expect(world.posts()).toBe(0);
    await world.passTime(21_000);
    await worker.runOnce();
    expect(world.posts()).toBe(1);
    expect(await world.request(id)).toMatchObject({ state: 'accepted', submissions: 2 });
  });

  it('sends what can be sent although another lane can’t', async () => {
    const [one, two] = (await world.songs(2)) as [string, string];
    await world.database.query(`delete from onetake_queue.job where name like 'submit/%'`);
    await world.database.query('update onetake.generation_requests set job_due = true');
    await world.database.query(`
      create function public.refuse() returns trigger language plpgsql as
        $$ begin if new.singleton_key = '${one}' then raise 'no'; end if; return new; end $$`);
    await world.database.query(
      'create trigger refuse before insert on onetake_queue.job_common for each row execute function public.refuse()',
    );
    await rescue(ctx);
    expect(await world.request(two)).toMatchObject({ job_due: false });
    expect(await world.request(one)).toMatchObject({ job_due: true });
  });

  it('makes the queue of a lane that nobody has configured yet', async () => {
    await world.database.query(
      `insert into onetake.accounts (name, provider, requests_per_minute, max_concurrent_generations) values ('new', 'sonilo', 10, 10)`,
    );
    const id = await world.song('one', { account: 'new' });
    expect(await world.request(id)).toMatchObject({ state: 'queued', job_due: true });
    const worker = world.worker();
    await worker.runOnce();
    await worker.runOnce();
    expect(await world.request(id)).toMatchObject({ state: 'accepted' });
  });

  it('expires what nobody waits for any more, also while the breaker is open, and never what was sent', async () => {
    const submitBefore = new Date(Date.now() + 5_000);
    const submitting = await world.song('submitting', { submitBefore });
    await admitAll(1);
    const waiting = await world.song('waiting', { submitBefore });
    await world.database.query(
      `update onetake.circuit_breakers set state = 'open', opened_at = now(), retry_at = now() + interval '1 h'`,
    );
    expect(await rescue(ctx)).toBe(0);
    await world.passTime(5_001);
    await Promise.all([rescue(ctx), rescue(ctx)]);
    expect(await world.request(waiting)).toMatchObject({
      state: 'expired',
      state_reason: 'submit_before',
      charge: 'none',
    });
    expect(await world.request(submitting)).toMatchObject({ state: 'submitting' });
    expect(done).toEqual([{ rescued: 'expired', count: 1 }]);
  });
});

describe('the sweep', () => {
  it('finds requests whose job has vanished, and only those', async () => {
    const ids = await world.songs(4);
    await world.database.query(`delete from onetake_queue.job where singleton_key = any($1)`, [
      ids.slice(0, 2),
    ]);
    // Too young to be called vanished: its transaction may have only just committed.
    expect(await sweepVanishedJobs(ctx, null)).toBeNull();
    expect(await dueIds()).toEqual([]);

    await world.passTime(11_000);
    await sweepVanishedJobs(ctx, null);

    expect(await dueIds()).toEqual(ids.slice(0, 2).sort());
    await rescue(ctx);
    expect(await jobRows(world.database)).toHaveLength(4);
    await world.worker().runOnce();
    expect(world.posts()).toBe(4);
  });

  it('goes on from page to page', async () => {
    await world.database.query(`
      insert into onetake.generation_requests (account, operation, request_key, fields, payload_digest, created_at)
      select 'default', 'text-to-music', 'k' || n, '{}', repeat('0', 64), now() - interval '1 min' from generate_series(1, 1500) n`);
    const after = await sweepVanishedJobs(ctx, null);
    expect(after).not.toBeNull();
    expect(await dueIds()).toHaveLength(1_000);
    expect(await sweepVanishedJobs(ctx, after)).toBeNull();
    expect(await dueIds()).toHaveLength(1_500);
  });
});

async function dueIds(): Promise<string[]> {
  const rows = await world.database.query<{ id: string }>(
    'select id from onetake.generation_requests where job_due order by id',
  );
  return rows.map(({ id }) => id);
}
