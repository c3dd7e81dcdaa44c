import { randomUUID } from 'node:crypto';
import { describe, expect, it } from 'vitest';
import type { SubmissionOutcome } from '../../src/core/provider.ts';
import { rescue } from '../../src/lifecycle/rescue.ts';
import {
  answered,
  type BreakerWorld,
  between,
  broken,
  COOLDOWN_MS,
  expectChain,
  LEASE_MS,
  NEUTRAL,
  openBreakerWorld,
} from '../support/breaker-world.ts';
import { MUSIC } from '../support/world.ts';

const NOTE = { actor: 'night shift', reason: 'test' };
const OVERRIDE_MS = 5_000;
const TAKEN = 'the-task-of-another-song';

type Ending = SubmissionOutcome | 'lost';

/** Every row of the table of outcomes, and how a probe ends that meets it. */
const ROWS: readonly (readonly [string, () => Ending, string])[] = [
  ['an acceptance', () => answered(202), 'probe_succeeded'],
  ['the id of another request', () => answered(202, { taskId: TAKEN }), 'probe_neutral'],
  ...[400, 500, 502, 503, 504].map(
    (status) =>
      [`a ${status}`, () => answered(status), status === 400 ? 'probe_neutral' : 'probe_failed'] as const,
  ),
  ['a 503 that may be sent again', () => answered(503, { resubmitOn: [503] }), 'probe_failed'],
  ['a transport failure', () => broken('transport'), 'probe_failed'],
  ['no byte sent', () => broken('unsent'), 'probe_failed'],
  ['the end of its lease', () => 'lost', 'probe_lost'],
  ...Object.entries(NEUTRAL).map(([what, outcome]) => [what, outcome, 'probe_neutral'] as const),
];

const FATES = ['is kept', 'is released before', 'is over before, and nobody has noted it'] as const;

describe.each(['forced_open', 'forced_closed'] as const)(
  'a half-open breaker that is %s meanwhile',
  (mode) => {
    it.each(FATES)('ends by its probe’s own outcome, whichever it is, when the override %s', async (fate) => {
      const world = await openBreakerWorld({ breaker: { failureThreshold: 1 } });
      await world.settle(await world.admitted(), answered(202, { taskId: TAKEN }));
      const causes: string[] = [];
      const fall = async () => {
        await world.each(answered(502));
        causes.push('failure_threshold');
      };
      await fall();
      for (const [what, ending, cause] of ROWS) {
        await world.song(`song ${randomUUID()}`);
        const probe = await world.probe();
        await world.client.overrideBreaker({
          name: MUSIC,
          mode,
          ...NOTE,
          ...(fate === FATES[2] ? { expiresInMs: OVERRIDE_MS } : {}),
        });
        if (fate === FATES[1]) await release(world);
        if (fate === FATES[2]) await world.passTime(OVERRIDE_MS + 1);
        const outcome = ending();
        if (outcome === 'lost') {
          await world.passTime(LEASE_MS + 1);
          await rescue(world.ctx);
        } else await world.settle(probe, outcome);

        const row = await world.breaker();
        causes.push('probe_granted', cause);
        expect([what, row['state']]).toEqual([what, cause === 'probe_succeeded' ? 'closed' : 'open']);
        if (row['state'] === 'open') expect(between(row, 'opened_at', 'retry_at')).toBe(COOLDOWN_MS);
        expect(row['probe_attempt_id']).toBe(null);
        expect([what, await world.effect(probe)]).toEqual([
          what,
          cause === 'probe_succeeded' ? 'closed' : 'reopened',
        ]);
        if (fate === FATES[0]) {
          // It lies over whatever the probe has come to, and what is underneath is shown by the release.
          expect(await world.status()).toMatchObject({ effective_state: mode, state: row['state'] });
          await release(world);
        }
        expect(await world.status()).toMatchObject({ effective_state: row['state'], override: null });
        await clear(world);
        if (row['state'] === 'closed') await fall();
      }
      await rescue(world.ctx);
      const transitions = await world.transitions();
      const ofState = transitions.filter((row) => row['layer'] === 'state');
      expect(ofState.map((row) => row['cause'])).toEqual(causes);
      expectChain(
        transitions,
        transitions.map((row) => row['cause'] as string),
      );
      expect(world.transitionEvents()).toHaveLength(transitions.length);
    });
  },
);

describe('a half-open breaker that is forced open until its probe is lost', () => {
  it('grants no second probe when the first is lost under it, and one at the release', async () => {
    const world = await openBreakerWorld();
    await world.opened(4);
    await world.probe();
    await world.client.overrideBreaker({ name: MUSIC, mode: 'forced_open', ...NOTE });
    await world.passTime(LEASE_MS + 1);
    await rescue(world.ctx);
    await world.passTime(COOLDOWN_MS);
    expect(await world.round()).toEqual([]);
    expect(await world.status()).toMatchObject({ state: 'open', effective_state: 'forced_open' });
    await release(world);
    expect(await world.status()).toMatchObject({ effective_state: 'probe_due' });
    expect(await world.round()).toHaveLength(1);
    expect(await world.round()).toEqual([]);
  });
});

function release(world: BreakerWorld): Promise<unknown> {
  return world.client.overrideBreaker({ name: MUSIC, mode: 'released', ...NOTE });
}

/** What an outcome did to the account and to its request is another matter, and would be in the way here. */
async function clear(world: BreakerWorld): Promise<void> {
  await world.client.releaseAccount('default', null, NOTE);
  await world.database.query('update onetake.accounts set paused_until = null, pause_kind = null');
  await world.database.query(`update onetake.generation_requests
set state = 'cancelled', settled_at = now(), job_due = false where state = 'queued'`);
  await world.database.query('delete from onetake_queue.job');
}
