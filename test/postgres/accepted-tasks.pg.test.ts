import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { claimDueTasks, nextDueInMs, prolongClaim, schedulePoll } from '../../src/postgres/accepted-tasks.ts';
import { Database } from '../../src/postgres/database.ts';
import { insertRequest, setColumns } from '../support/fixtures.ts';
import { createRole } from '../support/roles.ts';
import { createTestDatabase, type TestDatabase } from '../support/test-database.ts';

const LEASE_MS = 30_000;

let database: TestDatabase;
let polls: Database;
beforeEach(async () => {
  database = await createTestDatabase();
  polls = connect(8);
});
afterEach(async () => {
  await polls.close(1_000);
  await database.drop();
});

const connect = (max: number, connectionString = database.connectionString) =>
  Database.connect(connectionString, { max, applicationName: 'a test of claims' });

const claim = async (limit = 10, by = polls): Promise<string[]> => {
  const terms = { limit, leaseMs: LEASE_MS, intervalMs: 1_000 };
  const { tasks } = await by.transaction((tx) => claimDueTasks(tx, terms));
  return tasks.map(({ id }) => id);
};

const accepted = () => insertRequest(database, { state: 'accepted' });

describe('a claim', () => {
  it('is a row of its own, gone when the next read is scheduled: the request is not written to', async () => {
    const id = await accepted();
    const versions = () => database.query('select ctid::text, xmin::text from onetake.generation_requests');
    const before = await versions();
    expect(await claim()).toEqual([id]);
    expect(await versions()).toEqual(before);
    expect(await claim()).toEqual([]);
    await schedulePoll(polls, id, 'accepted', 5_000, { count: 0, trouble: null });
    expect(await database.query('select from onetake.poll_leases')).toEqual([]);
    expect(await claim()).toEqual([]);
    await database.passTime(5_000);
    expect(await claim()).toEqual([id]);
  });

  it('ends with its lease, which can be prolonged and given back', async () => {
    const id = await accepted();
    await claim();
    await database.passTime(LEASE_MS - 10_000);
    expect(await claim()).toEqual([]);
    await prolongClaim(polls, id, LEASE_MS);
    await database.passTime(LEASE_MS - 10_000);
    expect(await claim()).toEqual([]);
    await database.passTime(10_001);
    expect(await claim()).toEqual([id]);
    await prolongClaim(polls, id, 0);
    expect(await claim()).toEqual([id]);
  });

  it('ends when anybody moves the schedule, a person by SQL too', async () => {
    const id = await accepted();
    await claim();
    await setColumns(database, id, { next_poll_at: new Date(0) });
    expect(await claim()).toEqual([id]);
  });

  it('is made and ended by a role that may not delete', async () => {
    const id = await accepted();
    await using role = await createRole(database);
    await database.query(`grant usage on schema onetake to ${role.name}`);
    await database.query(`grant select, insert, update on all tables in schema onetake to ${role.name}`);
    const theirs = connect(1, role.connectionString);
    expect(await claim(1, theirs)).toEqual([id]);
    await schedulePoll(theirs, id, 'accepted', 0, { count: 0, trouble: null });
    expect(await claim(1, theirs)).toEqual([id]);
    await theirs.close(1_000);
  });

  it('is one poller’s alone, however many claim at the same instant', async () => {
    await database.query(
      `insert into onetake.accounts (name, provider, requests_per_minute, max_concurrent_generations)
values ('default', 'sonilo', 60, 4) on conflict do nothing`,
    );
    const client = await database.pool({ max: 1 }).connect();
    await client.query('set session_replication_role = replica');
    await client.query(
      `insert into onetake.generation_requests (account, operation, request_key, fields, payload_digest, state, submissions,
  charge, provider_task_id, accepted_at, next_poll_at)
select 'default', 'text-to-music', n, '{}', repeat('0', 64), 'accepted', 1, 'charged', n, now(), now() - n * interval '1 s'
from generate_series(1, 1600) n`,
    );
    client.release();
    const claims = await Promise.all(
      Array.from({ length: 8 }, async () => {
        const mine: string[] = [];
        for (let n = 0; n < 100; n++) mine.push(...(await claim(2)));
        return mine;
      }),
    );
    const ids = claims.flat();
    expect(new Set(ids).size).toBe(ids.length);
    expect(ids.length).toBeGreaterThan(1_000);
  });
});

describe('the next instant at which something is due', () => {
  it('is that of the first task that nobody is at', async () => {
    const id = await accepted();
    expect(await nextDueInMs(polls)).toBeLessThanOrEqual(0);
    await claim();
    expect(await nextDueInMs(polls)).toBeNull();
    await database.passTime(LEASE_MS + 1);
    expect(await nextDueInMs(polls)).toBeLessThanOrEqual(0);
    await schedulePoll(polls, id, 'accepted', 60_000, { count: 0, trouble: null });
    expect(await nextDueInMs(polls)).toBeGreaterThan(30_000);
  });
});
