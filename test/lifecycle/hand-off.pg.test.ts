import { createHash } from 'node:crypto';
import { mkdtemp, readdir, readFile, rename, rm, writeFile } from 'node:fs/promises';
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
        `select (extract(epoch from lease_expires_at - clock_timestamp()) * 1000)::float8 as ms
from onetake.poll_leases where request_id = $1`,
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
    expect(await world.database.query('select from onetake.poll_leases')).toEqual([]);
    expect(vi.getTimerCount()).toBe(timers);
  });

  it('records each file when it is safe, and goes on behind it', async () => {
    const files = await fileServer();
    const world = await storingWorld({ provider: 'raw' });
    const id = await world.song('one');
    await world.worker().runOnce();
    await world.passTime(1_000);
    const media = [0, 1].map((index) => ({ ...mediaOf(`${files.url}/${index}`), stream_index: index }));
    world.raw.onGet = (call) => call.answer(200, { ...finished(call.path, files.url), audio: media });
    files.answer = (request, response) => {
      if (request.url?.startsWith('/1/')) response.writeHead(503).end();
      else response.end(WAV);
    };
    const poller = world.poller();
    await poller.runOnce();
    expect(await world.client.get(id)).toMatchObject({ state: 'accepted', files: [{ index: 0 }] });
    files.answer = (_request, response) => response.end(WAV);
    await world.passTime(60_000);
    await poller.runOnce();
    expect(await world.request(id)).toMatchObject({ state: 'succeeded', result_status: 'stored' });
    expect(files.requests.map(({ url }) => url?.split('/')[1])).toEqual(['0', '1', '1']);
    expect(await world.client.get(id)).toMatchObject({ files: [{ index: 0 }, { index: 1 }] });

    // Except one that was recorded and has gone since.
    const again = await world.song('two');
    await world.worker().runOnce();
    await world.passTime(1_000);
    files.answer = (request, response) => {
      if (request.url?.startsWith('/1/')) response.writeHead(503).end();
      else response.end(WAV);
    };
    await poller.runOnce();
    await rm(join(world.directory, again, '0.wav'));
    files.answer = (_request, response) => response.end(WAV);
    await world.passTime(60_000);
    await poller.runOnce();
    expect(await world.request(again)).toMatchObject({ state: 'succeeded' });
    expect((await filesIn(world.directory)).sort()).toEqual(['0.wav', '0.wav', '1.wav', '1.wav']);
  });

  it('shows how far a file has come, in an event and to whoever asks what the request waits for', async () => {
    vi.useFakeTimers({ toFake: ['setInterval', 'clearInterval'] });
    onTestFinished(() => void vi.useRealTimers());
    const files = await fileServer();
    const world = await storingWorld({ provider: 'raw' });
    const id = await world.song('one');
    await world.worker().runOnce();
    await world.passTime(1_000);
    const whole = Buffer.concat([WAV, Buffer.alloc(99_956)]);
    const started = new Promise<ServerResponse>((resolve) => {
      files.answer = (_request, response) => {
        response.writeHead(200, { 'content-length': whole.length });
        response.write(whole.subarray(0, 50_000), () => resolve(response));
      };
    });
    world.raw.onGet = (call) => {
      call.answer(200, {
        ...finished(call.path, files.url),
        audio: [{ ...mediaOf(files.url), file_size: 0 }],
      });
    };
    const polled = world.poller().runOnce();
    const download = await started;
    const progress = () => world.events.find(({ name }) => name === 'asset:progress')?.event;
    await waitFor(() => vi.advanceTimersByTime(5_000) && progress() !== undefined, { what: 'the event' });
    expect(progress()).toMatchObject({ requestId: id, index: 0, totalBytes: whole.length });
    await waitFor(
      async () =>
        (await world.client.get(id))?.waitingFor === 'its files: 0 stored, 49 kB of 98 kB of the next',
      { what: 'it to be shown' },
    );
    download.end(whole.subarray(50_000));
    await polled;
    expect(await world.client.get(id)).toMatchObject({ state: 'succeeded', waitingFor: null });
  });

  it('takes a result that nobody has any more for lost, eight days on, and never for a reason of our own', async () => {
    const files = await fileServer();
    const world = await storingWorld({ provider: 'raw' });
    const [expired, forgotten, unstored] = (await world.songs(3)) as [string, string, string];
    await world.worker().runOnce();
    await world.passTime(1_000);
    const taskOf = async (id: string) => (await world.request(id))['provider_task_id'];
    let days = 0;
    const away = join(world.directory, '..', `away-${expired}`);
    onTestFinished(() => rm(away, { recursive: true, force: true }));
    const forgottenTask = await taskOf(forgotten);
    world.raw.onGet = (call) => {
      const task = call.path.split('/').at(-1);
      if (task === forgottenTask && days > 0) call.answer(404, { code: 'not_found' });
      else call.answer(200, finished(call.path, `${files.url}/${task}`));
    };
    const unstoredTask = await taskOf(unstored);
    files.answer = (request, response) => {
      if (days > 0 && request.url?.startsWith(`/${unstoredTask}/`)) response.end(WAV);
      else response.writeHead(403).end('<Error/>');
    };
    const poller = world.poller();
    await poller.runOnce();
    await rename(world.directory, away);
    for (days = 1; days <= 7; days++) {
      await world.passTime(86_400_000);
      await poller.runOnce();
    }
    for (const id of [expired, forgotten]) {
      expect(await world.request(id)).toMatchObject({ state: 'accepted', charge: 'charged' });
    }
    await world.passTime(86_400_000 + 60_000);
    await poller.runOnce();
    for (const id of [expired, forgotten]) {
      expect(await world.request(id)).toMatchObject({
        state: 'succeeded',
        result_status: 'lost',
        attention: 'result_lost',
        charge: 'charged',
      });
    }
    expect(world.posts()).toBe(3);
    const shown = await world.database.query('select what from onetake.attention');
    expect(shown.filter(({ what }) => what === 'result lost')).toHaveLength(2);
    // Its file is there for the taking; what is missing is a disk of ours.
    for (let n = 0; n < 4; n++) {
      await world.passTime(600_000);
      await poller.runOnce();
    }
    expect(await world.request(unstored)).toMatchObject({ state: 'accepted', attention: 'poll_failing' });
    expect((await world.client.get(unstored))?.waitingFor).toMatch(/^storage that can be written to/);
    await rename(away, world.directory);
    await world.passTime(600_000);
    await poller.runOnce();
    expect(await world.request(unstored)).toMatchObject({ state: 'succeeded', result_status: 'stored' });
  });

  it('frees slots and submits while its disk is away, and delivers when it is back', async () => {
    const files = await fileServer();
    const world = await storingWorld({ provider: 'raw', limits: { maxConcurrentGenerations: 1 } });
    const ids = await world.songs(3);
    world.raw.onGet = (call) => call.answer(200, finished(call.path, files.url));
    const [worker, poller] = [world.worker(), world.poller()];
    // A file where the directory would be.
    await rm(world.directory, { recursive: true });
    await writeFile(world.directory, '');
    for (const _ of ids) {
      await worker.runOnce();
      await world.passTime(60_000);
      await poller.runOnce();
    }
    expect(Object.values(await world.states())).toEqual(['accepted', 'accepted', 'accepted']);
    expect(world.posts()).toBe(3);
    await rm(world.directory);
    await world.passTime(60_000);
    await poller.runOnce();
    expect(Object.values(await world.states())).toEqual(['succeeded', 'succeeded', 'succeeded']);
  });

  it('goes on with a file that was cut', async () => {
    const files = await fileServer();
    const world = await storingWorld({ provider: 'raw' });
    const id = await world.song('one');
    await world.worker().runOnce();
    await world.passTime(1_000);
    const whole = Buffer.concat([WAV, Buffer.alloc(199_956, 'sound')]);
    world.raw.onGet = (call) =>
      call.answer(200, {
        ...finished(call.path, files.url),
        audio: [{ ...mediaOf(files.url), file_size: whole.length }],
      });
    const ranges: (string | undefined)[] = [];
    files.answer = (request, response) => {
      ranges.push(request.headers.range);
      const from = Number(/\d+/.exec(request.headers.range ?? '0')?.[0]);
      response.writeHead(from === 0 ? 200 : 206, {
        etag: '"whole"',
        'content-length': whole.length - from,
        ...(from === 0 ? {} : { 'content-range': `bytes ${from}-${whole.length - 1}/${whole.length}` }),
      });
      if (from > 0) response.end(whole.subarray(from));
      else response.write(whole.subarray(0, 150_000), () => response.destroy());
    };
    await world.poller().runOnce();
    await world.passTime(60_000);
    // Another process, that finds what the first one has left.
    await world.poller().runOnce();
    expect(await world.request(id)).toMatchObject({ state: 'succeeded', result_status: 'stored' });
    expect(ranges).toEqual([undefined, expect.stringMatching(/^bytes=[1-9]\d*-$/)]);
    expect((await readFile(join(world.directory, id, '0.wav'))).equals(whole)).toBe(true);
    expect(await filesIn(world.directory)).toEqual(['0.wav']);
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
  return { task_id: path.split('/').at(-1), status: 'succeeded', audio: [mediaOf(url)] };
}

function mediaOf(url: string): object {
  return { stream_index: 0, url: `${url}/song.wav`, content_type: 'audio/wav', file_size: WAV.length };
}
