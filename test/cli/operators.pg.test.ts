import { describe, expect, test } from 'vitest';
import { OPERATION_NAMES } from '../../src/core/operations.ts';
import { insert, insertAmbiguous, insertRequest } from '../support/fixtures.ts';
import type { TestDatabase } from '../support/test-database.ts';
import { setStage } from './stage.ts';

async function stateOf(database: TestDatabase, id: string): Promise<string | undefined> {
  const [row] = await database.query<{ state: string }>(
    'select state from onetake.generation_requests where id = $1',
    [id],
  );
  return row?.state;
}

describe('onetake ambiguous', () => {
  test('lists what an operator decides by, as a JSON array and a line each', async () => {
    const { cli, database } = await setStage();
    const { id } = await insertAmbiguous(database, { http_status: 502 }, { state_reason: 'server_error' });
    expect(await cli.json(['ambiguous', 'list'])).toEqual([
      {
        id,
        reason: 'server_error',
        account: 'default',
        operation: 'text-to-music',
        ageMs: expect.any(Number),
        attempt: 1,
        phase: 'answered',
        httpStatus: 502,
        charge: 'possible',
        rearmableAt: expect.stringMatching(/Z$/),
      },
    ]);
    const { stdout, stderr } = await cli.run(['ambiguous', 'list']);
    expect(stdout).toMatch(new RegExp(`^${id.slice(0, 8)}  server error  502`, 'm'));
    expect(stderr).toContain('Outcome unknown, possibly charged: do not resubmit it.');
  });

  test('shows one with the ways to settle it', async () => {
    const { cli, database } = await setStage();
    const { id } = await insertAmbiguous(database, { http_status: 202 });
    const { stdout, stderr } = await cli.run(['ambiguous', 'show', id.slice(0, 8)]);
    expect(stdout).toContain('attempt 1: the provider answered 202');
    expect(stdout).toContain('Outcome unknown, possibly charged: do not resubmit it.');
    expect(stderr).toContain(`onetake ambiguous resolve ${id.slice(0, 8)} --not-accepted --force --reason`);
    expect(await cli.json(['ambiguous', 'show', id])).toMatchObject({ id, needsForce: true });
  });

  test('shows that another POST may go at once when nothing of the old one can arrive', async () => {
    const { cli, database } = await setStage();
    const { id } = await insertAmbiguous(database, { closed_at: new Date() });
    expect((await cli.run(['ambiguous', 'show', id])).stdout).toMatch(
      /^next POST from +at once, if one is permitted$/m,
    );
  });

  test('says whether the first byte went out where no answer does, and by whose word', async () => {
    const { cli, database } = await setStage();
    const shown = async (headers_sent: boolean | null, headers_sent_proof: string | null) => {
      const silent = { phase: 'sent', http_status: null, headers_sent, headers_sent_proof };
      const { id } = await insertAmbiguous(database, silent);
      expect(await cli.json(['ambiguous', 'show', id])).toMatchObject({
        headersSent: headers_sent,
        headersSentProof: headers_sent_proof,
      });
      return /^first byte +(.+)$/m.exec((await cli.run(['ambiguous', 'show', id])).stdout)?.[1];
    };
    expect(await shown(false, 'oracle')).toBe('did not go out (proof: oracle)');
    expect(await shown(true, 'oracle')).toBe('went out (proof: oracle)');
    expect(await shown(null, null)).toBeUndefined();
  });

  test('says of an unknown id and of a wrong state where to look', async () => {
    const { cli, database } = await setStage();
    const resolve = (id: string) => cli.error(['ambiguous', 'resolve', id, '--abandon', '--reason', 'r']);
    expect(await resolve('00000000')).toMatchObject({
      code: 'request_not_found',
      hint: expect.stringContaining('onetake ambiguous list'),
    });
    expect(await resolve(await insertRequest(database))).toMatchObject({
      code: 'request_not_in_state',
      message: expect.stringMatching(/^Generation request [0-9a-f-]{36} is queued, and this needs it .+\.$/),
      hint: expect.stringContaining('onetake requests show'),
    });
  });

  test('takes a wrong task id back, with a name and a reason', async () => {
    const { cli, database } = await setStage();
    const { id } = await insertAmbiguous(database);
    const reopen = ['ambiguous', 'reopen', id.slice(0, 8), '--reason', 'the task of another song'];
    expect(await cli.error(reopen)).toMatchObject({ code: 'request_not_in_state', exitCode: 1 });
    await cli.json(['ambiguous', 'resolve', id, '--accepted', 'task-9', '--reason', 'in the ledger']);
    expect(await cli.json(reopen)).toMatchObject({
      id,
      from: 'accepted',
      to: 'ambiguous',
      postsPermitted: 0,
    });
    const [last] = await database.query(
      'select actor, action, reason from onetake.operator_actions order by id desc limit 1',
    );
    expect(last).toEqual({ actor: 'ada', action: 'reopen', reason: 'the task of another song' });
    expect(await cli.error(reopen.slice(0, 3))).toMatchObject({ code: 'invalid_option', exitCode: 2 });
  });

  test('refuses to show a request that is not ambiguous', async () => {
    const { cli, database } = await setStage();
    const id = await insertRequest(database);
    expect(await cli.error(['ambiguous', 'show', id])).toMatchObject({
      code: 'not_ambiguous',
      message: `Request ${id.slice(0, 8)} is queued, not ambiguous.`,
      exitCode: 1,
    });
  });

  test('attaches a task id, and records who and why', async () => {
    const { cli, database } = await setStage();
    const { id } = await insertAmbiguous(database);
    const args = [
      'ambiguous',
      'resolve',
      id.slice(0, 8),
      '--accepted',
      'task-9',
      '--reason',
      'in the ledger',
    ];
    expect(await cli.json(args)).toEqual({
      id,
      from: 'ambiguous',
      to: 'accepted',
      postsPermitted: 0,
      notBefore: null,
    });
    const show = ['requests', 'show', id];
    const decision = { actor: 'ada', action: 'resolve_as_accepted', reason: 'in the ledger' };
    expect(await cli.json(show)).toMatchObject({ decisions: [decision] });
    expect((await cli.run(show)).stdout).toMatch(/^decided .*\n.* resolve as accepted +ada +in the ledger$/m);
  });

  test('prefers --actor to the environment', async () => {
    const { cli, database } = await setStage();
    const { id } = await insertAmbiguous(database);
    const { code } = await cli.run([
      'ambiguous',
      'resolve',
      id,
      '--abandon',
      '--reason',
      'r',
      '--actor',
      'grace',
    ]);
    expect(code).toBe(0);
    expect(await database.query('select actor from onetake.operator_actions')).toEqual([{ actor: 'grace' }]);
    expect(await stateOf(database, id)).toBe('failed');
  });

  test('permits no paid POST without a terminal to ask on, unless told --yes', async () => {
    const { cli, database } = await setStage();
    const { id } = await insertAmbiguous(database, { closed_at: new Date() });
    const args = ['ambiguous', 'resolve', id, '--not-accepted', '--reason', 'support says so'];
    expect(await cli.error(args)).toMatchObject({ code: 'invalid_option', exitCode: 2 });
    expect(await stateOf(database, id)).toBe('ambiguous');
    expect(await cli.json([...args, '--yes'])).toEqual({
      id,
      from: 'ambiguous',
      to: 'queued',
      postsPermitted: 1,
      notBefore: expect.stringMatching(/Z$/),
    });
  });

  test('ends one without another POST, and does not ask for that', async () => {
    const { cli, database } = await setStage();
    const { id } = await insertAmbiguous(database);
    const args = ['ambiguous', 'resolve', id, '--not-accepted', '--no-resubmit', '--reason', 'unwanted'];
    expect(await cli.json(args)).toMatchObject({ to: 'cancelled', postsPermitted: 0 });
  });

  test('needs --force after a success answer', async () => {
    const { cli, database } = await setStage();
    const { id } = await insertAmbiguous(database, { http_status: 200 });
    const args = ['ambiguous', 'resolve', id, '--not-accepted', '--yes', '--reason', 'r'];
    expect(await cli.error(args)).toMatchObject({ code: 'request_not_in_state', exitCode: 1 });
    expect(await cli.json([...args, '--force'])).toMatchObject({ to: 'queued' });
  });

  test('hands a deadline on, and takes only an instant with its offset', async () => {
    const { cli, database } = await setStage();
    const { id } = await insertAmbiguous(database);
    const args = ['ambiguous', 'resolve', id, '--not-accepted', '--yes', '--reason', 'r', '--submit-before'];
    expect(await cli.error([...args, '2096-01-01 12:00'])).toMatchObject({
      code: 'invalid_option',
      exitCode: 2,
    });
    expect((await cli.run([...args, '2096-01-01T12:00:00+02:00'])).code).toBe(0);
    const [row] = await database.query('select submit_before from onetake.generation_requests');
    expect(row?.['submit_before']).toEqual(new Date('2096-01-01T10:00:00Z'));
  });

  test('maps what the database refuses', async () => {
    const { cli, database } = await setStage();
    const { id } = await insertAmbiguous(database);
    const other = await insertRequest(database, { state: 'accepted', provider_task_id: 'taken' });
    expect(
      await cli.error(['ambiguous', 'resolve', id, '--accepted', 'taken', '--reason', 'r']),
    ).toMatchObject({
      code: 'task_id_in_use',
      message: `That provider task id belongs to request ${other} of the account.`,
      exitCode: 1,
    });
    expect(await cli.error(['ambiguous', 'resolve', id, '--abandon', '--reason', ' '])).toMatchObject({
      code: 'operator_identity_missing',
      exitCode: 2,
    });
  });
});

describe('onetake breaker', () => {
  const open = (database: TestDatabase) =>
    database.query(`with opened as (
  update onetake.circuit_breakers
  set state = 'open', generation = 2, opened_at = now(), retry_at = now() + interval '1 hour', transitions = 1
  where name = 'sonilo/text-to-music'
)
insert into onetake.circuit_breaker_transitions (at, breaker_name, number, previous_state, next_state, cause,
  outcome_kind, http_status, failures, opened_at, retry_at, generation)
values (now(), 'sonilo/text-to-music', 1, 'closed', 'open', 'failure_threshold', 'dependency_failure', 502, 3, now(),
  now() + interval '1 hour', 2)`);

  test('lists each with its state and why', async () => {
    const { cli, database } = await setStage();
    await open(database);
    const rows = await cli.json<Record<string, unknown>[]>(['breaker', 'list']);
    expect(rows).toHaveLength(OPERATION_NAMES.length);
    expect(rows.find(({ name }) => name === 'sonilo/text-to-music')).toEqual({
      name: 'sonilo/text-to-music',
      state: 'open',
      effectiveState: 'open',
      why: expect.stringContaining('3 dependency failures in a row (last answer 502)'),
      since: expect.stringMatching(/Z$/),
      consecutiveFailures: 0,
      openedAt: expect.stringMatching(/Z$/),
      retryAt: expect.stringMatching(/Z$/),
      retryInMs: expect.any(Number),
      override: null,
      overrideActor: null,
      overrideReason: null,
      overrideExpiresAt: null,
      probeRequestId: null,
      shadow: false,
      notClosedSince: expect.stringMatching(/Z$/),
      failureThreshold: 3,
      cooldownMs: 30_000,
      cooldownGrowth: 1,
      maxCooldownMs: 600_000,
      jitter: 0,
    });
    const { stdout } = await cli.run(['breaker', 'list']);
    expect(stdout).toMatch(/^sonilo\/text-to-music +open +3 dependency failures in a row/m);
  });

  test('shows one by its operation, with why in a sentence and the next probe', async () => {
    const { cli, database } = await setStage();
    await open(database);
    const { stdout } = await cli.run(['breaker', 'show', 'text-to-music']);
    expect(stdout).toMatch(/^why +open since [\d:]+: 3 dependency failures in a row/m);
    expect(stdout).toMatch(/^next probe +in 59 min, at /m);
    expect(stdout).toMatch(/^not closed since +2/m);
    expect(stdout).toMatch(/^cooldown +30 s$/m);
    expect(stdout).not.toMatch(/^(override|by|reason|until|shadow) /m);
    expect(await cli.json(['breaker', 'show', 'sonilo/video-to-music'])).toMatchObject({ state: 'closed' });
    expect(await cli.json(['breaker', 'show', '--all'])).toHaveLength(OPERATION_NAMES.length);
  });

  test('tells the transitions of one, or of all', async () => {
    const { cli, database } = await setStage();
    await open(database);
    const [row, ...more] = await cli.json<object[]>(['breaker', 'history', 'text-to-music']);
    expect(row).toMatchObject({ number: 1, previousState: 'closed', nextState: 'open', httpStatus: 502 });
    expect(more).toEqual([]);
    const { stdout } = await cli.run(['breaker', 'history', '--all']);
    expect(stdout).toMatch(/closed -> open +failure threshold +502/);
    expect(await cli.json(['breaker', 'history', 'video-to-music'])).toEqual([]);
  });

  test('refuses a name that none has, with a suggestion, and asks which when there are several', async () => {
    const { cli } = await setStage();
    expect(await cli.error(['breaker', 'show', 'text-to-musik'])).toMatchObject({
      code: 'unknown_breaker',
      message: 'There is no breaker of that name. Did you mean "text-to-music"?',
      exitCode: 2,
    });
    expect(await cli.error(['breaker', 'show'])).toMatchObject({ code: 'invalid_option', exitCode: 2 });
  });
});

describe('onetake accounts', () => {
  const hold = (database: TestDatabase, operation: string | null = null) =>
    insert(database, 'account_holds', {
      account: 'default',
      operation,
      kind: 'key_refused',
      code: 'unauthorized',
      since: new Date('2026-03-01T11:58:00Z'),
      epoch: 0,
    });

  test('lists limits, use and holds', async () => {
    const { cli, database } = await setStage();
    await hold(database);
    expect(await cli.json(['accounts', 'list'])).toEqual([
      {
        name: 'default',
        provider: 'sonilo',
        requestsPerMinute: 60,
        maxConcurrentGenerations: 4,
        window: 0,
        slots: 0,
        unknownSlots: 0,
        pausedUntil: null,
        pauseKind: null,
        holds: [
          { operation: null, kind: 'key_refused', code: 'unauthorized', since: '2026-03-01T11:58:00.000Z' },
        ],
        trials: [],
      },
    ]);
    const { stdout, stderr } = await cli.run(['accounts', 'list']);
    expect(stdout).toMatch(/^default +sonilo +0 of 60 +0 of 4 +held: key refused since/m);
    expect(stderr).toContain('onetake accounts release default --reason');
  });

  test('releases holds, and says how many', async () => {
    const { cli, database } = await setStage();
    await hold(database);
    const args = ['accounts', 'release', 'default', '--reason', 'new key'];
    expect(await cli.json(args)).toEqual({ account: 'default', operation: null, released: 1 });
    expect((await cli.run(args)).stdout).toBe('There was no hold on default.\n');
  });

  test('holds an account until its release, and says what it replaces', async () => {
    const { cli } = await setStage();
    const args = ['accounts', 'hold', 'default', '--reason', 'new key'];
    const held = { account: 'default', operation: null, until: null };
    expect(await cli.json(args)).toEqual({ ...held, replaced: false });
    expect(await cli.json(args)).toEqual({ ...held, replaced: true });
    expect((await cli.run(['accounts', 'list'])).stdout).toMatch(/held: operator since/);
    const until = '2099-01-01T00:00:00.000Z';
    expect(await cli.json([...args, '--operation', 'text-to-music', '--until', until])).toEqual({
      account: 'default',
      operation: 'text-to-music',
      until,
      replaced: false,
    });
    expect(await cli.json(['accounts', 'release', 'default', '--reason', 'done'])).toMatchObject({
      released: 2,
    });
    expect((await cli.run(args)).stdout).toBe('Held default.\n');
    expect(await cli.error(['accounts', 'hold', 'defualt', '--reason', 'r'])).toMatchObject({
      code: 'unknown_account',
      message: 'There is no account of that name. Did you mean "default"?',
    });
  });

  test('says what one request goes first in after a release, and how many wait', async () => {
    const { cli, database } = await setStage();
    await hold(database, 'text-to-music');
    for (const key of ['one', 'two', 'three']) await insertRequest(database, { request_key: key });
    await insertRequest(database, { operation: 'video-to-music' });
    await cli.json(['accounts', 'release', 'default', '--reason', 'new key']);
    const [row] = await cli.json<{ trials: object[] }[]>(['accounts', 'list']);
    expect(row?.trials).toEqual([
      {
        operation: 'text-to-music',
        since: expect.stringMatching(/T.*Z$/),
        inFlight: 0,
        refusals: 0,
        waiting: 3,
      },
    ]);
    expect((await cli.run(['accounts', 'list'])).stdout).toMatch(
      /^default .* one goes first for text-to-music since the release of .*: none under way, 3 waiting$/m,
    );
  });

  test('refuses an account or an operation that nobody has, with a suggestion', async () => {
    const { cli, database } = await setStage();
    for (const command of ['hold', 'release']) {
      const args = ['accounts', command, 'default', '--operation', 'text-to-musik', '--reason', 'r'];
      expect(await cli.error(args)).toMatchObject({
        code: 'unknown_operation',
        message: expect.stringContaining('Did you mean "text-to-music"?'),
        exitCode: 2,
      });
    }
    expect(await database.query('select from onetake.operator_actions')).toEqual([]);
    expect(await cli.error(['accounts', 'release', 'defualt', '--reason', 'r'])).toMatchObject({
      code: 'unknown_account',
      message: 'There is no account of that name. Did you mean "default"?',
      exitCode: 2,
    });
  });
});
