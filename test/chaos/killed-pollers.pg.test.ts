import { createHash } from 'node:crypto';
import { mkdtemp, readdir, readFile, rm, stat } from 'node:fs/promises';
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { expect, it, onTestFinished } from 'vitest';
import type { Child } from '../support/children.ts';
import { waitFor } from '../support/wait-for.ts';
import { openWorld } from '../support/world.ts';

// SIGKILL of pollers at random while files come in slowly. Five minutes of it: ONETAKE_KILLED_POLLERS_MS=300000.

const KILL_FOR_MS = Number(process.env['ONETAKE_KILLED_POLLERS_MS'] ?? 3_000);
const IS_LONG = KILL_FOR_MS > 10_000;
const POLLERS = 2;
/** So many are on their way, or waiting, at a time. */
const AT_ONCE = 12;
const FILE_BYTES = IS_LONG ? 2_000_000 : 400_000;
const PIECE_BYTES = 50_000;
const PIECE_EVERY_MS = 60;
/** A kill leaves claims behind, for up to a minute; the clock is moved instead of waited for. */
const CLAIM_MS = 61_000;

/** Of a task: the same at every download, like no other's. */
function fileOf(task: string): Buffer {
  const file = Buffer.alloc(FILE_BYTES, createHash('sha256').update(task).digest());
  file.write('RIFF', 0, 'latin1');
  file.write('WAVEfmt ', 8, 'latin1');
  return file;
}

/** An object store on a slow line: strong ETags, ranges, and a URL that fails now and then. */
async function slowFiles() {
  const seen = { downloads: 0, continued: 0, cut: 0 };
  const send = async (request: IncomingMessage, response: ServerResponse) => {
    const task = request.url?.split('/')[1] ?? '';
    const file = fileOf(task);
    const from = Number(/\d+/.exec(request.headers.range ?? '0')?.[0]);
    seen.downloads += 1;
    if (from > 0) seen.continued += 1;
    if (seen.downloads % 17 === 0) {
      response.writeHead(403).end('<Error/>');
      return;
    }
    response.writeHead(from === 0 ? 200 : 206, {
      etag: `"${task}"`,
      'content-length': file.length - from,
      ...(from === 0 ? {} : { 'content-range': `bytes ${from}-${file.length - 1}/${file.length}` }),
    });
    for (let at = from; at < file.length && !response.destroyed; at += PIECE_BYTES) {
      response.write(file.subarray(at, at + PIECE_BYTES));
      await delay(PIECE_EVERY_MS);
    }
    if (response.destroyed) seen.cut += 1;
    response.end();
  };
  const server = createServer((request, response) => void send(request, response));
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  onTestFinished(() => {
    server.close();
    server.closeAllConnections();
  });
  return { seen, url: `http://127.0.0.1:${(server.address() as AddressInfo).port}` };
}

it.skipIf(process.env['ONETAKE_KILLED_POLLERS_MS'] === undefined)(
  'through kills of pollers at random every file is stored whole, once, and nothing is left of those that were cut',
  async () => {
    const directory = await mkdtemp(join(tmpdir(), 'onetake-generations-'));
    onTestFinished(() => rm(directory, { recursive: true, force: true, maxRetries: 5 }));
    const files = await slowFiles();
    const world = await openWorld({
      provider: 'raw',
      config: {
        storage: { directory, allowPrivateHosts: true },
        poller: { intervalMs: 50, maxIntervalMs: 50 },
      },
      limits: { requestsPerMinute: 100_000, maxConcurrentGenerations: 1_000 },
    });
    world.raw.onGet = (call) => {
      const task = call.path.split('/').at(-1) ?? '';
      const media = { stream_index: 0, url: `${files.url}/${task}/0.wav`, content_type: 'audio/wav' };
      call.answer(200, { task_id: task, status: 'succeeded', audio: [{ ...media, file_size: FILE_BYTES }] });
    };
    const worker = world.worker();
    const open = async () =>
      Object.values(await world.states()).filter((state) => state !== 'succeeded').length;
    let songs = 0;
    const fill = async () => {
      const missing = AT_ONCE - (await open());
      for (let n = 0; n < missing; n++) await world.song(`song ${++songs}`);
      await worker.runOnce();
    };

    await fill();
    const pollers: Child[] = await Promise.all(Array.from({ length: POLLERS }, () => world.child('poller')));
    const until = performance.now() + KILL_FOR_MS;
    let kills = 0;
    while (performance.now() < until || kills < 3) {
      await delay(Math.random() * (IS_LONG ? 2_000 : 700));
      // Only while something is on its way does a kill say anything.
      await waitFor(
        async () => {
          const parts = await readdir(join(directory, '.partial')).catch(() => []);
          if (parts.length === 0) await fill();
          return parts.length > 0;
        },
        { what: 'a download to be under way', timeoutMs: 60_000 },
      );
      const victim = Math.floor(Math.random() * POLLERS);
      await pollers[victim]?.kill('SIGKILL');
      kills += 1;
      await world.passTime(CLAIM_MS);
      pollers[victim] = await world.child('poller');
      if (performance.now() < until) await fill();
    }
    // What the last kills have left comes with the end of their claims, what is on its way by itself.
    await world.passTime(CLAIM_MS);
    await waitFor(async () => (await worker.runOnce()) === 0 && (await open()) === 0, {
      what: 'every file to be in',
      timeoutMs: 180_000,
    });
    await Promise.all(pollers.map((poller) => poller.kill('SIGTERM')));
    // Of two that were at one file, the later may have been killed when it was in: the next process clears that away.
    await world.song(`song ${++songs}`);
    await worker.runOnce();
    const last = world.poller();
    await waitFor(
      async () => {
        await last.runOnce();
        return (await open()) === 0;
      },
      { what: 'the last file', timeoutMs: 60_000 },
    );

    const assets = await world.database.query<{
      request_id: string;
      task: string;
      location: string;
      bytes: string;
      sha256: string;
    }>(
      `select a.request_id, r.provider_task_id as task, a.location, a.bytes, a.sha256
from onetake.generation_requests r left join onetake.assets a on a.request_id = r.id`,
    );
    expect(assets).toHaveLength(songs);
    for (const { request_id: id, task, location, bytes, sha256 } of assets) {
      const expected = fileOf(task);
      expect({ location, bytes: Number(bytes), sha256 }).toEqual({
        location: `${id}/0.wav`,
        bytes: FILE_BYTES,
        sha256: createHash('sha256').update(expected).digest('hex'),
      });
      expect((await readFile(join(directory, location))).equals(expected), id).toBe(true);
    }
    // One file for each, nothing half, nothing beside.
    expect(await readdir(join(directory, '.partial'))).toEqual([]);
    const folders = (await readdir(directory)).filter((name) => name !== '.partial');
    expect(folders).toHaveLength(songs);
    for (const folder of folders) expect(await readdir(join(directory, folder))).toEqual(['0.wav']);
    expect((await stat(directory)).isDirectory()).toBe(true);
    expect(new Set(Object.values(await world.states()))).toEqual(new Set(['succeeded']));
    // One POST and one charge for each, whatever became of its pollers.
    expect(world.posts()).toBe(songs);
    expect(files.seen.cut).toBeGreaterThan(0);
    if (IS_LONG) console.log(JSON.stringify({ killedForMs: KILL_FOR_MS, kills, songs, ...files.seen }));
  },
  600_000,
);
