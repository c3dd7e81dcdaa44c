import { describe, expect, it } from 'vitest';
import { expectChain } from '../support/breaker-world.ts';
import {
  databaseTimePasses,
  enqueueMany,
  type FleetWorker,
  roundsOr,
  startFleetWorker,
  tell,
} from '../support/fleet.ts';
import { hold, type ProviderCall } from '../support/raw-provider.ts';
import { waitFor } from '../support/wait-for.ts';
import { deadlocks, MUSIC, openWorld, type Row, type World } from '../support/world.ts';

const SLOTS = 4;
/** Processes that are killed, one after another, each with whatever it has in flight. */
const KILLS = roundsOr(4);
const PROCESSES = KILLS < 20 ? 8 : 16;
const POSTS = KILLS * 25;
const THRESHOLD = 3;
const ACCOUNTS = ['default', 'second', 'third'];

/** Reproducible: the order of what the provider answers, not who is asked. */
function dice(seed: number): () => number {
  let state = seed;
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let t = Math.imul(state ^ (state >>> 15), 1 | state);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 4_294_967_296;
  };
}

function answerAtRandom(call: ProviderCall, roll: number): void {
  if (roll < 0.5) call.accept();
  else if (roll < 0.82) call.answer(502);
  else if (roll < 0.88) call.answer(422, {});
  else if (roll < 0.92) call.answer(418);
  else if (roll < 0.97) call.socket.resetAndDestroy();
  else hold();
}

/** What must never be true at any commit, noted by the database itself. */
async function watchBreakers(world: World): Promise<void> {
  await world.database.query('create table public.violations (what text, old jsonb, new jsonb)');
  await world.database.query(
    'create table public.applied (seq bigserial, transaction xid8 default pg_current_xact_id(), attempt uuid, effect text)',
  );
  await world.database.query(`create function public.watch_breaker() returns trigger language plpgsql as $$
declare what text;
begin
  what := case
    when new.generation not in (old.generation, old.generation + 1) then 'a generation was left out'
    when (new.generation = old.generation) <> (new.state = old.state) then 'state and generation move apart'
    when new.generation = old.generation and (old.opened_at, old.retry_at, old.probe_attempt_id)
      is distinct from (new.opened_at, new.retry_at, new.probe_attempt_id) then 'a boundary or a probe moved'
    when old.state = 'closed' and new.state = 'half_open' or old.state = 'open' and new.state = 'closed'
      then 'not a move of the machine'
    when old.state = 'open' and new.state = 'half_open' and clock_timestamp() < old.retry_at
      then 'a probe before its time'
    when new.state = 'half_open' and old.state <> 'half_open' and exists (
      select from onetake.submission_attempts a
      where a.breaker_name = new.name and a.is_probe and a.settled_at is null and a.id <> new.probe_attempt_id
        and a.lease_expires_at > clock_timestamp()
    ) then 'two live probes'
  end;
  if what is not null then insert into public.violations values (what, to_jsonb(old), to_jsonb(new)); end if;
  return null;
end $$`);
  await world.database.query(`create trigger watch_breaker after update on onetake.circuit_breakers
for each row execute function public.watch_breaker()`);
  await world.database.query(`create function public.note_effect() returns trigger language plpgsql as $$
begin
  insert into public.applied (attempt, effect) values (new.id, new.health_effect);
  return null;
end $$`);
  await world.database.query(`create trigger note_effect after update on onetake.submission_attempts
for each row when (old.health_effect is null and new.health_effect is not null) execute function public.note_effect()`);
}

/** What the database has noted ends the test at once. */
async function expectNoViolation(world: World): Promise<void> {
  expect(await world.database.query('select * from public.violations limit 3')).toEqual([]);
}

async function waitForPosts(world: World, count: number): Promise<void> {
  await waitFor(
    async () => {
      await expectNoViolation(world);
      return world.posts() >= count;
    },
    { what: `${count} POSTs`, timeoutMs: 120_000 },
  );
}

/** Lays overrides over the breaker and takes them away, until told to stop; says how often. */
function operate(world: World, roll: () => number): () => Promise<number> {
  let stopped = false;
  const acting = (async () => {
    let acts = 0;
    while (!stopped) {
      const mode = roll() < 0.5 ? 'forced_open' : 'forced_closed';
      const [text, values] =
        roll() < 0.6
          ? [
              `select onetake.force_breaker($1, $2, 'op', 'storm', clock_timestamp() + interval '150 ms')`,
              [MUSIC, mode],
            ]
          : [`select onetake.release_breaker($1, 'op', 'storm')`, [MUSIC]];
      await world.database.query(text as string, values as string[]).then(
        () => acts++,
        (error: { code?: string }) => {
          if (error.code !== 'OT002') throw error;
        },
      );
      await databaseTimePasses(world, 200 + 600 * roll());
    }
    return acts;
  })();
  acting.catch(() => undefined);
  return () => {
    stopped = true;
    return acting;
  };
}

/** What the machine makes of each outcome by the rules, one generation after another, beside what was stored. */
async function replayed(world: World): Promise<{ expected: string[]; stored: string[] }> {
  const outcomes = await world.database.query<Row>(
    `select a.generation, a.health, a.health_effect as effect,
  coalesce(a.override, a.override_at_settle) is not null as forced, a.is_probe, a.id
from (select attempt, min(seq) over (partition by transaction) as batch from public.applied) p
join onetake.submission_attempts a on a.id = p.attempt
where a.health_effect not in ('stale_generation', 'nothing_to_apply')
order by p.batch, a.settled_at, a.id`,
  );
  const transitions = (await world.transitions()).filter((row) => row['layer'] === 'state');
  const states = new Map<unknown, unknown>([
    [1, 'closed'],
    ...transitions.map((row): [unknown, unknown] => [row['generation'], row['next_state']]),
  ]);
  const counts = new Map<unknown, { failures: number; ramp: boolean }>();
  const expected: string[] = [];
  const stored: string[] = [];
  for (const { generation, health, effect, forced, is_probe: isProbe } of outcomes) {
    const count = counts.get(generation) ?? { failures: 0, ramp: generation !== 1 };
    counts.set(generation, count);
    stored.push(`${generation} ${health} ${effect}`);
    const say = (what: string) => void expected.push(`${generation} ${health} ${what}`);
    if (isProbe === true) say(health === 'success' ? 'closed' : 'reopened');
    // One that was forced between its settle and its application says so itself.
    else if (forced === true || effect === 'under_override') say('under_override');
    else if (states.get(generation) !== 'closed') say('stale_generation');
    else if (health === 'success') {
      say(count.ramp ? 'ramped' : 'reset');
      count.failures = 0;
    } else if (health !== 'dependency_failure') say('neutral');
    else say(++count.failures >= THRESHOLD ? 'opened' : 'counted');
  }
  return { expected, stored };
}

describe(`${PROCESSES} processes of ${SLOTS} slots, of which ${KILLS} are killed, and an operator who can't decide`, () => {
  it(
    'leave a history that a single process could have written, and every event of it was heard',
    async () => {
      const world = await openWorld({
        provider: 'raw',
        limits: { requestsPerMinute: 1_000_000, maxConcurrentGenerations: 100_000 },
        operation: {
          deadlines: { connectMs: 800, firstResponseMs: 900, submissionMs: 1_100 },
          leaseMs: 3_101,
          breaker: {
            failureThreshold: THRESHOLD,
            cooldownMs: 100,
            cooldownGrowth: 2,
            maxCooldownMs: 400,
            jitter: 0.5,
          },
        },
        config: { worker: { concurrency: SLOTS } },
      });
      await watchBreakers(world);
      for (const name of ACCOUNTS.slice(1)) {
        await world.client.upsertAccount({
          name,
          provider: 'sonilo',
          requestsPerMinute: 1_000_000,
          maxConcurrentGenerations: 100_000,
        });
      }
      for (const account of ACCOUNTS) await enqueueMany(world, POSTS * 3, account);
      const answers = dice(20_261_130);
      world.raw.onPost = (call) => answerAtRandom(call, answers());

      const roll = dice(4);
      const names = Array.from({ length: PROCESSES }, (_, n) => `worker-${n + 1}`);
      const all: FleetWorker[] = await Promise.all(names.map((name) => startFleetWorker(world, { name })));
      const fleet = new Map(all.map((worker) => [worker.name, worker]));
      const killed = new Set<FleetWorker>();
      const stopOperating = operate(world, roll);
      for (let kill = 1; kill <= KILLS; kill++) {
        await waitForPosts(world, world.posts() + 15);
        const name = names[Math.floor(roll() * PROCESSES)] as string;
        const victim = fleet.get(name) as FleetWorker;
        await victim.child.kill('SIGKILL');
        killed.add(victim);
        const next = await startFleetWorker(world, { name });
        all.push(next);
        fleet.set(name, next);
      }
      await waitFor(() => world.posts() >= POSTS, { what: `${POSTS} POSTs`, timeoutMs: 120_000 });
      const acts = await stopOperating();

      // Nothing new: what is in flight ends, and what was lost is found.
      await world.database.query(
        `update onetake.accounts set paused_until = now() + interval '1 h', pause_kind = 'rate'`,
      );
      world.raw.onPost = (call) => call.accept();
      for (const call of world.raw.posts) if (!call.response.headersSent) call.socket.destroy();
      await waitFor(
        async () => {
          const [left] = await world.database.query(`select
  (select count(*) from onetake.submission_attempts where health_applied_at is null)
  + (select count(*) from onetake.circuit_breaker_transitions where not announced)
  + (select count(*) from onetake.circuit_breakers where override is not null and override_expires_at < now())
  + (select count(*) from onetake.circuit_breakers where state = 'half_open') as n`);
          return left?.['n'] === '0';
        },
        { what: 'the fleet to come to rest', timeoutMs: 60_000 },
      );

      const transitions = await world.transitions();
      expectChain(
        transitions,
        transitions.map((row) => row['cause'] as string),
      );
      await expectNoViolation(world);
      const { expected, stored } = await replayed(world);
      expect(stored).toEqual(expected);

      const heard = all.flatMap((worker) =>
        worker.child.messages.flatMap((message) => {
          const { name, event } = message as { name?: string; event?: Record<string, unknown> };
          if (name !== 'breaker:transition' || event === undefined) return [];
          return [{ key: `${event['layer']} ${event['number']}`, cause: event['cause'], worker }];
        }),
      );
      const keys = transitions.map((row) => `${row['layer']} ${row['number']}`);
      expect(new Set(heard.map(({ key }) => key))).toEqual(new Set(keys));
      // Twice only what somebody told who was killed before he could note that he had.
      const twice = keys.filter((key) => heard.filter((one) => one.key === key).length > 1);
      for (const key of twice) {
        const tellers = heard.filter((one) => one.key === key).map(({ worker }) => worker);
        expect([key, tellers.some((worker) => killed.has(worker))]).toEqual([key, true]);
      }
      for (const worker of fleet.values()) await worker.child.kill('SIGTERM');
      expect(await deadlocks(world.database)).toBe(0);
      const causes = Map.groupBy(transitions, (row) => row['cause']);
      tell(
        `${world.posts()} POSTs, ${stored.length} outcomes replayed, ${acts} acts, ${killed.size} kills, ` +
          `${transitions.length} transitions (${[...causes].map(([cause, rows]) => `${cause} ${rows.length}`).join(', ')}), ` +
          `${heard.length} events, ${twice.length} of them twice`,
      );
    },
    240_000 + KILLS * 20_000,
  );
});
