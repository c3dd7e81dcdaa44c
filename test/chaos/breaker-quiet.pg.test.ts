import { describe, expect, it } from 'vitest';
import { dispatch } from '../../src/lifecycle/dispatch.ts';
import type { Sql } from '../../src/postgres/database.ts';
import { expectChain } from '../support/breaker-world.ts';
import { databaseTimePasses, endCooldown, enqueueMany, openBreaker, startFleet } from '../support/fleet.ts';
import { lifecycleContext } from '../support/lifecycle-context.ts';
import { hold } from '../support/raw-provider.ts';
import { openWorld, type Row, type World } from '../support/world.ts';

const JOBS = 2_000;
const PROCESSES = 2;
const SLOTS = 8;
const COOLDOWNS = 10;
const COOLDOWN_MS = 300;
const ACCOUNTS = 1_000;
const PAGE = 100;
const LIMITS = { requestsPerMinute: 1_000_000, maxConcurrentGenerations: 100_000 };

/** Where each row lies and who wrote it and has locked it, by request. */
async function prints(world: World, table: 'job' | 'request'): Promise<Map<string, string>> {
  const rows = await world.database.query<{ id: string; print: string }>(
    table === 'job'
      ? `select singleton_key as id, concat_ws(' ', tableoid, ctid, xmin, xmax) as print from onetake_queue.job`
      : `select id::text, concat_ws(' ', ctid, xmin, xmax) as print from onetake.generation_requests`,
  );
  return new Map(rows.map(({ id, print }) => [id, print]));
}

function touched(before: Map<string, string>, after: Map<string, string>): string[] {
  const ids = new Set([...before.keys(), ...after.keys()]);
  return [...ids].filter((id) => before.get(id) !== after.get(id)).toSorted();
}

describe(`${JOBS} queued jobs behind an open breaker`, () => {
  it('lie untouched but for one a cooldown, and after the close every slot is busy within five acceptances', async () => {
    const world = await openWorld({
      provider: 'raw',
      limits: LIMITS,
      operation: { breaker: { cooldownMs: COOLDOWN_MS } },
      config: { worker: { concurrency: SLOTS } },
    });
    const opening = await openBreaker(world);
    await enqueueMany(world, JOBS);
    await startFleet(world, PROCESSES);
    const before = { jobs: await prints(world, 'job'), requests: await prints(world, 'request') };
    world.raw.onPost = (call) => {
      if (call.number - opening <= COOLDOWNS) call.answer(502);
      else hold();
    };
    await endCooldown(world);
    // One more than ten, and it stays in flight: so that ten cooldowns are over and nothing else is under way.
    await world.raw.post(opening + COOLDOWNS + 1);
    await databaseTimePasses(world);

    const probed = await world.database.query<{ id: string }>(
      'select request_id as id from onetake.submission_attempts where is_probe order by 1',
    );
    expect(probed).toHaveLength(COOLDOWNS + 1);
    const ids = probed.map(({ id }) => id);
    expect(touched(before.jobs, await prints(world, 'job'))).toEqual(ids);
    expect(touched(before.requests, await prints(world, 'request'))).toEqual(ids);
    const causes = Array.from({ length: COOLDOWNS }, () => ['probe_granted', 'probe_failed']).flat();
    expectChain(await world.transitions(), ['failure_threshold', ...causes, 'probe_granted']);

    // After the close each wave is what one acceptance's time lets in.
    const waves: number[] = [];
    let accepted = opening + COOLDOWNS;
    for (let limit = 2; waves.at(-1) !== PROCESSES * SLOTS; ) {
      for (const call of world.raw.posts.slice(accepted)) call.accept();
      accepted = world.posts();
      const expected = Math.min(limit, PROCESSES * SLOTS);
      await world.raw.post(accepted + expected);
      const { breaker_name: name, in_flight: inFlight } = (
        await world.database.query<Row>(
          `select breaker_name, count(*)::int as in_flight from onetake.submission_attempts
where settled_at is null group by 1`,
        )
      )[0] as Row;
      expect({ name, inFlight, posted: world.posts() - accepted }).toEqual({
        name: 'sonilo/text-to-music',
        inFlight: expected,
        posted: expected,
      });
      waves.push(expected);
      limit += 2 * expected;
    }
    expect(waves).toEqual([2, 6, 16]);
    expect(waves.length).toBeLessThanOrEqual(5);
  }, 120_000);
});

describe(`${ACCOUNTS} accounts on one operation behind an open breaker`, () => {
  it('cost a round one read per page, which goes by the index of the queued, and nothing else', async () => {
    const world = await openWorld({ provider: 'raw', limits: LIMITS });
    await openBreaker(world);
    // Two of each lane wait, and far more rows lie about that nobody waits for.
    await world.database.query(
      `insert into onetake.accounts (name, provider, requests_per_minute, max_concurrent_generations)
select 'tenant-' || n, 'sonilo', 60, 4 from generate_series(1, $1::int - 1) n`,
      [ACCOUNTS],
    );
    await world.song('one');
    await world.database.query(
      `with made as (
  insert into onetake.generation_requests (account, operation, request_key, fields, payload_digest)
  select a.name, 'text-to-music', 'song ' || n, '{"prompt": "a song"}', repeat('0', 64)
  from onetake.accounts a, generate_series(1, 12) n where a.name like 'tenant-%'
  returning id, request_key
)
select count(*) from made`,
    );
    await world.database.query(
      `update onetake.generation_requests set state = 'cancelled', settled_at = now()
where account like 'tenant-%' and request_key not in ('song 1', 'song 2')`,
    );
    await world.database.query('vacuum analyze onetake.generation_requests');
    await world.database.query('analyze onetake.accounts');
    const ctx = await lifecycleContext(
      { connectionString: world.database.connectionString, config: world.config },
      {},
    );
    const statements: { readonly text: string; readonly values: unknown[] }[] = [];
    const counting = Object.create(ctx.database, {
      executeSql: {
        value: (text: string, values: unknown[] = []) => {
          statements.push({ text, values });
          return ctx.database.executeSql(text, values);
        },
      },
      transaction: { value: () => Promise.reject(new Error('a blocked lane began a transaction')) },
      retryingTransaction: { value: () => Promise.reject(new Error('a blocked lane began a transaction')) },
    }) as typeof ctx.database & Sql;

    const round = await dispatch(
      { ...ctx, database: counting },
      null,
      { freeSlots: () => 8, reaches: () => true },
      () => expect.unreachable('the breaker is open'),
    );

    expect(round).toMatchObject({ admitted: 0, cursor: null });
    expect(round.wakeInMs).toBeGreaterThan(3_500_000);
    expect(statements).toHaveLength(ACCOUNTS / PAGE + 1);
    const { text, values } = statements[4] as (typeof statements)[number];
    const [explained] = await world.database.query<{ 'QUERY PLAN': [{ Plan: PlanNode }] }>(
      `explain (analyze, format json) ${text}`,
      values,
    );
    const nodes = (explained?.['QUERY PLAN'] ?? []).flatMap(({ Plan: plan }) => nodesOf(plan));
    const onRequests = nodes.filter((node) => node['Relation Name'] === 'generation_requests');
    expect(onRequests.length).toBeGreaterThan(0);
    for (const node of onRequests) {
      expect(node).toMatchObject({ 'Index Name': 'generation_requests_dispatch', 'Actual Rows': 1 });
    }
    // One descent per lane, however many requests wait in it.
    const descents = onRequests.reduce((sum, node) => sum + node['Actual Loops'], 0);
    expect(descents).toBe(PAGE);
    const onAttempts = nodes.filter((node) => node['Relation Name'] === 'submission_attempts');
    expect(onAttempts.map((node) => node['Node Type']).filter((type) => !/Index|Bitmap/.test(type))).toEqual(
      [],
    );
    await ctx.stop();
  });
});

interface PlanNode {
  readonly 'Node Type': string;
  readonly 'Relation Name'?: string;
  readonly 'Index Name'?: string;
  readonly 'Actual Rows': number;
  readonly 'Actual Loops': number;
  readonly Plans?: readonly PlanNode[];
}

function nodesOf(node: PlanNode): PlanNode[] {
  return [node, ...(node.Plans ?? []).flatMap(nodesOf)];
}
