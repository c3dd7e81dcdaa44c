import { describe, expect, it } from 'vitest';
import { rescue } from '../../src/lifecycle/rescue.ts';
import type { AdmittedAttempt } from '../../src/postgres/submission-attempts.ts';
import {
  answered,
  type BreakerWorld,
  between,
  COOLDOWN_MS,
  expectChain,
  LEASE_MS,
  openBreakerWorld,
} from '../support/breaker-world.ts';

const fails = () => answered(502);
const accepts = () => answered(202);

/** A breaker that only records. Its rows and events say so. */
const shadowWorld = () => openBreakerWorld({ breaker: { shadow: true } });

const setShadow = (world: BreakerWorld, on: boolean) =>
  world.database.query('update onetake.circuit_breakers set shadow = $1', [on]);

describe('a breaker in shadow', () => {
  it('opens on the same evidence, says so in rows and events, and refuses nothing', async () => {
    const world = await shadowWorld();
    const opened = await world.opened(8);
    expect(between(opened, 'opened_at', 'retry_at')).toBe(COOLDOWN_MS);
    expect(await world.status()).toMatchObject({ state: 'open', effective_state: 'open', shadow: true });
    expect((await world.status())['why']).toMatch(/^open since .* \(shadow: nothing is refused\)$/);
    expect(await world.transitions()).toMatchObject([{ cause: 'failure_threshold', shadow: true }]);
    expect(world.transitionEvents()).toMatchObject([{ cause: 'failure_threshold', shadow: true }]);
    expect(await world.round()).toHaveLength(8);
  });

  it('names no waiting request as blocked by it', async () => {
    const world = await shadowWorld();
    await world.opened();
    await world.song('waiting');
    expect((await world.client.list())[0]).toMatchObject({ waitingFor: 'a worker' });
  });

  it('refuses no app that asks before it enqueues', async () => {
    const world = await shadowWorld();
    await world.opened();
    const result = await world.client.enqueue({
      operation: 'text-to-music',
      fields: { prompt: 'rain', duration: 5 },
      requestKey: 'one',
      whenOpen: 'refuse',
    });
    expect(result).toMatchObject({ state: 'queued' });
  });

  it('marks the first submission after retry_at as what would have been the probe, and lets the others go too', async () => {
    const world = await shadowWorld();
    await world.opened(5);
    await world.passTime(COOLDOWN_MS);
    const attempts = await world.round();
    expect(attempts).toHaveLength(5);
    const probes = await world.database.query('select id from onetake.submission_attempts where is_probe');
    expect(probes).toEqual([{ id: attempts[0]?.attemptId }]);
    expect(await world.breaker()).toMatchObject({
      state: 'half_open',
      probe_attempt_id: attempts[0]?.attemptId,
    });
    await world.song('during the probe');
    expect(await world.round()).toHaveLength(1);
  });

  it('closes and opens again by that one’s outcome alone', async () => {
    const world = await shadowWorld();
    await world.opened(3);
    await world.passTime(COOLDOWN_MS);
    const [probe, other] = (await world.round()) as [AdmittedAttempt, AdmittedAttempt];
    await world.settle(other, accepts());
    expect(await world.effect(other)).toBe('stale_generation');
    await world.settle(probe, fails());
    expect(await world.breaker()).toMatchObject({ state: 'open', generation: 4 });
    await world.song('next');
    const second = await world.probe();
    await world.settle(second, accepts());
    expect(await world.breaker()).toMatchObject({ state: 'closed' });
    expectChain(await world.transitions(), [
      'failure_threshold',
      'probe_granted',
      'probe_failed',
      'probe_granted',
      'probe_succeeded',
    ]);
    expect((await world.transitions()).every((row) => row['shadow'] === true)).toBe(true);
  });

  it('opens again when what would have been the probe is lost', async () => {
    const world = await shadowWorld();
    await world.opened(1);
    await world.probe();
    await world.passTime(LEASE_MS + 1);
    await rescue(world.ctx);
    expect(await world.breaker()).toMatchObject({ state: 'open', generation: 4 });
    expectChain(await world.transitions(), ['failure_threshold', 'probe_granted', 'probe_lost']);
  });

  it('does not ramp up after a close', async () => {
    const world = await shadowWorld();
    await world.closedAgain();
    await world.songs(20);
    expect(await world.round(world.ctx, 20)).toHaveLength(20);
  });

  it('obeys an operator all the same', async () => {
    const world = await shadowWorld();
    await world.song('waiting');
    await world.client.overrideBreaker({
      name: 'sonilo/text-to-music',
      mode: 'forced_open',
      actor: 'op',
      reason: 'stop now',
    });
    expect(await world.round()).toEqual([]);
    expect(await world.status()).toMatchObject({
      why: 'forced open by op: stop now; underneath it is closed (shadow)',
    });
  });

  it('refuses from the moment at which shadow is turned off while it is open, until the same retry_at', async () => {
    const world = await shadowWorld();
    const opened = await world.opened(3);
    await setShadow(world, false);
    expect(await world.round()).toEqual([]);
    expect(await world.breaker()).toMatchObject({ state: 'open', retry_at: opened['retry_at'] });
    const probe = await world.probe();
    await world.settle(probe, accepts());
    expect((await world.transitions()).map((row) => row['shadow'])).toEqual([true, false, false]);
  });

  it('is due for a probe when shadow is turned off long after retry_at', async () => {
    const world = await shadowWorld();
    await world.opened(3);
    await world.passTime(COOLDOWN_MS * 20);
    await setShadow(world, false);
    expect(await world.status()).toMatchObject({ effective_state: 'probe_due' });
    expect(await world.round()).toHaveLength(1);
  });

  it('takes the outcome of what would have been the probe when shadow is turned off meanwhile', async () => {
    const world = await shadowWorld();
    await world.opened(4);
    await world.passTime(COOLDOWN_MS);
    const [probe] = (await world.round(world.ctx, 1)) as [AdmittedAttempt];
    await setShadow(world, false);
    expect(await world.round()).toEqual([]);
    await world.settle(probe, accepts());
    expect(await world.breaker()).toMatchObject({ state: 'closed' });
    expect(await world.round()).toHaveLength(2);
  });

  it('refuses nothing from the moment at which shadow is turned on while it is open', async () => {
    const world = await openBreakerWorld();
    await world.opened(3);
    expect(await world.round()).toEqual([]);
    await setShadow(world, true);
    expect(await world.round()).toHaveLength(3);
  });
});
