import { join } from 'node:path';
import { describe, expect, it, onTestFinished } from 'vitest';
import { expectChain } from '../support/breaker-world.ts';
import { startChild } from '../support/children.ts';
import {
  databaseTimePasses,
  endCooldown,
  enqueueMany,
  openBreaker,
  roundsOr,
  senderOf,
  startFleet,
  tell,
} from '../support/fleet.ts';
import { waitFor } from '../support/wait-for.ts';
import { openWorld, type Row, type World } from '../support/world.ts';

const PROCESSES = 16;
const SLOTS = 4;
const ROUNDS = roundsOr(8);
const COOLDOWN_MS = 250;
const CAUSES = [
  'failure_threshold',
  ...Array.from({ length: ROUNDS }, () => ['probe_granted', 'probe_failed']).flat(),
];
const LIMITS = { requestsPerMinute: 1_000_000, maxConcurrentGenerations: 100_000 };

async function probes(world: World): Promise<Row[]> {
  return world.database.query('select * from onetake.submission_attempts where is_probe order by started_at');
}

describe('16 processes of 4 slots at the end of a cooldown', () => {
  it(
    `send one probe each time, of ${ROUNDS} times, when each is a worker that waits for the instant itself`,
    async () => {
      const world = await openWorld({
        provider: 'raw',
        limits: LIMITS,
        operation: { breaker: { cooldownMs: COOLDOWN_MS } },
        config: { worker: { concurrency: SLOTS } },
      });
      const before = await openBreaker(world);
      await enqueueMany(world, ROUNDS + PROCESSES * SLOTS);
      const atProvider: Row[] = [];
      let together = 0;
      let mostTogether = 0;
      world.raw.onPost = (call) => {
        mostTogether = Math.max(mostTogether, ++together);
        // The probe of the last round stays where it is, and with it everything else.
        if (call.number - before >= ROUNDS) return;
        void world.breaker().then((row) => {
          atProvider.push(row);
          together--;
          call.answer(502);
        });
      };
      await startFleet(world, PROCESSES);
      expect(world.posts()).toBe(before);

      await endCooldown(world);
      await waitFor(() => world.posts() - before >= ROUNDS, {
        what: `${ROUNDS} probes`,
        timeoutMs: ROUNDS * 3_000,
      });

      await databaseTimePasses(world);

      const transitions = await world.transitions();
      const granted = transitions.filter((row) => row['cause'] === 'probe_granted');
      tell(
        `${ROUNDS} rounds: ${world.posts() - before} POSTs, ${granted.length} probe_granted, at most ${mostTogether} at once, ` +
          `from ${new Set(world.raw.posts.slice(before).map(senderOf)).size} processes`,
      );
      expect(mostTogether).toBe(1);
      expect(world.posts() - before).toBe(ROUNDS);
      expectChain(transitions, CAUSES.slice(0, -1));
      expect(new Set(atProvider.map((row) => row['state']))).toEqual(new Set(['half_open']));
      expect(await probes(world)).toHaveLength(ROUNDS);
      expect(await world.database.query('select from onetake.submission_attempts')).toHaveLength(
        before + ROUNDS,
      );
      // Nobody came before the instant that was fixed at the opening.
      for (const [n, opening] of transitions.entries()) {
        const next = transitions[n + 1];
        if (opening['cause'] !== 'probe_failed' || next === undefined) continue;
        expect(Number(opening['retry_at']) - Number(opening['opened_at'])).toBe(COOLDOWN_MS);
        expect(Number(next['at'])).toBeGreaterThanOrEqual(Number(opening['retry_at']));
      }
      // They did compete.
      expect(new Set(world.raw.posts.slice(before).map(senderOf)).size).toBeGreaterThan(1);
    },
    60_000 + ROUNDS * 3_000,
  );

  it(
    `send one probe each time, of ${ROUNDS} times, when all 64 slots come at once on connections of their own`,
    async () => {
      const world = await openWorld({ provider: 'raw', limits: LIMITS });
      const before = await openBreaker(world);
      await enqueueMany(world, ROUNDS + PROCESSES * SLOTS);
      const children = Array.from({ length: PROCESSES }, () => {
        const child = startChild({
          file: join(import.meta.dirname, '../support/prober-child.ts'),
          env: {
            ONETAKE_TEST_PROBERS: JSON.stringify({
              connectionString: world.database.connectionString,
              config: world.config,
              probers: SLOTS,
            }),
          },
        });
        onTestFinished(() => child[Symbol.asyncDispose]());
        return child;
      });
      await Promise.all(
        children.map((child) =>
          child.message<{ ready?: number }>((line) => line.ready === child.pid, 'it runs', 60_000),
        ),
      );
      for (let round = 1; round <= ROUNDS; round++) {
        await endCooldown(world);
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
      const transitions = await world.transitions();
      tell(
        `${ROUNDS} rounds: ${world.posts() - before} POSTs, ${transitions.filter((row) => row['cause'] === 'probe_granted').length} probe_granted`,
      );
      expectChain(transitions, CAUSES);
      expect(await probes(world)).toHaveLength(ROUNDS);
    },
    60_000 + ROUNDS * 3_000,
  );
});
