import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import {
  ago,
  insert,
  insertAmbiguous,
  insertAttempt,
  insertRequest,
  settledAs,
} from '../support/fixtures.ts';
import { waitFor } from '../support/wait-for.ts';
import { widestLine } from './cli.ts';
import { setStage } from './stage.ts';

const SHOW_KEYS = [
  'id',
  'state',
  'stateReason',
  'failureReason',
  'failureCode',
  'resultStatus',
  'waitingFor',
  'account',
  'operation',
  'requestKey',
  'providerTaskId',
  'charge',
  'refunded',
  'attention',
  'attempts',
  'otherTasks',
  'files',
  'decisions',
  'warnings',
  'createdAt',
  'settledAt',
];

describe('onetake enqueue', () => {
  test('answers with id, state, created, requestKey, account and operation, and takes a key twice', async () => {
    const { cli } = await setStage();
    const args = [
      'enqueue',
      'text-to-music',
      '--field',
      'prompt=rain',
      '--field',
      'duration=5',
      '--key',
      'k1',
    ];
    const first = await cli.json<Record<string, unknown>>(args);
    expect(first).toEqual({
      id: expect.stringMatching(/^[0-9a-f-]{36}$/),
      state: 'queued',
      created: true,
      requestKey: 'k1',
      account: 'default',
      operation: 'text-to-music',
    });
    expect(await cli.json(args)).toEqual({ ...first, created: false });
  });

  test('makes a new key each time when none is given, and prints it', async () => {
    const { cli } = await setStage();
    const args = ['enqueue', 'text-to-music', '--field', 'prompt=rain'];
    const [one, two] = [await cli.json<{ requestKey: string }>(args), await cli.run(args)];
    expect(one.requestKey).toMatch(/^cli-[0-9a-f-]{36}$/);
    expect(two.stdout).toMatch(/request key\s+cli-[0-9a-f-]{36}\n/);
    expect(two.stdout).not.toContain(one.requestKey);
    expect(two.stderr).toMatch(/^Follow it: onetake requests show [0-9a-f]{8}\n$/);
  });

  test('sends each value as its field wants it', async () => {
    const { cli, database } = await setStage();
    await cli.json([
      'enqueue',
      'text-to-music',
      ...['prompt=7', 'duration=5', 'stems=true', 'segments=[{"start":0,"prompt":"a"}]'].flatMap((field) => [
        '--field',
        field,
      ]),
    ]);
    const [row] = await database.query<{ fields: object }>('select fields from onetake.generation_requests');
    expect(row?.fields).toMatchObject({
      prompt: '7',
      duration: '5',
      stems: 'true',
      segments: '[{"prompt":"a","start":0}]',
    });
  });

  test('waits, prints the finished request and exits 0; a file lies where it says', async () => {
    const { cli } = await setStage();
    const running = cli.start(['start']);
    const { code, stdout } = await cli.run([
      'enqueue',
      'text-to-music',
      '--field',
      'prompt=rain',
      '--field',
      'duration=5',
      '--wait',
      '--json',
    ]);
    const request = JSON.parse(stdout);
    expect(code).toBe(0);
    expect(Object.keys(request)).toEqual(SHOW_KEYS);
    expect(request).toMatchObject({
      state: 'succeeded',
      resultStatus: 'stored',
      charge: 'charged',
      attempts: [{ attempt: 1, httpStatus: 202, certainty: 'accepted' }],
      files: [{ index: 0, kind: 'audio', location: `${request.id}/0.wav` }],
      createdAt: expect.stringMatching(/^\d{4}-\d\d-\d\dT[\d:.]+Z$/),
      settledAt: expect.stringMatching(/^\d{4}-\d\d-\d\dT[\d:.]+Z$/),
    });
    expect(existsSync(join(cli.directory, 'generations', request.files[0].location))).toBe(true);
    expect(await running.kill('SIGTERM')).toEqual({ code: 0, signal: null });
  });

  test('waits in vain for a submission whose outcome is unknown: it says so, and exits 1', async () => {
    const { cli } = await setStage();
    cli.start(['worker']);
    const { code, stdout, stderr } = await cli.run([
      'enqueue',
      'text-to-music',
      '--field',
      'prompt=rain [simulate status=502]',
      '--wait',
    ]);
    expect(code).toBe(1);
    expect(stdout).toContain('Outcome unknown, possibly charged: do not resubmit it.');
    expect(stdout).toMatch(/^state\s+ambiguous: server error$/m);
    expect(stderr).toMatch(/onetake ambiguous resolve [0-9a-f]{8} --help\n$/);
  });

  test('tells of a provider that nobody can reach while it waits', async () => {
    const { cli, simulator } = await setStage();
    await simulator.stop();
    cli.start(['worker']);
    const waiting = cli.start(['enqueue', 'text-to-music', '--field', 'prompt=rain', '--wait']);
    await waitFor(() => /attempt \d+ came back \(ECONNREFUSED\)/.test(waiting.stderr()), {
      what: 'the code of the last attempt on stderr',
    });
    await waiting.kill('SIGINT');
  });

  test('interrupted while it waits, says that the request goes on, and exits 130', async () => {
    const { cli } = await setStage();
    const waiting = cli.start(['enqueue', 'text-to-music', '--field', 'prompt=rain', '--wait']);
    await waitFor(() => waiting.stderr().includes('waiting for'), { what: 'progress on stderr' });
    expect(await waiting.kill('SIGINT')).toEqual({ code: 130, signal: null });
    expect(waiting.stdout()).toBe('');
    expect(waiting.stderr()).toMatch(/error: Stopped waiting\. Request [0-9a-f-]{36} goes on\.\nhint: /);
  });
});

describe('onetake requests', () => {
  test('lists as a JSON array, filtered, newest first', async () => {
    const { cli, database } = await setStage();
    await insertRequest(database, { state: 'cancelled' });
    const older = await insertRequest(database);
    const newer = await insertRequest(database, { request_key: 'order 17' });
    expect(await cli.json(['requests', 'list', '--key', 'order 17'])).toMatchObject([{ id: newer }]);
    expect(await cli.json(['requests', 'list', '--key', 'order 1'])).toEqual([]);
    const rows = await cli.json<{ id: string }[]>(['requests', 'list', '--state', 'queued']);
    expect(rows.map((row) => row.id)).toEqual([newer, older]);
    expect(await cli.json(['requests', 'list', '--limit', '1'])).toHaveLength(1);
    expect(await cli.json(['requests', 'list', '--operation', 'audio-ducking'])).toEqual([]);
    expect(await cli.error(['requests', 'list', '--account', 'other'])).toMatchObject({
      code: 'unknown_account',
      exitCode: 2,
    });
  });

  test('prints a line each in a pipe, with ids of 8 digits and nothing cut', async () => {
    const { cli, database } = await setStage();
    const id = await insertRequest(database);
    await insertAmbiguous(database, { http_status: 502 });
    const { stdout, stderr, code } = await cli.run(['requests', 'list']);
    expect(code).toBe(0);
    expect(stdout).not.toContain('…');
    expect(stdout.split('\n')[0]).toMatch(
      /^id\s+state\s+account\s+operation\s+age\s+charge\s+waiting for, or outcome$/,
    );
    expect(stdout).toContain(`\n${id.slice(0, 8)}  queued`);
    expect(stdout).not.toContain(id);
    expect(stderr).toContain('Outcome unknown, possibly charged: do not resubmit it.');
  });

  test('lists what came to nothing and has not been given back, oldest first, within 80 columns', async () => {
    const { cli, database } = await setStage();
    expect((await cli.run(['requests', 'unrefunded'])).stderr).toBe(
      'Nothing that came to nothing is unrefunded.\n',
    );
    const failed = (columns: object) =>
      insertRequest(database, {
        state: 'failed',
        failure_reason: 'provider',
        settled_at: ago(0),
        ...columns,
      });
    await failed({ refunded: true, provider_task_id: 'back' });
    const watched = { next_poll_at: ago(-60_000), refund_watch_until: ago(-3_600_000) };
    const newer = await failed({ provider_task_id: 'task-2', ...watched });
    const older = await failed({
      account: 'default',
      provider_task_id: 'x'.repeat(60),
      settled_at: ago(7_200_000),
      refunded: false,
    });
    const rows = await cli.json<object[]>(['requests', 'unrefunded', '--account', 'default']);
    expect(rows).toMatchObject([
      { requestId: older, why: 'provider', refunded: false, watchedUntil: null },
      { requestId: newer, providerTaskId: 'task-2', refunded: null, watchedUntil: expect.any(String) },
    ]);
    const keys = 'requestId account operation requestKey providerTaskId why since refunded watchedUntil';
    expect(Object.keys(rows[0] as object).join(' ')).toBe(keys);
    expect(await cli.json(['requests', 'unrefunded', '--limit', '1'])).toHaveLength(1);
    const { stdout, stderr } = await cli.run(['requests', 'unrefunded'], { COLUMNS: '80' });
    expect(stdout).toMatch(new RegExp(`\\n${older.slice(0, 8)} .* 2 h .* no `));
    expect(stdout).toMatch(new RegExp(`\\n${newer.slice(0, 8)} .* not yet .*task-2`));
    expect(stderr).toContain('onetake requests acknowledge');
    expect(widestLine(stdout)).toBeLessThanOrEqual(80);
    expect(await cli.error(['requests', 'unrefunded', '--account', 'other'])).toMatchObject({
      code: 'unknown_account',
    });
  });

  test('shows one by the first 8 digits of its id, within 80 columns', async () => {
    const { cli, database } = await setStage();
    const { id } = await insertAmbiguous(database, { http_status: 502, phase: 'answered' });
    const { stdout } = await cli.run(['requests', 'show', id.slice(0, 8)]);
    expect(widestLine(stdout)).toBeLessThanOrEqual(80);
    expect(stdout).toMatch(new RegExp(`^id +${id}$`, 'm'));
    expect(stdout).toContain('Outcome unknown, possibly charged: do not resubmit it.');
    expect(Object.keys(await cli.json(['requests', 'show', id]))).toEqual(SHOW_KEYS);
  });

  test('shows what was accepted beside its own task, and takes note that somebody has looked', async () => {
    const { cli, database } = await setStage();
    const id = await insertRequest(database, {
      state: 'accepted',
      attention: 'possibly_paid_twice',
      attention_since: new Date(),
    });
    const attemptId = await insertAttempt(database, id, settledAs('accepted'));
    await insert(database, 'followed_tasks', {
      request_id: id,
      provider_task_id: '0198f6a2-7c11-7e2b-9f0a-3d8f1c2b4a55',
      account: 'default',
      attempt_id: attemptId,
      since: ago(0),
      next_look_at: ago(-1_000),
      follow_until: ago(-60_000),
    });
    const { stdout, stderr } = await cli.run(['requests', 'show', id]);
    expect(widestLine(stdout)).toBeLessThanOrEqual(80);
    expect(stdout).toMatch(/0198f6a2-7c11-7e2b-9f0a-3d8f1c2b4a55 +1 +processing +not yet/);
    expect(stderr).toContain(`onetake requests acknowledge ${id.slice(0, 8)} --reason`);
    expect(await cli.json(['requests', 'show', id])).toMatchObject({
      otherTasks: [{ attempt: 1, status: 'processing', refunded: null }],
    });
    expect(await cli.error(['requests', 'acknowledge', id])).toMatchObject({ exitCode: 2 });
    const acknowledge = ['requests', 'acknowledge', id.slice(0, 8), '--reason', 'support refunds it'];
    expect(await cli.json(acknowledge)).toMatchObject({ id, from: 'accepted', to: 'accepted' });
    expect(await cli.json(['requests', 'show', id])).toMatchObject({ attention: null });
    expect(await cli.error(acknowledge)).toMatchObject({ code: 'request_not_in_state', exitCode: 1 });
  });

  test('keeps the URL of a file that was not stored to itself', async () => {
    const { cli, database } = await setStage();
    const id = await insertRequest(database, { state: 'succeeded' });
    await database.query(
      `insert into onetake.assets (request_id, index, kind, location) values ($1, 0, 'audio', 'https://cdn.test/?sig=secret')`,
      [id],
    );
    const { stdout } = await cli.run(['requests', 'show', id]);
    expect(stdout).toContain('at the provider');
    const json = await cli.run(['requests', 'show', id, '--json']);
    expect(JSON.parse(json.stdout).files).toMatchObject([{ index: 0, location: null }]);
    expect(stdout + json.stdout).not.toContain('secret');
  });

  test('cancels what is queued, and says of what was submitted that nobody can', async () => {
    const { cli, database } = await setStage();
    const [queued, accepted] = [
      await insertRequest(database, { request_key: 'queued' }),
      await insertRequest(database, { state: 'accepted', request_key: 'accepted' }),
    ];
    expect(await cli.error(['requests', 'cancel', queued])).toMatchObject({ exitCode: 2 });
    const cancel = (id: string) => ['requests', 'cancel', id.slice(0, 8), '--reason', 'ordered by mistake'];
    const { stdout } = await cli.run(cancel(queued));
    expect(stdout).toBe(`${queued}: queued -> cancelled\n`);
    expect(await cli.json(['requests', 'show', queued])).toMatchObject({
      state: 'cancelled',
      charge: 'none',
    });
    expect(await cli.error(cancel(accepted))).toMatchObject({
      code: 'request_not_in_state',
      hint: expect.stringContaining("can't cancel"),
      exitCode: 1,
    });
    expect(
      await database.query('select action, reason from onetake.operator_actions where subject = $1', [
        queued,
      ]),
    ).toEqual([{ action: 'cancel_request', reason: 'ordered by mistake' }]);
  });

  test('refuses an id that nobody has, one that is none, and an unknown state', async () => {
    const { cli } = await setStage();
    expect(await cli.error(['requests', 'show', '00000000'])).toMatchObject({
      code: 'request_not_found',
      exitCode: 1,
    });
    expect(await cli.error(['requests', 'show', 'song'])).toMatchObject({
      code: 'invalid_option',
      exitCode: 2,
    });
    expect(await cli.error(['requests', 'list', '--state', 'ambigous'])).toMatchObject({
      message: '--state: unknown state. Did you mean "ambiguous"?',
      exitCode: 2,
    });
  });
});
