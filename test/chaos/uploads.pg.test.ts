import { createServer, type IncomingMessage, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { describe, expect, it, onTestFinished } from 'vitest';
import { createCli } from '../cli/cli.ts';
import type { Child } from '../support/children.ts';
import { databaseTimePasses } from '../support/fleet.ts';
import { videoFile } from '../support/video-file.ts';
import { waitFor } from '../support/wait-for.ts';
import { openWorld, type World } from '../support/world.ts';

// Processes that are stopped, told to stop or killed while they send a large file. The ledger is the provider's.

const BYTES = 12_000_000;
const DEADLINES = { connectMs: 4_000, firstResponseMs: 20_000, submissionMs: 21_000 };
const PATIENT = { deadlines: DEADLINES, leaseMs: 30_000 };
const HASTY = {
  deadlines: { connectMs: 2_000, firstResponseMs: 4_000, submissionMs: 4_500 },
  leaseMs: 9_000,
};

/** A provider that begins to read an upload, and reads on when it is told to. */
async function hesitantProvider() {
  const begun: IncomingMessage[] = [];
  let whole = 0;
  const server = createServer((request: IncomingMessage, response: ServerResponse) => {
    request.on('error', () => undefined);
    if (request.method !== 'POST') return void response.end('{}');
    let bytes = 0;
    request.on('data', (chunk: Buffer) => {
      bytes += chunk.length;
    });
    request.once('data', () => {
      request.pause();
      begun.push(request);
    });
    request.on('end', () => {
      if (bytes !== Number(request.headers['content-length'])) return;
      whole++;
      response.writeHead(202).end('{"task_id":"task-1","status":"processing"}');
    });
  });
  server.on('connection', (socket) => socket.on('error', () => undefined));
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  onTestFinished(() => {
    server.closeAllConnections();
    server.close();
  });
  return {
    url: new URL(`http://127.0.0.1:${(server.address() as AddressInfo).port}`),
    begun,
    whole: () => whole,
    readOn: () => begun.at(-1)?.resume(),
  };
}

async function stage(operation: typeof PATIENT) {
  const provider = await hesitantProvider();
  const world = await openWorld({ provider: provider.url, operation });
  const { path } = await videoFile({ bytes: BYTES });
  const fields = { video: { file: path }, prompt: 'calm' };
  const enqueued = await world.client.enqueue({ operation: 'video-to-music', fields, requestKey: 'one' });
  const { id } = enqueued as { id: string };
  const sending = (count: number) =>
    waitFor(() => provider.begun.length === count, { what: 'the upload to begin', timeoutMs: 30_000 });
  return { world, provider, id, sending };
}

describe('a process that sends a large file', () => {
  it('told to stop, and again, sends all of it, stores the answer and exits 0', async () => {
    const { world, provider, id, sending } = await stage(PATIENT);
    const cli = createCli({
      config: world.config,
      env: { DATABASE_URL: world.database.connectionString, SONILO_API_KEY: 'sk_test_key' },
    });
    const child: Child = cli.start(['worker']);
    await sending(1);
    for (const signal of ['SIGTERM', 'SIGTERM', 'SIGINT'] as const) {
      child.process.kill(signal);
      await child.message<{ event?: string }>(({ event }) => event === 'process:stopping', 'it stops');
    }
    expect(await world.request(id)).toMatchObject({ state: 'submitting' });
    provider.readOn();
    expect(await child.exited).toEqual({ code: 0, signal: null });
    expect(child.stderr()).toBe('');
    expect(await world.request(id)).toMatchObject({
      state: 'accepted',
      submissions: 1,
      provider_task_id: 'task-1',
    });
    expect([provider.begun.length, provider.whole()]).toEqual([1, 1]);
  });

  it('killed: the provider never has the whole, and nobody sends it again', async () => {
    const { world, provider, id, sending } = await stage(PATIENT);
    const child = await world.child('worker');
    await sending(1);
    await child.kill('SIGKILL');
    provider.readOn();
    await world.passTime(PATIENT.leaseMs);
    const other = world.worker();
    for (let round = 0; round < 3; round++) await other.runOnce();
    expect(await world.request(id)).toMatchObject({ state: 'ambiguous', state_reason: 'worker_lost' });
    expect([provider.begun.length, provider.whole()]).toEqual([1, 0]);
  });

  it('stopped beyond its time, while others look after its request: sends no more of it when it goes on', async () => {
    const { world, provider, id, sending } = await stage(HASTY);
    const child = await world.child('worker');
    await sending(1);
    const startedAt = Number((await world.attempt(id))['started_at']);
    child.process.kill('SIGSTOP');
    await databaseTimePasses(world, HASTY.deadlines.submissionMs + 500, startedAt);
    await world.passTime(HASTY.leaseMs);
    const other = world.worker();
    await other.runOnce();
    expect(await world.request(id)).toMatchObject({ state: 'ambiguous', state_reason: 'worker_lost' });
    provider.readOn();
    child.process.kill('SIGCONT');
    await waitFor(async () => (await evidence(world)).length > 0, { what: 'its late word' });
    expect(await evidence(world)).toEqual([{ source: 'late_answer', certainty: 'unknown' }]);
    await other.runOnce();
    expect(await world.request(id)).toMatchObject({ state: 'ambiguous', submissions: 1 });
    expect([provider.begun.length, provider.whole()]).toEqual([1, 0]);
  });
});

const evidence = (world: World) =>
  world.database.query<{ source: string; certainty: string }>(
    `select source, certainty from onetake.attempt_evidence order by id`,
  );
