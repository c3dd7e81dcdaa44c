import { afterAll, beforeAll, describe, expect, onTestFinished, test } from 'vitest';
import { createClient } from '../../src/index.ts';
import { postgresProxy } from '../support/postgres-proxy.ts';
import { type PrivateServer, startPrivateServer } from '../support/private-server.ts';
import { hold } from '../support/raw-provider.ts';
import { waitFor } from '../support/wait-for.ts';
import { openWorld, type World } from '../support/world.ts';

// Real servers that were put back, or taken over by a standby, under workers that live.

const NOTE = { actor: 'mia', reason: 'looked at it' };

let server: PrivateServer;
beforeAll(async () => {
  server = await startPrivateServer({ max_wal_senders: '4', wal_level: 'replica', hot_standby: 'on' });
}, 120_000);
afterAll(() => server?.[Symbol.asyncDispose]());

const worldOn = async (at: PrivateServer): Promise<World> =>
  openWorld({ provider: 'raw', database: await at.createDatabase() });
const troublesOf = (world: World) =>
  world.events.flatMap((one) => (one.name === 'installation:unrecognised' ? [one.event.trouble] : []));

describe('a data directory that was put back', { timeout: 120_000 }, () => {
  test('is known by the WAL that a live worker has seen, however much is written since', async () => {
    const world = await worldOn(server);
    const putBack = await server.copyData();
    const worker = world.worker();
    await worker.start();
    const paid = await world.song('paid after the copy');
    await waitFor(() => world.posts() === 1, { what: 'the POST' });
    await waitFor(async () => (await world.request(paid))['state'] === 'accepted', {
      what: 'its acceptance',
    });

    await putBack();
    await server.start();
    await waitFor(() => troublesOf(world).length > 0, { what: 'the worker to notice' });
    expect(troublesOf(world)[0]).toMatch(/^(stepped_back|intent_lost)$/);
    await waitFor(
      async () => (await world.database.query('select from onetake.installation where doubt is not null'))[0],
      { what: 'the doubt to be written down' },
    );
    // The app enqueues again what is gone with its own rows.
    await world.song('enqueued afterwards');
    await world.database.query(
      'create table filler as select n, repeat($$x$$, 100) from generate_series(1, 200000) n',
    );
    const another = world.worker();
    for (let round = 0; round < 3; round++) expect(await another.runOnce()).toBe(0);
    expect(world.posts()).toBe(1);
  });

  test('is known by a worker that starts again with its spool directory', async () => {
    const world = await worldOn(server);
    const putBack = await server.copyData();
    const first = world.worker();
    await world.song('paid after the copy');
    expect(await first.runOnce()).toBe(1);
    await first.stop();
    await putBack();
    await server.start();
    await world.song('enqueued afterwards');
    expect(await world.worker().runOnce()).toBe(0);
    expect(await world.client.installation()).toMatchObject({
      trouble: expect.stringMatching(/^stepped_back|intent_lost$/),
    });
    await expect(world.client.recover({ mode: 'resume', ...NOTE })).rejects.toMatchObject({
      code: 'installation_in_doubt',
    });
  });

  test('holds as queued what was paid for, and a freeze keeps it from being paid again', async () => {
    const world = await worldOn(server);
    const paid = await world.song('queued in the copy, paid after it');
    const putBack = await server.copyData();
    const first = world.worker();
    expect(await first.runOnce()).toBe(1);
    await first.stop();
    await putBack();
    await server.start();
    expect(await world.request(paid)).toMatchObject({ state: 'queued' });
    const worker = world.worker();
    expect(await worker.runOnce()).toBe(0);
    expect(await world.client.recover({ mode: 'freeze', ...NOTE })).toMatchObject({ frozen: 1 });
    await world.song('new');
    await waitFor(async () => (await worker.runOnce()) === 1, { what: 'the new one to be submitted' });
    expect(await world.request(paid)).toMatchObject({ state: 'ambiguous', state_reason: 'recovered' });
    expect(world.posts()).toBe(2);
  });

  test('is not suspected when the server only crashed, again and again, in the middle of writing', async () => {
    const world = await worldOn(server);
    const worker = world.worker();
    await worker.start();
    const { connectionString } = world.database;
    const app = createClient({ connectionString });
    onTestFinished(() => app.stop());
    await world.database.query('create table noise (n bigint, text text)');
    for (let round = 1; round <= 6; round++) {
      const posts = world.posts();
      await world.song(`round ${round}`);
      await waitFor(() => world.posts() > posts, { what: `POST ${round}` });
      const before = await noiseOf(world);
      // Attached at once: a crash ends it.
      const writing = Array.from({ length: 4 }, () => noise(world).catch(() => undefined));
      await waitFor(async () => (await noiseOf(world)) > before + 200, { what: 'noise' });
      await server.stop(round % 2 === 0 ? 'kill' : 'immediate');
      await Promise.all(writing);
      await server.start();
    }
    await world.song('the last');
    await waitFor(() => world.posts() === 7, { what: 'the last POST', timeoutMs: 40_000 });
    expect(troublesOf(world)).toEqual([]);
  });
});

async function noiseOf(world: World): Promise<number> {
  const [row] = await world.database.query<{ count: number }>('select count(*)::int from noise');
  return row?.count ?? 0;
}

/** Asynchronous commits of all sizes, so that a crash meets WAL that is written and not flushed, or neither. */
async function noise(world: World): Promise<void> {
  const client = await world.database.pool({ max: 1 }).connect();
  client.on('error', () => undefined);
  try {
    await client.query('set synchronous_commit = off');
    for (let n = 0; n < 10_000; n++) {
      await client.query(
        'insert into noise select n, repeat($$y$$, (random() * 9000)::int) from generate_series(1, 5) n',
      );
    }
  } finally {
    client.release(true);
  }
}

describe('a standby that took over', { timeout: 120_000 }, () => {
  test('is recognised by its timeline at once, before any checkpoint, and submits after a resumption', async () => {
    const primary = await startPrivateServer({
      max_wal_senders: '4',
      wal_level: 'replica',
      checkpoint_timeout: '1h',
    });
    onTestFinished(() => primary[Symbol.asyncDispose]());
    const world = await worldOn(primary);
    await world.song('before');
    const waiting = await world.song('waits', { submitBefore: new Date(Date.now() + 3_600_000) });
    await world.database.query(
      `update onetake.generation_requests set not_before = now() + interval '1 h' where id = '${waiting}'`,
    );
    const standby = await primary.addStandby();
    onTestFinished(() => standby.stop('immediate'));
    const onStandby = connectionStringOn(standby, world);
    const worker = world.worker();
    await worker.runOnce();
    expect(world.posts()).toBe(1);
    await caughtUp(primary, standby);
    await primary.stop('immediate');

    // Still a standby: nothing can be written, so nothing is submitted either.
    await standby.query('select pg_promote()');
    const [control] = await standby.query<{ timeline_id: number }>(
      'select timeline_id from pg_control_checkpoint()',
    );
    const there = createClient({ connectionString: onStandby });
    onTestFinished(() => there.stop());
    const onNew = world.worker({ connectionString: onStandby });
    for (let round = 0; round < 3; round++) expect(await onNew.runOnce()).toBe(0);
    expect(troublesOf(world)).toEqual(['another_timeline']);
    expect(await there.installation()).toMatchObject({
      present: { timeline: 2 },
      confirmed: { timeline: 1 },
    });
    // Which the control file didn't know when it was promoted, or only just.
    expect([1, 2]).toContain(control?.timeline_id);

    expect(await there.recover({ mode: 'resume', ...NOTE })).toMatchObject({ was: 'another_timeline' });
    await there.enqueue({
      operation: 'text-to-music',
      fields: { prompt: 'after', duration: 5 },
      requestKey: 'after',
    });
    await waitFor(async () => (await onNew.runOnce()) > 0, { what: 'the new primary to be submitted from' });
    expect(world.posts()).toBe(2);
  });

  test('without the last transactions is told by the worker that has them on the wire, and nobody pays twice', async () => {
    const primary = await startPrivateServer({ max_wal_senders: '4', wal_level: 'replica' });
    onTestFinished(() => primary[Symbol.asyncDispose]());
    const world = await worldOn(primary);
    const onTheWire = await world.song('on the wire');
    const standby = await primary.addStandby();
    onTestFinished(() => standby.stop('immediate'));
    await caughtUp(primary, standby);
    // The standby hears nothing more: what is committed from here on is lost with the primary.
    await standby.stop('fast');
    await standby.start({ primary_conninfo: '' });
    world.raw.onPost = hold;
    const proxy = await postgresProxy(world.database.connectionString);
    onTestFinished(() => proxy.stop());
    const worker = world.worker({ connectionString: proxy.connectionString });
    await worker.start();
    const call = await world.raw.post(1);

    await primary.stop('immediate');
    await standby.query('select pg_promote()');
    proxy.pass(standby.port);
    const there = createClient({ connectionString: connectionStringOn(standby, world) });
    onTestFinished(() => there.stop());
    await waitFor(async () => (await there.get(onTheWire))?.state === 'submitting', {
      what: 'the worker to tell the new primary',
      timeoutMs: 40_000,
    });
    // Now the failover is proven to have lost something.
    await expect(there.recover({ mode: 'resume', ...NOTE })).rejects.toMatchObject({
      code: 'installation_in_doubt',
    });
    expect(await there.recover({ mode: 'freeze', ...NOTE })).toMatchObject({ frozen: 0 });
    call.accept('its task');
    await waitFor(async () => (await there.get(onTheWire))?.state === 'accepted', { what: 'the acceptance' });
    expect(await there.get(onTheWire)).toMatchObject({ providerTaskId: 'its task', charge: 'charged' });
    expect(world.posts()).toBe(1);
  });
});

function connectionStringOn(at: PrivateServer, world: World): string {
  const url = new URL(world.database.connectionString);
  url.port = String(at.port);
  return url.href;
}

async function caughtUp(primary: PrivateServer, standby: PrivateServer): Promise<void> {
  const [row] = await primary.query<{ lsn: string }>('select pg_current_wal_flush_lsn()::text as lsn');
  await waitFor(
    async () =>
      (
        await standby.query<{ there: boolean }>(
          `select pg_last_wal_replay_lsn() >= '${row?.lsn}'::pg_lsn as there`,
        )
      )[0]?.there,
    { what: 'the standby to have everything', timeoutMs: 40_000 },
  );
}
