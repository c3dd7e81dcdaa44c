import { mkdtemp, readdir, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect, it, onTestFinished } from 'vitest';
import { READER_LEASE_MS } from '../../src/core/stream.ts';
import { createClient } from '../../src/index.ts';
import { databaseProxy } from '../support/database-proxy.ts';
import { hold, type ProviderCall } from '../support/raw-provider.ts';
import {
  audioLines,
  begin,
  COMPLETE,
  lineOf,
  sha256,
  soundOf,
  stream,
  TITLE,
} from '../support/stream-provider.ts';
import { waitFor } from '../support/wait-for.ts';
import { openWorld, type World } from '../support/world.ts';

async function directory(): Promise<string> {
  const path = await mkdtemp(join(tmpdir(), 'onetake-streams-'));
  onTestFinished(() => rm(path, { recursive: true, force: true, maxRetries: 5 }));
  return path;
}

const streamed = (world: World, prompt: string) => world.song(prompt, { mode: 'stream' });
const ended = (world: World, id: string) =>
  waitFor(
    async () => {
      const request = await world.request(id);
      return ['succeeded', 'failed', 'ambiguous'].includes(request['state'] as string) ? request : undefined;
    },
    { what: `${id} to end` },
  );
const published = async (storage: string) => (await readdir(storage)).filter((name) => name !== '.partial');

it('a song is streamed into storage, and read back as it came', async () => {
  const storage = { directory: await directory(), allowPrivateHosts: true };
  const world = await openWorld({ config: { storage } });
  const id = await streamed(world, 'a waltz');
  const worker = world.worker();
  await worker.start();
  const request = await world.client.waitForGeneration(id);
  expect(request).toMatchObject({
    state: 'succeeded',
    resultStatus: 'stored',
    providerTaskId: null,
    charge: 'charged',
    attention: null,
    document: { title: { title: 'A Waltz' } },
    attempts: [{ certainty: 'accepted', httpStatus: 200, streamEnd: 'complete', streamHealth: 'none' }],
  });
  expect(request.files).toHaveLength(1);
  const [file] = request.files;
  const bytes: Uint8Array[] = [];
  for await (const piece of await world.client.openFile(id, 0)) bytes.push(piece);
  expect(sha256(Buffer.concat(bytes))).toBe(file?.sha256);
  await waitFor(() => worker.inFlight === 0, { what: 'the slot to be free' });
  expect(await readdir(join(storage.directory, '.partial'))).toEqual([]);
});

/** By prompt: what the provider does, and what becomes of the request. */
interface Story {
  readonly answer: (call: ProviderCall, sound: Buffer) => void;
  readonly request: object;
  readonly attempt?: object;
  readonly files?: number;
}

const FAILED = (failure_reason: string) => ({
  state: 'failed',
  failure_reason,
  charge: 'charged',
  attention: 'not_refunded',
  reader_lease_until: null,
});
const WHOLE = { state: 'succeeded', result_status: 'stored', charge: 'charged', reader_lease_until: null };
const counted = { stream_health: 'dependency_failure', stream_health_effect: expect.stringMatching(/count/) };
const uncounted = { stream_health: 'none', stream_health_effect: 'nothing_to_apply' };

const STORIES: Readonly<Record<string, Story>> = {
  'is reset in the middle': {
    answer: (call, sound) => {
      stream(call, TITLE, audioLines(sound));
      setTimeout(() => call.socket.resetAndDestroy(), 200);
    },
    request: FAILED('stream_interrupted'),
    attempt: { stream_end: 'stream_cut', ...counted },
  },
  'ends without complete': {
    answer: (call, sound) => {
      stream(call, TITLE, audioLines(sound));
      call.response.end();
    },
    request: FAILED('stream_interrupted'),
    attempt: { stream_end: 'stream_cut', ...counted },
  },
  stalls: {
    answer: (call, sound) => stream(call, TITLE, audioLines(sound)),
    request: FAILED('stream_interrupted'),
    attempt: { stream_end: 'stream_idle', ...counted },
  },
  'goes on and on': {
    answer: (call) => {
      begin(call);
      const drops = setInterval(() => call.response.write(lineOf({ type: 'trace' })), 100);
      call.socket.on('close', () => clearInterval(drops));
    },
    request: FAILED('stream_interrupted'),
    attempt: { stream_end: 'stream_deadline', ...counted },
  },
  'has a chunk that is none': {
    answer: (call, sound) => {
      stream(call, TITLE, audioLines(sound));
      call.socket.write('zz\r\n');
    },
    request: FAILED('stream_interrupted'),
    attempt: { stream_end: 'stream_cut', ...counted },
  },
  'has a damaged line': {
    answer: (call, sound) => stream(call, TITLE, '{"type":"audio_chunk"\n', audioLines(sound), COMPLETE),
    request: FAILED('stream_interrupted'),
    attempt: { stream_end: 'stream_damaged', ...counted },
  },
  'is no sound': {
    answer: (call) => stream(call, TITLE, audioLines(Buffer.alloc(300, '<html>')), COMPLETE),
    request: FAILED('stream_interrupted'),
    attempt: { stream_end: 'stream_not_media', ...counted },
  },
  'completes twice': {
    answer: (call, sound) => stream(call, audioLines(sound), COMPLETE, COMPLETE),
    request: FAILED('stream_interrupted'),
    attempt: { stream_end: 'stream_after_complete', ...counted },
  },
  'ends by an error, and hangs': {
    answer: (call, sound) =>
      stream(
        call,
        audioLines(sound),
        lineOf({ type: 'error', code: 'FAL_ERROR', message: `\u0000 \ud83c ${'m'.repeat(1_000_000)}` }),
      ),
    request: FAILED('provider'),
    attempt: { stream_end: 'FAL_ERROR', ...counted },
  },
  'is refused for its content': {
    answer: (call, sound) =>
      stream(call, audioLines(sound), lineOf({ type: 'error', code: 'Content_Policy' })),
    request: FAILED('provider'),
    attempt: { stream_end: 'Content_Policy', ...uncounted },
  },
  'begins with an error': {
    answer: (call) => stream(call, lineOf({ type: 'error', code: 'PROXY_ERROR' })),
    request: FAILED('provider'),
    attempt: {
      reason: 'stream_failed',
      health: 'dependency_failure',
      health_effect: 'counted',
      error_code: 'PROXY_ERROR',
      stream_ended_at: null,
    },
  },
  'begins with nothing': {
    answer: (call) => {
      begin(call);
      call.response.end();
    },
    request: { state: 'ambiguous', state_reason: 'accepted_without_task_id', charge: 'possible' },
  },
  'is a task after all': {
    answer: (call) => call.accept('task-of-a-stream'),
    request: { state: 'accepted', provider_task_id: 'task-of-a-stream', reader_lease_until: null },
  },
  'is of two, one within the other': {
    answer: (call, sound) => {
      const [first, second] = [audioLines(sound, 0, 3), audioLines(soundOf('second'), 1, 3)].map((lines) =>
        lines.split(/(?<=\n)/),
      );
      stream(call, TITLE, ...[0, 1, 2].flatMap((n) => [first?.[n] ?? '', second?.[n] ?? '']), COMPLETE);
      call.response.end();
    },
    request: { ...WHOLE, warnings: ['fewer_streams'], document: { title: { title: 'Ein 歌' } } },
    attempt: { stream_end: 'complete', ...uncounted },
    files: 2,
  },
};

it('each stream of twenty in one process ends for itself, and a second worker changes nothing', async () => {
  const storage = { directory: await directory(), allowPrivateHosts: true };
  const world = await openWorld({
    provider: 'raw',
    operation: {
      breaker: { failureThreshold: 1_000 },
      stream: { idleMs: 3_000, totalMs: 6_000 },
    },
    config: { storage, worker: { concurrency: 30 } },
  });
  const stories = new Map(Object.entries(STORIES));
  const whole: Story = {
    answer: (call, sound) => {
      stream(call, TITLE, audioLines(sound), COMPLETE);
      call.response.end();
    },
    request: { ...WHOLE, warnings: [] },
    attempt: { stream_end: 'complete', ...uncounted },
    files: 1,
  };
  while (stories.size < 20) stories.set(`is whole, ${stories.size}`, whole);
  const promptOf = ({ body }: ProviderCall) => new URLSearchParams(body).get('prompt') ?? '';
  world.raw.onPost = (call) => stories.get(promptOf(call))?.answer(call, soundOf(promptOf(call)));

  // One that has no storage buys nothing, and says what is waited for.
  const poor = world.worker({ config: { ...world.config, storage: {} } });
  const first = await streamed(world, 'is whole, 19');
  await poor.runOnce();
  expect(world.posts()).toBe(0);
  expect(await world.request(first)).toMatchObject({ state: 'queued', charge: 'none' });
  expect((await world.client.get(first))?.waitingFor).toMatch(/^a worker with storage that it can write to/);
  await poor.stop();

  const ids = new Map([['is whole, 19', first]]);
  for (const prompt of stories.keys()) {
    if (!ids.has(prompt)) ids.set(prompt, await streamed(world, prompt));
  }
  const workers = [world.worker(), world.worker()];
  for (const worker of workers) await worker.start();
  for (const [prompt, id] of ids) if (prompt !== 'is a task after all') await ended(world, id);
  await waitFor(() => workers.every(({ inFlight }) => inFlight === 0), { what: 'the slots to be free' });
  for (const [prompt, story] of stories) {
    const id = ids.get(prompt) ?? '';
    expect(await world.request(id), prompt).toMatchObject(story.request);
    expect(await world.attempt(id), prompt).toMatchObject(story.attempt ?? {});
    const { files = [] } = (await world.client.get(id)) ?? {};
    expect(
      files.map(({ index, bytes, sha256 }) => ({ index, bytes, sha256 })),
      prompt,
    ).toEqual(
      [soundOf(prompt), soundOf('second')]
        .slice(0, story.files ?? 0)
        .map((sound, index) => ({ index, bytes: sound.length, sha256: sha256(sound) })),
    );
  }
  const succeeded = [...stories].filter(([, { files = 0 }]) => files > 0).map(([prompt]) => ids.get(prompt));
  expect((await published(storage.directory)).sort()).toEqual(succeeded.sort());
  expect(await readdir(join(storage.directory, '.partial'))).toEqual([]);
  expect(world.posts()).toBe(stories.size);
  const slots =
    'select request_id from onetake.submission_attempts where slot_freed_at is null and settled_at is not null';
  const held = await world.database.query<{ request_id: string }>(slots);
  const running = ['begins with nothing', 'is a task after all'].map((prompt) => ids.get(prompt));
  expect(held.map((row) => row.request_id).sort()).toEqual(running.sort());
  const owed = await world.database.query('select request_id from onetake.money_not_returned');
  const failed = [...stories.values()].filter(({ request }) => 'failure_reason' in request);
  expect(owed).toHaveLength(failed.length);
  // Each of both evidences once.
  const due = await world.database.query(
    'select from onetake.submission_attempts where health_applied_at is null or (stream_ended_at is not null and stream_health_applied_at is null)',
  );
  expect(due).toEqual([]);
  expect(world.events.filter(({ name }) => name === 'process:trouble')).toEqual([]);
});

it('is asked for by name: part of what the key names, and of operations that have streams', async () => {
  const storage = { directory: await directory(), allowPrivateHosts: true };
  const world = await openWorld({ provider: 'raw', config: { storage } });
  const { client } = world;
  const song = { operation: 'text-to-music', fields: { prompt: 'rain' } } as const;
  const digestOf = async (requestKey: string) => {
    const [row] = await world.database.query(
      `select mode, fields->>'mode' as sent, payload_digest from onetake.generation_requests where request_key = $1`,
      [requestKey],
    );
    return row as { mode: string; sent: string; payload_digest: string };
  };
  await client.enqueue([
    { ...song, requestKey: 'silent' },
    { ...song, requestKey: 'async', mode: 'async' },
    { ...song, requestKey: 'stream', mode: 'stream' },
  ]);
  const [silent, async, stream] = [
    await digestOf('silent'),
    await digestOf('async'),
    await digestOf('stream'),
  ];
  expect(silent).toMatchObject({ mode: 'async', sent: 'async' });
  expect(async).toEqual(silent);
  expect(stream).toMatchObject({ mode: 'stream', sent: 'stream' });
  expect(stream.payload_digest).not.toBe(silent.payload_digest);
  await expect(client.enqueue({ ...song, requestKey: 'stream' })).rejects.toMatchObject({
    code: 'intent_mismatch',
  });

  const wrong = (more: object) => client.enqueue({ ...song, requestKey: 'wrong', ...more } as never);
  await expect(wrong({ mode: 'live' })).rejects.toThrow("mode: expected 'async' or 'stream'.");
  await expect(wrong({ operation: 'text-to-sfx', mode: 'stream' })).rejects.toThrow(
    "mode: text-to-sfx has no streams; use 'async'.",
  );
  await expect(wrong({ fields: { prompt: 'rain', stems: true }, mode: 'stream' })).rejects.toMatchObject({
    problems: [{ code: 'needs_async', field: 'stems' }],
  });

  const connectionString = world.database.connectionString;
  const by = (config?: object) =>
    createClient({ connectionString, ...(config === undefined ? {} : { config }) });
  // Nobody has told it of a storage, so it can't know that there is none.
  await using plain = by();
  await plain.enqueue({ ...song, requestKey: 'plain', mode: 'stream' });
  await using poor = by({});
  await expect(poor.enqueue({ ...song, requestKey: 'poor', mode: 'stream' })).rejects.toMatchObject({
    code: 'storage_not_configured',
  });
  await using streaming = by({ operations: { 'text-to-music': { mode: 'stream' } }, storage });
  await streaming.enqueue({ ...song, requestKey: 'configured' });
  // What a configuration adds is no part of the intent.
  expect(await digestOf('configured')).toEqual({ ...silent, mode: 'stream', sent: 'stream' });
});

it('a database that is away when a stream ends is waited for, and its reader after that', async () => {
  const storage = { directory: await directory(), allowPrivateHosts: true };
  const world = await openWorld({ provider: 'raw', config: { storage } });
  const proxy = await databaseProxy(world.database.connectionString);
  onTestFinished(() => proxy.stop());
  world.raw.onPost = hold;
  const id = await streamed(world, 'rain');
  const worker = world.worker({ connectionString: proxy.connectionString });
  await worker.start();
  const call = await world.raw.post(1);
  stream(call, TITLE, audioLines(soundOf('rain')));
  await waitFor(async () => (await readdir(join(storage.directory, '.partial'))).length > 0, {
    what: 'its first bytes',
  });
  await proxy.down();
  call.response.end(COMPLETE);
  await waitFor(
    () => world.events.some(({ name, event }) => name === 'process:trouble' && event.loop === 'stream'),
    { what: 'the trouble to be told' },
  );
  // For longer than the lease; then others are there before the reader is.
  await world.passTime(READER_LEASE_MS + 1);
  await world.worker().runOnce();
  expect(await world.request(id)).toMatchObject({ state: 'accepted' });
  await proxy.up();
  expect(await ended(world, id)).toMatchObject(WHOLE);
  expect((await world.client.get(id))?.files).toMatchObject([{ sha256: sha256(soundOf('rain')) }]);
});
