import { describe, expect, it } from 'vitest';
import type { RequestState } from '../../src/core/generation-request.ts';
import type { SubmissionOutcome } from '../../src/core/provider.ts';
import { type AdmittedBatch, admit } from '../../src/lifecycle/admit.ts';
import { rescue } from '../../src/lifecycle/rescue.ts';
import { settle } from '../../src/lifecycle/settle.ts';
import { type Attempt, type AttemptWorld, openAttemptWorld } from '../support/attempts.ts';
import { laneOf } from '../support/lifecycle-context.ts';
import {
  acceptedAs,
  answeredWith,
  GATE_CLOSED,
  outcomeOf,
  RESET,
  refusedWith,
  UNSENT,
  WITHOUT_ID,
} from '../support/outcomes.ts';
import { LEASE_MS } from '../support/world.ts';

// The table of late evidence, whole: in each situation of a request, everything that an attempt may be told too late.

type Kind = 'acceptance' | 'refusal' | 'else';

const EVIDENCE: readonly (readonly [title: string, kind: Kind, (task: string) => SubmissionOutcome])[] = [
  ['a 202 with an id', 'acceptance', acceptedAs],
  ...[400, 413, 422].map((status) => [`a ${status}`, 'refusal', () => refusedWith(status)] as const),
  ...[401, 402, 403, 429].map((status) => [`a ${status}`, 'else', () => refusedWith(status)] as const),
  ['a 502', 'else', () => answeredWith(502)],
  ['a 503 that the owner lets go again', 'else', () => resubmitPermitted(503)],
  ['a 200 without an id', 'else', () => WITHOUT_ID],
  ['a redirect', 'else', () => unreviewed(302)],
  ['a reset', 'else', () => RESET],
  ['proof that nothing was sent', 'else', () => UNSENT],
  ['a gate that was closed', 'else', () => GATE_CLOSED],
];

function resubmitPermitted(httpStatus: number): SubmissionOutcome {
  const outcome = {
    health: 'dependency_failure',
    certainty: 'refused',
    reason: 'resubmit_permitted',
  } as const;
  return outcomeOf(outcome, { httpStatus });
}

function unreviewed(httpStatus: number): SubmissionOutcome {
  const outcome = { health: 'unknown_failure', certainty: 'unknown', reason: 'unreviewed_status' } as const;
  return outcomeOf({ ...outcome, alert: true }, { httpStatus });
}

/** What becomes of the request; what isn't named stays as it was. */
interface Effect {
  readonly state?: RequestState;
  readonly task?: 'late';
  readonly attention?: 'possibly_paid_twice' | 'paid_though_withdrawn';
}

interface Situation {
  readonly state: RequestState;
  /** Brings lost attempts (settled by rescue, the last of their requests) into it. */
  readonly reach: (world: AttemptWorld, lost: readonly Attempt[]) => Promise<void>;
  readonly acceptance: Effect;
  readonly refusal?: Effect;
}

const TAKEN: Effect = { state: 'accepted', task: 'late' };
const REJECTED: Effect = { state: 'rejected' };
const TWICE: Effect = { attention: 'possibly_paid_twice' };
const WITHDRAWN: Effect = { attention: 'paid_though_withdrawn' };

const NOTE = `'an operator', 'looked it up'`;

/** One statement for each of the requests. */
async function act(world: AttemptWorld, attempts: readonly Attempt[], call: string): Promise<void> {
  await world.database.query(`select ${call} from unnest($1::uuid[]) id`, [
    attempts.map(({ requestId }) => requestId),
  ]);
}
const rearm = (world: AttemptWorld, lost: readonly Attempt[], more = '') =>
  act(world, lost, `onetake.resolve_as_not_accepted(id, ${NOTE}${more})`);
const attach = (world: AttemptWorld, lost: readonly Attempt[]) =>
  act(world, lost, `onetake.resolve_as_accepted(id, 'by hand ' || id, ${NOTE})`);

async function admitAll(world: AttemptWorld, count: number): Promise<readonly Attempt[]> {
  const batch = await admit(world.ctx, await laneOf(world.ctx), { wanted: count });
  if (!('attempts' in batch)) throw new Error(`not admitted: ${batch.blockedBy}`);
  expect(batch.attempts).toHaveLength(count);
  return batch.attempts as AdmittedBatch['attempts'];
}

/** Each request has a second attempt, which came to this. */
const later =
  (outcome?: (task: string) => SubmissionOutcome, then?: Situation['reach']): Situation['reach'] =>
  async (world, lost) => {
    await rearm(world, lost);
    await rescue(world.ctx);
    const seconds = await admitAll(world, lost.length);
    if (outcome === undefined) return;
    for (const second of seconds) await settle(world.ctx, second, outcome(`second ${second.requestId}`));
    await then?.(world, lost);
  };

/** What the poller makes of the request's own task. */
const finish =
  (columns: string): Situation['reach'] =>
  async (world, lost) => {
    await world.database.query(
      `update onetake.generation_requests set ${columns}, settled_at = now(), next_poll_at = null where id = any($1)`,
      [lost.map(({ requestId }) => requestId)],
    );
  };
const succeed = finish(`state = 'succeeded', result_status = 'linked'`);
const fail = finish(`state = 'failed', failure_reason = 'provider'`);
const cancel: Situation['reach'] = (world, lost) => act(world, lost, `onetake.cancel_request(id, ${NOTE})`);
const abandon: Situation['reach'] = (world, lost) => act(world, lost, `onetake.abandon(id, ${NOTE})`);

const inTurn =
  (...steps: readonly Situation['reach'][]): Situation['reach'] =>
  async (world, lost) => {
    for (const step of steps) await step(world, lost);
  };
const expire: Situation['reach'] = async (world, lost) => {
  await world.database.query(
    `update onetake.generation_requests set submit_before = now() where id = any($1)`,
    [lost.map(({ requestId }) => requestId)],
  );
  await rescue(world.ctx);
};

const LAST: Readonly<Record<string, Situation>> = {
  ambiguous: { state: 'ambiguous', reach: async () => undefined, acceptance: TAKEN, refusal: REJECTED },
  'ambiguous again by an operator': {
    state: 'ambiguous',
    reach: inTurn(attach, (world, lost) => act(world, lost, `onetake.reopen(id, ${NOTE})`)),
    acceptance: TAKEN,
    refusal: REJECTED,
  },
  'queued by a re-arm': { state: 'queued', reach: rearm, acceptance: TAKEN, refusal: REJECTED },
  'accepted by an operator’s word': { state: 'accepted', reach: attach, acceptance: TWICE },
  'succeeded by an operator’s word': {
    state: 'succeeded',
    reach: inTurn(attach, succeed),
    acceptance: TWICE,
  },
  'failed after an operator’s word': { state: 'failed', reach: inTurn(attach, fail), acceptance: TWICE },
  'failed: abandoned': { state: 'failed', reach: abandon, acceptance: WITHDRAWN },
  'rejected by a late refusal': {
    state: 'rejected',
    reach: async (world, lost) => {
      for (const attempt of lost) await settle(world.ctx, attempt, EARLIER_REFUSAL);
    },
    acceptance: WITHDRAWN,
  },
  'cancelled instead of a re-arm': {
    state: 'cancelled',
    reach: (world, lost) => rearm(world, lost, ', resubmit => false'),
    acceptance: WITHDRAWN,
  },
  'cancelled after a re-arm': { state: 'cancelled', reach: inTurn(rearm, cancel), acceptance: WITHDRAWN },
  'expired after a re-arm': { state: 'expired', reach: inTurn(rearm, expire), acceptance: WITHDRAWN },
};

const REPLACED: Readonly<Record<string, Situation>> = {
  // Nothing is on the wire, and the next POST would buy a second time what is known to be bought.
  'queued, the later one refused for now': {
    state: 'queued',
    reach: later(() => refusedWith(403)),
    acceptance: TAKEN,
  },
  'queued, the later one unsent': { state: 'queued', reach: later(() => UNSENT), acceptance: TAKEN },
  submitting: { state: 'submitting', reach: later(), acceptance: TWICE },
  ambiguous: { state: 'ambiguous', reach: later(() => answeredWith(502)), acceptance: TWICE },
  accepted: { state: 'accepted', reach: later(acceptedAs), acceptance: TWICE },
  succeeded: { state: 'succeeded', reach: later(acceptedAs, succeed), acceptance: TWICE },
  failed: { state: 'failed', reach: later(acceptedAs, fail), acceptance: TWICE },
  abandoned: { state: 'failed', reach: later(() => RESET, abandon), acceptance: TWICE },
  rejected: { state: 'rejected', reach: later(() => refusedWith(422)), acceptance: TWICE },
  cancelled: { state: 'cancelled', reach: later(() => UNSENT, cancel), acceptance: TWICE },
  expired: { state: 'expired', reach: later(() => UNSENT, expire), acceptance: TWICE },
};

const EARLIER_REFUSAL = outcomeOf(refusedWith(422), { httpStatus: 422, errorCode: 'an_earlier_word' });

const HELD = `select (select count(*) from onetake.account_holds)::int as holds, paused_until, capacity_refusals,
  (select consecutive_failures from onetake.circuit_breakers where name = 'sonilo/text-to-music') as failures,
  (select state from onetake.circuit_breakers where name = 'sonilo/text-to-music') as breaker
from onetake.accounts where name = 'default'`;

const OPEN_WIDE = { breaker: { failureThreshold: 1_000 }, maxSubmissions: 100 };

async function check({ state, reach, acceptance, refusal = {} }: Situation): Promise<void> {
  const world = await openAttemptWorld({ operation: OPEN_WIDE });
  await world.songs(EVIDENCE.length);
  const lost = await admitAll(world, EVIDENCE.length);
  await world.passTime(LEASE_MS + 1);
  await rescue(world.ctx);
  await reach(world, lost);
  const [account] = await world.database.query(HELD);
  const effects = { acceptance, refusal, else: {} } satisfies Record<Kind, Effect>;
  for (const [n, [title, kind, outcome]] of EVIDENCE.entries()) {
    const attempt = lost[n] as Attempt;
    const { requestId: id } = attempt;
    const before = await world.request(id);
    expect(before['state'], title).toBe(state);
    const evidenceOf = () =>
      world.database.query('select * from onetake.attempt_evidence where attempt_id = $1 order by id', [
        attempt.attemptId,
      ]);
    const kept = await evidenceOf();

    await settle(world.ctx, attempt, outcome(`late ${id}`));
    // As a replay would, or the answer to a commit that was lost.
    await settle(world.ctx, attempt, outcome(`late ${id}`));

    const effect: Effect = effects[kind];
    const after = await world.request(id);
    const { provider_task_id: task, attention } = before;
    expect({ ...after }, title).toMatchObject({
      state: effect.state ?? state,
      provider_task_id: effect.task === 'late' ? `late ${id}` : task,
      attention: effect.attention ?? attention,
      submissions: before['submissions'],
    });
    if (kind === 'acceptance') expect(after['charge'], title).toBe('charged');
    else if (before['charge'] === 'charged') expect(after['charge'], title).toBe('charged');
    const told = (await evidenceOf()).slice(kept.length);
    expect(told, title).toHaveLength(1);
    expect(told, title).toMatchObject([
      { source: 'late_answer', provider_task_id: kind === 'acceptance' ? `late ${id}` : null },
    ]);
    const followed = await world.database.query(
      'select provider_task_id from onetake.followed_tasks where request_id = $1 and next_look_at is not null',
      [id],
    );
    const isStray = kind === 'acceptance' && effect.state === undefined;
    expect(followed, title).toEqual(isStray ? [{ provider_task_id: `late ${id}` }] : []);
  }
  // It never counts: for the breaker, for the account, as a hold.
  expect(await world.database.query(HELD)).toEqual([account]);
  // And whatever is queued, and nothing else, is sent: once.
  const states = Object.values(await world.states());
  const waiting = states.filter((one) => one === 'queued').length;
  await world.database.query('update onetake.account_holds set ended_at = now()');
  await rescue(world.ctx);
  await world.passTime(120_000);
  const worker = world.worker();
  while ((await worker.runOnce()) > 0);
  expect(world.posts()).toBe(waiting);
}

describe('an answer that comes when its attempt was given up, and is the last of a request that is', () => {
  it.each(Object.entries(LAST))('%s', (_, situation) => check(situation), 60_000);
});

describe('an answer that comes when a later attempt has been made, and the request is', () => {
  it.each(Object.entries(REPLACED))('%s', (_, situation) => check(situation), 60_000);
});
