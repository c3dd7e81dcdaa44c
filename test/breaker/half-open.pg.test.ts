import { describe, expect, it } from 'vitest';
import { applyHealth } from '../../src/lifecycle/apply-health.ts';
import { rescue } from '../../src/lifecycle/rescue.ts';
import { submit } from '../../src/lifecycle/submit.ts';
import type { AdmittedAttempt } from '../../src/postgres/submission-attempts.ts';
import {
  answered,
  between,
  broken,
  COOLDOWN_MS,
  expectChain,
  halfOpen,
  LEASE_MS,
  NEUTRAL,
  openBreakerWorld,
} from '../support/breaker-world.ts';
import { IMPATIENT } from '../support/world.ts';

const fails = () => answered(502);
const accepts = () => answered(202);
const PROBED = ['failure_threshold', 'probe_granted'];

describe('a half-open breaker', () => {
  // 1.45
  it('has written breaker, attempt and request before anything is sent', async () => {
    const { world, probe } = await halfOpen();
    expect(await world.breaker()).toMatchObject({
      state: 'half_open',
      generation: 3,
      probe_attempt_id: probe.attemptId,
      probe_request_id: probe.requestId,
      opened_at: null,
      retry_at: null,
    });
    expect(await world.attempt(probe.requestId)).toMatchObject({
      is_probe: true,
      generation: 3,
      settled_at: null,
    });
    expect(await world.request(probe.requestId)).toMatchObject({ state: 'submitting' });
    expectChain(await world.transitions(), PROBED);
    expect(await world.status()).toMatchObject({
      state: 'half_open',
      effective_state: 'half_open',
      retry_in_ms: null,
    });
    expect((await world.status())['why']).toMatch(/^half open: one probe is in flight since \d\d:\d\d:\d\d$/);
  });

  // 1.24, 2.9, 2.15
  it('refuses everybody else for the whole lease, and writes nothing for it', async () => {
    const { world } = await halfOpen(5);
    const other = await world.process();
    await world.passTime(LEASE_MS - 5_000);
    await world.expectUntouched(async () => {
      for (const own of [world.ctx, other, world.ctx, other]) {
        expect(await world.round(own)).toEqual([]);
        expect(await rescue(own)).toBe(0);
      }
    });
  });

  // 2.2
  it('closes at its probe’s success, with every count at nothing', async () => {
    const { world, probe } = await halfOpen();
    await world.settle(probe, accepts());
    expect(await world.breaker()).toMatchObject({
      state: 'closed',
      generation: 4,
      consecutive_failures: 0,
      failed_probes: 0,
      probe_attempt_id: null,
      probe_request_id: null,
      opened_at: null,
      retry_at: null,
    });
    expectChain(await world.transitions(), [...PROBED, 'probe_succeeded']);
  });

  // 1.14, 1.42, 2.18, 2.42
  it('opens again at its probe’s failure, however high the threshold is', async () => {
    const { world, probe } = await halfOpen(1);
    await world.database.query('update onetake.circuit_breakers set failure_threshold = 1000');
    await world.settle(probe, fails());
    const row = await world.breaker();
    expect(row).toMatchObject({ state: 'open', generation: 4 });
    expect(between(row, 'opened_at', 'retry_at')).toBe(COOLDOWN_MS);
    expectChain(await world.transitions(), [...PROBED, 'probe_failed']);
    expect((await world.status())['why']).toMatch(/: the probe failed \(last answer 502\), next probe at/);
  });

  // 1.10, 1.11, 2.19, 2.43
  it.each(Object.keys(NEUTRAL))(
    'opens again for the same cooldown, to the ms, when its probe meets %s',
    async (what) => {
      const { world, probe } = await halfOpen(0, { breaker: { cooldownGrowth: 2 } });
      const outcome = (NEUTRAL[what] as () => ReturnType<typeof answered>)();
      await world.settle(probe, outcome);

      const row = await world.breaker();
      expect(row).toMatchObject({ state: 'open', generation: 4, failed_probes: 0, probe_attempt_id: null });
      expect(between(row, 'opened_at', 'retry_at')).toBe(COOLDOWN_MS);
      expectChain(await world.transitions(), [...PROBED, 'probe_neutral']);
      expect(await world.effect(probe)).toBe('reopened');
      expect((await world.status())['why']).toContain('the probe told nothing');
      const after = {
        refused: /^(queued|rejected)$/,
        unsent: /^queued$/,
        unknown: /^ambiguous$/,
        accepted: /^$/,
      };
      expect((await world.request(probe.requestId))['state']).toMatch(after[outcome.certainty]);

      // Another account's request is the next probe, after exactly one cooldown.
      await world.client.upsertAccount({
        name: 'other',
        provider: 'sonilo',
        requestsPerMinute: 10,
        maxConcurrentGenerations: 10,
      });
      const next = await world.song('next', { account: 'other' });
      await world.database.query(`update onetake.generation_requests set not_before = now() + interval '1 h'
where account = 'default'`);
      await world.passTime(COOLDOWN_MS - 10_000);
      expect(await world.round()).toEqual([]);
      await world.passTime(10_000);
      expect(await world.round()).toMatchObject([{ requestId: next }]);
    },
  );

  it.each([
    ['a 401', 'key_refused', null],
    ['a 402', 'payment_required', null],
    ['a 402 of a spent trial', 'payment_required', 'text-to-music'],
    ['a 403', 'access_denied', 'text-to-music'],
  ])('holds the account of a probe that met %s', async (what, kind, operation) => {
    const { world, probe } = await halfOpen();
    await world.settle(probe, (NEUTRAL[what] as () => ReturnType<typeof answered>)());
    expect(await world.database.query('select account, operation, kind from onetake.account_holds')).toEqual([
      { account: 'default', operation, kind },
    ]);
  });

  // 1.1, 1.5, 2.28
  it.each([
    ['success', accepts],
    ['failure', fails],
    ['neutral outcome', () => answered(422)],
  ])(
    'is not moved by the %s of a submission from before, and its probe keeps its place',
    async (_what, outcome) => {
      const world = await openBreakerWorld();
      await world.songs(4);
      const [old, ...others] = (await world.round(world.ctx, 4)) as [AdmittedAttempt];
      for (const attempt of others) await world.settle(attempt, fails());
      await world.song('probe');
      // Within its lease still.
      await world.database.query(`update onetake.circuit_breakers
set retry_at = opened_at + interval '5 s' where state = 'open'`);
      const probe = await world.probe();
      const before = await world.breaker();

      await world.settle(old, outcome());

      expect(await world.breaker()).toEqual(before);
      expect(await world.effect(old)).toBe('stale_generation');
      await world.settle(probe, accepts());
      expect(await world.breaker()).toMatchObject({ state: 'closed' });
    },
  );

  // 1.23, 1.37
  it('lets its probe’s failure stand, whatever arrives afterwards', async () => {
    const { world, probe } = await halfOpen(0, { breaker: { cooldownGrowth: 2 } });
    await world.settle(probe, fails());
    const row = await world.breaker();
    for (let n = 0; n < 3; n++) {
      await world.settle(probe, accepts());
      await applyHealth(world.ctx, probe.attemptId);
    }
    expect(await world.breaker()).toEqual(row);
    expectChain(await world.transitions(), [...PROBED, 'probe_failed']);
  });

  it('takes one of two outcomes of its probe that arrive together', async () => {
    const { world, probe } = await halfOpen();
    const other = await world.process();
    await Promise.all([world.settle(probe, fails()), world.settle(probe, accepts(), other)]);
    const row = await world.breaker();
    const attempt = await world.attempt(probe.requestId);
    const closed = attempt['health'] === 'success';
    expect(row['state']).toBe(closed ? 'closed' : 'open');
    expectChain(await world.transitions(), [...PROBED, closed ? 'probe_succeeded' : 'probe_failed']);
    expect(world.transitionEvents()).toHaveLength(3);
  });

  // 1.27
  it('costs a hanging provider one request, whatever many workers have waiting', async () => {
    const world = await openBreakerWorld();
    await world.opened(20);
    await world.passTime(COOLDOWN_MS);
    world.raw.onPost = () => undefined;
    const workers = [1, 2, 3].map(() => world.worker());
    const ran = Promise.all(workers.map((worker) => worker.runOnce()));
    const call = await world.raw.post(1);
    for (let n = 0; n < 3; n++) expect(await world.worker().runOnce()).toBe(0);
    call.answer(502);
    await ran;
    expect(world.posts()).toBe(1);
  });

  // 1.18
  it('opens again at its worker’s own deadline, when the provider’s promise never settles', async () => {
    const { world, probe } = await halfOpen(0, { operation: IMPATIENT });
    const provider = { submit: () => new Promise(() => undefined) };
    const ctx = await world.process({ providerNamed: () => provider as never });
    const outcome = await submit(ctx, probe, 'sonilo', () => true);
    await world.settle(probe, outcome, ctx);
    expect(await world.attempt(probe.requestId)).toMatchObject({
      settled_by: 'worker',
      error_code: 'provider_silent',
      certainty: 'unknown',
    });
    expect(await world.request(probe.requestId)).toMatchObject({ state: 'ambiguous' });
    expectChain(await world.transitions(), [...PROBED, 'probe_failed']);
  });

  // 2.32
  it('opens again when its probe was never sent, since its worker’s send budget was over', async () => {
    const { world, probe } = await halfOpen();
    await world.settle(probe, broken('own_doing'));
    expect(world.posts()).toBe(0);
    expect(await world.request(probe.requestId)).toMatchObject({ state: 'queued', charge: 'none' });
    expectChain(await world.transitions(), [...PROBED, 'probe_neutral']);
  });
});
