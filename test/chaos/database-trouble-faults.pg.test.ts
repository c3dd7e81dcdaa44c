import { describe, expect, it, onTestFinished } from 'vitest';
import { ago, insertAttempt, insertRequest } from '../support/fixtures.ts';
import { FAULT_FUNCTION, type PostgresProxy, postgresProxy } from '../support/postgres-proxy.ts';
import { waitFor } from '../support/wait-for.ts';
import { openWorld, type World } from '../support/world.ts';

// Each statement of a request's way fails once, in each manner in which a database can fail, raised by the
// server in the statement's place: the transaction is really aborted, and really has to be done again.

/** Those that leave nothing behind and are tried again at once; and all others. */
const CODES = [
  ['40P01', '57014', '40001', '55P03'],
  ['53100', '57P01', '25006', '42501', '53300', '57P03', '58030', '25P03', '53200', 'XX000'],
] as const;

/** Each statement in turn with a fault of either sort; ONETAKE_FAULTS=both takes both, which is twice as long. */
const SORTS = process.env['ONETAKE_FAULTS'] === 'both' ? 'both' : 'one';

const ONCE_PER_CONNECTION =
  /^(select pg_backend_pid|set datestyle|select set_config\('application_name'|begin$|rollback$)/;

interface Setting {
  readonly world: World;
  readonly proxy: PostgresProxy;
}

async function setting(): Promise<Setting> {
  const world = await openWorld({
    provider: 'raw',
    limits: { requestsPerMinute: 100_000, maxConcurrentGenerations: 10_000 },
  });
  await world.database.query(FAULT_FUNCTION);
  const proxy = await postgresProxy(world.database.connectionString);
  onTestFinished(() => proxy.stop());
  const { connectionString } = proxy;
  await Promise.all([world.worker({ connectionString }).start(), world.poller({ connectionString }).start()]);
  return { world, proxy };
}

/** The statements of each undisturbed request: those of a start or of upkeep now and then may not come again. */
async function statementsOf({ proxy }: Setting, way: () => Promise<unknown>): Promise<string[]> {
  await way();
  const statements = async () => {
    const from = proxy.statements.length;
    await way();
    return new Set(proxy.statements.slice(from));
  };
  const [first, second] = [await statements(), await statements()];
  return [...first].filter((text) => second.has(text) && !ONCE_PER_CONNECTION.test(text));
}

/** Runs the way again for each of the statements, with a fault of each sort; and says how many faults that were. */
async function throughFaults(
  setting: Setting,
  way: () => Promise<unknown>,
  each: 'both' | 'one' = 'one',
): Promise<number> {
  const statements = await statementsOf(setting, way);
  let faults = 0;
  for (const [n, statement] of statements.entries()) {
    // Of both sorts where it is about money, else by turns.
    for (const sort of each === 'both' ? [0, 1] : [n % 2]) {
      const codes = CODES[sort as 0 | 1];
      const code = codes[(each === 'both' ? n : n >> 1) % codes.length] as string;
      const fault = setting.proxy.fail(code, (text) => text === statement);
      const what = `${code} in place of: ${statement}`;
      await way().catch((error: unknown) => {
        throw new Error(what, { cause: error });
      });
      await waitFor(() => fault.times === 0, { what });
      faults++;
    }
  }
  return faults;
}

async function nothingCounted(world: World): Promise<void> {
  expect(await world.breaker()).toMatchObject({ state: 'closed', consecutive_failures: 0, generation: 1 });
  const counted = await world.database.query(
    `select * from onetake.submission_attempts where health not in ('success', 'request_or_account_failure')`,
  );
  expect(counted).toEqual([]);
}

describe('each statement that fails once', () => {
  it('on the way of a request that is accepted and ends: one POST each, and the outcome is stored', {
    timeout: 180_000,
  }, async () => {
    const both = await setting();
    const { world } = both;
    world.raw.onGet = (call) =>
      call.answer(200, {
        task_id: call.path.split('/').at(-1),
        status: 'failed',
        error: { code: 'x' },
        refunded: true,
      });
    let songs = 0;
    const way = async () => {
      const id = await world.song(`song ${++songs}`);
      const state = async () => (await world.request(id))['state'];
      await waitFor(async () => ['accepted', 'failed'].includes((await state()) as string), {
        what: `song ${songs} to be accepted`,
      });
      // A poller that could not write what it read has the task claimed for a while.
      let tried = 0;
      await waitFor(
        async () => {
          if ((await state()) === 'failed') return true;
          if (++tried % 40 === 0) await world.passTime(31_000);
          return false;
        },
        { what: `song ${songs} to end` },
      );
      expect(await world.attempts(id)).toMatchObject([{ certainty: 'accepted', settled_by: 'worker' }]);
      expect(world.posts()).toBe(songs);
    };
    const faults = await throughFaults(both, way, SORTS);
    expect(faults).toBeGreaterThan(SORTS === 'both' ? 40 : 20);
    await nothingCounted(world);
  });

  it('on the way of one that is refused: it stays one POST, and is counted once', {
    timeout: 180_000,
  }, async () => {
    const both = await setting();
    const { world } = both;
    world.raw.onPost = (call) => call.answer(422, { error: { code: 'invalid' } });
    let songs = 0;
    const way = async () => {
      const id = await world.song(`song ${++songs}`);
      await waitFor(
        async () =>
          (
            await world.database.query(
              `select from onetake.generation_requests r join onetake.submission_attempts a on a.request_id = r.id
where r.id = $1 and r.state = 'rejected' and a.health_applied_at is not null`,
              [id],
            )
          ).length === 1,
        { what: `song ${songs} to be rejected and its health applied` },
      );
      expect(await world.attempts(id)).toMatchObject([{ certainty: 'refused', settled_by: 'worker' }]);
      expect(world.posts()).toBe(songs);
    };
    expect(await throughFaults(both, way)).toBeGreaterThan(15);
    await nothingCounted(world);
  });

  it('in a rescue: ended leases, due jobs and deadlines are seen to all the same', {
    timeout: 180_000,
  }, async () => {
    const both = await setting();
    const { world } = both;
    let rounds = 0;
    const way = async () => {
      rounds++;
      const lost = await insertRequest(world.database, {
        state: 'submitting',
        request_key: `lost ${rounds}`,
      });
      await insertAttempt(world.database, lost, { started_at: ago(20_000), lease_expires_at: ago(1) });
      const expiring = await insertRequest(world.database, {
        request_key: `expiring ${rounds}`,
        not_before: ago(-3_600_000),
        submit_before: ago(1),
      });
      const due = await insertRequest(world.database, { request_key: `due ${rounds}`, job_due: true });
      const states = async () => {
        const rows = await Promise.all([lost, expiring, due].map((id) => world.request(id)));
        return rows.map((row) => row['state']).join(' ');
      };
      await waitFor(async () => (await states()) === 'ambiguous expired accepted', {
        what: `rescue ${rounds}`,
      });
      expect(world.posts()).toBe(rounds);
    };
    expect(await throughFaults(both, way)).toBeGreaterThan(20);
    const counted = await world.database.query(
      `select * from onetake.submission_attempts where health not in ('success', 'none')`,
    );
    expect(counted).toEqual([]);
    expect(await world.breaker()).toMatchObject({ state: 'closed', consecutive_failures: 0, generation: 1 });
  });
});
