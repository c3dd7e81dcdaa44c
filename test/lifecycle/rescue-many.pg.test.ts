import { beforeEach, describe, expect, it, onTestFinished } from 'vitest';
import { rescue, sweepVanishedJobs } from '../../src/lifecycle/rescue.ts';
import { roundsOr, tell } from '../support/fleet.ts';
import { type LifecycleContext, lifecycleContext } from '../support/lifecycle-context.ts';
import { jobRows, lockRows, openWorld, type World } from '../support/world.ts';

// More than one batch of what dead processes leave, with rows in front of it that nobody can put right.

let world: World;
let ctx: LifecycleContext;
beforeEach(async () => {
  world = await openWorld({ provider: 'raw' });
  ctx = await lifecycleContext({ connectionString: world.database.connectionString, config: world.config });
  onTestFinished(() => ctx.stop());
});

/** So many requests as workers leave them that have died: the lower the number, the longer ago the lease ended. */
async function lostRequests(count: number): Promise<void> {
  const client = await world.database.pool({ max: 1 }).connect();
  await client.query('set session_replication_role = replica');
  await client.query(
    `with made as (
  insert into onetake.generation_requests (account, operation, request_key, state, submissions, fields, payload_digest)
  select 'default', 'text-to-music', 'lost ' || n, 'submitting', 1, '{}', repeat('0', 64) from generate_series(1, $1::int) n
  returning id, request_key
)
insert into onetake.submission_attempts (id, request_id, attempt, account, operation, breaker_name, generation,
  hold_epoch, is_probe, worker, started_at, lease_expires_at, window_until, slot_until, quarantine_until)
select gen_random_uuid(), id, 1, 'default', 'text-to-music', 'sonilo/text-to-music', 1, 0, false, 'gone',
  now() - interval '2 h', now() - interval '1 h' + substr(request_key, 6)::int * interval '1 ms', now(), now(), now()
from made`,
    [count],
  );
  client.release(true);
}

const count = async (state: string): Promise<number> =>
  Object.values(await world.states()).filter((each) => each === state).length;

describe('a great many ended leases', () => {
  it('are all put right, a thousand and more in a round, however many rescue at once', async () => {
    await lostRequests(1_250);
    await Promise.all([rescue(ctx), rescue(ctx), rescue(ctx)]);
    await rescue(ctx);
    expect(await count('ambiguous')).toBe(1_250);
    expect(await rescue(ctx)).toBe(0);
    const [once] = await world.database.query(
      `select count(*)::int as settled, count(*) filter (where settled_by = 'rescue')::int as by_rescue from onetake.submission_attempts where settled_at is not null`,
    );
    expect(once).toEqual({ settled: 1_250, by_rescue: 1_250 });
  }, 120_000);

  it('don’t wait behind more than a batch of rows that somebody has locked', async () => {
    await lostRequests(260);
    const unlock = await lockRows(
      world.database,
      `select from onetake.generation_requests where substr(request_key, 6)::int <= 130`,
    );
    const started = performance.now();
    await rescue(ctx);
    expect(await count('ambiguous')).toBe(130);
    // Each of them waited for would be 250 ms.
    expect(performance.now() - started).toBeLessThan(25_000);
    await unlock();
    await rescue(ctx);
    expect(await count('ambiguous')).toBe(260);
  }, 60_000);

  it('don’t wait behind more than a batch of rows that can’t be put right', async () => {
    await lostRequests(260);
    const expiring = await world.song('expiring');
    await world.database.query('update onetake.generation_requests set submit_before = now() where id = $1', [
      expiring,
    ]);
    await world.database.query(`create function public.refuse() returns trigger language plpgsql as $$ begin
  if new.request_key ~ '^lost' and substr(new.request_key, 6)::int <= 130 then raise 'no'; end if;
  return new;
end $$`);
    await world.database.query(
      `create trigger refuse before update of state on onetake.generation_requests for each row execute function public.refuse()`,
    );
    await expect(rescue(ctx)).rejects.toMatchObject({ code: 'P0001' });
    expect(await count('ambiguous')).toBe(130);
    expect(await world.request(expiring)).toMatchObject({ state: 'expired' });
  }, 60_000);

  it('leave other kinds of rescue their turn', async () => {
    await lostRequests(1_100);
    const waiting = await world.song('waiting');
    await world.database.query('delete from onetake_queue.job where singleton_key = $1', [waiting]);
    await world.database.query('update onetake.generation_requests set job_due = true where id = $1', [
      waiting,
    ]);
    await rescue(ctx);
    expect(await count('submitting')).toBe(100);
    expect(await world.request(waiting)).toMatchObject({ job_due: false });
  }, 60_000);

  it.runIf(process.env['ONETAKE_CHAOS_ROUNDS'] !== undefined)(
    'ten thousand: how long it takes',
    async () => {
      await lostRequests(roundsOr(10_000));
      const started = performance.now();
      let rounds = 0;
      while ((await rescue(ctx)) > 0) rounds++;
      tell(
        `${await count('ambiguous')} ended leases in ${rounds} rounds, ${Math.round(performance.now() - started)} ms`,
      );
    },
    900_000,
  );
});

describe('a great many jobs that are due', () => {
  it('don’t wait behind more than a batch that can’t be sent', async () => {
    await world.database.query(
      `insert into onetake.accounts (name, provider, requests_per_minute, max_concurrent_generations) values ('new', 'sonilo', 10, 10)`,
    );
    await world.database.query(`insert into onetake.generation_requests
(account, operation, request_key, fields, payload_digest, job_due, not_before)
select 'default', 'not/an operation!', 'stuck ' || n, '{}', repeat('0', 64), true, now() - interval '1 h'
from generate_series(1, 130) n`);
    await world.database.query(`insert into onetake.generation_requests
(account, operation, request_key, fields, payload_digest, job_due)
select 'new', 'text-to-music', 'song ' || n, '{}', repeat('0', 64), true from generate_series(1, 130) n`);
    await rescue(ctx);
    expect(
      await world.database.query(
        'select operation, count(*)::int from onetake.generation_requests where job_due group by operation',
      ),
    ).toEqual([{ operation: 'not/an operation!', count: 130 }]);
    expect(await jobRows(world.database)).toHaveLength(130);
  });
});

describe('a great many requests that nobody waits for any more', () => {
  it('expire in one round', async () => {
    await world.database.query(`insert into onetake.generation_requests
(account, operation, request_key, fields, payload_digest, submit_before)
select 'default', 'text-to-music', 'song ' || n, '{}', repeat('0', 64), now() from generate_series(1, 450) n`);
    await rescue(ctx);
    expect(await count('expired')).toBe(450);
  });
});

describe('a job that somebody’s hand was at', () => {
  it.each([
    ['deleted, as retention does', `delete from onetake_queue.job where singleton_key = $1`],
    [
      'failed',
      `update onetake_queue.job set state = 'failed', completed_on = now() where singleton_key = $1`,
    ],
    [
      'cancelled',
      `update onetake_queue.job set state = 'cancelled', completed_on = now() where singleton_key = $1`,
    ],
    [
      'completed',
      `update onetake_queue.job set state = 'completed', completed_on = now() where singleton_key = $1`,
    ],
    [
      'fetched and kept',
      `update onetake_queue.job set state = 'active', started_on = now() where singleton_key = $1`,
    ],
    ['emptied', `update onetake_queue.job set data = '{}' where singleton_key = $1`],
    ['filled with null', `update onetake_queue.job set data = null where singleton_key = $1`],
    ['filled with a list', `update onetake_queue.job set data = '["x"]' where singleton_key = $1`],
    [
      'made to name nobody',
      `update onetake_queue.job set data = '{"requestId": "00000000-0000-4000-8000-000000000000"}' where singleton_key = $1`,
    ],
    [
      'made to name no id',
      `update onetake_queue.job set data = '{"requestId": "''; drop table x; --"}' where singleton_key = $1`,
    ],
  ])('%s: its request is sent all the same, once', async (_how, change) => {
    const id = await world.song('one');
    await world.database.query(change, [id]);
    const worker = world.worker();
    await worker.runOnce();
    await world.passTime(11_000);
    expect(await sweepVanishedJobs(ctx, null)).toBeNull();
    await worker.runOnce();
    await worker.runOnce();
    expect(await world.request(id)).toMatchObject({ state: 'accepted', submissions: 1 });
    expect(world.posts()).toBe(1);
    expect((await jobRows(world.database)).length).toBe(0);
  });

  it('doubled: two that name one request are one POST, beside the others of the lane', async () => {
    const [id, other] = (await world.songs(2)) as [string, string];
    await world.database.query(
      `insert into onetake_queue.job
select (jsonb_populate_record(j, jsonb_build_object('id', gen_random_uuid(), 'singleton_key', 'by hand',
  'state', 'retry', 'retry_count', 1))).*
from onetake_queue.job j where j.singleton_key = $1`,
      [id],
    );
    await world.database.query(
      `update onetake_queue.job set data = jsonb_build_object('requestId', $1::text) where singleton_key = $2`,
      [id, other],
    );
    const worker = world.worker();
    await worker.runOnce();
    expect(world.posts()).toBe(1);
    expect(await world.attempts(id)).toHaveLength(1);
    // The other lost its job by that, and has it again.
    await world.passTime(11_000);
    await sweepVanishedJobs(ctx, null);
    await worker.runOnce();
    await worker.runOnce();
    expect(await world.request(other)).toMatchObject({ state: 'accepted', submissions: 1 });
    expect(world.posts()).toBe(2);
  });
});
