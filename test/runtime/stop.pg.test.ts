import { mkdtempSync, readdirSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { describe, expect, it, onTestFinished } from 'vitest';
import { TcpProxy } from '../chaos/suite/tcp-proxy.ts';
import { COMMIT, databaseProxy } from '../support/database-proxy.ts';
import { hold, type ProviderCall } from '../support/raw-provider.ts';
import { waitFor } from '../support/wait-for.ts';
import { openWorld, type World } from '../support/world.ts';

/** Every connection through it hangs until it is told otherwise. */
async function silentDatabase(world: World): Promise<{ tcp: TcpProxy; connectionString: string }> {
  const url = new URL(world.database.connectionString);
  const target = Number(url.port || 5432);
  const tcp = await TcpProxy.open(() => target);
  onTestFinished(() => tcp.close());
  tcp.stall();
  url.hostname = '127.0.0.1';
  url.port = String(tcp.port);
  return { tcp, connectionString: url.href };
}

const stateOf = async (world: World, id: string) => (await world.request(id))['state'];

describe('a worker that is told to stop', () => {
  it('while its admission is being committed sends nothing of it, and gives it back', async () => {
    const world = await openWorld({ provider: 'raw' });
    const proxy = await databaseProxy(world.database.connectionString);
    onTestFinished(() => proxy.stop());
    const ids = await world.songs(3);
    const worker = world.worker({ connectionString: proxy.connectionString });
    const committing = proxy.holdAt(COMMIT, 'insert into onetake.submission_attempts');
    await worker.start();
    const commit = await committing;
    const stopped = worker.stop();
    await commit.release();
    await stopped;
    expect(world.posts()).toBe(0);
    for (const id of ids) {
      expect(await world.request(id)).toMatchObject({ state: 'queued', state_reason: 'unsent_own_doing' });
      expect(await world.attempts(id)).toMatchObject([{ certainty: 'unsent', error_code: 'gate_closed' }]);
    }
    // And they go out as soon as somebody may send them.
    await world.passTime(2_000);
    await world.worker().runOnce();
    expect(world.posts()).toBe(3);
  });

  it.each(['worker', 'poller'] as const)(
    'as it starts, with a database that keeps silent: a %s',
    async (role) => {
      const world = await openWorld({ provider: 'raw' });
      const { tcp, connectionString } = await silentDatabase(world);
      const process = world[role]({ connectionString });
      const starting = process.start();
      await waitFor(() => tcp.connections > 0, { what: 'a connection' });
      const told = performance.now();
      await process.stop();
      await starting;
      // Connecting alone may take 10 s.
      expect(performance.now() - told).toBeLessThan(8_000);
      expect(world.events.map(({ name }) => name)).not.toContain('process:started');
    },
  );

  it('by the end of its scope settles its POST first', async () => {
    const world = await openWorld({ provider: 'raw' });
    world.raw.onPost = hold;
    const id = await world.song('one');
    const scope = async () => {
      await using worker = world.worker();
      await worker.start();
      const call = await world.raw.post(1);
      setImmediate(() => call.accept());
    };
    await scope();
    expect(await stateOf(world, id)).toBe('accepted');
  });

  it('ends although its last commit hangs: the outcome is in the spool', async () => {
    const world = await openWorld({ provider: 'raw' });
    const { tcp, connectionString } = await silentDatabase(world);
    tcp.pass();
    world.raw.onPost = hold;
    const id = await world.song('one');
    const worker = world.worker({ connectionString });
    await worker.start();
    const call = await world.raw.post(1);
    const stopped = worker.stop();
    tcp.stall();
    call.accept('paid-for');
    const told = performance.now();
    await stopped;
    expect(performance.now() - told).toBeLessThan(45_000);
    expect(await stateOf(world, id)).toBe('submitting');
    await world.worker().runOnce();
    expect(await world.request(id)).toMatchObject({ state: 'accepted', provider_task_id: 'paid-for' });
    expect(world.posts()).toBe(1);
  }, 90_000);
});

describe('a poller that is told to stop', () => {
  it('gives a file up that doesn’t come, and leaves the task to the next poller at once', async () => {
    const directory = mkdtempSync(join(tmpdir(), 'onetake-stop-'));
    onTestFinished(() => rmSync(directory, { recursive: true, force: true }));
    const world = await openWorld({
      provider: 'raw',
      config: { storage: { directory, allowPrivateHosts: true } },
    });
    const id = await world.song('one');
    await world.worker().runOnce();
    await world.passTime(4_000);
    const wave = Buffer.concat([Buffer.from('RIFF\0\0\0\0WAVEfmt '), Buffer.alloc(984)]);
    const file = (call: ProviderCall, part: Buffer) => {
      call.response.writeHead(200, { 'content-type': 'audio/wav', 'content-length': wave.length });
      if (part.length === wave.length) call.response.end(part);
      else call.response.write(part);
    };
    let part = wave.subarray(0, 500);
    world.raw.onGet = (call) => {
      if (call.path.startsWith('/file')) return file(call, part);
      const url = `${world.raw.url}/file.wav`;
      const audio = [{ stream_index: 0, url, content_type: 'audio/wav', file_size: wave.length }];
      call.answer(200, { task_id: call.path.split('/').at(-1), status: 'succeeded', audio });
    };
    const poller = world.poller();
    await poller.start();
    await waitFor(() => world.raw.gets.some(({ path }) => path.startsWith('/file')), {
      what: 'the download',
    });

    await poller.stop();

    const [row] = await world.database.query(
      'select state, poll_errors, next_poll_at <= clock_timestamp() as due from onetake.generation_requests',
    );
    expect(row).toEqual({ state: 'accepted', poll_errors: 0, due: true });
    expect(world.events.filter(({ name }) => name === 'asset:failed')).toEqual([]);
    expect(readdirSync(directory, { recursive: true })).toEqual(['.partial']);
    part = wave;
    await world.poller().runOnce();
    expect(await world.request(id)).toMatchObject({ state: 'succeeded', result_status: 'stored' });
  }, 60_000);
});
