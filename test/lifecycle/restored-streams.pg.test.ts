import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect, it, onTestFinished } from 'vitest';
import { outcomeOfStream } from '../../src/core/outcome.ts';
import type { StreamReading } from '../../src/core/provider.ts';
import { KnownAttempts } from '../../src/lifecycle/known-attempts.ts';
import { readStream } from '../../src/lifecycle/read-stream.ts';
import { settle } from '../../src/lifecycle/settle.ts';
import { settleStream } from '../../src/lifecycle/settle-stream.ts';
import { createDirectoryStorage } from '../../src/storage/directory-storage.ts';
import { type Attempt, OPERATOR, openAttemptWorld } from '../support/attempts.ts';
import { outcomeOf } from '../support/outcomes.ts';
import { hold } from '../support/raw-provider.ts';
import { audioLines, COMPLETE, sha256, soundOf, stream, TITLE } from '../support/stream-provider.ts';
import { waitFor } from '../support/wait-for.ts';
import { openWorld, type World } from '../support/world.ts';

// A stream is read while its database is put back, doubted, frozen or resumed. Nobody else can read it.

const NEVER = new AbortController().signal;
const STARTED = outcomeOf(outcomeOfStream({ isError: false }), {
  phase: 'response_started',
  httpStatus: 200,
});

async function directoryOf(): Promise<string> {
  const path = await mkdtemp(join(tmpdir(), 'onetake-restored-'));
  onTestFinished(() => rm(path, { recursive: true, force: true, maxRetries: 5 }));
  return path;
}

/** As the database is that was put back to before the attempt: its request waits, with a job. */
async function loseStart(world: World, requestId: string): Promise<void> {
  await world.database.query(
    `do $$
begin
  set local session_replication_role = replica;
  delete from onetake.submission_attempts where request_id = '${requestId}';
  update onetake.generation_requests
  set state = 'queued', submissions = 0, stream_attempt_id = null, reader_lease_until = null, hand_off_bytes = null,
    accepted_at = null, charge = 'none', job_due = true
  where id = '${requestId}';
end
$$`,
  );
}

/** As the database is that was put back to before the stream's end. */
async function loseEnd(world: World, requestId: string): Promise<void> {
  await world.database.query(
    `do $$
begin
  set local session_replication_role = replica;
  delete from onetake.assets where request_id = '${requestId}';
  update onetake.submission_attempts
  set stream_ended_at = null, stream_end = null, stream_health = null, stream_health_applied_at = null,
    stream_health_effect = null, slot_freed_at = null
  where request_id = '${requestId}';
  update onetake.generation_requests
  set state = 'accepted', result_status = null, settled_at = null, document = null,
    reader_lease_until = clock_timestamp() + interval '100 s'
  where id = '${requestId}';
end
$$`,
  );
}

it('is read to its end on a database in doubt, under a freeze and after it', async () => {
  const storage = { directory: await directoryOf(), allowPrivateHosts: true };
  const world = await openWorld({ provider: 'raw', config: { storage } });
  world.raw.onPost = hold;
  const prompts = ['in doubt', 'frozen', 'put back'];
  const ids: string[] = [];
  for (const prompt of prompts) ids.push(await world.song(prompt, { mode: 'stream' }));
  const [inDoubt, frozen, putBack] = ids as [string, string, string];
  const worker = world.worker();
  await worker.start();
  const promptOf = (body: string) => new URLSearchParams(body).get('prompt') ?? '';
  await world.raw.post(3);
  const calls = new Map(world.raw.posts.map((call) => [promptOf(call.body), call]));
  for (const [prompt, call] of calls) stream(call, TITLE, audioLines(soundOf(prompt)));
  for (const id of ids) {
    await waitFor(async () => (await world.request(id))['state'] === 'accepted', { what: 'it to begin' });
  }
  const ends = async (prompt: string, id: string) => {
    calls.get(prompt)?.response.end(COMPLETE);
    const isOver = async () => {
      const { state } = await world.request(id);
      return state === 'succeeded' || state === 'failed';
    };
    await waitFor(isOver, { what: `${prompt} to end` });
    expect(await world.request(id)).toMatchObject({ state: 'succeeded', charge: 'charged', submissions: 1 });
    expect((await world.client.get(id))?.files).toMatchObject([{ sha256: sha256(soundOf(prompt)) }]);
  };

  await world.database.query('update onetake.installation set timeline = timeline + 1');
  await waitFor(() => world.events.some(({ name }) => name === 'installation:unrecognised'), {
    what: 'the doubt',
  });
  const waiting = await world.song('waits');
  await ends('in doubt', inDoubt);
  // What the database has lost, the freeze takes for something that may have been submitted.
  await loseStart(world, putBack);
  expect(await world.client.recover({ mode: 'freeze', ...OPERATOR })).toMatchObject({
    was: 'another_timeline',
  });
  expect(await world.request(waiting)).toMatchObject({ state: 'ambiguous', state_reason: 'recovered' });
  await ends('put back', putBack);
  await ends('frozen', frozen);
  // Whoever reads no more still knows what came of it.
  await loseEnd(world, inDoubt);
  await world.database.query('update onetake.installation set timeline = timeline + 1');
  await ends('in doubt', inDoubt);
  expect(world.posts()).toBe(3);
});

it('is told again to a database that has forgotten its start or its end', async () => {
  const directory = await directoryOf();
  const world = await openAttemptWorld({ config: { storage: { directory } } });
  const ctx = { ...world.ctx, storage: createDirectoryStorage({ directory, allowPrivateHosts: true }) };
  const sound = soundOf('again');
  let minutes = 0;
  const known = new KnownAttempts({ now: () => 0, monotonic: () => minutes * 60_000 });
  const started = async (requestKey: string): Promise<Attempt> => {
    await world.song(requestKey, { mode: 'stream' });
    const attempt = await world.admitted();
    known.admitted(attempt);
    await settle(ctx, attempt, STARTED);
    known.ended(attempt.attemptId, STARTED, true);
    return attempt;
  };
  const reads = async (attempt: Attempt) => {
    const readings: StreamReading[] = [
      { kind: 'audio', index: 0, bytes: sound },
      { kind: 'complete', streams: 1, document: null },
    ];
    const reader = { attempt, outcome: STARTED };
    const from = { read: async () => readings.shift() as StreamReading, cancel: () => undefined };
    const read = await readStream(ctx, reader, from);
    return read && (await settleStream(ctx, reader, read, NEVER));
  };
  const whole = { state: 'succeeded', charge: 'charged', submissions: 1, attention: null };

  // Its reader asks for its lease before anybody has noticed the loss.
  const [asked, long] = [await started('asks'), await started('is long')];
  await loseStart(world, asked.requestId);
  known.streamEnded(asked.attemptId, await reads(asked));
  expect(await world.request(asked.requestId)).toMatchObject(whole);

  // As long as it is read, however long ago it began; and a while longer, when its end is what was forgotten.
  minutes += 20;
  await loseStart(world, long.requestId);
  await known.reassert(ctx);
  expect(await world.request(long.requestId)).toMatchObject({
    state: 'accepted',
    stream_attempt_id: long.attemptId,
  });
  known.streamEnded(long.attemptId, await reads(long));
  await loseEnd(world, long.requestId);
  minutes += 4;
  await known.reassert(ctx);
  expect(await world.request(long.requestId)).toMatchObject(whole);
  expect((await world.client.get(long.requestId))?.files).toMatchObject([{ sha256: sha256(sound) }]);
  expect(await world.database.query('select doubt from onetake.installation')).toEqual([
    { doubt: 'intent_lost' },
  ]);
  // What is long over is nobody's to tell.
  await loseEnd(world, asked.requestId);
  minutes += 4;
  await known.reassert(ctx);
  expect(await world.request(asked.requestId)).toMatchObject({ state: 'accepted' });
  expect(world.posts()).toBe(0);
});
