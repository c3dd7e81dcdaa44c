import { writeFile } from 'node:fs/promises';
import { beforeEach, describe, expect, it, onTestFinished } from 'vitest';
import type { SubmissionOutcome } from '../../src/core/provider.ts';
import { recordOutcome } from '../../src/lifecycle/record-outcome.ts';
import { createReplay } from '../../src/lifecycle/replay.ts';
import { rescue } from '../../src/lifecycle/rescue.ts';
import { settle } from '../../src/lifecycle/settle.ts';
import { encodeSpooled, SPOOL_FORMAT } from '../../src/storage/spool-file.ts';
import { COMMIT, databaseProxy } from '../support/database-proxy.ts';
import { openSpoolWorld, type SpoolWorld } from '../support/spool-world.ts';
import { answered, RESET, spooledOutcome, UNSENT } from '../support/spooled.ts';
import { jobRows, LEASE_MS, lockRows } from '../support/world.ts';

/** The statement of B1 that writes the outcome columns. */
const OUTCOME = 'set settled_at = s.now, settled_by = $2';

let world: SpoolWorld;

beforeEach(async () => {
  world = await openSpoolWorld();
});

const evidence = () => world.database.query('select * from onetake.attempt_evidence order by id');
const holds = () => world.database.query('select kind from onetake.account_holds where ended_at is null');

describe('the outcome of a worker that died, replayed while its attempt is open', () => {
  const cases: [string, SubmissionOutcome, object, object][] = [
    [
      'an acceptance',
      answered(202, 'a-task'),
      { state: 'accepted', provider_task_id: 'a-task', charge: 'charged' },
      { certainty: 'accepted', health: 'success', http_status: 202, provider_task_id: 'a-task' },
    ],
    [
      'a 2xx without an id',
      answered(200),
      { state: 'ambiguous', state_reason: 'accepted_without_task_id', charge: 'possible' },
      { certainty: 'unknown', http_status: 200 },
    ],
    [
      'a 422',
      answered(422),
      { state: 'rejected', state_reason: 'request_refused', charge: 'none' },
      { certainty: 'refused', http_status: 422 },
    ],
    [
      'a 502',
      answered(502),
      { state: 'ambiguous', state_reason: 'server_error', charge: 'possible' },
      { certainty: 'unknown', health: 'dependency_failure', health_effect: 'counted' },
    ],
    [
      'a reset',
      RESET,
      { state: 'ambiguous', state_reason: 'transport', charge: 'possible' },
      { certainty: 'unknown', phase: 'sent', error_code: 'ECONNRESET', headers_sent: true },
    ],
    [
      'a 429, read from the wire and so definite',
      answered(429),
      { state: 'queued', state_reason: 'rate_limited', charge: 'none' },
      { certainty: 'refused', health: 'capacity_signal' },
    ],
    [
      'a 401',
      answered(401),
      { state: 'queued', state_reason: 'account_refused', charge: 'none' },
      { certainty: 'refused' },
    ],
  ];

  it.each(cases)(
    'is settled by the table, once, and its file is gone: %s',
    async (_what, outcome, request, row) => {
      const attempt = await world.submitting('one');
      await world.leaves(attempt, outcome);
      expect(await world.replay()).toBe(1);
      expect(await world.request(attempt.requestId)).toMatchObject(request);
      const settled = await world.attempt(attempt.requestId);
      expect(settled).toMatchObject({ settled_by: 'worker', ...row });
      expect(settled['health_applied_at']).not.toBeNull();
      expect(await world.files()).toEqual([]);
      expect(world.seen('submission:settled')).toMatchObject([
        { attemptId: attempt.attemptId, from: 'submitting' },
      ]);
      expect(world.seen('rescue:done')).toEqual([{ rescued: 'spooled_outcomes', count: 1 }]);
      expect(await world.replay()).toBe(0);
      expect(world.seen('submission:settled')).toHaveLength(1);
    },
  );

  it('holds or pauses the account as the answer did, and has the request sent again only then', async () => {
    const [limited, refused] = [await world.submitting('one'), await world.submitting('two')];
    await world.leaves(limited, answered(429));
    await world.leaves(refused, answered(401));
    await world.replay();
    expect(await holds()).toEqual([{ kind: 'key_refused' }]);
    expect(world.seen('account:paused')).toHaveLength(1);
    expect(await jobRows(world.database)).toHaveLength(2);
    await world.worker().runOnce();
    expect(world.posts()).toBe(0);
  });

  it('that nothing was sent is not believed of a file: it waits for the lease, and freezes', async () => {
    const attempt = await world.submitting('one');
    await world.leaves(attempt, UNSENT);
    expect(await world.replay()).toBe(0);
    expect(await world.request(attempt.requestId)).toMatchObject({ state: 'submitting' });
    expect(await world.files()).toHaveLength(1);
    await world.passTime(LEASE_MS + 1);
    expect(await world.replay()).toBe(1);
    expect(await world.request(attempt.requestId)).toMatchObject({
      state: 'ambiguous',
      state_reason: 'worker_lost',
      charge: 'possible',
    });
    // The operator sees what the worker said.
    expect(await world.attempt(attempt.requestId)).toMatchObject({
      phase: 'unsent',
      error_code: 'ECONNREFUSED',
    });
    expect(await world.files()).toEqual([]);
    expect(await jobRows(world.database)).toEqual([]);
  });

  it('closes the breaker whose probe it was, and counts for it as it would have', async () => {
    await world.database.query(
      `update onetake.circuit_breakers set state = 'open', opened_at = now(), retry_at = now()`,
    );
    world.raw.onPost = () => undefined;
    await world.song('the probe');
    const child = await world.child('worker');
    await world.raw.post(1);
    await child.kill();
    expect(await world.breaker()).toMatchObject({ state: 'half_open' });
    const [row] = await world.database.query<Record<string, unknown>>(
      'select * from onetake.submission_attempts',
    );
    expect(row).toMatchObject({ is_probe: true });
    const probe = spooledOutcome({
      intent: {
        attemptId: row?.['id'] as string,
        requestId: row?.['request_id'] as string,
        isProbe: true,
      },
    });
    await world.freshSpool().keep(probe);
    await world.replay();
    expect(await world.breaker()).toMatchObject({ state: 'closed' });
    expect((await world.transitions()).map((transition) => transition['cause'])).toEqual([
      'probe_granted',
      'probe_succeeded',
    ]);
  });
});

describe('replayed after rescue has given the attempt up', () => {
  const cases: [string, SubmissionOutcome, object][] = [
    [
      'an acceptance completes the request',
      answered(202, 'a-task'),
      { state: 'accepted', charge: 'charged' },
    ],
    ['a 422 ends it', answered(422), { state: 'rejected', charge: 'none' }],
    ['a 429 is evidence only', answered(429), { state: 'ambiguous', charge: 'possible' }],
    ['a 401 is evidence only', answered(401), { state: 'ambiguous', charge: 'possible' }],
    ['a 502 is evidence only', answered(502), { state: 'ambiguous', charge: 'possible' }],
    ['that nothing was sent is evidence only', UNSENT, { state: 'ambiguous', charge: 'possible' }],
  ];

  it.each(cases)('%s, and twice is once', async (_what, outcome, request) => {
    const attempt = await world.submitting('one');
    await world.passTime(LEASE_MS + 1);
    await rescue(world.ctx);
    for (let round = 0; round < 2; round++) {
      await world.leaves(attempt, outcome);
      expect(await world.replay()).toBe(1 - round);
      expect(await world.files()).toEqual([]);
    }
    expect(await world.request(attempt.requestId)).toMatchObject(request);
    expect(await world.attempt(attempt.requestId)).toMatchObject({
      settled_by: 'rescue',
      phase: 'lease_over',
    });
    expect(await evidence()).toHaveLength(1);
    expect(await holds()).toEqual([]);
    expect(await world.breaker()).toMatchObject({ state: 'closed', consecutive_failures: 0 });
    expect(await jobRows(world.database)).toEqual([]);
    expect(world.seen('submission:settled')).toHaveLength(2);
  });
});

describe('one file, replayed by several at once', () => {
  it.each([
    ['while the attempt is open', false],
    ['after rescue has given it up', true],
  ])('is recorded once, told once and gone, %s', async (_when, isLate) => {
    const attempts = [
      await world.submitting('one'),
      await world.submitting('two'),
      await world.submitting('three'),
    ];
    if (isLate) {
      await world.passTime(LEASE_MS + 1);
      await rescue(world.ctx);
    }
    for (const attempt of attempts) await world.leaves(attempt, answered(502));
    const others = await Promise.all([1, 2, 3].map(() => world.anotherWorker()));
    const before = world.seen('submission:settled').length;

    const counts = await Promise.all(
      [world.ctx, ...others].map((ctx) => createReplay({ ...ctx, spool: world.freshSpool() }, () => true)()),
    );

    expect(counts.reduce((sum, count) => sum + count)).toBe(3);
    expect(world.seen('submission:settled')).toHaveLength(before + 3);
    expect(await world.files()).toEqual([]);
    expect(await evidence()).toHaveLength(isLate ? 3 : 0);
    expect(world.seen('process:trouble')).toEqual([]);
    // Three failures in a row: each counted once.
    expect(await world.breaker()).toMatchObject(
      isLate ? { state: 'closed', consecutive_failures: 0 } : { state: 'open', generation: 2 },
    );
  });

  it('beside the worker that is still trying is recorded and told once', async () => {
    const proxy = await databaseProxy(world.database.connectionString);
    onTestFinished(() => proxy.stop());
    const live = await world.anotherWorker(proxy.connectionString);
    const attempt = await world.submitting('one');
    const held = proxy.holdAt(COMMIT, OUTCOME);
    const settled = settle(live, attempt, answered(502));
    await held;
    await world.leaves(attempt, answered(502));

    const replayed = world.replay();
    await (await held).release();
    await Promise.all([settled, replayed]);

    expect(await world.breaker()).toMatchObject({ consecutive_failures: 1 });
    expect(world.seen('submission:settled')).toHaveLength(1);
    expect(await evidence()).toEqual([]);
    await world.replay();
    expect(await world.files()).toEqual([]);
  });

  it('does not touch the files of attempts that this very process is settling', async () => {
    const attempt = await world.submitting('one');
    await world.ctx.spool.keep({ intent: attempt, outcome: answered(502) });
    expect(await createReplay(world.ctx, () => true)()).toBe(0);
    expect(await world.request(attempt.requestId)).toMatchObject({ state: 'submitting' });
    world.ctx.spool.letGo(attempt.attemptId);
    expect(await createReplay(world.ctx, () => true)()).toBe(1);
  });
});

describe('a file whose outcome the database has already', () => {
  it('is removed without a word, and health that nobody applied is applied', async () => {
    const attempt = await world.submitting('one');
    // Its worker died between the money and the health.
    await world.ctx.database.transaction((tx) =>
      recordOutcome(world.ctx, tx, attempt, answered(502), 'worker'),
    );
    expect(await world.breaker()).toMatchObject({ consecutive_failures: 0 });
    await world.leaves(attempt, answered(502));
    expect(await world.replay()).toBe(0);
    expect(await world.files()).toEqual([]);
    expect(await world.breaker()).toMatchObject({ consecutive_failures: 1 });
    expect(world.seen('submission:settled')).toEqual([]);
  });
});

describe('a file that no replay can record', () => {
  it('is set aside when it is damaged, said once, and never deleted', async () => {
    const text = encodeSpooled(spooledOutcome());
    const { attemptId } = spooledOutcome().intent;
    await writeFile(`${world.directory}/${attemptId}.json`, text.slice(0, -30));
    await world.replay();
    await world.replay();
    const [name, ...more] = await world.files();
    expect(more).toEqual([]);
    expect(name).toMatch(new RegExp(`^${attemptId}\\.[0-9a-f]{8}\\.bad$`));
    expect(await world.content(name as string)).toBe(text.slice(0, -30));
    expect(world.seen('spool:unreplayed')).toEqual([
      { reason: 'damaged', attemptId, requestId: null, providerTaskId: null },
    ]);
  });

  it('stays where it is when a newer release wrote it, and is said once in a process', async () => {
    const attempt = await world.submitting('one');
    const { content } = JSON.parse(encodeSpooled({ intent: attempt, outcome: answered(202, 'a-task') }));
    const text = JSON.stringify({ version: SPOOL_FORMAT + 1, content });
    await writeFile(`${world.directory}/${attempt.attemptId}.json`, text);
    const replay = createReplay({ ...world.ctx, spool: world.freshSpool() }, () => true);
    await replay();
    await replay();
    expect(await world.files()).toEqual([`${attempt.attemptId}.json`]);
    expect(world.seen('spool:unreplayed')).toMatchObject([{ reason: 'newer', attemptId: attempt.attemptId }]);
    expect(await world.request(attempt.requestId)).toMatchObject({ state: 'submitting' });
  });

  it('stays when the database has no such request, is said with its ids, and is recorded when it has', async () => {
    const spooled = spooledOutcome({ evidence: { providerTaskId: 'paid-task' } });
    await world.freshSpool().keep(spooled);
    const replay = createReplay({ ...world.ctx, spool: world.freshSpool() }, () => true);
    await replay();
    await replay();
    const { attemptId, requestId } = spooled.intent;
    expect(world.seen('spool:unreplayed')).toEqual([
      { reason: 'unknown_request', attemptId, requestId, providerTaskId: 'paid-task' },
    ]);
    expect(await world.files()).toEqual([`${attemptId}.json`]);
    // A fail-back: the database that knew it is there again.
    await world.database.query(
      `insert into onetake.generation_requests (id, account, operation, request_key, fields, payload_digest)
values ($1, 'default', 'text-to-music', 'from before', '{}', repeat('0', 64))`,
      [requestId],
    );
    await replay();
    expect(await world.request(requestId)).toMatchObject({
      state: 'accepted',
      provider_task_id: 'paid-task',
    });
    expect(await world.files()).toEqual([]);
  });

  it('holds up no other: one whose request somebody has locked waits for the next round', async () => {
    const attempts = [
      await world.submitting('one'),
      await world.submitting('two'),
      await world.submitting('three'),
    ];
    for (const attempt of attempts) await world.leaves(attempt, answered(202, `task ${attempt.requestId}`));
    const [name] = (await world.files()).sort();
    const locked = attempts.find(({ attemptId }) => name?.startsWith(attemptId));
    const unlock = await lockRows(world.database, 'select from onetake.generation_requests where id = $1', [
      locked?.requestId,
    ]);
    expect(await world.replay()).toBe(2);
    expect(await world.files()).toEqual([name]);
    await unlock();
    expect(await world.replay()).toBe(1);
    expect(Object.values(await world.states())).toEqual(['accepted', 'accepted', 'accepted']);
  });
});

describe('a database that goes away', () => {
  it('ends the round, keeps every file, and the next round records them', async () => {
    const proxy = await databaseProxy(world.database.connectionString);
    onTestFinished(() => proxy.stop());
    const attempts = [await world.submitting('one'), await world.submitting('two')];
    for (const attempt of attempts) await world.leaves(attempt, answered(422));
    const ctx = await world.anotherWorker(proxy.connectionString);
    await proxy.down();
    const replay = createReplay({ ...ctx, spool: world.freshSpool() }, () => true);
    await expect(replay()).rejects.toThrow();
    expect(await world.files()).toHaveLength(2);
    await proxy.up();
    expect(await world.replay()).toBe(2);
    expect(await world.files()).toEqual([]);
  });

  it.each(['before', 'after'] as const)(
    'with the COMMIT, %s the server had it: recorded once, and told once',
    async (when) => {
      const proxy = await databaseProxy(world.database.connectionString);
      onTestFinished(() => proxy.stop());
      const attempt = await world.submitting('one');
      await world.leaves(attempt, answered(502));
      const ctx = await world.anotherWorker(proxy.connectionString);
      const replay = createReplay({ ...ctx, spool: world.freshSpool() }, () => true);
      const cut = proxy.cutAt(COMMIT, when, OUTCOME);
      await expect(replay()).rejects.toThrow('the outcome of a commit is unknown');
      await cut;
      expect(await world.files()).toHaveLength(1);
      await replay();
      expect(await world.request(attempt.requestId)).toMatchObject({ state: 'ambiguous' });
      expect(await world.breaker()).toMatchObject({ consecutive_failures: 1 });
      expect(world.seen('submission:settled')).toMatchObject([{ from: 'submitting', to: 'ambiguous' }]);
      expect(await world.files()).toEqual([]);
    },
  );
});
