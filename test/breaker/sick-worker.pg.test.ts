import { describe, expect, it, onTestFinished, vi } from 'vitest';
import type { Provider } from '../../src/core/provider.ts';
import type { OnetakeConfig } from '../../src/runtime/define-config.ts';
import {
  type BreakerWorld,
  broken,
  COOLDOWN_MS,
  freezeTimers,
  openBreakerWorld,
} from '../support/breaker-world.ts';
import { waitFor } from '../support/wait-for.ts';

/** Nothing listens there. */
const NOWHERE = 'http://127.0.0.1:1';
/** For so long dispatch sleeps when it knows of nothing to come. */
const IDLE_MS = 1_000;

describe('a worker that reaches no provider', () => {
  it('says so after five, then neither submits nor probes, and a healthy worker closes the breaker', async () => {
    const world = await openBreakerWorld();
    const config: OnetakeConfig = { ...world.config, providers: { sonilo: { baseUrl: NOWHERE } } };
    const sick = world.worker({ name: 'sick', config });
    await world.songs(5);
    expect(await sick.runOnce()).toBe(5);
    expect(world.events.filter(({ name }) => name === 'worker:sick')).toEqual([
      { name: 'worker:sick', event: { worker: 'sick', provider: 'sonilo' } },
    ]);
    expect(await world.breaker()).toMatchObject({ state: 'open' });
    await world.passTime(COOLDOWN_MS);

    const before = await world.breaker();
    for (let n = 0; n < 3; n++) expect(await sick.runOnce()).toBe(0);
    expect(await world.breaker()).toEqual(before);
    const healthy = world.worker();
    expect(await healthy.runOnce()).toBe(1);
    expect(await world.breaker()).toMatchObject({ state: 'closed' });
    expect(await sick.runOnce()).toBe(0);
    expect(world.posts()).toBe(1);
  });

  it('is not one that kept five back by its own doing: a customer’s missing key stops nobody else', async () => {
    const world = await openBreakerWorld();
    const credentials = (account: string): string => {
      if (account === 'default') throw new Error('no key');
      return 'sk_test';
    };
    const worker = world.worker({ credentials });
    await world.songs(6);
    expect(await worker.runOnce()).toBe(6);
    await world.client.upsertAccount({
      name: 'other',
      provider: 'sonilo',
      requestsPerMinute: 10,
      maxConcurrentGenerations: 10,
    });
    const id = await world.song('other', { account: 'other' });
    await worker.runOnce();
    expect(world.events.filter(({ name }) => name === 'worker:sick')).toEqual([]);
    expect(await world.request(id)).toMatchObject({ state: 'accepted' });
  });

  it('goes on submitting to the others while it asks one that keeps silent', async () => {
    const world = await openBreakerWorld();
    const { worker, mute } = await sickForMute(world);
    turnMonotonicClock(15_000);
    await worker.start();
    await mute.asked;
    await world.song('loud');
    await world.raw.post(1);
    mute.answer();
  });

  it('comes back the moment that one answers, with no timer of its own', async () => {
    const world = await openBreakerWorld();
    const { worker, mute } = await sickForMute(world);
    await world.passTime(COOLDOWN_MS);
    turnMonotonicClock(15_000);
    freezeTimers(world);
    const delays = frozenDelays();
    await worker.start();
    await mute.asked;
    await waitFor(() => delays.includes(IDLE_MS), { what: 'dispatch to sleep' });
    expect(mute.submissions()).toBe(5);

    mute.answer();
    await waitFor(() => mute.submissions() === 6, { what: 'a probe of the one that is back' });
    expect(names(world)).toContain('worker:recovered');
  });

  it('stops only once its question is answered', async () => {
    const world = await openBreakerWorld();
    const { worker, mute } = await sickForMute(world);
    turnMonotonicClock(15_000);
    await worker.start();
    await mute.asked;
    const stopped = worker.stop();
    // Long enough for another one to come and go.
    const other = world.worker();
    await other.runOnce();
    await other.stop();
    expect(names(world).filter((name) => name === 'process:stopped')).toHaveLength(1);
    mute.answer();
    await stopped;
    expect(names(world).slice(-2)).toEqual(['worker:recovered', 'process:stopped']);
  });
});

const names = (world: BreakerWorld) => world.events.map(({ name }) => name);

/** Nothing gets through to it, and whether anything would is answered when the test says so. */
function muteProvider() {
  const asked = Promise.withResolvers<void>();
  const answered = Promise.withResolvers<boolean>();
  let submissions = 0;
  const provider: Provider = {
    name: 'mute',
    submit: () => {
      submissions += 1;
      return Promise.resolve(broken('unsent'));
    },
    readTask: () => Promise.reject(new Error('there is no task')),
    isReachable: () => {
      asked.resolve();
      return answered.promise;
    },
    close: () => Promise.resolve(),
  };
  const answer = () => answered.resolve(true);
  return { provider, asked: asked.promise, answer, submissions: () => submissions };
}

/** A worker that knows two providers and reaches one. */
async function sickForMute(world: BreakerWorld) {
  const mute = muteProvider();
  await world.client.upsertAccount({
    name: 'quiet',
    provider: 'mute',
    requestsPerMinute: 100,
    maxConcurrentGenerations: 100,
  });
  const worker = world.worker({ providers: { mute: mute.provider } });
  onTestFinished(mute.answer);
  for (let n = 1; n <= 5; n++) await world.song(`quiet ${n}`, { account: 'quiet' });
  expect(await worker.runOnce()).toBe(5);
  expect(names(world)).toContain('worker:sick');
  return { worker, mute };
}

/** The delays of the timers that are frozen from here on. No spy: at the file's end vitest would put the frozen one back. */
function frozenDelays(): number[] {
  const frozen = globalThis.setTimeout;
  const delays: number[] = [];
  globalThis.setTimeout = ((...timer: Parameters<typeof setTimeout>) => {
    delays.push(timer[1] ?? 0);
    return frozen(...timer);
  }) as typeof setTimeout;
  return delays;
}

function turnMonotonicClock(ms: number): void {
  const now = performance.now.bind(performance);
  const clock = vi.spyOn(performance, 'now').mockImplementation(() => now() + ms);
  onTestFinished(() => clock.mockRestore());
}
