import { writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { drizzle } from 'drizzle-orm/node-postgres';
import { expect, it } from 'vitest';
import { expectNoCanary, fetched, film, KEY, openRawWorld, PROMPT, SOURCE, uploads } from './canaries.ts';

/** Everything that the library throws for these, and what it gives back in the place of an error. */
async function thrownBy(
  calls: Readonly<Record<string, () => Promise<unknown>>>,
): Promise<Record<string, unknown>> {
  const thrown: Record<string, unknown> = {};
  for (const [name, call] of Object.entries(calls)) {
    thrown[name] = await call().then(
      () => undefined,
      (error: unknown) => error,
    );
    expect(thrown[name], name).toBeInstanceOf(Error);
  }
  return thrown;
}

it('errors tell nothing of what was refused, in no cause and to no debugger', async () => {
  const world = await openRawWorld();
  const { client, database } = world;
  const upload = await uploads();
  const path = upload();
  const text = join(dirname(path), 'canary-text.mp4');
  writeFileSync(text, 'canary-content');
  const wrong: Record<string, unknown> = {
    missing: `${path}.none`,
    'a file for a folder': join(path, 'canary.mp4'),
    'a folder': dirname(path),
    'too long a path': `/${'canary/'.repeat(2_000)}film.mp4`,
    'too long a name': `/${'canary-'.repeat(100)}.mp4`,
    'a NUL': `${path}\0`,
    'half a character': `${path}\ud800`,
    'no video': text,
    'no path': 7,
    'a URL': new URL(SOURCE),
    'a list': [path],
  };
  const inputs = Object.entries(wrong).map(([name, file]) => film(file, name));
  const urls = [
    'canary',
    `ftp://canary@example.com/`,
    `https://canary:canary@example.com/`,
    `http://127.0.0.1/canary`,
    `${SOURCE}\0`,
  ];
  inputs.push(...urls.map((url) => fetched(url, url.replace(/canary|\0/g, ''))));
  inputs.push(
    film(path, 'both', { video_url: SOURCE }),
    film(path, 'unknown', { [PROMPT.repeat(3)]: PROMPT }),
  );
  expectNoCanary(
    await thrownBy(
      Object.fromEntries(inputs.map((input) => [input.requestKey, () => client.enqueue(input)])),
    ),
  );
  const answers = await client.enqueue(inputs);
  expect(answers.every((answer) => 'refused' in answer)).toBe(true);
  expectNoCanary({ 'many at once': answers });

  // By the database, in a transaction of ours and in one of the caller's; with a server that is told to add what a
  // statement was given to its errors.
  await database.query(
    `alter database ${new URL(database.connectionString).pathname.slice(1)} set log_parameter_max_length_on_error = -1`,
  );
  await client.enqueue(film(path, 'known'));
  await database.query(
    `alter table onetake.generation_requests add constraint refuses check (request_key = 'known') not valid`,
  );
  const pool = database.pool();
  const inTheirs = async (before: string) => {
    const theirs = await pool.connect();
    theirs.on('error', () => undefined);
    try {
      await theirs.query(`begin; ${before}`);
      return await client.enqueue(film(path, 'refused'), { tx: theirs });
    } finally {
      await theirs.query('rollback').catch(() => undefined);
      theirs.release(true);
    }
  };
  const holder = await pool.connect();
  await holder.query('begin; lock table onetake.generation_requests in access exclusive mode');
  const db = drizzle(pool);
  const waiting = await thrownBy({
    'theirs, waiting': () => inTheirs(`set local statement_timeout = '50ms'`),
    'theirs, locked': () => inTheirs(`set local lock_timeout = '50ms'`),
    'drizzle, waiting': () =>
      db.transaction(async (tx) => {
        await tx.execute(`set local statement_timeout = '50ms'`);
        return client.enqueue(film(path, 'refused'), { tx });
      }),
  });
  await holder.query('rollback');
  holder.release();
  expectNoCanary(waiting);
  expectNoCanary(
    await thrownBy({
      ours: () => client.enqueue(film(path, 'refused')),
      'many of ours': () => client.enqueue([film(path, 'refused')]),
      theirs: () => inTheirs(''),
      'theirs, read only': () => inTheirs('set transaction read only'),
      'theirs, failed before': () =>
        inTheirs(`savepoint a; do $$ begin raise exception 'x'; exception when others then null; end $$`),
      'theirs, ended by the server': () => inTheirs(`select pg_terminate_backend(pg_backend_pid())`),
      drizzle: () => db.transaction((tx) => client.enqueue(film(path, 'refused'), { tx })),
      'another payload': () => client.enqueue(fetched(SOURCE, 'known')),
    }),
  );
  // What no function of ours catches is the driver's own error, which a caller may branch on.
  await database.query(`create or replace function onetake.enqueue(requests jsonb)
returns table (number integer, id text, state text, digest text, problem text, error text) language plpgsql as $$
begin raise exception 'broken' using errcode = 'XX001', detail = requests::text; end $$`);
  const broken = await thrownBy({
    theirs: () => inTheirs(''),
    drizzle: () => db.transaction((tx) => client.enqueue(film(path, 'refused'), { tx })),
  });
  expect(broken).toMatchObject({ theirs: { code: 'XX001' }, drizzle: { code: 'XX001' } });
  expectNoCanary(broken);

  // By a round of a process: the row that a sweep was refused.
  await database.query(`alter table onetake.generation_requests drop constraint refuses`);
  await database.query(
    `alter table onetake.generation_requests add constraint refuses check (state <> 'expired') not valid`,
  );
  await database.query(`update onetake.generation_requests set submit_before = now() - interval '1 s'`);
  const round = await thrownBy({ round: () => world.worker({ credentials: () => KEY }).runOnce() });
  expectNoCanary(round);
  // The row is cut in it, so a mark may not be seen.
  expect(round['round']).toMatchObject({ code: 'database_refused' });
  expect(round['round']).not.toHaveProperty('detail');
});
