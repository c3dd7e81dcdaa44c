import { describe, expect, it, onTestFinished } from 'vitest';
import type { Provider, Submission } from '../../src/core/provider.ts';
import { admit } from '../../src/lifecycle/admit.ts';
import { submit } from '../../src/lifecycle/submit.ts';
import type { AdmittedAttempt } from '../../src/postgres/submission-attempts.ts';
import { decodeSpooled, encodeSpooled } from '../../src/storage/spool-file.ts';
import { laneOf, lifecycleContext } from '../support/lifecycle-context.ts';
import type { ProviderCall } from '../support/raw-provider.ts';
import { API_KEY, openTransactions, openWorld, type Row } from '../support/world.ts';

describe('before the first byte', () => {
  it('the intent is committed, and no transaction or lock of ours is open while the POST is', async () => {
    const seen: { at: string; state: unknown; attempt: unknown; open: Row[] }[] = [];
    const look = async (at: string) => {
      const request = await world.request(id);
      const attempts = await world.attempts(id);
      seen.push({
        at,
        state: request['state'],
        attempt: attempts[0]?.['attempt'],
        open: await openTransactions(world.database),
      });
      // Whoever wants the row's lock gets it at once.
      await world.database.query('select from onetake.generation_requests where id = $1 for update nowait', [
        id,
      ]);
      await world.database.query('select from onetake.accounts for update nowait');
      await world.database.query('select from onetake.circuit_breakers for update nowait');
    };
    let id = '';
    const world = await openWorld({
      simulator: { onFirstByte: () => look('first byte'), onPost: () => look('before the answer') },
    });
    id = await world.song('one');
    // One round: the rescue of a started worker opens transactions of its own beside the POST.
    await world.worker().runOnce();

    expect(await world.request(id)).toMatchObject({ state: 'accepted' });
    expect(seen).toEqual([
      { at: 'first byte', state: 'submitting', attempt: 1, open: [] },
      { at: 'before the answer', state: 'submitting', attempt: 1, open: [] },
    ]);
    expect(await world.attempt(id)).toMatchObject({ http_status: 202 });
  });

  it('a key that is missing at that moment sends nothing and loses nothing', async () => {
    const world = await openWorld({ provider: 'raw' });
    const id = await world.song('one');
    const worker = world.worker({
      credentials: () => {
        throw new Error(API_KEY);
      },
    });

    await worker.runOnce();

    expect(world.raw.posts).toHaveLength(0);
    expect(await world.request(id)).toMatchObject({
      state: 'queued',
      state_reason: 'unsent_own_doing',
      charge: 'none',
    });
    expect(await world.attempt(id)).toMatchObject({
      health: 'none',
      certainty: 'unsent',
      error_code: 'missing_api_key',
    });
    expect(JSON.stringify(world.events)).not.toContain(API_KEY);
    expect(await world.breaker()).toMatchObject({ consecutive_failures: 0 });
  });

  it('a provider that throws is taken for unknown, one that lies about its evidence is still recorded', async () => {
    const world = await openWorld({
      config: {
        accounts: { default: { provider: 'mine', apiKeyEnv: 'MY_KEY' } },
        providers: { mine: { baseUrl: 'http://127.0.0.1:9' } },
      },
    });
    const answers = [
      () => Promise.reject(new Error('a bug')),
      () =>
        Promise.resolve({
          health: 'success',
          certainty: 'accepted',
          reason: 'task_accepted',
          alert: false,
          retryAfterMs: null,
          evidence: {
            phase: 'answered',
            httpStatus: 202,
            errorCode: 'not a plain code: sk_secret\n',
            providerTaskId: 'x\u0000y',
            responseAgeMs: 1,
            closed: true,
          },
        } as const),
    ];
    const mine = {
      name: 'mine',
      submit: () => (answers.shift() as () => Promise<never>)(),
      readTask: () => Promise.reject(new Error('unused')),
      close: async () => undefined,
    };
    const worker = world.worker({ providers: { mine } });
    const thrown = await world.song('thrown');
    await worker.runOnce();
    const lied = await world.song('lied');
    await worker.runOnce();

    expect(await world.request(thrown)).toMatchObject({ state: 'ambiguous', state_reason: 'transport' });
    expect(await world.attempt(thrown)).toMatchObject({ error_code: 'provider_threw' });
    expect(await world.request(lied)).toMatchObject({
      state: 'ambiguous',
      state_reason: 'accepted_without_task_id',
      charge: 'possible',
    });
  });
});

describe('a provider of the app’s own', () => {
  const BOUGHT = {
    health: 'success',
    certainty: 'accepted',
    reason: 'task_accepted',
    alert: false,
    retryAfterMs: null,
    evidence: {
      phase: 'answered',
      httpStatus: 202,
      errorCode: null,
      providerTaskId: 'bought',
      responseAgeMs: 1,
      closed: true,
    },
  } as const;
  const mine = (submit: (submission: Submission) => Promise<unknown>): Provider => ({
    name: 'mine',
    submit: submit as Provider['submit'],
    readTask: () => Promise.reject(new Error('unused')),
    close: async () => undefined,
  });
  /** One song, and a worker whose provider is `submit`. */
  async function submitted(submit: (submission: Submission) => Promise<unknown>, operation = {}) {
    const world = await openWorld({ provider: 'raw', operation });
    const id = await world.song('one');
    await world.worker({ providers: { sonilo: mine(submit) } }).runOnce();
    expect(world.events.filter(({ name }) => name === 'submission:unsettled')).toEqual([]);
    return { world, request: await world.request(id), attempt: await world.attempt(id) };
  }

  const UNSENT = {
    health: 'dependency_failure',
    certainty: 'unsent',
    reason: 'unsent',
    alert: false,
    retryAfterMs: null,
    evidence: { ...BOUGHT.evidence, phase: 'unsent', httpStatus: null, providerTaskId: null },
  } as const;

  it('that says *unsent* is taken at its word, and the word is on the attempt', async () => {
    const { request, attempt } = await submitted(async () => UNSENT);
    expect(request).toMatchObject({ state: 'queued', state_reason: 'unsent', charge: 'none' });
    expect(attempt).toMatchObject({ phase: 'unsent', headers_sent: false, headers_sent_proof: 'provider' });
  });

  it('that says *unsent* and that headers were sent has proven nothing', async () => {
    const { request, attempt } = await submitted(async () => ({
      ...UNSENT,
      evidence: { ...UNSENT.evidence, headersSent: true, headersSentProof: 'made_up' },
    }));
    expect(request).toMatchObject({ state: 'ambiguous', state_reason: 'transport', charge: 'possible' });
    expect(attempt).toMatchObject({
      certainty: 'unknown',
      headers_sent: true,
      headers_sent_proof: 'provider',
    });
  });

  it('that tells nothing of the wire has told by its answer that something was sent', async () => {
    const { attempt } = await submitted(async () => BOUGHT);
    expect(attempt).toMatchObject({ headers_sent: true, headers_sent_proof: 'answer' });
    const silent = await submitted(async () => Promise.reject(new Error('a bug')));
    expect(silent.attempt).toMatchObject({ headers_sent: null, headers_sent_proof: null });
  });

  it.each<[string, object]>([
    ['NaN as the age of its answer', { responseAgeMs: Number.NaN }],
    ['an endless age', { responseAgeMs: Number.POSITIVE_INFINITY }],
    ['an age of years', { responseAgeMs: 1e15 }],
    ['an age below zero', { responseAgeMs: -1 }],
    ['a status that no column holds', { httpStatus: 2 ** 40 }],
    ['a status that is none', { httpStatus: Number.NaN }],
    ['a fraction of a status', { httpStatus: 202.4 }],
    ['a phase that is none of ours', { phase: 'done' }],
  ])('that reports %s is taken at its word about the purchase', async (_what, odd) => {
    const { request, attempt } = await submitted(async () => ({
      ...BOUGHT,
      evidence: { ...BOUGHT.evidence, ...odd },
    }));
    expect(request).toMatchObject({ state: 'accepted', provider_task_id: 'bought', charge: 'charged' });
    expect(attempt['http_status']).toBe('httpStatus' in odd && odd.httpStatus !== 202.4 ? null : 202);
    if ('responseAgeMs' in odd) {
      // Unknown: the POST counts in its window as if it arrived when the lease ended.
      expect(Number(attempt['window_until']) - Number(attempt['lease_expires_at'])).toBe(60_250);
    }
  });

  it.each<[string, object]>([
    ['a certainty that is none of ours', { certainty: 'surely' }],
    ['no health', { health: undefined }],
    ['no reason', { reason: undefined }],
    [
      'a phase that is none of ours with nothing known',
      { certainty: 'unknown', health: 'none', reason: 'transport' },
    ],
  ])('that reports %s has told nothing: frozen, with the id that it named', async (_what, odd) => {
    const { request, attempt } = await submitted(async () => ({
      ...BOUGHT,
      ...odd,
      evidence: { ...BOUGHT.evidence, phase: 'done' },
    }));
    expect(request).toMatchObject({ state: 'ambiguous', state_reason: 'transport', charge: 'possible' });
    expect(attempt).toMatchObject({ certainty: 'unknown', phase: 'sent', provider_task_id: 'bought' });
  });

  it.each<[string, object]>([
    ['words of its own', { reason: 'the prompt was: a secret song' }],
    ['a reason that no column holds', { reason: 'x\u0000y' }],
    ['a reason of another certainty', { reason: 'request_refused' }],
    ['a refusal that is a server error', { certainty: 'refused', reason: 'server_error' }],
    ['a refusal that names a task', { certainty: 'refused', reason: 'request_refused' }],
    ['that nothing was sent, of an answer,', { certainty: 'unsent', reason: 'unsent' }],
    [
      'a refusal of the account without the status that says which',
      { certainty: 'refused', reason: 'account_refused' },
    ],
  ])('that gives %s as its reason has told nothing: frozen, and its words go nowhere', async (_what, odd) => {
    const { world, request, attempt } = await submitted(async () => ({ ...BOUGHT, ...odd }));
    expect(request).toMatchObject({ state: 'ambiguous', state_reason: 'transport', charge: 'possible' });
    expect(attempt).toMatchObject({ certainty: 'unknown', provider_task_id: 'bought' });
    expect(JSON.stringify([world.events, request['state_reason'], attempt])).not.toContain('secret song');
  });

  it.each<[string, object, object]>([
    ['nothing of its end', {}, { closed: undefined }],
    ['nothing of a code', {}, { errorCode: undefined }],
    ['a number as its code', {}, { errorCode: 402 }],
    ['a list as its code', {}, { errorCode: ['a', 'b'] }],
    ['nothing of an alert', { alert: undefined }, {}],
    ['a word as whether it sent twice', {}, { repeatedSend: 'no' }],
    ['a word as its end', {}, { closed: 'yes' }],
  ])(
    'that tells %s has its purchase recorded, and kept whole on disk while it cannot be',
    async (_what, odd, evidence) => {
      const { world, request, attempt } = await submitted(async () => ({
        ...BOUGHT,
        ...odd,
        evidence: { ...BOUGHT.evidence, ...evidence },
      }));
      expect(request).toMatchObject({ state: 'accepted', provider_task_id: 'bought', attention: null });
      expect(attempt).toMatchObject({ closed_at: 'closed' in evidence ? null : expect.any(Date) });
      const ctx = await lifecycleContext({
        connectionString: world.database.connectionString,
        config: world.config,
      });
      onTestFinished(() => ctx.stop());
      const provider = mine(async () => ({
        ...BOUGHT,
        ...odd,
        evidence: { ...BOUGHT.evidence, ...evidence },
      }));
      await world.song('two');
      const batch = await admit(ctx, await laneOf(ctx), { wanted: 1 });
      if ('blockedBy' in batch) throw new Error(batch.blockedBy);
      const [intent] = batch.attempts as [AdmittedAttempt];
      const outcome = await submit({ ...ctx, providerNamed: () => provider }, intent, 'sonilo', () =>
        batch.maySend(intent),
      );
      expect(decodeSpooled(encodeSpooled({ intent, outcome }))).toMatchObject({ kind: 'outcome' });
    },
  );

  it('that waits a capacity refusal of NaN ms pauses as long as ours does', async () => {
    const { world, request } = await submitted(async () => ({
      ...BOUGHT,
      health: 'capacity_signal',
      certainty: 'refused',
      reason: 'rate_limited',
      retryAfterMs: Number.NaN,
      evidence: { ...BOUGHT.evidence, httpStatus: 429, providerTaskId: null },
    }));
    expect(request).toMatchObject({ state: 'queued', state_reason: 'rate_limited' });
    const [account] = await world.database.query<{ ms: number }>(
      'select extract(epoch from paused_until - clock_timestamp()) * 1000 as ms from onetake.accounts',
    );
    expect(Number(account?.ms)).toBeGreaterThan(50_000);
  });

  it('that never answers is given up shortly after its deadline, as unknown', async () => {
    const { request, attempt } = await submitted(() => new Promise(() => undefined), {
      deadlines: { connectMs: 500, firstResponseMs: 600, submissionMs: 700 },
      leaseMs: 5_000,
    });
    expect(request).toMatchObject({ state: 'ambiguous', state_reason: 'transport', charge: 'possible' });
    expect(attempt).toMatchObject({
      settled_by: 'worker',
      error_code: 'provider_silent',
      certainty: 'unknown',
      closed_at: null,
    });
  });

  it('is not asked at all once nothing may be sent any more', async () => {
    const world = await openWorld({ provider: 'raw' });
    let asked = 0;
    const provider = mine(async () => {
      asked++;
      return BOUGHT;
    });
    const ctx = await lifecycleContext(
      { connectionString: world.database.connectionString, config: world.config },
      { providerNamed: () => provider },
    );
    onTestFinished(() => ctx.stop());
    await world.song('one');
    const batch = await admit(ctx, await laneOf(ctx), { wanted: 1 });
    if (!('attempts' in batch)) throw new Error('not admitted');
    const [attempt] = batch.attempts as [(typeof batch.attempts)[number]];
    expect(await submit(ctx, attempt, 'sonilo', () => false)).toMatchObject({
      certainty: 'unsent',
      evidence: { phase: 'unsent', errorCode: 'gate_closed' },
    });
    expect(asked).toBe(0);
    expect(await submit(ctx, attempt, 'sonilo', () => true)).toMatchObject({ certainty: 'accepted' });
    expect(asked).toBe(1);
  });
});

describe('a POST', () => {
  it('answered with the task id of another request of the account: frozen', async () => {
    const world = await openWorld({ provider: 'raw' });
    world.raw.onPost = (call) => call.accept('the-same');
    const first = await world.song('first');
    const worker = world.worker();
    await worker.runOnce();
    const second = await world.song('second');

    await worker.runOnce();

    expect(await world.request(first)).toMatchObject({ state: 'accepted', provider_task_id: 'the-same' });
    expect(await world.request(second)).toMatchObject({
      state: 'ambiguous',
      state_reason: 'task_id_conflict',
      provider_task_id: null,
      charge: 'possible',
    });
    // The evidence keeps what the provider said.
    expect(await world.attempt(second)).toMatchObject({
      health: 'unknown_failure',
      certainty: 'unknown',
      provider_task_id: 'the-same',
      slot_freed_at: null,
    });
    expect(world.events.filter(({ name }) => name === 'submission:alert')).toHaveLength(1);
    expect(world.raw.posts).toHaveLength(2);
  });

  it('and another, answered with the same task id at once: one of them is frozen', async () => {
    const world = await openWorld({ provider: 'raw' });
    const calls: ProviderCall[] = [];
    world.raw.onPost = (call) => {
      calls.push(call);
      if (calls.length === 2) for (const held of calls) held.accept('the-same');
    };
    await world.songs(2);

    await world.worker().runOnce();

    expect(Object.values(await world.states()).sort()).toEqual(['accepted', 'ambiguous']);
  });

  it('whose connection is refused was not sent, so it goes back and waits a little', async () => {
    const world = await openWorld({ provider: new URL('http://127.0.0.1:9') });
    const id = await world.song('one');
    const worker = world.worker();

    await worker.runOnce();

    const request = await world.request(id);
    expect(request).toMatchObject({
      state: 'queued',
      state_reason: 'unsent',
      charge: 'none',
      submissions: 1,
    });
    const attempt = await world.attempt(id);
    expect(attempt).toMatchObject({
      phase: 'unsent',
      health: 'dependency_failure',
      certainty: 'unsent',
      error_code: 'ECONNREFUSED',
    });
    // It used neither slot nor minute.
    expect(attempt['slot_freed_at']).not.toBeNull();
    expect(attempt['window_until']).toEqual(attempt['settled_at']);
    const delay = Number(request['not_before']) - Number(attempt['settled_at']);
    expect(delay).toBeGreaterThan(900);
    expect(delay).toBeLessThan(1_500);
    expect(await worker.runOnce()).toBe(0);
    expect(await world.breaker()).toMatchObject({ consecutive_failures: 1 });

    await world.passTime(1_100);
    expect(await worker.runOnce()).toBe(1);
    const again = await world.request(id);
    const second = await world.attempt(id);
    expect(Number(again['not_before']) - Number(second['settled_at'])).toBeGreaterThan(1_900);
  });

  it('answered with a 502 that the owner calls safe is sent again, at most maxSubmissions times', async () => {
    const world = await openWorld({ provider: 'raw', operation: { resubmitOn: [502], maxSubmissions: 3 } });
    world.raw.onPost = (call) => call.answer(502);
    const id = await world.song('one');
    const worker = world.worker();

    await worker.runOnce();
    expect(await world.request(id)).toMatchObject({
      state: 'queued',
      state_reason: 'resubmit_permitted',
      charge: 'none',
    });
    expect(await world.attempt(id)).toMatchObject({ certainty: 'refused', health: 'dependency_failure' });
    expect(await worker.runOnce()).toBe(0);
    await world.passTime(1_500);
    await worker.runOnce();
    await world.passTime(120_000);
    await worker.runOnce();

    expect(await world.request(id)).toMatchObject({
      state: 'rejected',
      state_reason: 'max_submissions',
      submissions: 3,
    });
    await world.passTime(120_000);
    await worker.runOnce();
    expect(world.raw.posts).toHaveLength(3);
    // The breaker counted each of them.
    expect(await world.breaker()).toMatchObject({ state: 'open' });
  });
});
