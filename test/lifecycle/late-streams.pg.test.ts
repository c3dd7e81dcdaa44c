import { mkdtemp, readdir, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect, it, onTestFinished } from 'vitest';
import { outcomeOfStream } from '../../src/core/outcome.ts';
import type { StreamReading } from '../../src/core/provider.ts';
import { READER_GRACE_MS, READER_LEASE_MS } from '../../src/core/stream.ts';
import { readStream } from '../../src/lifecycle/read-stream.ts';
import { rescue } from '../../src/lifecycle/rescue.ts';
import { settle } from '../../src/lifecycle/settle.ts';
import { settleStream } from '../../src/lifecycle/settle-stream.ts';
import { createDirectoryStorage } from '../../src/storage/directory-storage.ts';
import { type Attempt, type AttemptWorld, OPERATOR, openAttemptWorld } from '../support/attempts.ts';
import { GATE_CLOSED, outcomeOf } from '../support/outcomes.ts';
import { sha256, soundOf } from '../support/stream-provider.ts';
import { LEASE_MS } from '../support/world.ts';

// Streams that begin when somebody else has settled their attempt already, and perhaps another has come after it.

const NEVER = new AbortController().signal;
const STARTED = outcomeOf(outcomeOfStream({ isError: false }), {
  phase: 'response_started',
  httpStatus: 200,
});
const FAILED_AT_ONCE = outcomeOf(outcomeOfStream({ isError: true }), {
  httpStatus: 200,
  errorCode: 'FAL_ERROR',
});

interface LateWorld extends AttemptWorld {
  /** Of a stream; its worker was given up, and the request is frozen. */
  frozen(requestKey: string): Promise<Attempt>;
  /** The same; then an operator permits a second POST, which is kept back. */
  behind(requestKey: string): Promise<{ readonly first: Attempt; readonly second: Attempt }>;
  /** What its own worker does with a stream, from its first event on. */
  reads(attempt: Attempt, sound: Buffer): Promise<void>;
  owed(): Promise<object[]>;
}

async function openLateWorld(): Promise<LateWorld> {
  const directory = await mkdtemp(join(tmpdir(), 'onetake-late-'));
  onTestFinished(() => rm(directory, { recursive: true, force: true, maxRetries: 5 }));
  const world = await openAttemptWorld({ config: { storage: { directory } } });
  const ctx = { ...world.ctx, storage: createDirectoryStorage({ directory, allowPrivateHosts: true }) };
  // The job of one that waits no more may stand before it.
  const admitted = () => world.admitted().catch(() => world.admitted());
  const frozen = async (requestKey: string) => {
    await world.song(requestKey, { mode: 'stream' });
    const attempt = await admitted();
    await world.passTime(LEASE_MS + 1);
    await rescue(world.ctx);
    return attempt;
  };
  return Object.assign(world, {
    frozen,
    async behind(requestKey: string) {
      const first = await frozen(requestKey);
      await world.rearmed(first);
      const second = await admitted();
      await settle(world.ctx, second, GATE_CLOSED);
      expect(await world.request(first.requestId)).toMatchObject({ state: 'queued', submissions: 2 });
      return { first, second };
    },
    async reads(attempt: Attempt, sound: Buffer) {
      await settle(ctx, attempt, STARTED);
      const readings: StreamReading[] = [
        { kind: 'audio', index: 0, bytes: sound },
        { kind: 'complete', streams: 1, document: null },
      ];
      const stream = { read: async () => readings.shift() as StreamReading, cancel: () => undefined };
      const reader = { attempt, outcome: STARTED };
      const read = await readStream(ctx, reader, stream);
      if (read !== undefined) await settleStream(ctx, reader, read, NEVER);
      expect(await readdir(join(directory, '.partial')).catch(() => [])).toEqual([]);
    },
    owed: () =>
      world.database.query(
        'select request_id, provider_task_id, why, refunded, watched_until from onetake.money_not_returned',
      ),
  });
}

it('one of an attempt that is not the last is read by the worker whose evidence accepted its request', async () => {
  const world = await openLateWorld();
  const { first, second } = await world.behind('rain');
  const sound = soundOf('rain');
  await world.reads(first, sound);
  expect(await world.request(first.requestId)).toMatchObject({
    state: 'succeeded',
    stream_attempt_id: first.attemptId,
    reader_lease_until: null,
    submissions: 2,
    charge: 'charged',
    attention: null,
  });
  expect((await world.client.get(first.requestId))?.files).toMatchObject([{ sha256: sha256(sound) }]);
  expect(await world.attempts(first.requestId)).toMatchObject([
    { id: first.attemptId, stream_end: 'complete', stream_unclaimed_at: null },
    { id: second.attemptId, stream_end: null, stream_unclaimed_at: null },
  ]);
  expect(await world.owed()).toEqual([]);

  // Its reader is gone: that is said of the attempt whose stream it was.
  const lost = await world.behind('lost');
  await settle(world.ctx, lost.first, STARTED);
  // It may still be read, though nothing of the later attempt runs.
  await world.database.query('update onetake.submission_attempts set slot_until = now() where id = $1', [
    lost.second.attemptId,
  ]);
  await expect(
    world.client.resolve({ id: lost.first.requestId, as: 'abandoned', ...OPERATOR }),
  ).rejects.toThrow('may still be running');
  await world.passTime(READER_LEASE_MS + 1);
  await rescue(world.ctx);
  await world.passTime(READER_GRACE_MS + 1);
  await rescue(world.ctx);
  expect(await world.request(lost.first.requestId)).toMatchObject({
    state: 'failed',
    failure_code: 'reader_lost',
  });
  expect((await world.attempts(lost.first.requestId)).map((row) => row['stream_end'])).toEqual([
    'reader_lost',
    null,
  ]);

  const failed = await world.behind('failed');
  await settle(world.ctx, failed.first, FAILED_AT_ONCE);
  expect(await world.request(failed.first.requestId)).toMatchObject({
    state: 'failed',
    failure_reason: 'provider',
    failure_code: 'FAL_ERROR',
    attention: 'not_refunded',
  });
});

it('one that its request has no use for is money that was not returned, whatever the request came to', async () => {
  const world = await openLateWorld();
  const unclaimed = { provider_task_id: null, why: 'unclaimed', refunded: null, watched_until: null };
  const sound = soundOf('second');

  // Both were paid for; the second is the request's own.
  const whole = await world.frozen('whole');
  await world.reads(await world.again(whole), sound);
  await world.reads(whole, soundOf('first'));
  expect(await world.request(whole.requestId)).toMatchObject({
    state: 'succeeded',
    charge: 'charged',
    attention: 'possibly_paid_twice',
  });
  expect((await world.client.get(whole.requestId))?.files).toMatchObject([{ sha256: sha256(sound) }]);
  const ofWhole = { request_id: whole.requestId, ...unclaimed };
  expect(await world.owed()).toEqual([ofWhole]);
  expect(await world.client.listUnrefunded()).toMatchObject([
    { requestId: whole.requestId, providerTaskId: null, why: 'unclaimed', refunded: null },
  ]);
  // Told once more, as by a commit whose answer was lost.
  await settle(world.ctx, whole, STARTED);
  expect(await world.owed()).toEqual([ofWhole]);

  const failed = await world.frozen('failed');
  await settle(world.ctx, await world.again(failed), FAILED_AT_ONCE);
  await world.reads(failed, sound);
  expect(await world.request(failed.requestId)).toMatchObject({
    state: 'failed',
    charge: 'charged',
    attention: 'possibly_paid_twice',
  });
  const ofFailed = { request_id: failed.requestId, ...unclaimed };
  expect(await world.owed()).toEqual([ofWhole, { ...ofFailed, why: 'provider' }, ofFailed]);

  const withdrawn = await world.frozen('withdrawn');
  await world.client.resolve({
    id: withdrawn.requestId,
    as: 'not_accepted',
    resubmit: false,
    ...OPERATOR,
  });
  await world.reads(withdrawn, sound);
  expect(await world.request(withdrawn.requestId)).toMatchObject({
    state: 'cancelled',
    charge: 'charged',
    attention: 'paid_though_withdrawn',
  });
  expect((await world.owed()).at(-1)).toEqual({ request_id: withdrawn.requestId, ...unclaimed });

  // Somebody has looked, which brings no money back.
  await world.client.acknowledge(whole.requestId, OPERATOR);
  expect(await world.database.query('select count(*)::int as asked from onetake.attention')).toEqual([
    { asked: 2 },
  ]);
  expect(await world.owed()).toHaveLength(4);
});
