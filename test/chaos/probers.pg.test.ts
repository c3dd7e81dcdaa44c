import { join } from 'node:path';
import { expect, it, onTestFinished } from 'vitest';
import { startChild } from '../support/children.ts';
import { roundsOr } from '../support/fleet.ts';
import { MUSIC, openWorld } from '../support/world.ts';

const PROCESSES = 4;
const PROBERS_EACH = 16;
const ROUNDS = roundsOr(40);
const TIMEOUT_MS = 60_000 + ROUNDS * 4_000;

it(
  'of 64 would-be probers in 4 processes one posts, each time',
  async () => {
    const world = await openWorld({
      provider: 'raw',
      limits: { requestsPerMinute: 1_000_000, maxConcurrentGenerations: 100_000 },
    });
    world.raw.onPost = (call) => call.answer(502);
    const { config, database } = world;
    // Every loser finds a job that it could have taken.
    await database.query(
      `
    insert into onetake.generation_requests (account, operation, request_key, fields, payload_digest, job_due)
    select 'default', 'text-to-music', 'song ' || n, '{"prompt": "a song"}', repeat('0', 64), true
    from generate_series(1, $1::int) n`,
      [ROUNDS + PROCESSES * PROBERS_EACH],
    );
    const worker = world.worker();
    await worker.runOnce();
    await database.query(
      `update onetake.circuit_breakers set state = 'open', opened_at = now(), retry_at = now() + interval '1 h' where name = $1`,
      [MUSIC],
    );
    await worker.runOnce();
    await worker.stop();
    const before = world.posts();
    const env = {
      ONETAKE_TEST_PROBERS: JSON.stringify({
        connectionString: database.connectionString,
        config,
        probers: PROBERS_EACH,
      }),
    };
    const children = Array.from({ length: PROCESSES }, () => {
      const child = startChild({ file: join(import.meta.dirname, '../support/prober-child.ts'), env });
      onTestFinished(() => child[Symbol.asyncDispose]());
      return child;
    });
    await Promise.all(
      children.map((child) =>
        child.message<{ ready?: number }>((line) => line.ready === child.pid, 'it runs'),
      ),
    );
    const transitionsBefore = (await world.transitions()).length;

    for (let round = 1; round <= ROUNDS; round++) {
      await database.query(
        'update onetake.circuit_breakers set retry_at = greatest(opened_at, clock_timestamp()), opened_at = least(opened_at, clock_timestamp()) where name = $1',
        [MUSIC],
      );
      for (const child of children) child.send({ round });
      const answers = await Promise.all(
        children.map((child) =>
          child.message<{ round?: number; admitted: number }>(
            (line) => line.round === round,
            `round ${round} ends`,
          ),
        ),
      );
      expect(answers.reduce((sum, { admitted }) => sum + admitted, 0)).toBe(1);
      expect(world.posts() - before).toBe(round);
    }

    const transitions = (await world.transitions()).slice(transitionsBefore);
    const expected = Array.from({ length: ROUNDS }, () => ['probe_granted', 'probe_failed']).flat();
    expect(transitions.map((row) => row['cause'])).toEqual(expected);
    const numbers = transitions.map((row) => row['number'] as number);
    expect(numbers).toEqual(numbers.map((_, index) => (numbers[0] as number) + index));
  },
  TIMEOUT_MS,
);
