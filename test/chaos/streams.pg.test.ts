import { mkdtemp, readdir, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect, it, onTestFinished } from 'vitest';
import { READER_GRACE_MS, READER_LEASE_MS } from '../../src/core/stream.ts';
import { hold } from '../support/raw-provider.ts';
import { audioLines, begin, COMPLETE, sha256, soundOf, stream, TITLE } from '../support/stream-provider.ts';
import { waitFor } from '../support/wait-for.ts';
import { LEASE_MS, openWorld } from '../support/world.ts';

/** A provider that answers when the test says so, and a place for what comes. */
async function streamingWorld() {
  const directory = await mkdtemp(join(tmpdir(), 'onetake-streams-'));
  onTestFinished(() => rm(directory, { recursive: true, force: true, maxRetries: 5 }));
  const world = await openWorld({
    provider: 'raw',
    config: { storage: { directory, allowPrivateHosts: true } },
  });
  world.raw.onPost = hold;
  return { world, directory };
}

it('a reader that is killed, or stopped past its lease, publishes nothing; one that is told to end does first', async () => {
  const { world, directory } = await streamingWorld();
  const rescuer = world.worker();
  const sound = soundOf('killed');
  const partial = () => readdir(join(directory, '.partial')).catch(() => []);
  const published = async () => (await readdir(directory)).filter((name) => name !== '.partial');

  /** Its stream has begun, and some of it is on the disk. */
  const reading = async (requestKey: string, number: number) => {
    const id = await world.song(requestKey, { mode: 'stream' });
    const child = await world.child('worker');
    const call = await world.raw.post(number);
    stream(call, TITLE, audioLines(sound));
    await waitFor(async () => (await partial()).some((name) => name.startsWith(id)), {
      what: 'the first bytes on the disk',
    });
    return { id, child, call };
  };
  const isLost = async (id: string) => {
    for (const ms of [READER_LEASE_MS, READER_GRACE_MS]) {
      await world.passTime(ms + 1);
      await rescuer.runOnce();
    }
    expect(await world.request(id)).toMatchObject({
      state: 'failed',
      failure_reason: 'stream_interrupted',
      charge: 'charged',
      submissions: 1,
    });
    expect(await world.attempt(id)).toMatchObject({ stream_end: 'reader_lost', stream_health: 'none' });
    expect((await world.attempt(id))['slot_freed_at']).not.toBeNull();
  };

  const killed = await reading('killed', 1);
  await killed.child.kill('SIGKILL');
  await rescuer.runOnce();
  expect(await world.request(killed.id)).toMatchObject({ state: 'accepted' });
  await isLost(killed.id);
  expect(await published()).toEqual([]);

  const paused = await reading('paused', 2);
  paused.child.process.kill('SIGSTOP');
  await isLost(paused.id);
  paused.call.response.end(COMPLETE);
  paused.child.process.kill('SIGCONT');
  await waitFor(async () => !(await partial()).some((name) => name.startsWith(paused.id)), {
    what: 'what it had to be thrown away',
  });
  expect(await published()).toEqual([]);
  expect(await world.request(paused.id)).toMatchObject({ state: 'failed' });
  await paused.child.kill('SIGKILL');

  const told = await reading('told', 3);
  told.child.process.kill('SIGTERM');
  await told.child.message(
    (message: { name?: string }) => message.name === 'process:stopping',
    'its stop to begin',
  );
  // Another request is nobody's meanwhile.
  const other = await world.song('other');
  told.call.response.end(COMPLETE);
  expect(await told.child.exited).toMatchObject({ code: 0 });
  expect(await world.request(told.id)).toMatchObject({ state: 'succeeded', result_status: 'stored' });
  expect(await published()).toEqual([told.id]);
  expect((await world.client.get(told.id))?.files).toMatchObject([{ sha256: sha256(sound) }]);
  expect(await world.request(other)).toMatchObject({ state: 'queued' });
  expect(world.posts()).toBe(3);
});

it('a worker that slept through its lease before the first event still brings what was paid for', async () => {
  const { world } = await streamingWorld();
  const id = await world.song('asleep', { mode: 'stream' });
  const child = await world.child('worker');
  const call = await world.raw.post(1);
  begin(call);
  child.process.kill('SIGSTOP');
  await world.passTime(LEASE_MS + 1);
  await world.worker().runOnce();
  expect(await world.request(id)).toMatchObject({ state: 'ambiguous', state_reason: 'worker_lost' });
  const sound = soundOf('asleep');
  call.response.end(TITLE + audioLines(sound) + COMPLETE);
  child.process.kill('SIGCONT');
  await waitFor(async () => (await world.request(id))['state'] === 'succeeded', {
    what: 'its stream to end',
  });
  expect(await world.request(id)).toMatchObject({ charge: 'charged', attention: null, submissions: 1 });
  expect((await world.client.get(id))?.files).toMatchObject([{ sha256: sha256(sound) }]);
  // The outcome of the attempt stays what rescue has made of it.
  expect(await world.attempt(id)).toMatchObject({ certainty: 'unknown', stream_end: 'complete' });
  await child.kill('SIGKILL');
});
