import { randomUUID } from 'node:crypto';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { Database } from '../../src/postgres/database.ts';
import { JobQueue } from '../../src/queue/boss.ts';
import { keepQueues } from '../../src/queue/upkeep.ts';
import { createTestDatabase, type TestDatabase } from '../support/test-database.ts';
import { waitFor } from '../support/wait-for.ts';

let clone: TestDatabase;
beforeAll(async () => {
  clone = await createTestDatabase();
});
afterAll(() => clone.drop());

function open(max = 2) {
  const database = Database.connect(clone.connectionString, { max, applicationName: 'queue test' });
  const errors: unknown[] = [];
  const queue = new JobQueue({ executor: database, role: 'worker', onError: (error) => errors.push(error) });
  return {
    database,
    queue,
    errors,
    async [Symbol.asyncDispose]() {
      await queue.stop();
      await database.close();
    },
  };
}

const request = (overrides: object = {}) => ({
  id: randomUUID(),
  account: 'default',
  operation: 'video-to-music',
  jobPriority: -1,
  ...overrides,
});
const jobs = (id: string) =>
  clone.query('select state, start_after from onetake_queue.job where singleton_key = $1', [id]);

describe('the job queue', () => {
  it('sends one job per request, however often it is asked', async () => {
    await using opened = open();
    const { database, queue } = opened;
    const one = request();
    expect(await database.transaction((tx) => queue.send(tx, one, null))).toBe(true);
    expect(await database.transaction((tx) => queue.send(tx, one, null))).toBe(false);
    expect(await jobs(one.id)).toHaveLength(1);
  });

  it('starts a job when the database’s instant says', async () => {
    await using opened = open();
    const one = request();
    const at = new Date('2100-01-01T00:00:00.000Z');
    await opened.database.transaction((tx) => opened.queue.send(tx, one, at));
    expect(await jobs(one.id)).toMatchObject([{ start_after: at }]);
  });

  it('fetches and completes in one transaction, and not at all when that rolls back', async () => {
    await using opened = open();
    const { database, queue } = opened;
    await clone.query('delete from onetake_queue.job');
    const [one, two] = [request(), request()];
    for (const each of [one, two]) await database.transaction((tx) => queue.send(tx, each, null));
    const fetchAll = async (end: 'commit' | 'rollback') => {
      try {
        await database.transaction(async (tx) => {
          const fetched = await queue.fetch(tx, 'default', 'video-to-music', 10);
          await queue.complete(tx, 'default', 'video-to-music', fetched);
          if (end === 'rollback') throw new Error(String(fetched.length));
          return fetched;
        });
      } catch (error) {
        return (error as Error).message;
      }
      return 'committed';
    };
    expect(await fetchAll('rollback')).toBe('2');
    expect(await jobs(one.id)).toMatchObject([{ state: 'created' }]);
    expect(await fetchAll('commit')).toBe('committed');
    expect(await jobs(one.id)).toMatchObject([{ state: 'completed' }]);
    // A completed job stands in nobody's way.
    expect(await database.transaction((tx) => queue.send(tx, one, null))).toBe(true);
  });

  it('lets two transactions fetch disjoint jobs', async () => {
    await using opened = open();
    const { database, queue } = opened;
    await clone.query('delete from onetake_queue.job');
    for (const each of [request(), request(), request()]) {
      await database.transaction((tx) => queue.send(tx, each, null));
    }
    await database.transaction(async (tx) => {
      const mine = await queue.fetch(tx, 'default', 'video-to-music', 2);
      const others = await database.transaction((other) =>
        queue.fetch(other, 'default', 'video-to-music', 10),
      );
      expect(mine).toHaveLength(2);
      expect(others).toHaveLength(1);
      const ids = [...mine, ...others].map((job) => job.data.requestId);
      expect(new Set(ids).size).toBe(3);
    });
  });

  it('knows a queue that another process has made since it started', async () => {
    await using ours = open();
    await ours.queue.start();
    await using theirs = open();
    await theirs.queue.start();
    const account = `a-${randomUUID()}`;
    await theirs.queue.ensureQueue(account, 'text-to-music');
    const one = request({ account, operation: 'text-to-music' });
    expect(await ours.database.transaction((tx) => ours.queue.send(tx, one, null))).toBe(true);
  });

  it('throws for a queue that does not exist, with the transaction still usable', async () => {
    await using opened = open();
    await opened.database.transaction(async (tx) => {
      await expect(opened.queue.send(tx, request({ account: 'nobody' }), null)).rejects.toThrow(
        'does not exist',
      );
      expect((await tx.executeSql('select 1 as one')).rows).toEqual([{ one: 1 }]);
    });
  });

  it('needs no other connection than the transaction’s, from its first use on', async () => {
    await using opened = open(1);
    const one = request();
    expect(await opened.database.transaction((tx) => opened.queue.send(tx, one, null))).toBe(true);
    expect(await jobs(one.id)).toHaveLength(1);
  });

  it('makes a queue once, with our options', async () => {
    await using opened = open();
    await opened.queue.start();
    const account = `a-${randomUUID()}`;
    await Promise.all(Array.from({ length: 4 }, () => opened.queue.ensureQueue(account, 'text-to-music')));
    const rows = await clone.query(
      'select policy, retry_limit, retention_seconds from onetake_queue.queue where name = $1',
      [`submit/${account}/text-to-music`],
    );
    expect(rows).toEqual([{ policy: 'exclusive', retry_limit: 1_000, retention_seconds: 90 * 86_400 }]);
  });

  it('outlives trouble in its upkeep, and says so', async () => {
    const database = Database.connect(clone.connectionString, { max: 2, applicationName: 'queue test' });
    let isAway = false;
    const queue = new JobQueue({
      executor: {
        async executeSql(text, values) {
          if (isAway) throw Object.assign(new Error('gone'), { code: '57P01' });
          return database.pool.query(text, values);
        },
      },
      role: 'worker',
      onError: () => undefined,
    });
    await queue.start();
    isAway = true;
    await expect(keepQueues(queue, () => true)).rejects.toMatchObject({ code: '57P01' });
    const one = request();
    expect(await database.transaction((tx) => queue.send(tx, one, null))).toBe(true);
    await queue.stop();
    await database.close();
  });

  it('goes on after the loss of its connections', async () => {
    await using opened = open();
    await opened.queue.start();
    await clone.query(
      `select pg_terminate_backend(pid) from pg_stat_activity
where datname = current_database() and application_name = 'queue test'`,
    );
    await waitFor(() => opened.database.pool.totalCount === 0, { what: 'the pool to notice' });
    expect(await opened.database.transaction((tx) => opened.queue.send(tx, request(), null))).toBe(true);
  });

  it('may be stopped before it was started, and any number of times', async () => {
    const opened = open();
    await opened.queue.stop();
    await opened.queue.start();
    await Promise.all([opened.queue.stop(), opened.queue.stop()]);
    await opened.queue.stop();
    await opened.database.close();
  });
});

describe('the upkeep of the queues', () => {
  it('deletes what ended an hour ago, over all lanes, in statements that don’t grow with them', async () => {
    let statements = 0;
    await using opened = open();
    const { database } = opened;
    const counting = {
      executeSql: (text: string, values?: unknown[]) => {
        statements++;
        return database.executeSql(text, values);
      },
    };
    const queue = new JobQueue({ executor: counting, role: 'worker', onError: () => undefined });
    await queue.start();
    const lanes = Array.from({ length: 30 }, (_, n) => `tenant-${n}`);
    await queue.ensureQueues(lanes, ['text-to-music']);
    const [waiting, ended, late] = [request(), request(), request()];
    const done = async ({ id }: { id: string }, minutes: number) => {
      await clone.query(
        `update onetake_queue.job set state = 'completed', completed_on = now() - $2 * interval '1 min'
where singleton_key = $1`,
        [id, minutes],
      );
    };
    const others = lanes.map((account) => request({ account, operation: 'text-to-music' }));
    for (const each of [waiting, ended, late, ...others]) {
      await database.transaction((tx) => queue.send(tx, each, null));
    }
    for (const each of [ended, ...others]) await done(each, 61);
    await done(late, 59);
    // What waits is never deleted, however long it does.
    await clone.query(
      `update onetake_queue.job set keep_until = now() - interval '1 day' where singleton_key = $1`,
      [waiting.id],
    );
    statements = 0;
    await keepQueues(queue, () => true);
    await queue.stop();
    expect(await jobs(waiting.id)).toHaveLength(1);
    expect(await jobs(late.id)).toHaveLength(1);
    for (const each of [ended, ...others]) expect(await jobs(each.id)).toEqual([]);
    expect(statements).toBeLessThan(60);
  });
});
