import { afterEach, beforeEach, describe, expect, it, onTestFinished } from 'vitest';
import type { SubmissionOutcome } from '../../src/core/provider.ts';
import { type AdmittedBatch, admit } from '../../src/lifecycle/admit.ts';
import { reapLostProbe } from '../../src/lifecycle/apply-health.ts';
import { rescue } from '../../src/lifecycle/rescue.ts';
import { settle } from '../../src/lifecycle/settle.ts';
import { JobQueue } from '../../src/queue/boss.ts';
import { type LifecycleContext, laneOf, lifecycleContext } from '../support/lifecycle-context.ts';
import { outcomeOf } from '../support/outcomes.ts';
import { waitFor } from '../support/wait-for.ts';
import {
  deadlocks,
  jobRows,
  LEASE_MS,
  lockRows,
  MUSIC,
  openWorld,
  type World,
  waitForBlocked,
} from '../support/world.ts';

// Two orders of the same locks, tried on purpose. Each ends by itself, in good time, and the server has
// resolved no deadlock.

const OPERATOR = { actor: 'an operator', reason: 'looked it up in the ledger' };
const LANE = { account: 'default', operation: 'text-to-music' };

const outcome = (
  changes: Partial<SubmissionOutcome>,
  httpStatus: number | null,
  providerTaskId: string | null = null,
) => outcomeOf(changes, { httpStatus, providerTaskId });

const KEY_REFUSED = outcome(
  { health: 'request_or_account_failure', certainty: 'refused', reason: 'account_refused' },
  401,
);
const RESUBMIT = outcome(
  { health: 'dependency_failure', certainty: 'refused', reason: 'resubmit_permitted' },
  502,
);
const BAD_GATEWAY = outcome(
  { health: 'dependency_failure', certainty: 'unknown', reason: 'server_error' },
  502,
);

/** Stops after it has fetched, with the transaction open, until it is told to go on. */
class SlowQueue extends JobQueue {
  readonly fetched: Promise<void>;
  goOn: () => void = () => undefined;
  #sayFetched: () => void = () => undefined;
  readonly #gate = new Promise<void>((resolve) => {
    this.goOn = resolve;
  });

  constructor(...args: ConstructorParameters<typeof JobQueue>) {
    super(...args);
    this.fetched = new Promise((resolve) => {
      this.#sayFetched = resolve;
    });
  }

  override async fetch(...args: Parameters<JobQueue['fetch']>) {
    const jobs = await super.fetch(...args);
    this.#sayFetched();
    await this.#gate;
    return jobs;
  }
}

let world: World;
let ctx: LifecycleContext;

beforeEach(async () => {
  world = await openWorld({ provider: 'raw', operation: { rearmQuarantineMs: 0 } });
  ctx = await context();
});

afterEach(async () => {
  expect(await deadlocks(world.database)).toBe(0);
});

async function context(queue: typeof JobQueue = JobQueue): Promise<LifecycleContext> {
  const made = await lifecycleContext({
    connectionString: world.database.connectionString,
    config: world.config,
    queue,
  });
  onTestFinished(() => made.stop());
  return made;
}

async function admitted(count = 1): Promise<AdmittedBatch['attempts']> {
  const batch = await admit(ctx, await laneOf(ctx), { wanted: count });
  if (!('attempts' in batch)) throw new Error(`not admitted: ${batch.blockedBy}`);
  return batch.attempts;
}

/** Whatever else waits goes along; jobs that are left over from withdrawn re-arms permit nothing. */
async function admittedOf(id: string): Promise<AdmittedBatch['attempts'][number]> {
  return waitFor(
    async () => {
      const batch = await admit(ctx, await laneOf(ctx), { wanted: 50 });
      return 'attempts' in batch ? batch.attempts.find(({ requestId }) => requestId === id) : undefined;
    },
    { what: `${id} to be admitted` },
  );
}

/** Another job of a request that is on its way already: what a sweep or a hand in the queue's tables makes. */
async function sendTwin(id: string): Promise<void> {
  expect(
    await ctx.database.transaction((tx) => ctx.queue.send(tx, { id, ...LANE, jobPriority: -1 }, null)),
  ).toBe(true);
}

describe('a twin of a job looks', () => {
  it('while the settle of its request waits for the account that admission holds', async () => {
    const id = await world.song('one');
    const [attempt] = (await admitted()) as [AdmittedBatch['attempts'][number]];
    await sendTwin(id);
    const other = await world.song('other');
    const lane = await laneOf(ctx);
    const unlock = await lockRows(world.database, 'select from onetake.accounts');
    // Admission queues for the account first, then the settle, which holds request and attempt by then.
    const admitting = admit(ctx, lane, { wanted: 8 });
    await waitForBlocked(world.database, 1);
    const settling = settle(ctx, attempt, KEY_REFUSED);
    await waitForBlocked(world.database, 2);
    await unlock();
    const [batch] = await Promise.all([admitting, settling]);

    expect('attempts' in batch && batch.attempts.map(({ requestId }) => requestId)).toEqual([other]);
    expect(await world.request(id)).toMatchObject({ state: 'queued', submissions: 1 });
    expect(await jobRows(world.database)).toHaveLength(1);
  });

  it('while the settle of its request sends the very job that admission has fetched', async () => {
    const id = await world.song('one');
    const [attempt] = (await admitted()) as [AdmittedBatch['attempts'][number]];
    await sendTwin(id);
    await world.song('other');
    const slow = await context(SlowQueue);
    const queue = slow.queue as SlowQueue;
    const admitting = admit(slow, await laneOf(slow), { wanted: 8 });
    await queue.fetched;
    const settling = settle(ctx, attempt, RESUBMIT);
    // It holds the request and waits for the job; admission holds the job and must not wait for the request.
    await waitForBlocked(world.database, 1);
    queue.goOn();
    const [batch] = await Promise.all([admitting, settling]);

    expect('attempts' in batch && batch.attempts.length).toBe(1);
    expect(await world.request(id)).toMatchObject({
      state: 'queued',
      state_reason: 'resubmit_permitted',
      submissions: 1,
      job_due: false,
    });
    expect(await jobRows(world.database)).toHaveLength(1);
  });
});

describe('health', () => {
  it('is not kept waiting by an admission that takes jobs', async () => {
    await world.songs(3);
    const [attempt] = (await admitted()) as [AdmittedBatch['attempts'][number]];
    const slow = await context(SlowQueue);
    const queue = slow.queue as SlowQueue;
    const admitting = admit(slow, await laneOf(slow), { wanted: 8 });
    await queue.fetched;
    await settle(ctx, attempt, BAD_GATEWAY);
    expect(await world.breaker()).toMatchObject({ consecutive_failures: 1 });
    queue.goOn();
    const batch = await admitting;
    expect('attempts' in batch && batch.attempts.length).toBe(2);
  });

  it('waits for a breaker that admission holds while it counts a ramp, and admission waits for no attempt', async () => {
    await world.songs(3);
    const [attempt] = (await admitted()) as [AdmittedBatch['attempts'][number]];
    await world.database.query('update onetake.circuit_breakers set ramp_acceptances = 5');
    const slow = await context(SlowQueue);
    const queue = slow.queue as SlowQueue;
    const admitting = admit(slow, await laneOf(slow), { wanted: 8 });
    await queue.fetched;
    const settling = settle(ctx, attempt, BAD_GATEWAY);
    await waitForBlocked(world.database, 1);
    queue.goOn();
    const [batch] = await Promise.all([admitting, settling]);
    expect('attempts' in batch && batch.attempts.length).toBe(2);
    expect(await world.breaker()).toMatchObject({ consecutive_failures: 1 });
  });

  it('and the reaper of lost probes take the same locks at the same time', async () => {
    for (const probeWith of await world.songs(10)) {
      await world.database.query(
        `update onetake.circuit_breakers set state = 'open', opened_at = now(), retry_at = now(), probe_attempt_id = null,
           probe_request_id = null where name = $1`,
        [MUSIC],
      );
      const batch = await admit(ctx, await laneOf(ctx), { wanted: 1, probeWith });
      if (!('attempts' in batch)) throw new Error(`not admitted: ${batch.blockedBy}`);
      const [probe] = batch.attempts as [AdmittedBatch['attempts'][number]];
      await world.passTime(LEASE_MS + 1);
      await Promise.all([
        settle(ctx, probe, BAD_GATEWAY),
        reapLostProbe(ctx, MUSIC, probe.attemptId),
        rescue(ctx),
        reapLostProbe(ctx, MUSIC, probe.attemptId),
        rescue(ctx),
      ]);
      expect((await world.breaker())['state']).toBe('open');
    }
    const transitions = await world.transitions();
    expect(transitions.filter((row) => row['cause'] === 'probe_granted')).toHaveLength(10);
    expect(transitions).toHaveLength(20);
  });
});

describe('everybody at one request', () => {
  it('operators, late answers, rescuers and admission meet, and each time one of them decides', async () => {
    const ended: string[] = [];
    for (let n = 0; n < 15; n++) {
      const id = await world.song(`song ${n}`);
      const attempt = await admittedOf(id);
      await world.passTime(LEASE_MS + 1);
      await rescue(ctx);
      const lane = { ...(await laneOrOther()), notBefore: new Date(0) };
      const tries = [
        () => settle(ctx, attempt, outcome({}, 202, `task-${n}`)),
        () => world.client.resolve({ id, as: 'not_accepted', ...OPERATOR }),
        () => world.client.resolve({ id, as: 'accepted', providerTaskId: `task-${n}`, ...OPERATOR }),
        () => world.client.resolve({ id, as: 'abandoned', ...OPERATOR }),
        () => rescue(ctx),
        () => rescue(ctx),
        () => admit(ctx, lane, { wanted: 4 }),
      ];
      const order = tries.slice(n % tries.length).concat(tries.slice(0, n % tries.length));
      const results = await Promise.allSettled(order.map((attempt) => attempt()));
      for (const result of results) {
        if (result.status === 'rejected')
          expect(result.reason).toMatchObject({ code: 'request_not_in_state' });
      }
      ended.push((await world.request(id))['state'] as string);
      expect((await world.request(id))['charge']).toBe('charged');
    }
    expect(ended.every((state) => ['accepted', 'failed', 'submitting'].includes(state))).toBe(true);
  });

  it('many rescuers, settles and operators over many requests, in every order', async () => {
    await world.songs(40);
    const attempts = await admitted(40);
    await world.passTime(LEASE_MS + 1);
    const forwards = attempts.map((attempt) => settle(ctx, attempt, RESUBMIT));
    const backwards = attempts.toReversed().map((attempt) => settle(ctx, attempt, BAD_GATEWAY));
    const rescues = Array.from({ length: 4 }, () => rescue(ctx));
    const lane = await laneOrOther();
    const admissions = Array.from({ length: 4 }, () => admit(ctx, lane, { wanted: 4 }));
    await Promise.all([...forwards, ...backwards, ...rescues, ...admissions]);
    await rescue(ctx);
    const left = await world.database.query(
      `select from onetake.submission_attempts where settled_at is null and lease_expires_at < now()`,
    );
    expect(left).toEqual([]);
    const queued = await world.database.query(
      `select from onetake.generation_requests where state = 'queued'`,
    );
    expect(await jobRows(world.database)).toHaveLength(queued.length);
  });
});

async function laneOrOther() {
  await world.song(`filler ${Math.random()}`);
  return laneOf(ctx);
}
