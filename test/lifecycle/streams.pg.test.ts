import { createHash } from 'node:crypto';
import { mkdtemp, readdir, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect, it, onTestFinished } from 'vitest';
import { waitFor } from '../support/wait-for.ts';
import { openWorld } from '../support/world.ts';

async function directory(): Promise<string> {
  const path = await mkdtemp(join(tmpdir(), 'onetake-streams-'));
  onTestFinished(() => rm(path, { recursive: true, force: true, maxRetries: 5 }));
  return path;
}

it('a song is streamed into storage, and read back as it came', async () => {
  const storage = { directory: await directory(), allowPrivateHosts: true };
  const world = await openWorld({ config: { storage } });
  const enqueued = await world.client.enqueue({
    operation: 'text-to-music',
    fields: { prompt: 'a waltz', duration: 5 },
    requestKey: 'waltz',
    mode: 'stream',
  });
  if (!('id' in enqueued)) throw new Error('refused');
  const worker = world.worker();
  await worker.start();
  const request = await world.client.waitForGeneration(enqueued.id);
  expect(request).toMatchObject({
    state: 'succeeded',
    resultStatus: 'stored',
    providerTaskId: null,
    charge: 'charged',
  });
  expect(request.files).toHaveLength(1);
  const [file] = request.files;
  const hash = createHash('sha256');
  for await (const piece of await world.client.openFile(enqueued.id, 0)) hash.update(piece);
  expect(hash.digest('hex')).toBe(file?.sha256);
  await waitFor(() => worker.inFlight === 0, { what: 'the slot to be free' });
  expect(await readdir(join(storage.directory, '.partial'))).toEqual([]);
});
