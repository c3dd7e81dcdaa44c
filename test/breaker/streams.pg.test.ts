import { describe, expect, it } from 'vitest';
import { outcomeOfStream } from '../../src/core/outcome.ts';
import { READER_GRACE_MS, READER_LEASE_MS, type StreamEnd } from '../../src/core/stream.ts';
import { recordOutcome } from '../../src/lifecycle/record-outcome.ts';
import { rescue } from '../../src/lifecycle/rescue.ts';
import { rescueLostReader, settleStream } from '../../src/lifecycle/settle-stream.ts';
import { renewReader } from '../../src/postgres/accepted-streams.ts';
import type { AdmittedAttempt } from '../../src/postgres/submission-attempts.ts';
import type { StreamFiles } from '../../src/storage/directory-storage.ts';
import { type BreakerWorld, halfOpen, openBreakerWorld } from '../support/breaker-world.ts';
import { outcomeOf } from '../support/outcomes.ts';

/** Nothing of it is written to: what came of each stream is the test's own word. */
const STORES = { config: { storage: { directory: 'unused' } } };
const NEVER = new AbortController().signal;
const NO_FILES: StreamFiles = {
  write: async () => undefined,
  publish: async () => [],
  discard: async () => undefined,
};
const STARTED = outcomeOf(outcomeOfStream({ isError: false }), {
  phase: 'response_started',
  httpStatus: 200,
  closed: false,
});
const FAILED_AT_ONCE = {
  ...STARTED,
  ...outcomeOfStream({ isError: true }),
  evidence: { ...STARTED.evidence, errorCode: 'FAL_ERROR' },
};
const CUT: StreamEnd = { kind: 'interrupted', errorCode: 'stream_cut' };
const COMPLETE: StreamEnd = { kind: 'complete', streams: 1, document: null };

const started = async (world: BreakerWorld): Promise<AdmittedAttempt> => {
  const attempt = await world.admitted({ mode: 'stream' });
  await world.settle(attempt, STARTED);
  return attempt;
};
const end = (world: BreakerWorld, attempt: AdmittedAttempt, how: StreamEnd) =>
  settleStream(world.ctx, { attempt, outcome: STARTED }, { end: how, files: NO_FILES, bytes: 0 }, NEVER);
const effects = async (world: BreakerWorld, { requestId }: AdmittedAttempt) => {
  const attempt = await world.attempt(requestId);
  return [attempt['health_effect'], attempt['stream_health_effect']];
};

describe('the end of a stream', () => {
  it('counts once where it is a failure of the provider, and so many open the breaker', async () => {
    const world = await openBreakerWorld(STORES);
    for (const harmless of [
      { kind: 'failed', errorCode: 'CONTENT_POLICY', isContent: true },
      { kind: 'interrupted', errorCode: 'storage', isOurs: true },
      COMPLETE,
    ] as const) {
      const attempt = await started(world);
      await end(world, attempt, harmless);
      expect(await effects(world, attempt)).toEqual(['nothing_to_apply', 'nothing_to_apply']);
    }
    const attempts = [await started(world), await started(world), await started(world)];
    for (const [number, attempt] of attempts.entries()) {
      await end(world, attempt, CUT);
      // A second word, of a reader that lost the answer to its commit, is none.
      await end(world, attempt, CUT);
      await rescue(world.ctx);
      expect(await effects(world, attempt)).toEqual(['nothing_to_apply', number < 2 ? 'counted' : 'opened']);
    }
    expect(await world.breaker()).toMatchObject({ state: 'open', generation: 2 });
    expect(await world.transitions()).toMatchObject([
      { cause: 'failure_threshold', outcome_kind: 'dependency_failure', http_status: null, failures: 3 },
    ]);
  });

  it('that its worker left unapplied is applied by rescue, once, before what came later', async () => {
    const world = await openBreakerWorld(STORES);
    const cut = await started(world);
    await world.database.query(
      `update onetake.submission_attempts
set stream_ended_at = clock_timestamp(), stream_end = 'stream_cut', stream_health = 'dependency_failure' where id = $1`,
      [cut.attemptId],
    );
    const later = await started(world);
    expect(await effects(world, cut)).toEqual(['nothing_to_apply', 'counted']);
    // Not nothing to apply: the failure before it came first.
    expect(await effects(world, later)).toEqual(['reset', null]);
    await end(world, later, CUT);
    await rescue(world.ctx);
    await rescue(world.ctx);
    expect(await world.breaker()).toMatchObject({ state: 'closed', consecutive_failures: 1 });
  });

  it('of a probe counts in the generation that its own start has opened', async () => {
    const { world, probe } = await halfOpen();
    await world.database.query(`update onetake.generation_requests set mode = 'stream' where id = $1`, [
      probe.requestId,
    ]);
    await world.settle(probe, STARTED);
    const closed = await world.breaker();
    expect(closed).toMatchObject({ state: 'closed', generation: 4, consecutive_failures: 0 });
    await end(world, probe, CUT);
    expect(await effects(world, probe)).toEqual(['closed', 'counted']);
    expect(await world.breaker()).toMatchObject({ state: 'closed', generation: 4, consecutive_failures: 1 });
  });

  it('of an older generation, or under an override, changes nothing', async () => {
    const world = await openBreakerWorld(STORES);
    const [old, under] = [await started(world), await started(world)];
    const note = { actor: 'an operator', reason: 'maintenance' };
    await world.client.overrideBreaker({ name: 'sonilo/text-to-music', mode: 'forced_closed', ...note });
    // Its worker is gone before the health is applied, which rescue does after the release.
    const gone = new AbortController();
    const dying = await world.process({
      emit: (name) => {
        if (name === 'stream:ended') gone.abort();
      },
    });
    await settleStream(
      dying,
      { attempt: under, outcome: STARTED },
      { end: CUT, files: NO_FILES, bytes: 0 },
      gone.signal,
    );
    expect(await effects(world, under)).toEqual(['nothing_to_apply', null]);
    await world.client.overrideBreaker({ name: 'sonilo/text-to-music', mode: 'released', ...note });
    await rescue(world.ctx);
    expect(await effects(world, under)).toEqual(['nothing_to_apply', 'under_override']);
    await world.opened();
    const before = await world.breaker();
    await end(world, old, CUT);
    expect(await effects(world, old)).toEqual(['nothing_to_apply', 'stale_generation']);
    expect(await world.breaker()).toEqual(before);
  });
});

describe('the start of a stream', () => {
  it('that is an error is one failure, and the end of its request', async () => {
    const world = await openBreakerWorld(STORES);
    const attempt = await world.admitted({ mode: 'stream' });
    await world.settle(attempt, FAILED_AT_ONCE);
    expect(await world.request(attempt.requestId)).toMatchObject({
      state: 'failed',
      failure_reason: 'provider',
      failure_code: 'FAL_ERROR',
      charge: 'charged',
      attention: 'not_refunded',
    });
    expect(await effects(world, attempt)).toEqual(['counted', null]);
    expect((await world.attempt(attempt.requestId))['slot_freed_at']).not.toBeNull();
    expect(await world.breaker()).toMatchObject({ consecutive_failures: 1 });
  });

  it('that only a replay tells is read by nobody, until its lease ends', async () => {
    const world = await openBreakerWorld(STORES);
    const attempt = await world.admitted({ mode: 'stream' });
    await world.passTime(30_000);
    await rescue(world.ctx);
    expect(await world.request(attempt.requestId)).toMatchObject({ state: 'ambiguous' });
    await world.ctx.database.transaction((tx) =>
      recordOutcome(world.ctx, tx, attempt, STARTED, 'replay', attempt),
    );
    expect(await world.request(attempt.requestId)).toMatchObject({ state: 'accepted', charge: 'charged' });
    const waitsFor = async () => (await world.client.get(attempt.requestId))?.waitingFor;
    expect(await waitsFor()).toBe('its stream');
    await world.passTime(READER_LEASE_MS - 5_000);
    await rescue(world.ctx);
    expect(await waitsFor()).toBe('its stream');
    // A lease may have ended because nobody could renew it: whoever notices gives a little more.
    await world.passTime(5_001);
    expect(await rescueLostReader(world.ctx, attempt, {})).toBe(false);
    await rescue(world.ctx);
    expect(await waitsFor()).toBe('its stream; its worker has not been heard of');
    expect(await renewReader(world.ctx.database, attempt, { leaseMs: READER_LEASE_MS, bytes: 1_024 })).toBe(
      true,
    );
    expect(await waitsFor()).toBe('its stream: 1024 bytes so far');
    await world.passTime(READER_LEASE_MS + 1);
    await rescue(world.ctx);
    await world.passTime(READER_GRACE_MS - 5_000);
    await rescue(world.ctx);
    expect(await waitsFor()).toBe('its stream: 1024 bytes so far; its worker has not been heard of');
    await world.passTime(5_001);
    await rescue(world.ctx);
    expect(await world.request(attempt.requestId)).toMatchObject({
      state: 'failed',
      failure_reason: 'stream_interrupted',
      failure_code: 'reader_lost',
      reader_lease_until: null,
    });
    expect(await world.attempt(attempt.requestId)).toMatchObject({
      stream_end: 'reader_lost',
      stream_health: 'none',
      stream_health_effect: 'nothing_to_apply',
    });
    expect(await world.breaker()).toMatchObject({ consecutive_failures: 0 });
    // Whoever had it after all comes too late.
    await end(world, attempt, COMPLETE);
    expect(await world.request(attempt.requestId)).toMatchObject({ state: 'failed' });
  });
});
