import { createHash } from 'node:crypto';
import { appendFileSync, copyFileSync, renameSync, rmSync, writeFileSync } from 'node:fs';
import { describe, expect, it, onTestFinished } from 'vitest';
import type { EnqueueInput } from '../../src/index.ts';
import { formDigest } from '../../src/simulator/form.ts';
import { type VideoOptions, videoBytes } from '../support/video-bytes.ts';
import { videoFile } from '../support/video-file.ts';
import { waitFor } from '../support/wait-for.ts';
import { openWorld, type World, type WorldOptions } from '../support/world.ts';

const song = (file: string, requestKey = 'a click'): EnqueueInput => ({
  operation: 'video-to-music',
  fields: { video: { file }, prompt: 'calm' },
  requestKey,
});

async function enqueuedWorld(options: WorldOptions = {}, video: VideoOptions = {}) {
  const world = await openWorld(options);
  const { path, content } = await videoFile({ bytes: 300_000, ...video });
  const { id } = (await world.client.enqueue(song(path))) as { id: string };
  return { world, path, content, id };
}

async function attempted(world: World, id: string, count = 1) {
  return waitFor(
    async () => {
      const attempts = await world.attempts(id);
      return attempts.filter((attempt) => attempt['settled_at'] !== null).length >= count
        ? attempts
        : undefined;
    },
    { what: `${count} settled attempts` },
  );
}

describe('a request with a local file', () => {
  it('sends what was enqueued, once, and ends like any other', async () => {
    const { world, path, content, id } = await enqueuedWorld({ simulator: { runTimeMs: 1 } });
    await Promise.all([world.worker().start(), world.poller().start()]);
    await waitFor(async () => (await world.request(id))['state'] === 'succeeded', { what: 'the song' });
    const sha256 = createHash('sha256').update(content).digest('hex');
    const ledger = world.simulator.ledger();
    expect(ledger.totals).toMatchObject({ posts: 1, charges: 1 });
    const { video: _reference, ...texts } = (await world.request(id))['fields'] as Record<string, string>;
    const file = { field: 'video', sha256, bytes: content.length };
    expect(ledger.forms[0]).toMatchObject({
      operation: 'video-to-music',
      form: formDigest(Object.entries(texts), [file]),
    });
    expect(await world.request(id)).toMatchObject({
      fields: { video: JSON.stringify({ bytes: content.length, container: 'mp4', file: path, sha256 }) },
    });
    // Of the file nothing is told but in its own column.
    const said = JSON.stringify([world.events, await world.client.get(id), await world.attempts(id)]);
    expect(said).not.toMatch(/holiday|onetake-video/);
  });

  it('is the same intent for the same content, wherever it lies, and another one for another', async () => {
    const { world, path, id } = await enqueuedWorld();
    const copy = `${path}.copy.mp4`;
    copyFileSync(path, copy);
    expect(await world.client.enqueue(song(copy))).toMatchObject({ id, created: false });
    writeFileSync(copy, videoBytes({ bytes: 300_000 }));
    await expect(world.client.enqueue(song(copy))).rejects.toMatchObject({ code: 'intent_mismatch' });
    rmSync(copy);
    await expect(world.client.enqueue(song(copy))).rejects.toMatchObject({
      code: 'invalid_field',
      problems: [{ code: 'media_missing', field: 'video' }],
    });
  });

  it('can be one of many', async () => {
    const { world, path, id } = await enqueuedWorld();
    const inputs = [song(path), song(`${path}.none`, 'another click'), song(path, 'a third click')];
    const results = await world.client.enqueue(inputs);
    expect(results).toMatchObject([
      { id, created: false },
      { refused: 'invalid_field', problems: [{ code: 'media_missing' }] },
      { created: true },
    ]);
    expect(JSON.stringify(results)).not.toContain('holiday');
  });

  it('is refused with all that is wrong, without a row and without its name', async () => {
    const world = await openWorld();
    const { path } = await videoFile({ seconds: 400, codec: 'mp4v' });
    const input = { ...song(path), fields: { video: { file: path }, variants_num: 11 } } as EnqueueInput;
    const error = await world.client.enqueue(input).then(
      () => undefined,
      (thrown: Error) => thrown,
    );
    expect(error).toMatchObject({
      code: 'invalid_field',
      problems: [
        { code: 'out_of_range', field: 'variants_num' },
        { code: 'media_codec', field: 'video' },
        { code: 'media_too_long', field: 'video' },
      ],
    });
    expect(`${error} ${error?.stack}`).not.toContain('holiday');
    expect(await world.states()).toEqual({});
  });

  it.each<[string, (path: string) => void, string]>([
    ['is gone', (path) => rmSync(path), 'media_missing'],
    ['has changed', (path) => appendFileSync(path, 'x'), 'media_changed'],
  ])(
    'whose file %s at its submission sends nothing, waits, and is sent when the file is back',
    async (_what, harm, errorCode) => {
      const { world, path, id } = await enqueuedWorld();
      const kept = `${path}.kept`;
      copyFileSync(path, kept);
      harm(path);
      await world.worker().start();
      expect(await attempted(world, id)).toMatchObject([
        { error_code: errorCode, certainty: 'unsent', health: 'none', headers_sent: false, phase: 'unsent' },
      ]);
      const waiting = await world.request(id);
      expect(waiting).toMatchObject({ state: 'queued', charge: 'none' });
      expect((waiting['not_before'] as Date).getTime()).toBeGreaterThan(
        (waiting['created_at'] as Date).getTime(),
      );
      expect(world.posts()).toBe(0);
      expect(await world.breaker('sonilo/video-to-music')).toMatchObject({ consecutive_failures: 0 });
      renameSync(kept, path);
      await waitFor(
        async () => {
          await world.passTime(10_000);
          return (await world.request(id))['state'] === 'accepted';
        },
        { what: 'its acceptance' },
      );
      expect(world.posts()).toBe(1);
    },
  );

  it('whose body is cut in the middle is ambiguous, and never sent again', async () => {
    const { world, id } = await enqueuedWorld({ provider: 'raw' }, { bytes: 8_000_000 });
    const cut = await cuttingServer();
    await world.database.query('select 1');
    const worker = world.worker({
      config: { ...world.config, providers: { sonilo: { baseUrl: cut.url } } },
    });
    await worker.start();
    await waitFor(async () => (await world.request(id))['state'] === 'ambiguous', { what: 'the cut' });
    expect(await world.request(id)).toMatchObject({ state_reason: 'transport', charge: 'possible' });
    await world.passTime(600_000);
    await worker.runOnce();
    expect(cut.connections()).toBe(1);
    expect(await world.attempts(id)).toHaveLength(1);
  });
});

async function cuttingServer(): Promise<{ readonly url: string; readonly connections: () => number }> {
  const { createServer } = await import('node:net');
  let connections = 0;
  const server = createServer((socket) => {
    connections++;
    socket.on('error', () => undefined);
    socket.once('data', () => socket.resetAndDestroy());
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  onTestFinished(() => void server.close());
  const address = server.address() as { port: number };
  return { url: `http://127.0.0.1:${address.port}`, connections: () => connections };
}
