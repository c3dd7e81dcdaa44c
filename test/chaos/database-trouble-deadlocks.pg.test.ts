import { expect, it } from 'vitest';
import { waitFor } from '../support/wait-for.ts';
import { deadlocks, openWorld } from '../support/world.ts';

const SONGS = 80;
const RETRYABLE = ['40P01', '40001', '55P03', '57014'];

/** An operator's script as one would write it: everything locked, and in the opposite order of ours. */
const SCRIPT = `do $$
declare one record;
begin
  perform from onetake.circuit_breakers for update;
  perform from onetake.accounts for update;
  for one in select id from onetake.submission_attempts where settled_at is null order by random() limit 5 loop
    perform from onetake.submission_attempts where id = one.id for update;
  end loop;
  for one in select id from onetake.generation_requests where state in ('submitting', 'queued') order by random() limit 5 loop
    perform from onetake.generation_requests where id = one.id for update;
  end loop;
  update onetake.circuit_breakers set cooldown_ms = cooldown_ms;
  delete from onetake_queue.job where state = 'completed';
end $$`;

it('an operator’s script that locks in the opposite order costs deadlocks, and neither a POST nor a count', {
  timeout: 120_000,
}, async () => {
  const world = await openWorld({
    provider: 'raw',
    limits: { requestsPerMinute: 100_000, maxConcurrentGenerations: 10_000 },
    operation: { breaker: { failureThreshold: 1_000 } },
  });
  // Looked for after a second by default; who may not change that waits.
  await world.database
    .query(
      `do $$ begin execute format('alter database %I set deadlock_timeout = 20', current_database()); end $$`,
    )
    .catch(() => undefined);
  // By the song, so that each outcome can be told from outside.
  const answers = [202, 422, 429, 502] as const;
  const answerOf = (song: number) => answers[song % 4 === 2 ? 0 : song % 4] as number;
  world.raw.onPost = (call) => {
    const song = Number(/song\D{1,3}(\d+)/.exec(call.body)?.[1]);
    const status = answerOf(song);
    if (status === 202) call.accept(`task-of-${song}`);
    else call.answer(status, { error: { code: 'x' } });
  };
  let stopped = false;
  const script = (async () => {
    const pool = world.database.pool({ max: 2 });
    const loop = async () => {
      while (!stopped) {
        await pool.query(SCRIPT).catch((error: { code?: string }) => {
          if (error.code !== '40P01') throw error;
        });
      }
    };
    await Promise.all([loop(), loop()]);
  })();
  const workers = [world.worker(), world.worker(), world.worker()];
  await Promise.all(workers.map((worker) => worker.start()));
  await Promise.all(Array.from({ length: SONGS }, (_, n) => world.song(`song ${n}`)));
  await waitFor(
    async () =>
      (
        await world.database.query(
          `select from onetake.submission_attempts where settled_at is not null and health_applied_at is not null`,
        )
      ).length === SONGS,
    { what: 'all to be settled and applied', timeoutMs: 100_000 },
  );
  stopped = true;
  await script;
  await Promise.all(workers.map((worker) => worker.stop()));

  expect(world.posts()).toBe(SONGS);
  const expected = { 202: 'accepted', 422: 'rejected', 502: 'ambiguous' } as Record<number, string>;
  const states = await world.states();
  for (let n = 0; n < SONGS; n++) expect(states[`song ${n}`], `song ${n}`).toBe(expected[answerOf(n)]);
  const effects = await world.database.query<{ health: string; n: number }>(
    `select health, count(*)::int as n from onetake.submission_attempts where attempt = 1 group by health order by health`,
  );
  expect(effects).toEqual([
    { health: 'dependency_failure', n: SONGS / 4 },
    { health: 'request_or_account_failure', n: SONGS / 4 },
    { health: 'success', n: SONGS / 2 },
  ]);
  const troubles = world.events.flatMap(({ name, event }) =>
    name === 'process:trouble' ? [event.errorCode] : [],
  );
  expect(troubles.filter((code) => !RETRYABLE.includes(code))).toEqual([]);
  expect(await deadlocks(world.database)).toBeGreaterThan(0);
});
