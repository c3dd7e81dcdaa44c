import { describe, expect, it } from 'vitest';
import { expectChain } from '../support/breaker-world.ts';
import {
  endCooldown,
  enqueueMany,
  type FleetWorker,
  openBreaker,
  roundsOr,
  senderOf,
  startFleet,
  startFleetWorker,
  tell,
} from '../support/fleet.ts';
import { hold, type ProviderCall } from '../support/raw-provider.ts';
import { waitFor } from '../support/wait-for.ts';
import { openWorld, type Row, type World } from '../support/world.ts';

const PROCESSES = 4;
const ROUNDS = roundsOr(4);
// Rescue looks each second, last at three seconds: this lease ends just after, which is the worst time for it.
const SUBMISSION_MS = 1_100;
/** A plain run may share its machine, where a second to send in is little. */
const IS_PLAIN = process.env['ONETAKE_CHAOS_ROUNDS'] === undefined;
/** At length: the shortest that the configuration allows for that deadline. */
const LEASE_MS = SUBMISSION_MS + (IS_PLAIN ? 3_501 : 2_001);
/** What may pass between the end of the lease and the opening. */
const GRACE_MS = IS_PLAIN ? 10_000 : 2_000;

interface Fleet {
  readonly world: World;
  /** By name; each is alive, or will be again. */
  readonly workers: Map<string, FleetWorker>;
  /** Ends a cooldown, and does to the process whose POST has come what `lose` says, before it can be told anything. */
  readonly probe: (lose: (worker: FleetWorker, call: ProviderCall) => void) => Promise<Probe>;
}

interface Probe {
  readonly attempt: Row;
  readonly worker: FleetWorker;
  readonly call: ProviderCall;
}

async function openFleet(): Promise<Fleet> {
  const world = await openWorld({
    provider: 'raw',
    limits: { requestsPerMinute: 1_000_000, maxConcurrentGenerations: 100_000 },
    operation: {
      deadlines: { connectMs: 800, firstResponseMs: 900, submissionMs: SUBMISSION_MS },
      leaseMs: LEASE_MS,
      breaker: { cooldownMs: 3_600_000 },
    },
    config: { worker: { concurrency: 4 } },
  });
  await openBreaker(world);
  await enqueueMany(world, ROUNDS + PROCESSES * 4);
  const fleet = await startFleet(world, PROCESSES);
  const workers = new Map(fleet.map((worker) => [worker.name, worker]));
  return {
    world,
    workers,
    async probe(lose) {
      const number = world.posts() + 1;
      world.raw.onPost = (call) => lose(workers.get(senderOf(call)) as FleetWorker, call);
      await endCooldown(world);
      const call = await world.raw.post(number);
      const { probe_attempt_id: id } = await world.breaker();
      const [attempt] = await world.database.query<Row>(
        'select * from onetake.submission_attempts where id = $1',
        [id],
      );
      if (attempt === undefined) throw new Error('no probe is in flight');
      const worker = workers.get(senderOf(call)) as FleetWorker;
      expect(attempt).toMatchObject({ is_probe: true, settled_at: null, worker: worker.name });
      expect(Number(attempt['lease_expires_at']) - Number(attempt['started_at'])).toBe(LEASE_MS);
      return { attempt, worker, call };
    },
  };
}

/** Waits until the probe is given up; says how long after the end of its lease that was, by the database's clock. */
async function givenUp({ world }: Fleet, { attempt }: Probe): Promise<number> {
  const lost = await waitFor(
    async () =>
      (await world.transitions()).find(
        (row) => row['request_id'] === attempt['request_id'] && row['next_state'] === 'open',
      ),
    { what: 'the breaker to open again' },
  );
  const late = Number(lost['at']) - Number(attempt['lease_expires_at']);
  expect(lost['cause']).toBe('probe_lost');
  expect(late).toBeGreaterThanOrEqual(0);
  expect(late).toBeLessThanOrEqual(GRACE_MS);
  await waitFor(
    async () => (await world.request(attempt['request_id'] as string))['state'] !== 'submitting',
    {
      what: 'the request to be rescued',
    },
  );
  expect(await world.request(attempt['request_id'] as string)).toMatchObject({
    state: 'ambiguous',
    state_reason: 'worker_lost',
    submissions: 1,
  });
  return late;
}

const evidence = ({ world }: Fleet, { attempt }: Probe): Promise<Row[]> =>
  world.database.query('select * from onetake.attempt_evidence where attempt_id = $1', [attempt['id']]);

/** Lets a stopped process go on, and waits until it has said what became of its POST: the breaker takes no notice. */
async function goOn(fleet: Fleet, probe: Probe): Promise<void> {
  const { world } = fleet;
  const before = [await world.breaker(), await world.transitions()];
  probe.worker.child.process.kill('SIGCONT');
  const [late] = await waitFor(
    async () => {
      const rows = await evidence(fleet, probe);
      return rows.length > 0 && rows;
    },
    { what: `what ${probe.worker.name} knows` },
  );
  expect([await world.breaker(), await world.transitions()]).toEqual(before);
  const accepted = late?.['certainty'] === 'accepted';
  expect(await world.request(probe.attempt['request_id'] as string)).toMatchObject({
    state: accepted ? 'accepted' : 'ambiguous',
    submissions: 1,
  });
  const [attempt] = await world.database.query<Row>(
    'select * from onetake.submission_attempts where id = $1',
    [probe.attempt['id']],
  );
  expect(attempt).toMatchObject({ settled_by: 'rescue', reason: 'worker_lost' });
}

/** No two probes lived at once, each loss is in the history once, and the next probe closes the breaker. */
async function expectOneAtATime(fleet: Fleet, lates: readonly number[]): Promise<void> {
  const { world } = fleet;
  const causes = Array.from({ length: ROUNDS }, () => ['probe_granted', 'probe_lost']).flat();
  expectChain(await world.transitions(), ['failure_threshold', ...causes]);
  const probes = await world.database.query<Row>(
    'select * from onetake.submission_attempts where is_probe order by started_at',
  );
  expect(probes).toHaveLength(ROUNDS);
  for (const [n, probe] of probes.entries()) {
    const before = probes[n - 1];
    if (before === undefined) continue;
    expect(Number(probe['started_at'])).toBeGreaterThanOrEqual(Number(before['settled_at']));
    expect(Number(before['settled_at'])).toBeGreaterThanOrEqual(Number(before['lease_expires_at']));
  }
  world.raw.onPost = (call) => call.accept();
  await endCooldown(world);
  await waitFor(async () => (await world.breaker())['state'] === 'closed', { what: 'the close' });
  const sorted = lates.toSorted((a, b) => a - b);
  tell(
    `${ROUNDS} rounds, ${probes.length} probes lost; opened again ${sorted[0]} to ${sorted.at(-1)} ms after ` +
      `the end of the lease, half of them within ${sorted[Math.floor(sorted.length / 2)]} ms`,
  );
}

describe('the prober of four processes', () => {
  it(
    `is killed while the provider holds its POST, ${ROUNDS} times: the breaker opens again with its lease`,
    async () => {
      const fleet = await openFleet();
      const lates: number[] = [];
      for (let round = 1; round <= ROUNDS; round++) {
        const probe = await fleet.probe((worker) => worker.child.process.kill('SIGKILL'));
        expect(await probe.worker.child.exited).toMatchObject({ signal: 'SIGKILL' });
        const { name } = probe.worker;
        const replaced = startFleetWorker(fleet.world, { name });
        lates.push(await givenUp(fleet, probe));
        fleet.workers.set(name, await replaced);
        expect(await evidence(fleet, probe)).toEqual([]);
      }
      await expectOneAtATime(fleet, lates);
    },
    60_000 + ROUNDS * 15_000,
  );

  it(
    `is stopped while the provider holds its POST, ${ROUNDS} times: what it does afterwards moves nothing`,
    async () => {
      const fleet = await openFleet();
      const lates: number[] = [];
      let sleeping: Probe | undefined;
      for (let round = 1; round <= ROUNDS; round++) {
        const probe = await fleet.probe((worker, call) => {
          worker.child.process.kill('SIGSTOP');
          // Half of them find an acceptance waiting when they go on.
          if (round % 4 >= 2) call.accept();
          else hold();
        });
        // The one before goes on while this one is in flight, as the probe of another generation.
        if (sleeping !== undefined) {
          await goOn(fleet, sleeping);
          expect(await fleet.world.breaker()).toMatchObject({
            state: 'half_open',
            probe_attempt_id: probe.attempt['id'],
          });
          sleeping = undefined;
          lates.push(await givenUp(fleet, probe));
          await goOn(fleet, probe);
        } else {
          lates.push(await givenUp(fleet, probe));
          sleeping = probe;
        }
      }
      if (sleeping !== undefined) await goOn(fleet, sleeping);
      await expectOneAtATime(fleet, lates);
    },
    60_000 + ROUNDS * 15_000,
  );
});
