import { describe, expect, it, onTestFinished } from 'vitest';
import { BROKEN_CHANNELS } from '../provider/sonilo/broken-channel.ts';
import { rawServer } from '../provider/sonilo/raw-server.ts';
import { openWorld, type World } from '../support/world.ts';

/** Its connections are reset in the handshake: a code that comes on both sides of the first byte. */
async function worldBehindResets(): Promise<World> {
  const server = await rawServer({
    onConnection: (socket) => socket.once('data', () => socket.resetAndDestroy()),
  });
  onTestFinished(() => server.stop());
  return openWorld({ provider: new URL(`https://127.0.0.1:${server.port}`) });
}

const unproven = (world: World) =>
  world.events.filter(({ name }) => name === 'wire:unproven').map(({ event }) => event);

describe('a worker', () => {
  it('whose oracle is healthy returns to the queue what it saw not leave', async () => {
    const world = await worldBehindResets();
    const id = await world.song('one');
    await world.worker().runOnce();
    expect(await world.request(id)).toMatchObject({
      state: 'queued',
      state_reason: 'unsent',
      charge: 'none',
    });
    expect(await world.attempt(id)).toMatchObject({
      certainty: 'unsent',
      error_code: 'ECONNRESET',
      headers_sent: false,
      headers_sent_proof: 'oracle',
    });
    expect(unproven(world)).toEqual([]);
  });

  it.each([
    ['publishes nothing', 'silent'],
    ['publishes twice', 'unknown_shape'],
  ] as const)('whose channel %s says so once, and freezes what it can’t prove', async (how, wireOracle) => {
    BROKEN_CHANNELS[how]();
    const world = await worldBehindResets();
    const worker = world.worker({ name: 'a worker' });
    const ids = [await world.song('one')];
    await worker.runOnce();
    ids.push(await world.song('two'));
    await worker.runOnce();
    for (const id of ids) {
      expect(await world.request(id)).toMatchObject({
        state: 'ambiguous',
        state_reason: 'transport',
        charge: 'possible',
      });
      expect(await world.attempt(id)).toMatchObject({ headers_sent: null, headers_sent_proof: null });
    }
    expect(unproven(world)).toEqual([
      { worker: 'a worker', provider: 'sonilo', wireOracle, errorCode: null },
    ]);
  });

  it('says it before its first POST, and a refused port is still unsent', async () => {
    BROKEN_CHANNELS['publishes nothing']();
    const refusing = await rawServer({});
    await refusing.stop();
    const world = await openWorld({ provider: new URL(`http://127.0.0.1:${refusing.port}`) });
    const worker = world.worker();
    await worker.runOnce();
    expect(unproven(world)).toHaveLength(1);
    const id = await world.song('one');
    await worker.runOnce();
    expect(await world.request(id)).toMatchObject({ state: 'queued', state_reason: 'unsent' });
    expect(await world.attempt(id)).toMatchObject({ headers_sent: false, headers_sent_proof: 'error_code' });
  });
});
