import { describe, expect, it } from 'vitest';
import { reapLostProbe } from '../../src/lifecycle/apply-health.ts';
import { recordOutcome } from '../../src/lifecycle/record-outcome.ts';
import { rescue } from '../../src/lifecycle/rescue.ts';
import {
  answered,
  type BreakerWorld,
  between,
  COOLDOWN_MS,
  expectChain,
  halfOpen,
  LEASE_MS,
} from '../support/breaker-world.ts';
import { waitFor } from '../support/wait-for.ts';
import { lockRows, MUSIC, type Row } from '../support/world.ts';

const fails = () => answered(502);
const accepts = () => answered(202);
const PROBED = ['failure_threshold', 'probe_granted'];

describe('a half-open breaker whose prober is gone', () => {
  const lose = async (world: BreakerWorld): Promise<void> => world.passTime(LEASE_MS + 1);

  // 1.13
  it('is overdue from the end of the lease on, and names no instant that is past', async () => {
    const { world } = await halfOpen();
    await lose(world);
    const status = await world.status();
    expect(status).toMatchObject({
      state: 'half_open',
      effective_state: 'probe_overdue',
      retry_at: null,
      retry_in_ms: null,
    });
    expect(status['why']).toMatch(/^half open: the probe of \d\d:\d\d:\d\d is overdue$/);
  });

  // 1.9, 1.15, 1.16, 2.26, 2.47
  it('opens again; the request is frozen, never queued, and nobody probes before a whole cooldown', async () => {
    const { world, probe } = await halfOpen(2);
    await lose(world);
    await rescue(world.ctx);

    const row = await world.breaker();
    expect(row).toMatchObject({ state: 'open', generation: 4, failed_probes: 1 });
    expect(between(row, 'opened_at', 'retry_at')).toBe(COOLDOWN_MS);
    expectChain(await world.transitions(), [...PROBED, 'probe_lost']);
    expect(await world.request(probe.requestId)).toMatchObject({
      state: 'ambiguous',
      state_reason: 'worker_lost',
    });
    expect((await world.status())['why']).toContain("the probe's worker was lost");
    expect(await world.round()).toEqual([]);
    await world.passTime(COOLDOWN_MS);
    const [second, ...more] = await world.round();
    expect(more).toEqual([]);
    expect(second?.requestId).not.toBe(probe.requestId);
  });

  // 1.4
  it('is closed by the second probe alone, when the lost one answers after all', async () => {
    const { world, probe } = await halfOpen(2);
    await lose(world);
    await rescue(world.ctx);
    const second = await world.probe();
    const before = await world.breaker();
    await world.settle(probe, accepts());
    expect(await world.breaker()).toEqual(before);
    expect(await world.request(probe.requestId)).toMatchObject({ state: 'accepted', charge: 'charged' });
    await world.settle(second, accepts());
    expect(await world.breaker()).toMatchObject({ state: 'closed', generation: 6 });
  });

  it.each([
    ['success', accepts, 'probe_succeeded', 'closed'],
    ['failure', fails, 'probe_failed', 'open'],
  ])(
    'takes a %s that is on the attempt already, before it calls the probe lost',
    async (_what, outcome, cause, state) => {
      const { world, probe } = await halfOpen();
      await world.ctx.database.transaction((tx) => recordOutcome(world.ctx, tx, probe, outcome(), 'worker'));
      await lose(world);
      const other = await world.process();
      await Promise.all([
        reapLostProbe(world.ctx, MUSIC, probe.attemptId),
        reapLostProbe(other, MUSIC, probe.attemptId),
        rescue(world.ctx),
        rescue(other),
      ]);
      expect(await world.breaker()).toMatchObject({ state, generation: 4 });
      expectChain(await world.transitions(), [...PROBED, cause]);
      expect(world.transitionEvents()).toHaveLength(3);
    },
  );

  it('is opened again once by two rescuers, with one event', async () => {
    const { world } = await halfOpen(3);
    const others = await Promise.all([1, 2, 3].map(() => world.process()));
    await lose(world);
    await Promise.all([world.ctx, ...others].map((own) => rescue(own)));
    expectChain(await world.transitions(), [...PROBED, 'probe_lost']);
    expect(world.transitionEvents().map(({ cause }) => cause)).toEqual([...PROBED, 'probe_lost']);
  });

  it('is opened again by the reaper alone, which leaves the request to rescue', async () => {
    const { world, probe } = await halfOpen();
    await lose(world);
    expect(await reapLostProbe(world.ctx, MUSIC, probe.attemptId)).toBe(true);
    expect(await world.breaker()).toMatchObject({ state: 'open' });
    expect(await world.request(probe.requestId)).toMatchObject({ state: 'submitting' });
    await rescue(world.ctx);
    expect(await world.request(probe.requestId)).toMatchObject({ state: 'ambiguous' });
    expect(await world.effect(probe)).toBe('stale_generation');
    expectChain(await world.transitions(), [...PROBED, 'probe_lost']);
  });

  it('is left alone while the lease runs, also by a reaper that was called for another probe', async () => {
    const { world, probe } = await halfOpen();
    await world.expectUnwritten(async () => {
      expect(await reapLostProbe(world.ctx, MUSIC, probe.attemptId)).toBe(false);
      expect(await reapLostProbe(world.ctx, MUSIC, '00000000-0000-4000-8000-000000000000')).toBe(false);
    });
  });

  it('waits for a worker that is settling the probe at this moment, and takes its word', async () => {
    const { world, probe } = await halfOpen();
    await lose(world);
    const other = await world.process();
    const settled = world.ctx.database.transaction(async (tx) => {
      const recorded = await recordOutcome(world.ctx, tx, probe, accepts(), 'worker');
      const rescued = rescue(other);
      return { recorded, rescued };
    });
    await (await settled).rescued;
    await rescue(other);
    expect(await world.breaker()).toMatchObject({ state: 'closed' });
    expectChain(await world.transitions(), [...PROBED, 'probe_succeeded']);
  });

  it('is opened again at once by a rescuer who finds twenty requests of other lost workers locked', async () => {
    const { world, probe } = await halfOpen();
    const others: string[] = [];
    for (let n = 0; n < 20; n++) {
      others.push((await world.admitted({ operation: 'video-to-music' })).requestId);
    }
    await lose(world);
    const locked = [...others, probe.requestId];
    const release = await lockRows(
      world.database,
      'select from onetake.generation_requests where id = any($1)',
      [locked],
    );
    const ended = Date.now();
    const rescued = rescue(world.ctx);
    await waitFor(async () => (await world.breaker())['state'] === 'open', { what: 'the opening' });
    const { opened_at: openedAt } = await world.breaker();
    expect(Number(openedAt) - ended).toBeLessThan(8_000);
    expectChain(await world.transitions(), [...PROBED, 'probe_lost']);
    await rescued;
    expect(await world.request(probe.requestId)).toMatchObject({ state: 'submitting' });
    await release();
    await rescue(world.ctx);
    for (const id of locked) expect(await world.request(id)).toMatchObject({ state: 'ambiguous' });
  });

  it('is opened again though somebody holds the row of another breaker, whose override is over', async () => {
    const { world } = await halfOpen();
    await world.client.overrideBreaker({
      name: 'sonilo/video-to-music',
      mode: 'forced_open',
      actor: 'op',
      reason: 'test',
    });
    await world.database.query(`update onetake.circuit_breakers
set override_expires_at = now() - interval '1 s' where override is not null`);
    const release = await lockRows(
      world.database,
      `select from onetake.circuit_breakers where name = 'sonilo/video-to-music'`,
    );
    // Not passTime, which would wait for that lock.
    await world.database.query(`update onetake.submission_attempts
set started_at = started_at - interval '1 h', lease_expires_at = lease_expires_at - interval '1 h'`);
    // Nothing has failed: what is locked is left for the next round.
    expect(await rescue(world.ctx)).toBeGreaterThan(0);
    expect(await world.breaker()).toMatchObject({ state: 'open' });
    await release();
    await rescue(world.ctx);
    expect(await world.breaker('sonilo/video-to-music')).toMatchObject({ override: null });
  });

  it('is opened again when its probe’s attempt has vanished', async () => {
    const { world } = await halfOpen();
    await world.database.query('delete from onetake.submission_attempts where is_probe');
    expect(await world.status()).toMatchObject({
      effective_state: 'probe_overdue',
      why: 'half open: the probe is lost',
    } satisfies Row);
    await rescue(world.ctx);
    expect(await world.breaker()).toMatchObject({ state: 'open', generation: 4 });
  });

  it('is opened again soon by a worker that has a row which it can never put right', async () => {
    const { world } = await halfOpen();
    const poison = await world.admitted({ operation: 'video-to-music' });
    await world.database.query('create sequence public.refusals');
    await world.database.query(`create function refuse() returns trigger language plpgsql as $$
begin perform nextval('public.refusals'); raise exception 'no'; end $$`);
    await world.database.query(`create trigger refuse before update on onetake.generation_requests
for each row when (new.id = '${poison.requestId}') execute function refuse()`);
    await world.database.query(`update onetake.submission_attempts
set lease_expires_at = now() where id = '${poison.attemptId}'`);
    const worker = world.worker();
    await worker.start();
    // As often as it would take to wait longest between two rounds.
    await waitFor(
      async () => {
        const [row] = await world.database.query('select last_value::int as n from public.refusals');
        return Number(row?.['n']) >= 6;
      },
      { what: 'six rounds that failed' },
    );
    await world.database.query(`update onetake.submission_attempts
set lease_expires_at = clock_timestamp() where is_probe`);
    await waitFor(async () => (await world.breaker())['state'] === 'open', { what: 'the opening' });
    const [late] = await world.database.query<{ ms: number }>(
      `select (extract(epoch from t.at - a.lease_expires_at) * 1000)::float8 as ms
from onetake.circuit_breaker_transitions t, onetake.submission_attempts a
where t.cause = 'probe_lost' and a.is_probe`,
    );
    expect(late?.ms).toBeLessThan(4_000);
    const told = () =>
      world.events.flatMap(({ name, event }) => ('loop' in event && event.loop === 'rescue' ? [name] : []));
    expect(told()).toEqual(['process:trouble']);
    await world.database.query('drop trigger refuse on onetake.generation_requests');
    await waitFor(() => told().includes('process:recovered'), { what: 'the end of the trouble' });
  });
});
