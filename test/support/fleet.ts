import { join } from 'node:path';
import { onTestFinished } from 'vitest';
import type { OnetakeConfig } from '../../src/runtime/define-config.ts';
import { type Child, startChild } from './children.ts';
import type { ProviderCall } from './raw-provider.ts';
import { waitFor } from './wait-for.ts';
import { MUSIC, type World } from './world.ts';

/** A worker in a process of its own whose POSTs can be told from everybody else's. */
export interface FleetWorker {
  readonly name: string;
  readonly pid: number;
  readonly child: Child;
}

export interface FleetWorkerOptions {
  readonly name: string;
  /** What the process is told about its machine. */
  readonly env?: Readonly<Record<string, string>>;
  readonly execArgv?: readonly string[];
  readonly connectionString?: string;
  /** Over the world's own. */
  readonly config?: OnetakeConfig;
}

/** Each has its own name and, so that the provider can say whose POST it holds, its own key. */
export async function startFleetWorker(world: World, options: FleetWorkerOptions): Promise<FleetWorker> {
  const { name, env = {}, execArgv = [], config = {} } = options;
  const connectionString = options.connectionString ?? world.database.connectionString;
  const child = startChild({
    file: join(import.meta.dirname, 'worker-child.ts'),
    execArgv,
    env: {
      ...env,
      ONETAKE_TEST_CHILD: JSON.stringify({
        role: 'worker',
        config: { ...world.config, ...config },
        connectionString,
        name,
        apiKey: `sk_${name}`,
      }),
    },
  });
  // A stopped process ends by SIGKILL as well as any other.
  onTestFinished(() => child[Symbol.asyncDispose]());
  await child.message<{ ready?: number }>((line) => line.ready === child.pid, `${name} runs`, 60_000);
  return { name, pid: child.pid, child };
}

export function startFleet(world: World, count: number): Promise<FleetWorker[]> {
  return Promise.all(
    Array.from({ length: count }, (_, n) => startFleetWorker(world, { name: `worker-${n + 1}` })),
  );
}

/** The name of the worker that sent it. */
export function senderOf(call: ProviderCall): string {
  return (call.authorization ?? '').replace(/^Bearer sk_/, '');
}

/** So many more queued songs, each with a job like that of the account's first song, which is enqueued as usual. */
export async function enqueueMany(world: World, count: number, account = 'default'): Promise<void> {
  const first = await world.song(`${account}: the first`, { account });
  await world.database.query(
    `with made as (
  insert into onetake.generation_requests (account, operation, request_key, fields, payload_digest)
  select account, operation, account || ': song ' || n, fields, payload_digest
  from onetake.generation_requests, generate_series(2, $2::int) n
  where id = $1
  returning id
)
insert into onetake_queue.job
select (jsonb_populate_record(j, jsonb_build_object(
  'id', gen_random_uuid(), 'singleton_key', made.id, 'data', jsonb_build_object('requestId', made.id)
))).*
from onetake_queue.job j, made
where j.singleton_key = $1::text`,
    [first, count],
  );
}

/** Opened by as many failures as it takes, and far from the end of its cooldown; says how many POSTs that took. */
export async function openBreaker(world: World): Promise<number> {
  world.raw.onPost = (call) => call.answer(502);
  await world.songs(Number((await world.breaker())['failure_threshold']), 'failing');
  const worker = world.worker();
  await worker.runOnce();
  await worker.stop();
  await world.database.query(
    `update onetake.circuit_breakers set retry_at = clock_timestamp() + interval '1 h' where name = $1 and state = 'open'`,
    [MUSIC],
  );
  return world.posts();
}

/** Its cooldown is over at this moment, and every worker is told so. */
export async function endCooldown(world: World): Promise<void> {
  await world.database.query(
    `with due as (
  update onetake.circuit_breakers
  set retry_at = greatest(opened_at, clock_timestamp()), opened_at = least(opened_at, clock_timestamp())
  where name = $1 and state = 'open'
  returning name
)
select pg_notify('onetake', 'breaker') from due`,
    [MUSIC],
  );
}

/** By its own clock. */
export async function databaseClock(world: World): Promise<number> {
  const [row] = await world.database.query<{ now: Date }>('select clock_timestamp() as now');
  return Number(row?.now);
}

/** So much of the database's time has passed since `from`; by default since now, and as much as each worker needs to look again. */
export async function databaseTimePasses(world: World, ms = 1_500, from?: number): Promise<void> {
  const until = (from ?? (await databaseClock(world))) + ms;
  await waitFor(async () => (await databaseClock(world)) >= until, {
    what: `${ms} ms of the database’s time`,
  });
}

/** How many rounds a test runs: its own number, or `ONETAKE_CHAOS_ROUNDS` for a long run by hand. */
export function roundsOr(standard: number): number {
  return Number(process.env['ONETAKE_CHAOS_ROUNDS'] ?? standard);
}

/** The figures of a long run; the suite itself prints nothing. */
export function tell(figures: string): void {
  if (process.env['ONETAKE_CHAOS_ROUNDS'] !== undefined) console.info(figures);
}
