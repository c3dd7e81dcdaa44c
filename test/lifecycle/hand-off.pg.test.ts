import { createHash } from 'node:crypto';
import { mkdtemp, readdir, readFile, rm } from 'node:fs/promises';
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { describe, expect, it, onTestFinished, vi } from 'vitest';
import { waitFor } from '../support/wait-for.ts';
import { openWorld, type World, type WorldOptions } from '../support/world.ts';

async function storingWorld(options: WorldOptions = {}): Promise<World & { readonly directory: string }> {
  const directory = await mkdtemp(join(tmpdir(), 'onetake-generations-'));
  onTestFinished(() => rm(directory, { recursive: true, force: true }));
  const world = await openWorld({ ...options, config: { storage: { directory, allowPrivateHosts: true } } });
  return Object.assign(world, { directory });
}

async function filesIn(directory: string): Promise<string[]> {
  const entries = await readdir(directory, { recursive: true, withFileTypes: true });
  return entries.filter((entry) => entry.isFile()).map((entry) => entry.name);
}

interface FileServer {
  readonly url: string;
  readonly requests: IncomingMessage[];
  answer: (request: IncomingMessage, response: ServerResponse) => void;
}

/** Stands for the provider's file store. */
async function fileServer(): Promise<FileServer> {
  const requests: IncomingMessage[] = [];
  const server = createServer((request, response) => {
    requests.push(request);
    files.answer(request, response);
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  onTestFinished(() => {
    server.close();
    server.closeAllConnections();
  });
  const files: FileServer = {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    requests,
    answer: (_request, response) => response.end(WAV),
  };
  return files;
}

const WAV = Buffer.concat([Buffer.from('RIFF\x24\x00\x00\x00WAVEfmt '), Buffer.alloc(28)]);

describe('hand-off', () => {
  it('brings the files in, whole and verified, before the request says so', async () => {
    const world = await storingWorld();
    const id = await world.song('one');
    await world.worker().runOnce();
    await world.passTime(2_000);

    await world.poller().runOnce();

    expect(await world.request(id)).toMatchObject({
      state: 'succeeded',
      result_status: 'stored',
      charge: 'charged',
    });
    const [asset] = await world.database.query<{
      location: string;
      bytes: string;
      sha256: string;
      content_type: string;
    }>('select * from onetake.assets');
    const stored = await readFile(join(world.directory, asset?.location ?? ''));
    expect(stored.length).toBe(Number(asset?.bytes));
    expect(createHash('sha256').update(stored).digest('hex')).toBe(asset?.sha256);
    expect(asset?.content_type).toBe('audio/wav');
    expect(stored.subarray(0, 4).toString()).toBe('RIFF');
    expect(await filesIn(world.directory)).toHaveLength(1);
  });

  it('frees the slot before the files come, however long they take', async () => {
    const files = await fileServer();
    const world = await storingWorld({ provider: 'raw', limits: { maxConcurrentGenerations: 1 } });
    const [first, second] = (await world.songs(2)) as [string, string];
    const worker = world.worker();
    await worker.runOnce();
    await world.passTime(1_000);
    const started = new Promise<ServerResponse>((resolve) => {
      files.answer = (_request, response) => resolve(response);
    });
    world.raw.onGet = (call) => call.answer(200, finished(call.path, files.url));
    const polled = world.poller().runOnce();
    const download = await started;

    expect(await world.request(first)).toMatchObject({ state: 'accepted' });
    expect((await world.request(first))['provider_finished_at']).not.toBeNull();
    expect((await world.attempt(first))['slot_freed_at']).not.toBeNull();
    await worker.runOnce();
    expect((await world.request(second))['state']).toBe('accepted');
    expect(await filesIn(world.directory)).not.toContain('0.wav');
    download.end(WAV);
    await polled;
    expect(await world.request(first)).toMatchObject({ state: 'succeeded', result_status: 'stored' });
  });

  it('reads the task again for a fresh URL when the old one is no longer good', async () => {
    const files = await fileServer();
    const world = await storingWorld({ provider: 'raw' });
    const id = await world.song('one');
    await world.worker().runOnce();
    await world.passTime(1_000);
    let fresh = 0;
    world.raw.onGet = (call) => call.answer(200, finished(call.path, `${files.url}/${++fresh}`));
    files.answer = (request, response) => {
      if (request.url?.startsWith('/1/')) response.writeHead(403).end('<Error/>');
      else response.end(WAV);
    };
    const poller = world.poller();
    await poller.runOnce();
    expect(await world.request(id)).toMatchObject({ state: 'accepted', poll_errors: 1, charge: 'charged' });
    await world.passTime(60_000);
    await poller.runOnce();
    expect(await world.request(id)).toMatchObject({ state: 'succeeded', result_status: 'stored' });
    expect(world.raw.gets).toHaveLength(2);
    // The key goes to the API alone.
    expect(world.raw.gets.every((call) => call.authorization !== undefined)).toBe(true);
    expect(files.requests.map((request) => request.headers.authorization)).toEqual([undefined, undefined]);
  });

  it.each<[string, (response: ServerResponse) => void]>([
    [
      'is cut short',
      (response) => {
        response.writeHead(200, { 'content-length': WAV.length });
        response.write(WAV.subarray(0, 20), () => response.destroy());
      },
    ],
    ['has another length than stated', (response) => void response.end(Buffer.concat([WAV, WAV]))],
    ['is no audio', (response) => void response.end(Buffer.alloc(WAV.length, 'x'))],
    ['is gone', (response) => void response.writeHead(404).end()],
  ])('a file that %s is not stored, and the request waits, with attention in time', async (_what, answer) => {
    const files = await fileServer();
    const world = await storingWorld({ provider: 'raw' });
    const id = await world.song('one');
    await world.worker().runOnce();
    await world.passTime(1_000);
    world.raw.onGet = (call) => call.answer(200, finished(call.path, files.url));
    files.answer = (_request, response) => answer(response);
    const poller = world.poller();
    for (let n = 0; n < 10; n++) {
      await poller.runOnce();
      await world.passTime(600_000);
    }
    expect(await world.request(id)).toMatchObject({
      state: 'accepted',
      attention: 'poll_failing',
      charge: 'charged',
    });
    expect(await world.database.query('select * from onetake.assets')).toEqual([]);
    files.answer = (_request, response) => response.end(WAV);
    await poller.runOnce();
    expect(await world.request(id)).toMatchObject({ state: 'succeeded', attention: null });
    expect(await filesIn(world.directory)).toEqual(['0.wav']);
  });

  it('keeps its claim while the files come, by renewing it each 20 s', async () => {
    vi.useFakeTimers({ toFake: ['setInterval', 'clearInterval'] });
    onTestFinished(() => void vi.useRealTimers());
    const files = await fileServer();
    const world = await storingWorld({ provider: 'raw' });
    const id = await world.song('one');
    await world.worker().runOnce();
    await world.passTime(1_000);
    const started = new Promise<ServerResponse>((resolve) => {
      files.answer = (_request, response) => resolve(response);
    });
    world.raw.onGet = (call) => call.answer(200, finished(call.path, files.url));
    const claimLeftMs = async () => {
      const [row] = await world.database.query<{ ms: number }>(
        `select (extract(epoch from next_poll_at - clock_timestamp()) * 1000)::float8 as ms
from onetake.generation_requests where id = $1`,
        [id],
      );
      return row?.ms ?? 0;
    };
    const timers = vi.getTimerCount();
    const polled = world.poller().runOnce();
    const download = await started;
    expect(await claimLeftMs()).toBeGreaterThan(50_000);
    expect(await claimLeftMs()).toBeLessThanOrEqual(60_000);
    for (let renewed = 0; renewed < 3; renewed++) {
      await world.passTime(30_000);
      vi.advanceTimersByTime(19_999);
      expect(await claimLeftMs()).toBeLessThan(31_000);
      vi.advanceTimersByTime(1);
      await waitFor(async () => (await claimLeftMs()) > 50_000, { what: 'the claim to be renewed' });
    }
    expect(await world.poller().runOnce()).toBe(0);
    download.end(WAV);
    await polled;
    expect(await world.request(id)).toMatchObject({ state: 'succeeded', next_poll_at: null });
    expect(vi.getTimerCount()).toBe(timers);
  });

  it('done by two at once is done once', async () => {
    const files = await fileServer();
    const world = await storingWorld({ provider: 'raw' });
    const id = await world.song('one');
    await world.worker().runOnce();
    await world.passTime(1_000);
    world.raw.onGet = (call) => call.answer(200, finished(call.path, files.url));
    const held: ServerResponse[] = [];
    files.answer = (_request, response) => {
      held.push(response);
      if (held.length === 2) for (const one of held) one.end(WAV);
    };
    const first = world.poller().runOnce();
    await waitFor(() => files.requests.length > 0, { what: 'the download to begin' });
    // Whoever fetches files keeps the claim for a minute at a time; nobody renews it for a poller that died.
    await world.passTime(61_000);
    await Promise.all([first, world.poller().runOnce()]);
    expect(await world.request(id)).toMatchObject({ state: 'succeeded', result_status: 'stored' });
    expect(await filesIn(world.directory)).toEqual(['0.wav']);
    expect(world.events.filter(({ name }) => name === 'task:finished')).toHaveLength(1);
  });
});

function finished(path: string, url: string): object {
  const media = { stream_index: 0, url: `${url}/song.wav`, content_type: 'audio/wav', file_size: WAV.length };
  return { task_id: path.split('/').at(-1), status: 'succeeded', audio: [media] };
}
