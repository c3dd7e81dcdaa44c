import { randomUUID } from 'node:crypto';
import { expect, onTestFinished, vi } from 'vitest';
import type { CircuitBreakerSettings } from '../../src/core/circuit-breaker.ts';
import { outcomeOfResponse, outcomeOfTransportFailure } from '../../src/core/outcome.ts';
import type { SubmissionOutcome } from '../../src/core/provider.ts';
import type { SubmissionContext } from '../../src/lifecycle/context.ts';
import { dispatch } from '../../src/lifecycle/dispatch.ts';
import { settle } from '../../src/lifecycle/settle.ts';
import type { AdmittedAttempt } from '../../src/postgres/submission-attempts.ts';
import { type LifecycleContext, lifecycleContext } from './lifecycle-context.ts';
import { waitFor } from './wait-for.ts';
import {
  LEASE_MS,
  MUSIC,
  openWorld,
  type Row,
  rowPrints,
  type SeenEvent,
  type World,
  type WorldOptions,
} from './world.ts';

export const COOLDOWN_MS = 30_000;

export { LEASE_MS };

export interface BreakerWorldOptions extends WorldOptions {
  readonly breaker?: Partial<CircuitBreakerSettings>;
}

type Transition = Extract<SeenEvent, { name: 'breaker:transition' }>['event'];

/** A world without a provider: what came of each submission is the test's own word. */
export interface BreakerWorld extends World {
  readonly ctx: LifecycleContext;
  /** Another process: a pool and a queue of its own, whose events are seen in `events` like everybody's. */
  process(changes?: Partial<SubmissionContext>, options?: ProcessTerms): Promise<LifecycleContext>;
  /** One round of dispatch, as a worker makes it; what was admitted has not been sent and is in flight. */
  round(ctx?: SubmissionContext, slots?: number): Promise<AdmittedAttempt[]>;
  /** Enqueues one song and admits it. */
  admitted(options?: Parameters<World['song']>[1]): Promise<AdmittedAttempt>;
  settle(attempt: AdmittedAttempt, outcome: SubmissionOutcome, ctx?: SubmissionContext): Promise<void>;
  /** Submissions one after another, each with this outcome. */
  each(...outcomes: readonly SubmissionOutcome[]): Promise<void>;
  /** Lets as many fail as open it, and enqueues so many that wait. */
  opened(waiting?: number): Promise<Row>;
  /** Lets the cooldown pass and takes the probe, which is in flight then. */
  probe(): Promise<AdmittedAttempt>;
  /** Opened and closed again by a probe. */
  closedAgain(waiting?: number): Promise<Row>;
  status(name?: string): Promise<Row>;
  effect(attempt: { readonly attemptId: string }): Promise<unknown>;
  transitionEvents(): readonly Transition[];
  /** `work` writes and locks no row of ours or of the queue, and emits nothing. */
  expectUntouched(work: () => Promise<unknown>): Promise<void>;
  /** The same, but it may lock rows. */
  expectUnwritten(work: () => Promise<unknown>): Promise<void>;
}

export interface ProcessTerms {
  readonly connectionString?: string;
  readonly poolMax?: number;
}

export async function openBreakerWorld(options: BreakerWorldOptions = {}): Promise<BreakerWorld> {
  const { breaker, ...rest } = options;
  const operation = { ...rest.operation, ...(breaker === undefined ? {} : { breaker }) };
  const world = await openWorld({ provider: 'raw', ...rest, operation });
  const seen = world.events as SeenEvent[];
  const process: BreakerWorld['process'] = async (changes = {}, terms = {}) => {
    const ctx = await lifecycleContext(
      { connectionString: world.database.connectionString, config: world.config, ...terms },
      { emit: (name, event) => void seen.push({ name, event } as SeenEvent), ...changes },
    );
    onTestFinished(() => ctx.stop());
    return ctx;
  };
  const ctx = await process();
  const one = async (attempts: Promise<AdmittedAttempt[]>): Promise<AdmittedAttempt> => {
    const [attempt, ...more] = await attempts;
    if (attempt === undefined || more.length > 0)
      throw new Error(`admitted ${more.length} more than one, or none`);
    return attempt;
  };

  const expectSame = async (work: () => Promise<unknown>, print: (row: string) => string): Promise<void> => {
    const before = (await rowPrints(world.database)).map(print);
    const events = seen.length;
    await work();
    expect((await rowPrints(world.database)).map(print)).toEqual(before);
    expect(seen.slice(events)).toEqual([]);
  };

  const self: BreakerWorld = {
    ...world,
    ctx,
    process,
    async round(own = ctx, slots = 8) {
      const attempts: AdmittedAttempt[] = [];
      await dispatch(
        own,
        null,
        { freeSlots: () => slots - attempts.length, reaches: () => true },
        (_lane, batch) => attempts.push(...batch.attempts),
      );
      return attempts;
    },
    async admitted(song = {}) {
      await world.song(`song ${randomUUID()}`, song);
      return one(self.round(ctx, 1));
    },
    settle: async (attempt, outcome, own = ctx) => void (await settle(own, attempt, outcome)),
    async each(...outcomes) {
      for (const outcome of outcomes) await self.settle(await self.admitted(), outcome);
    },
    async opened(waiting = 0) {
      const { failure_threshold: threshold } = await self.breaker();
      for (let n = 0; n < Number(threshold); n++) await self.each(answered(502));
      for (let n = 0; n < waiting; n++) await world.song(`waiting ${n + 1}`);
      const row = await self.breaker();
      expect(row).toMatchObject({ state: 'open' });
      return row;
    },
    async probe() {
      const { opened_at: openedAt, retry_at: retryAt } = await self.breaker();
      await self.passTime(Number(retryAt) - Number(openedAt));
      return one(self.round());
    },
    async closedAgain(waiting = 0) {
      await self.opened(waiting + 1);
      await self.settle(await self.probe(), answered(202));
      const row = await self.breaker();
      expect(row).toMatchObject({ state: 'closed' });
      return row;
    },
    async status(name = MUSIC) {
      const [row] = await world.database.query('select * from onetake.breaker_status where name = $1', [
        name,
      ]);
      return row as Row;
    },
    async effect({ attemptId }) {
      const [row] = await world.database.query(
        'select health_effect from onetake.submission_attempts where id = $1',
        [attemptId],
      );
      return row?.['health_effect'];
    },
    transitionEvents: () => seen.flatMap((one) => (one.name === 'breaker:transition' ? [one.event] : [])),
    expectUntouched: (work) => expectSame(work, (print) => print),
    expectUnwritten: (work) => expectSame(work, (print) => print.replace(/ \d+$/, '')),
  };
  return self;
}

/** Half open, with the probe in flight and so many requests waiting. */
export async function halfOpen(
  waiting = 0,
  options: BreakerWorldOptions = {},
): Promise<{ readonly world: BreakerWorld; readonly probe: AdmittedAttempt }> {
  const world = await openBreakerWorld(options);
  await world.opened(waiting + 1);
  const probe = await world.probe();
  return { world, probe };
}

/** What the adapter makes of an answer; a 202 carries a usable task id of its own unless told otherwise. */
export function answered(
  status: number,
  more: {
    readonly taskId?: unknown;
    readonly capacity?: 'rate' | 'concurrency';
    readonly errorCode?: string;
    readonly resubmitOn?: readonly number[];
  } = {},
): SubmissionOutcome {
  const { taskId = status === 202 ? `task-${randomUUID()}` : undefined, errorCode = null, ...rest } = more;
  const outcome = outcomeOfResponse({ status, taskId, ...rest });
  return {
    ...outcome,
    retryAfterMs: null,
    evidence: {
      phase: 'answered',
      httpStatus: status,
      errorCode,
      providerTaskId: outcome.certainty === 'accepted' ? (taskId as string) : null,
      responseAgeMs: 1,
      closed: true,
    },
  };
}

/** A POST that ended without a status. */
export function broken(kind: 'transport' | 'unsent' | 'own_doing'): SubmissionOutcome {
  const unsent = kind !== 'transport';
  return {
    ...outcomeOfTransportFailure({ unsent, ownDoing: kind === 'own_doing' }),
    retryAfterMs: null,
    evidence: {
      phase: unsent ? 'unsent' : 'sent',
      httpStatus: null,
      errorCode: kind === 'own_doing' ? 'gate_closed' : 'ECONNRESET',
      providerTaskId: null,
      responseAgeMs: null,
      closed: unsent,
    },
  };
}

/** Everything that says nothing about the provider's health. */
export const NEUTRAL: Readonly<Record<string, () => SubmissionOutcome>> = {
  'a 401': () => answered(401),
  'a 402': () => answered(402, { errorCode: 'insufficient_balance' }),
  'a 402 of a spent trial': () => answered(402, { errorCode: 'trial_exhausted' }),
  'a 403': () => answered(403),
  'a 404': () => answered(404),
  'a 413': () => answered(413),
  'a 418': () => answered(418),
  'a 422': () => answered(422),
  'a 429 of the rate': () => answered(429, { capacity: 'rate' }),
  'a 429 of the concurrency': () => answered(429, { capacity: 'concurrency' }),
  'a 200 without an id': () => answered(200),
  'a redirect': () => answered(307),
  'a 520': () => answered(520),
  'a fault of our own': () => broken('own_doing'),
};

/** Ms from one instant of a row to another. */
export const between = (row: Row, from: string, to: string): number => Number(row[to]) - Number(row[from]);

/** Gap-free in each layer: numbered from 1, and each row begins in the state that the one before ended in. */
export function expectChain(transitions: readonly Row[], causes: readonly string[]): void {
  expect(transitions.map((row) => row['cause'])).toEqual(causes);
  for (const [layer, first] of [
    ['state', 'closed'],
    ['override', 'none'],
  ] as const) {
    const chain = transitions.filter((row) => row['layer'] === layer);
    expect(chain.map((row) => row['number'])).toEqual(chain.map((_, index) => index + 1));
    expect(chain.map((row) => row['previous_state'])).toEqual(
      [first, ...chain.map((row) => row['next_state'])].slice(0, chain.length),
    );
    if (layer === 'state')
      expect(chain.map((row) => row['generation'])).toEqual(chain.map((_, index) => index + 2));
  }
}

/**
 * From here on to the test's end no `setTimeout` of ours fires: whatever a worker does, it was told to. Call it
 * once the workers are made; what the provider still holds is answered at the end, so that they can stop.
 */
export function freezeTimers(world: World): void {
  vi.useFakeTimers({ toFake: ['setTimeout'] });
  onTestFinished(() => {
    vi.useRealTimers();
    world.raw.onPost = (call) => call.accept();
    for (const call of world.raw.posts) if (!call.response.headersSent) call.accept();
  });
}

export async function waitForListeners(world: World, count: number): Promise<void> {
  await waitFor(
    async () => {
      const listening = await world.database.query(
        `select from pg_stat_activity where datname = current_database() and application_name like 'onetake % listener'`,
      );
      return listening.length === count;
    },
    { what: `${count} workers to listen` },
  );
}
