import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { insertAmbiguous, insertRequest } from '../support/fixtures.ts';
import { createRole } from '../support/roles.ts';
import { createTestDatabase, type TestDatabase } from '../support/test-database.ts';

let database: TestDatabase;
beforeAll(async () => {
  database = await createTestDatabase();
});
afterAll(() => database.drop());

const OPERATOR_FUNCTIONS = [
  'abandon',
  'acknowledge',
  'cancel_request',
  'force_breaker',
  'freeze_installation',
  'hold_account',
  'release_account',
  'release_breaker',
  'reopen',
  'resolve_as_accepted',
  'resolve_as_not_accepted',
  'resume_installation',
];

/** Not an operator's act: it writes down what the clock has ended already, and whoever is first may. */
const CLOCK_FUNCTION = 'note_expired_override';

/** Of a trigger: no role of ours needs to delete. */
const LEASE_FUNCTION = 'end_poll_lease';

interface FunctionRow {
  readonly name: string;
  readonly signature: string;
  readonly definer: boolean;
  readonly settings: readonly string[] | null;
  readonly language: string;
  readonly open: boolean;
}

function functions(): Promise<FunctionRow[]> {
  return database.query(
    `select p.proname as name, p.oid::regprocedure::text as signature, p.prosecdef as definer,
  p.proconfig as settings, l.lanname as language, exists (
    select from aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) a
    where a.grantee = 0 and a.privilege_type = 'EXECUTE'
  ) as open
from pg_proc p join pg_language l on l.oid = p.prolang
where p.pronamespace = 'onetake'::regnamespace order by p.proname`,
  );
}

describe('the functions of the schema', () => {
  it('are closed to PUBLIC, but for those that use the caller’s own rights, or only write down what the clock has ended', async () => {
    const open = (await functions()).filter((found) => found.open).map((found) => found.name);
    expect(open.sort()).toEqual([
      'attempt_of_task',
      'charge_of',
      'check_installation',
      'clock_text',
      'enqueue',
      'follow_other_tasks',
      'is_legal_move',
      'lasting_attention',
      'next_round',
      CLOCK_FUNCTION,
      'override_in_force',
      'paid_evidence',
      'plain_line',
      'present_installation',
      'quarantine_end',
      'quoted_line',
    ]);
  });

  it('run with their owner’s rights exactly where an operator calls them, and with a fixed search_path', async () => {
    const definers = (await functions()).filter((found) => found.definer);
    expect(definers.map((found) => found.name)).toEqual(
      [...OPERATOR_FUNCTIONS, CLOCK_FUNCTION, LEASE_FUNCTION].sort(),
    );
    for (const found of definers) expect(found.settings).toEqual(['search_path=pg_catalog, pg_temp']);
  });
});

describe('a role without rights', () => {
  it('can call none of the operator’s functions, nor read or write a table', async () => {
    const { id } = await insertAmbiguous(database);
    await using role = await createRole(database);
    const denied = { code: '42501' };
    const call = (text: string) => role.pool.query(text);
    await expect(call(`select onetake.abandon('${id}', 'eve', 'why not')`)).rejects.toMatchObject(denied);
    await database.query(`grant usage on schema onetake to ${role.name}`);
    for (const text of [
      `select onetake.abandon('${id}', 'eve', 'why not')`,
      `select onetake.resolve_as_accepted('${id}', 'task', 'eve', 'why not')`,
      `select onetake.resolve_as_not_accepted('${id}', 'eve', 'why not')`,
      `select onetake.reopen('${id}', 'eve', 'why not')`,
      `select onetake.cancel_request('${id}', 'eve', 'why not')`,
      `select onetake.acknowledge('${id}', 'eve', 'why not')`,
      // Open, and of no use to whoever may not read or write the tables.
      `select onetake.follow_other_tasks('${id}')`,
      `select onetake.paid_evidence('${id}')`,
      `select onetake.quarantine_end('${id}')`,
      `select onetake.attempt_of_task('${id}', 'task')`,
      `select onetake.release_account('default', null, 'eve', 'why not')`,
      `select onetake.force_breaker('sonilo/text-to-music', 'forced_open', 'eve', 'why not')`,
      `select onetake.release_breaker('sonilo/text-to-music', 'eve', 'why not')`,
      `select onetake.freeze_installation('eve', 'why not')`,
      `select onetake.resume_installation('eve', 'why not', true)`,
      `select onetake.confirm_installation('eve', 'why not')`,
      `select onetake.add_forgotten_attempt('${id}')`,
      `select onetake.check_installation()`,
      `select onetake.record_override(null, 'none', 'operator', 'eve')`,
      `select onetake.lock_request('${id}', array['ambiguous'])`,
      `select onetake.record_action('eve', 'abandon', '${id}', 'why not')`,
      'select from onetake.generation_requests',
      'select from onetake.ambiguous_submissions',
    ]) {
      await expect(call(text), text).rejects.toMatchObject(denied);
    }
    expect(await database.query('select state from onetake.generation_requests where id = $1', [id])).toEqual(
      [{ state: 'ambiguous' }],
    );
  });
});

describe('a role that may do no more than look at the schema', () => {
  it('ends an override that is over, and none that is in force', async () => {
    const breaker = 'sonilo/video-to-music';
    await using role = await createRole(database);
    await database.query(`grant usage on schema onetake to ${role.name}`);
    const note = async () =>
      (await role.pool.query('select onetake.note_expired_override($1) as ended', [breaker])).rows;
    const force = (expiresIn: string | null) =>
      database.query(
        `select onetake.force_breaker($1, 'forced_open', 'ada', 'checked', now() + $2::interval)`,
        [breaker, expiresIn],
      );
    const override = async () =>
      (await database.query('select override from onetake.circuit_breakers where name = $1', [breaker]))[0];
    for (const expiresIn of [null, '1 hour']) {
      await force(expiresIn);
      expect(await note()).toEqual([{ ended: false }]);
      expect(await override()).toEqual({ override: 'forced_open' });
    }
    await database.passTime(3_600_001);
    expect(await note()).toEqual([{ ended: true }]);
    expect(await note()).toEqual([{ ended: false }]);
    expect(await override()).toEqual({ override: null });
  });
});

describe('a role that may execute the operator’s functions and nothing else', () => {
  it('settles a frozen request, and is named by its session beside the actor', async () => {
    const { id } = await insertAmbiguous(database);
    const queued = await insertRequest(database);
    await using role = await createRole(database);
    await database.query(`grant usage on schema onetake to ${role.name}`);
    for (const { name, signature } of await functions()) {
      if (OPERATOR_FUNCTIONS.includes(name)) {
        await database.query(`grant execute on function ${signature} to ${role.name}`);
      }
    }
    const { rows } = await role.pool.query(
      `select * from onetake.resolve_as_not_accepted('${id}', 'ada', 'checked')`,
    );
    expect(rows).toMatchObject([{ id, from_state: 'ambiguous', to_state: 'queued', posts_permitted: 1 }]);
    await role.pool.query(`select onetake.cancel_request('${queued}', 'ada', 'checked')`);
    await role.pool.query(`select onetake.release_account('default', null, 'ada', 'checked')`);
    const breaker = 'sonilo/text-to-music';
    await role.pool.query(`select onetake.force_breaker('${breaker}', 'forced_open', 'ada', 'checked')`);
    await role.pool.query(`select onetake.release_breaker('${breaker}', 'ada', 'checked')`);
    await expect(role.pool.query('select from onetake.generation_requests')).rejects.toMatchObject({
      code: '42501',
    });
    expect(
      await database.query(
        `select actor, "session_user", action from onetake.operator_actions where "session_user" = $1 order by id`,
        [role.name],
      ),
    ).toEqual([
      { actor: 'ada', session_user: role.name, action: 'resolve_as_not_accepted' },
      { actor: 'ada', session_user: role.name, action: 'cancel_request' },
      { actor: 'ada', session_user: role.name, action: 'release_account' },
      { actor: 'ada', session_user: role.name, action: 'force_breaker_forced_open' },
      { actor: 'ada', session_user: role.name, action: 'release_breaker' },
    ]);
  });

  it('can’t have the functions run code of its own by the search_path or by temporary objects', async () => {
    const { id } = await insertAmbiguous(database);
    await using role = await createRole(database);
    await database.query(`grant usage on schema onetake to ${role.name}`);
    await database.query('create schema if not exists trap');
    await database.query(`grant usage, create on schema trap to ${role.name}`);
    await database.query(`grant execute on function onetake.abandon(uuid, text, text) to ${role.name}`);
    const client = await role.pool.connect();
    try {
      // Better matches than the built-in ones, in front of everything, and a table of the same name.
      await client.query(`create function trap.btrim(text) returns text language plpgsql as $$
begin raise exception 'trapped as %', current_user; end $$`);
      await client.query(`create function trap.clock_timestamp() returns timestamptz language plpgsql as $$
begin raise exception 'trapped as %', current_user; end $$`);
      await client.query('create temporary table operator_actions (at timestamptz)');
      await client.query('create temporary table generation_requests (id uuid)');
      await client.query('set search_path = trap, pg_temp, pg_catalog, onetake');
      await client.query(`select onetake.abandon('${id}', 'ada', 'checked')`);
    } finally {
      client.release(true);
    }
    expect(await database.query('select state from onetake.generation_requests where id = $1', [id])).toEqual(
      [{ state: 'failed' }],
    );
  });
});

describe('a worker’s role', () => {
  it('needs no more than DML on the tables: the guard and the charge run with its own rights', async () => {
    await using role = await createRole(database);
    await database.query(`grant usage on schema onetake to ${role.name}`);
    await database.query(`grant select, insert, update on all tables in schema onetake to ${role.name}`);
    const id = await insertRequest(role.pool);
    await role.pool.query(
      `update onetake.generation_requests set state = 'rejected', settled_at = now(), charge = onetake.charge_of(id),
  attention = onetake.lasting_attention(attention) where id = $1`,
      [id],
    );
    expect(await database.query('select state from onetake.generation_requests where id = $1', [id])).toEqual(
      [{ state: 'rejected' }],
    );
  });
});
