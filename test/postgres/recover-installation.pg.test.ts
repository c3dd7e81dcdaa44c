import { describe, expect, onTestFinished, test } from 'vitest';
import { createClient } from '../../src/index.ts';
import { ago, insertAttempt, insertRequest, settledAs } from '../support/fixtures.ts';
import { hold } from '../support/raw-provider.ts';
import { createRole } from '../support/roles.ts';
import { createTestDatabase, type TestDatabase } from '../support/test-database.ts';
import { waitFor } from '../support/wait-for.ts';
import { openWorld } from '../support/world.ts';

const NOTE = `'mia', 'restored the backup'`;

describe('freeze_installation', () => {
  test('freezes whatever is queued, for whatever reason, and nothing else', async () => {
    const database = await opened();
    const queued = {
      plain: await insertRequest(database),
      rearmed: await insertRequest(database, { state_reason: 'rearmed', submissions: 1, charge: 'possible' }),
      later: await insertRequest(database, { not_before: ago(-3_600_000) }),
      overdue: await insertRequest(database, { submit_before: ago(1_000) }),
      refused: await insertRequest(database, { submissions: 1, state_reason: 'rate_limited' }),
      charged: await insertRequest(database, { charge: 'charged' }),
    };
    await insertAttempt(database, queued.refused, settledAs('refused'));
    const others = [
      'submitting',
      'accepted',
      'succeeded',
      'failed',
      'rejected',
      'cancelled',
      'expired',
    ] as const;
    for (const state of others) await insertRequest(database, { state });
    const before = await statesOf(database);
    await disown(database);

    expect(await database.query(`select frozen, done from onetake.freeze_installation(${NOTE})`)).toEqual([
      { frozen: 6, done: true },
    ]);
    const frozen = await database.query<{ id: string; charge: string }>(
      `select id, charge from onetake.generation_requests
where state = 'ambiguous' and state_reason = 'recovered' and recovered_at is not null and not job_due`,
    );
    expect(frozen.map(({ id }) => id).sort()).toEqual(Object.values(queued).sort());
    for (const { id, charge } of frozen) expect(charge).toBe(id === queued.charged ? 'charged' : 'possible');
    expect((await statesOf(database)).filter((row) => !row.startsWith('ambiguous'))).toEqual(
      before.filter((row) => !row.startsWith('queued')),
    );
    expect(await troubleOf(database)).toBe(null);
  });

  test('writes down who, as whom and why, once for all its steps, and tells the workers', async () => {
    const database = await opened();
    for (let n = 0; n < 5; n++) await insertRequest(database);
    await disown(database);
    const notices = await listenTo(database);
    await using role = await createRole(database, { synchronous_commit: 'off' });
    await database.query(`grant usage on schema onetake to ${role.name}`);
    await database.query(`grant execute on function onetake.freeze_installation to ${role.name}`);
    const steps: unknown[] = [];
    for (let done = false; !done; ) {
      const [step] = (
        await role.pool.query(`select frozen, done from onetake.freeze_installation(${NOTE}, at_most => 2)`)
      ).rows;
      steps.push(step);
      done = step.done;
      expect(await troubleOf(database)).toBe(done ? null : 'freezing');
    }
    expect(steps).toEqual([
      { frozen: 2, done: false },
      { frozen: 2, done: false },
      { frozen: 1, done: true },
    ]);
    expect(
      await database.query(
        'select actor, "session_user", action, subject, reason from onetake.operator_actions',
      ),
    ).toEqual([
      {
        actor: 'mia',
        session_user: role.name,
        action: 'freeze_installation',
        subject: 'another_cluster',
        reason: 'restored the backup',
      },
    ]);
    expect(
      await database.query('select confirmed_by, reason, doubt, freeze_before from onetake.installation'),
    ).toEqual([{ confirmed_by: 'mia', reason: 'restored the backup', doubt: null, freeze_before: null }]);
    await waitFor(() => notices.length === 2, { what: 'the beginning and the end to be told' });
    expect(notices).toEqual(['installation', 'installation']);
  });

  test('leaves what was enqueued after it began, and goes on where it was interrupted', async () => {
    const database = await opened();
    const old = [await insertRequest(database), await insertRequest(database)];
    const step = () =>
      database.query(`select frozen, done from onetake.freeze_installation(${NOTE}, at_most => 1)`);
    expect(await step()).toEqual([{ frozen: 1, done: false }]);
    const meanwhile = await insertRequest(database);
    // Another instant does not count: the first call has fixed it.
    const later = await database.query(
      `select frozen, done from onetake.freeze_installation(${NOTE}, now() + interval '1 h', 1)`,
    );
    expect(later).toEqual([{ frozen: 1, done: false }]);
    expect(await step()).toEqual([{ frozen: 0, done: true }]);
    expect(await statesOf(database)).toEqual([
      ...old.map((id) => `ambiguous ${id}`).sort(),
      `queued ${meanwhile}`,
    ]);
  });

  test('leaves what was enqueued after the restore, when it is told when that was', async () => {
    const database = await opened();
    const before = await insertRequest(database, { created_at: ago(60_000) });
    const after = await insertRequest(database, { created_at: ago(1_000) });
    await database.query(`select onetake.freeze_installation(${NOTE}, clock_timestamp() - interval '30 s')`);
    expect(await statesOf(database)).toEqual([`ambiguous ${before}`, `queued ${after}`]);
  });

  test('works on a database that is recognised, and on one without a row', async () => {
    const database = await opened();
    await insertRequest(database);
    await database.query(`select onetake.freeze_installation(${NOTE})`);
    expect(await database.query('select subject from onetake.operator_actions')).toEqual([
      { subject: 'recognised' },
    ]);
    await database.query('delete from onetake.installation');
    await insertRequest(database);
    expect(await database.query(`select frozen from onetake.freeze_installation(${NOTE})`)).toEqual([
      { frozen: 1 },
    ]);
    expect(await troubleOf(database)).toBe(null);
  });

  test.each([
    [`null, 'why'`, 'OT004'],
    [`'mia', '  '`, 'OT004'],
    [`${NOTE}, at_most => 0`, '22023'],
  ])('changes nothing with (%s): %s', async (given, code) => {
    const database = await opened();
    await insertRequest(database);
    await expect(database.query(`select onetake.freeze_installation(${given})`)).rejects.toMatchObject({
      code,
    });
    expect(await troubleOf(database)).toBe(null);
  });
});

describe('resume_installation', () => {
  test.each([[`null, 'why'`], [`'mia', ''`]])('asks for a name and a reason: (%s)', async (given) => {
    const database = await opened();
    await disown(database);
    await expect(database.query(`select onetake.resume_installation(${given})`)).rejects.toMatchObject({
      code: 'OT004',
    });
    expect(await troubleOf(database)).toBe('another_cluster');
  });

  test('is refused while a freeze is unfinished, forced or not', async () => {
    const database = await opened();
    for (let n = 0; n < 3; n++) await insertRequest(database);
    await database.query(`select onetake.freeze_installation(${NOTE}, at_most => 1)`);
    for (const force of [false, true]) {
      await expect(
        database.query(`select onetake.resume_installation(${NOTE}, force => ${force})`),
      ).rejects.toMatchObject({ code: 'OT002' });
    }
    expect(await troubleOf(database)).toBe('freezing');
  });

  test('freezes nothing, and says what it accepted', async () => {
    const database = await opened();
    const id = await insertRequest(database);
    await disown(database);
    expect(await database.query(`select onetake.resume_installation(${NOTE}) as was`)).toEqual([
      { was: 'another_cluster' },
    ]);
    expect(await statesOf(database)).toEqual([`queued ${id}`]);
    expect(await database.query('select action, subject from onetake.operator_actions')).toEqual([
      { action: 'resume_installation', subject: 'another_cluster' },
    ]);
  });
});

describe('a frozen request', () => {
  test('that was found at the provider goes on with its task, though the database knows of no attempt', async () => {
    const world = await openWorld();
    const { database, client } = world;
    const other = await world.song('gives the provider a task');
    await world.worker().runOnce();
    const { provider_task_id: task } = await world.request(other);
    await database.query(`begin; set local session_replication_role = replica;
delete from onetake.submission_attempts; delete from onetake.generation_requests; commit`);
    const id = await world.song('forgotten');
    await database.query(`select onetake.freeze_installation(${NOTE})`);

    const note = { actor: 'mia', reason: 'it is in the ledger' };
    await client.resolve({ id, as: 'accepted', providerTaskId: task as string, ...note });
    expect(await world.request(id)).toMatchObject({ state: 'accepted', charge: 'charged', submissions: 1 });
    await client.reopen(id, note);
    expect(await world.request(id)).toMatchObject({ state: 'ambiguous', charge: 'possible' });
    await client.resolve({ id, as: 'accepted', providerTaskId: task as string, ...note });
    expect(await world.attempts(id)).toMatchObject([
      { attempt: 1, worker: 'forgotten', certainty: 'unknown', settled_by: 'rescue' },
    ]);
    const poller = world.poller();
    await poller.start();
    expect((await client.waitForGeneration(id)).state).toBe('succeeded');
    expect(await world.attempts(id)).toMatchObject([{ slot_freed_at: expect.any(Date) }]);
    expect(world.posts()).toBe(1);
  });

  test('that the provider has nothing of is sent again, but not while a forgotten POST may still arrive', async () => {
    const world = await openWorld();
    const id = await world.song('forgotten');
    await world.database.query(`select onetake.freeze_installation(${NOTE})`);
    const { recovered_at: recoveredAt } = await world.request(id);
    const resolution = await world.client.resolve({
      id,
      as: 'not_accepted',
      actor: 'mia',
      reason: 'not in the ledger',
    });
    expect(resolution.notBefore).toEqual(new Date(Number(recoveredAt) + 300_000));
    const worker = world.worker();
    expect(await worker.runOnce()).toBe(0);
    await world.passTime(300_000);
    await waitFor(async () => (await worker.runOnce()) === 1, { what: 'the POST' });
    expect(await world.request(id)).toMatchObject({ state: 'accepted', charge: 'charged' });
  });

  test('that is withdrawn may have been paid for all the same', async () => {
    const database = await opened();
    const id = await insertRequest(database);
    await database.query(`select onetake.freeze_installation(${NOTE})`);
    await database.query(`select onetake.resolve_as_not_accepted('${id}', ${NOTE}, resubmit => false)`);
    const [row] = await database.query(
      'select state, charge, onetake.charge_of(id) from onetake.generation_requests',
    );
    expect(row).toEqual({ state: 'cancelled', charge: 'possible', charge_of: 'possible' });
  });

  test('is completed by the answer to the POST that a live worker holds', async () => {
    const world = await openWorld({ provider: 'raw' });
    world.raw.onPost = hold;
    const id = await world.song('on the wire');
    const worker = world.worker();
    await worker.start();
    const call = await world.raw.post(1);
    await world.database.query(`begin;
set local session_replication_role = replica;
delete from onetake.submission_attempts;
update onetake.generation_requests set state = 'queued', submissions = 0, charge = 'none';
commit;`);
    await world.database.query(`select onetake.freeze_installation(${NOTE})`);
    expect(await world.request(id)).toMatchObject({ state: 'ambiguous', state_reason: 'recovered' });
    call.accept('its task');
    await waitFor(async () => (await world.request(id))['state'] === 'accepted', { what: 'the acceptance' });
    expect(await world.request(id)).toMatchObject({ provider_task_id: 'its task', charge: 'charged' });
    // The loss is what the freeze was about: it stops nobody a second time.
    expect(await troubleOf(world.database)).toBe(null);
  });
});

describe('the client', () => {
  test('freezes step by step and tells how far it is', async () => {
    const database = await opened();
    await database.query(
      `insert into onetake.generation_requests (account, operation, request_key, fields, payload_digest)
select 'default', 'text-to-music', 'song ' || n, '{}', repeat('0', 64) from generate_series(1, 1100) n`,
    );
    await disown(database);
    const client = createClient({ connectionString: database.connectionString });
    onTestFinished(() => client.stop());
    const note = { actor: 'mia', reason: 'restored' };
    expect(await client.installation()).toMatchObject({
      trouble: 'another_cluster',
      confirmed: { by: 'test' },
      doubt: null,
      queued: 1_100,
      submitting: 0,
    });
    const told: number[] = [];
    expect(
      await client.recover({ mode: 'freeze', ...note, onProgress: (frozen) => told.push(frozen) }),
    ).toEqual({
      mode: 'freeze',
      was: 'another_cluster',
      frozen: 1_100,
    });
    expect(told).toEqual([500, 1_000]);
    expect(await client.installation()).toMatchObject({ trouble: null, confirmed: { by: 'mia' }, queued: 0 });
  });

  test('refuses what makes no sense, and names a resumption that the database refuses', async () => {
    const database = await opened();
    const client = createClient({ connectionString: database.connectionString });
    onTestFinished(() => client.stop());
    const note = { actor: 'mia', reason: 'restored' };
    for (const wrong of [
      { ...note, mode: 'undo' },
      { ...note, mode: 'resume', enqueuedBefore: new Date() },
      { ...note, mode: 'freeze', force: true },
      { ...note, mode: 'resume', force: 'yes' },
      { ...note, mode: 'freeze', enqueuedBefore: new Date(Number.NaN) },
    ]) {
      await expect(client.recover(wrong as never)).rejects.toMatchObject({ code: 'invalid_option' });
    }
    await expect(client.recover({ mode: 'resume', actor: '', reason: 'x' })).rejects.toMatchObject({
      code: 'operator_identity_missing',
    });
    await database.query(
      `update onetake.installation set doubt = 'stepped_back', doubted_at = now(), doubted_by = 'a worker'`,
    );
    await expect(client.recover({ mode: 'resume', ...note })).rejects.toMatchObject({
      code: 'installation_in_doubt',
      hint: expect.stringContaining('Freeze'),
    });
    expect(await client.installation()).toMatchObject({ doubt: { by: 'a worker' } });
    expect(await client.recover({ mode: 'resume', ...note, force: true })).toMatchObject({
      was: 'stepped_back',
    });
  });
});

test('what an operator did is durable when it is confirmed, whatever the role says', async () => {
  const database = await opened();
  const id = await insertRequest(database);
  const client = await database.pool({ max: 1 }).connect();
  try {
    await client.query('begin; set local synchronous_commit = off');
    await client.query(`select onetake.cancel_request('${id}', ${NOTE})`);
    const { rows } = await client.query('show synchronous_commit');
    expect(rows).toEqual([{ synchronous_commit: 'on' }]);
    await client.query('commit');
    expect((await client.query('show synchronous_commit')).rows).toEqual([{ synchronous_commit: 'on' }]);
  } finally {
    client.release(true);
  }
});

async function opened(): Promise<TestDatabase> {
  const database = await createTestDatabase();
  onTestFinished(() => database.drop());
  return database;
}

/** As if it were a copy of another cluster's. */
async function disown(database: TestDatabase): Promise<void> {
  await database.query('update onetake.installation set system_identifier = system_identifier + 1');
}

async function troubleOf(database: TestDatabase): Promise<unknown> {
  const [row] = await database.query('select trouble from onetake.check_installation()');
  return row?.['trouble'];
}

async function statesOf(database: TestDatabase): Promise<string[]> {
  const rows = await database.query<{ row: string }>(
    `select state || ' ' || id as row from onetake.generation_requests order by 1`,
  );
  return rows.map(({ row }) => row);
}

async function listenTo(database: TestDatabase): Promise<string[]> {
  const client = await database.pool({ max: 1 }).connect();
  onTestFinished(() => client.release(true));
  const notices: string[] = [];
  client.on('notification', ({ payload }) => notices.push(payload ?? ''));
  await client.query('listen onetake');
  return notices;
}
