import { rm, writeFile } from 'node:fs/promises';
import { beforeEach, describe, expect, it, onTestFinished } from 'vitest';
import type { SubmissionOutcome } from '../../src/core/provider.ts';
import { settle } from '../../src/lifecycle/settle.ts';
import { encodeSpooled } from '../../src/storage/spool-file.ts';
import { COMMIT, type DatabaseProxy, databaseProxy } from '../support/database-proxy.ts';
import type { LifecycleContext } from '../support/lifecycle-context.ts';
import { type Attempt, openSpoolWorld, type SpoolWorld } from '../support/spool-world.ts';
import { answered, RESET, spooledOutcome, UNSENT } from '../support/spooled.ts';
import { waitFor } from '../support/wait-for.ts';
import { waitForBlocked } from '../support/world.ts';

/** The statement of B1 that writes the outcome columns, and the one statement that is all of B1 for an acceptance. */
const OUTCOME = 'set settled_at = s.now, settled_by = $2';
const ACCEPTANCE = 'with terms as materialized';

let world: SpoolWorld;
let proxy: DatabaseProxy;
/** The worker, whose database is behind the proxy. */
let shaky: LifecycleContext;

beforeEach(async () => {
  world = await openSpoolWorld();
  proxy = await databaseProxy(world.database.connectionString);
  onTestFinished(() => proxy.stop());
  shaky = await world.anotherWorker(proxy.connectionString);
});

const OUTCOMES: [string, SubmissionOutcome, object][] = [
  ['accepted', answered(202, 'a-task'), { state: 'accepted', provider_task_id: 'a-task' }],
  ['refused', answered(422), { state: 'rejected' }],
  ['refused for now', answered(429), { state: 'queued', state_reason: 'rate_limited' }],
  ['unknown', RESET, { state: 'ambiguous', state_reason: 'transport' }],
  ['unsent', UNSENT, { state: 'queued', state_reason: 'unsent' }],
];

const fileOf = ({ attemptId }: Attempt) => `${attemptId}.json`;

function spooled(attempt: Attempt): Promise<unknown> {
  const files = () => world.files().catch((): string[] => []);
  return waitFor(async () => (await files()).includes(fileOf(attempt)), { what: 'the file' });
}

describe('an outcome that the database doesn’t take', () => {
  it.each(OUTCOMES)(
    'is on disk at the first failure, and off it when it is committed: %s',
    async (_what, outcome, row) => {
      const attempt = await world.submitting('a prompt that nobody may read');
      await proxy.down();
      const settled = settle(shaky, attempt, outcome);
      await spooled(attempt);
      const content = await world.content(fileOf(attempt));
      expect(content).toBe(encodeSpooled({ intent: attempt, outcome }));
      expect(content).not.toContain('nobody may read');
      const { attemptId, requestId } = attempt;
      const { certainty, reason, evidence } = outcome;
      expect(world.seen('submission:unsettled')).toEqual([
        {
          requestId,
          attemptId,
          certainty,
          reason,
          providerTaskId: evidence.providerTaskId,
          httpStatus: evidence.httpStatus,
          errorCode: expect.any(String),
        },
      ]);
      await proxy.up();
      expect(await settled).toBe(true);
      expect(await world.request(requestId)).toMatchObject(row);
      expect(await world.files()).toEqual([]);
      expect(world.seen('submission:settled')).toHaveLength(1);
    },
  );

  it('goes to the disk before anybody hears of the first failure, and before the second try', async () => {
    const attempt = await world.submitting('one');
    const order: string[] = [];
    const keep: LifecycleContext['spool']['keep'] = (kept) => {
      order.push('kept');
      return shaky.spool.keep(kept);
    };
    const emit: LifecycleContext['emit'] = (name) => void order.push(name);
    await proxy.down();
    const settled = settle({ ...shaky, emit, spool: { ...shaky.spool, keep } }, attempt, answered(422));
    await waitFor(() => order.length >= 2, { what: 'the first failure' });
    expect(order.slice(0, 2)).toEqual(['kept', 'submission:unsettled']);
    await proxy.up();
    await settled;
  });

  it('is on disk, too, when the database neither takes nor refuses it', async () => {
    const attempt = await world.submitting('one');
    const held = proxy.holdAt(COMMIT, OUTCOME);
    const settled = settle(shaky, attempt, answered(502));
    await held;
    await spooled(attempt);
    expect(world.seen('submission:unsettled')).toEqual([]);
    await (await held).release();
    await settled;
    expect(await world.files()).toEqual([]);
    expect(world.seen('submission:settled')).toHaveLength(1);
  });

  it('never touches the disk when the database takes it', async () => {
    const attempt = await world.submitting('one');
    await rm(world.directory, { recursive: true });
    await settle(shaky, attempt, answered(202, 'a-task'));
    await expect(world.files()).rejects.toMatchObject({ code: 'ENOENT' });
  });

  it('waits in memory when there is no disk to be had, and the log has its ids', async () => {
    await rm(world.directory, { recursive: true });
    await writeFile(world.directory, 'a file');
    const attempt = await world.submitting('one');
    await proxy.down();
    const settled = settle(shaky, attempt, answered(202, 'paid-task'));
    await waitFor(() => world.seen('submission:unsettled').length > 0, { what: 'the log line' });
    await proxy.up();
    await settled;
    expect(await world.request(attempt.requestId)).toMatchObject({
      state: 'accepted',
      provider_task_id: 'paid-task',
    });
    expect(world.seen('submission:unsettled')).toMatchObject([{ providerTaskId: 'paid-task' }]);
  });

  it('gets to the disk later when there was no room at first', async () => {
    await rm(world.directory, { recursive: true });
    await writeFile(world.directory, 'a file');
    const attempt = await world.submitting('one');
    await proxy.down();
    const settled = settle(shaky, attempt, answered(202, 'paid-task'));
    await waitFor(() => world.seen('submission:unsettled').length > 0, { what: 'the first failure' });
    await rm(world.directory);
    await spooled(attempt);
    await proxy.up();
    await settled;
    expect(await world.files()).toEqual([]);
  });

  it('holds up no other attempt, and asks the database at most a few times a second', async () => {
    const attempts = [await world.submitting('one'), await world.submitting('two')] as const;
    await proxy.down();
    const settled = Promise.all(attempts.map((attempt) => settle(shaky, attempt, answered(422))));
    for (const attempt of attempts) await spooled(attempt);
    await proxy.up();
    expect(await settled).toEqual([true, true]);
    expect(await world.files()).toEqual([]);
  });
});

describe('a worker that gives up', () => {
  it('at once leaves the file to whoever replays it, and says so', async () => {
    const attempt = await world.submitting('one');
    const giveUp = new AbortController();
    await proxy.down();
    const settled = settle(shaky, attempt, answered(202, 'a-task'), giveUp.signal);
    await spooled(attempt);
    giveUp.abort();
    expect(await settled).toBe(false);
    expect(world.seen('submission:unsettled')).toMatchObject([
      { errorCode: expect.not.stringMatching('given_up') },
      { errorCode: 'given_up', providerTaskId: 'a-task' },
    ]);
    expect((await shaky.spool.list()).map(({ attemptId }) => attemptId)).toEqual([attempt.attemptId]);
    expect(await world.replay()).toBe(1);
    expect(await world.request(attempt.requestId)).toMatchObject({ state: 'accepted' });
  });

  it('on a COMMIT that hangs has the outcome on disk all the same', async () => {
    const attempt = await world.submitting('one');
    const giveUp = new AbortController();
    const held = proxy.holdAt(COMMIT, OUTCOME);
    const settled = settle(shaky, attempt, answered(502), giveUp.signal);
    await held;
    giveUp.abort();
    expect(await settled).toBe(false);
    expect(await world.files()).toEqual([fileOf(attempt)]);
    // The COMMIT comes through after all: the replay finds it done.
    await (await held).release();
    await world.replay();
    expect(await world.files()).toEqual([]);
    expect(await world.breaker()).toMatchObject({ consecutive_failures: 1 });
  });
});

describe('a COMMIT whose answer is lost', () => {
  it.each(['before', 'after'] as const)('is told once, %s the server had it', async (when) => {
    const attempt = await world.submitting('one');
    const cut = proxy.cutAt(COMMIT, when, OUTCOME);
    await settle(shaky, attempt, answered(502));
    await cut;
    expect(world.seen('submission:settled')).toMatchObject([
      { attemptId: attempt.attemptId, from: 'submitting', to: 'ambiguous', reason: 'server_error' },
    ]);
    expect(await world.breaker()).toMatchObject({ consecutive_failures: 1 });
    expect(await world.files()).toEqual([]);
  });

  it.each(['before', 'after'] as const)(
    'of an acceptance, which is one statement, is told once, %s the server had it',
    async (when) => {
      const attempt = await world.submitting('one');
      const cut = proxy.cutAt(ACCEPTANCE, when);
      await settle(shaky, attempt, answered(202, 'a-task'));
      await cut;
      expect(world.seen('submission:settled')).toMatchObject([
        { from: 'submitting', to: 'accepted', providerTaskId: 'a-task' },
      ]);
      expect(await world.request(attempt.requestId)).toMatchObject({ state: 'accepted', attention: null });
      expect(await world.files()).toEqual([]);
    },
  );

  it('and that is still under way is waited for under the row’s lock, not guessed', async () => {
    const attempt = await world.submitting('one');
    const held = proxy.holdAt(COMMIT, OUTCOME);
    const settled = settle(shaky, attempt, answered(502));
    (await held).cutClient();
    // The server process lives, holds the request's lock, and may commit at any moment.
    await waitForBlocked(world.database, 1);
    expect(await world.request(attempt.requestId)).toMatchObject({ state: 'submitting' });
    await (await held).release();
    await settled;
    expect(await world.request(attempt.requestId)).toMatchObject({ state: 'ambiguous' });
    expect(await world.database.query('select * from onetake.attempt_evidence')).toEqual([]);
    expect(world.seen('submission:settled')).toMatchObject([{ from: 'submitting', to: 'ambiguous' }]);
    expect(await world.breaker()).toMatchObject({ consecutive_failures: 1 });
  });
});

it('an outcome of a request that the database doesn’t know is kept on disk, and said with its ids', async () => {
  const { intent, outcome } = spooledOutcome({ evidence: { providerTaskId: 'paid-task' } });
  const attempt: Attempt = { ...intent, fields: { prompt: 'rain' }, mode: 'async', submitBefore: null };
  expect(await settle(shaky, attempt, outcome)).toBe(false);
  const { attemptId, requestId } = intent;
  expect(world.seen('spool:unreplayed')).toEqual([
    { reason: 'unknown_request', attemptId, requestId, providerTaskId: 'paid-task' },
  ]);
  expect(await world.files()).toEqual([`${attemptId}.json`]);
});
