import { describe, expect, it } from 'vitest';
import { rescue } from '../../src/lifecycle/rescue.ts';
import {
  answered,
  type BreakerWorld,
  between,
  COOLDOWN_MS,
  expectChain,
  freezeTimers,
  LEASE_MS,
  openBreakerWorld,
  waitForListeners,
} from '../support/breaker-world.ts';
import { MUSIC, waitForBlocked } from '../support/world.ts';

const fails = () => answered(502);
const accepts = () => answered(202);
const NOTE = { actor: 'night shift', reason: 'provider told us to wait' };

const by = (world: BreakerWorld, mode: 'forced_open' | 'forced_closed' | 'released') =>
  world.client.overrideBreaker({ name: MUSIC, mode, ...NOTE });

/** As if every worker died between the money and the health, until the answer is called. */
async function refuseHealth({ database }: BreakerWorld): Promise<() => Promise<unknown>> {
  await database.query(`create function refuse_health() returns trigger language plpgsql as $$
begin raise exception 'no'; end $$`);
  await database.query(`create trigger refuse_health before update of health_effect on onetake.submission_attempts
for each row when (new.health_effect is not null) execute function refuse_health()`);
  return () => database.query('drop trigger refuse_health on onetake.submission_attempts');
}

describe('what lies under an override', () => {
  it('is shown by the release with the rest of its cooldown', async () => {
    const world = await openBreakerWorld();
    const opened = await world.opened(2);
    await by(world, 'forced_closed');
    await world.passTime(COOLDOWN_MS - 10_000);
    await by(world, 'released');
    const row = await world.breaker();
    expect(row).toMatchObject({ state: 'open', generation: opened['generation'] });
    expect(between(row, 'opened_at', 'retry_at')).toBe(COOLDOWN_MS);
    expect(await world.round()).toEqual([]);
    await world.passTime(10_000);
    expect(await world.round()).toHaveLength(1);
  });

  it('lets no probe go while it is forced open, and is due for one at the release when retry_at has passed', async () => {
    const world = await openBreakerWorld();
    await world.opened(2);
    await by(world, 'forced_open');
    await world.passTime(COOLDOWN_MS * 2);
    await world.expectUntouched(async () => {
      expect(await world.round()).toEqual([]);
    });
    await by(world, 'released');
    expect(await world.status()).toMatchObject({ effective_state: 'probe_due' });
    expect(await world.round()).toHaveLength(1);
  });

  it.each([
    ['forced_open', 'success', accepts, 'closed', 'probe_succeeded'],
    ['forced_open', 'failure', fails, 'open', 'probe_failed'],
    ['forced_closed', 'success', accepts, 'closed', 'probe_succeeded'],
    ['forced_closed', 'neutral outcome', () => answered(422), 'open', 'probe_neutral'],
  ] as const)(
    'under %s is moved by the %s of the probe that was in flight',
    async (mode, _what, outcome, state, cause) => {
      const world = await openBreakerWorld();
      await world.opened(1);
      const probe = await world.probe();
      await by(world, mode);
      await world.settle(probe, outcome());
      expect(await world.breaker()).toMatchObject({ state, generation: 4, override: mode });
      expect(await world.status()).toMatchObject({ state, effective_state: mode });
      expectChain(await world.transitions(), ['failure_threshold', 'probe_granted', 'operator', cause]);
    },
  );

  it('is opened again when that probe is lost', async () => {
    const world = await openBreakerWorld();
    await world.opened(1);
    await world.probe();
    await by(world, 'forced_open');
    await world.passTime(LEASE_MS + 1);
    await rescue(world.ctx);
    expect(await world.breaker()).toMatchObject({ state: 'open', override: 'forced_open' });
    expectChain(await world.transitions(), ['failure_threshold', 'probe_granted', 'operator', 'probe_lost']);
  });

  it('counts none of ten that were in flight when it was forced and settle meanwhile', async () => {
    const world = await openBreakerWorld();
    await world.songs(10);
    const attempts = await world.round(world.ctx, 10);
    await by(world, 'forced_open');
    for (const attempt of attempts) await world.settle(attempt, fails());
    expect(await world.breaker()).toMatchObject({ state: 'closed', generation: 1, consecutive_failures: 0 });
    for (const attempt of attempts) expect(await world.effect(attempt)).toBe('under_override');
  });

  it('counts none after the release that were admitted under the override, and then counts as ever', async () => {
    const world = await openBreakerWorld();
    await world.each(fails());
    await by(world, 'forced_closed');
    await world.songs(6);
    const attempts = await world.round(world.ctx, 6);
    await by(world, 'released');
    for (const attempt of attempts) await world.settle(attempt, fails());
    expect(await world.breaker()).toMatchObject({ state: 'closed', consecutive_failures: 1 });
    for (const attempt of attempts) {
      expect(await world.effect(attempt)).toBe('under_override');
      expect(await world.attempt(attempt.requestId)).toMatchObject({ override: 'forced_closed' });
    }
    await world.each(fails(), fails());
    expect(await world.breaker()).toMatchObject({ state: 'open' });
  });

  // The health of an outcome is a transaction of its own, and its worker may die before it.
  it.each([
    ['a failure', fails],
    ['an acceptance', accepts],
  ] as const)(
    'counts %s that settled meanwhile for nothing, though its health is applied after the release',
    async (_what, outcome) => {
      const world = await openBreakerWorld();
      await world.each(fails());
      const attempt = await world.admitted();
      await by(world, 'forced_closed');
      const healthMayCome = await refuseHealth(world);
      await world.settle(attempt, outcome());
      expect(await world.attempt(attempt.requestId)).toMatchObject({
        override: null,
        override_at_settle: 'forced_closed',
        health_applied_at: null,
      });
      await by(world, 'released');
      await healthMayCome();
      await rescue(world.ctx);
      expect(await world.effect(attempt)).toBe('under_override');
      expect(await world.breaker()).toMatchObject({ state: 'closed', consecutive_failures: 1 });
    },
  );

  it('counts an outcome that settled after the override had expired, though nobody had noted the end', async () => {
    const world = await openBreakerWorld();
    const attempt = await world.admitted();
    await world.client.overrideBreaker({ name: MUSIC, mode: 'forced_open', ...NOTE, expiresInMs: 10_000 });
    await world.passTime(10_001);
    await world.settle(attempt, fails());
    expect(await world.breaker()).toMatchObject({ override: 'forced_open', consecutive_failures: 1 });
    expect(await world.attempt(attempt.requestId)).toMatchObject({
      override_at_settle: null,
      health_effect: 'counted',
    });
  });

  it('counts what was admitted before the override and settles after its release', async () => {
    const world = await openBreakerWorld();
    const attempt = await world.admitted();
    await by(world, 'forced_open');
    await by(world, 'released');
    await world.settle(attempt, fails());
    expect(await world.breaker()).toMatchObject({ consecutive_failures: 1 });
    expect(await world.effect(attempt)).toBe('counted');
  });

  it('keeps its count over a success that settles meanwhile', async () => {
    const world = await openBreakerWorld();
    await world.each(fails(), fails());
    const attempt = await world.admitted();
    await by(world, 'forced_closed');
    await world.settle(attempt, accepts());
    expect(await world.effect(attempt)).toBe('under_override');
    expect(await world.breaker()).toMatchObject({ consecutive_failures: 2 });
  });

  it.each([
    ['settles under it', true],
    ['was admitted under it', false],
  ])('says so of a success with nothing to reset that %s', async (_what, isBefore) => {
    const world = await openBreakerWorld();
    if (!isBefore) await by(world, 'forced_closed');
    const attempt = await world.admitted();
    await by(world, isBefore ? 'forced_open' : 'released');
    await world.settle(attempt, accepts());
    expect(await world.effect(attempt)).toBe('under_override');
    expect(await world.breaker()).toMatchObject({ state: 'closed', consecutive_failures: 0 });
  });

  it('waits in force from the moment at which the operator’s transaction commits, for admission too', async () => {
    const world = await openBreakerWorld();
    await world.songs(2);
    const operator = await world.database.pool({ max: 1 }).connect();
    await operator.query('begin');
    await operator.query('select onetake.force_breaker($1, $2, $3, $4)', [
      MUSIC,
      'forced_open',
      'op',
      'stop',
    ]);
    const round = world.round();
    await waitForBlocked(world.database, 1);
    await operator.query('commit');
    operator.release();
    expect(await round).toEqual([]);
  });

  it('is one operation’s: another one goes on', async () => {
    const world = await openBreakerWorld();
    await by(world, 'forced_open');
    await world.settle(await world.admitted({ operation: 'video-to-music' }), accepts());
    expect(await world.status('sonilo/video-to-music')).toMatchObject({
      effective_state: 'closed',
      override: null,
    });
  });

  it('is told to a waiting request with the operator’s own words', async () => {
    const world = await openBreakerWorld();
    await world.song('waiting');
    await by(world, 'forced_open');
    expect((await world.client.list())[0]).toMatchObject({
      waitingFor: 'breaker forced open by night shift: provider told us to wait',
    });
  });
});

describe('a worker that waits under an override', () => {
  it('is woken by the release itself, with no timer of its own', async () => {
    const world = await openBreakerWorld();
    await by(world, 'forced_open');
    world.raw.onPost = () => undefined;
    const worker = world.worker();
    freezeTimers(world);
    await worker.start();
    await waitForListeners(world, 1);
    const waiting = await world.song('waiting');
    // The round that submits this one has seen that the other lane is shut; unanswered, it wakes nobody.
    await world.song('video', { operation: 'video-to-music' });
    await world.raw.post(1);
    expect(await world.request(waiting)).toMatchObject({ state: 'queued' });

    await by(world, 'released');

    const post = await world.raw.post(2);
    expect(post.path).toContain('text-to-music');
  });
});
