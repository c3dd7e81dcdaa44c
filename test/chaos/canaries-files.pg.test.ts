import { execFileSync } from 'node:child_process';
import { appendFileSync, mkdirSync, readdirSync, readFileSync, rmSync, truncateSync } from 'node:fs';
import { createServer, type Socket } from 'node:net';
import { dirname, join } from 'node:path';
import { expect, it, onTestFinished, vi } from 'vitest';
import type { EnqueueInput } from '../../src/index.ts';
import { observe } from '../../src/runtime/observe.ts';
import { createEventLog } from '../../src/telemetry/event-log.ts';
import type { ProcessOptions } from '../../src/worker.ts';
import type { ProviderCall } from '../support/raw-provider.ts';
import type { World } from '../support/world.ts';
import {
  expectCleanSessions,
  expectCleanTables,
  expectNoCanary,
  fetched,
  film,
  KEY,
  openRawWorld,
  SOURCE,
  uploads,
} from './canaries.ts';

// Uploads that are marked in their names, their folders, their content and the addresses they may be fetched from,
// on every way to fail that we know; and everything that a process then says of them, to whomever.

/** Everything that this world's processes tell: events, the log at its most talkative, metrics, stdout, stderr. */
async function listenTo(world: World) {
  const told: { events: unknown[]; log: string; written: string } = { events: [], log: '', written: '' };
  const write = (line: string) => {
    told.log += line;
  };
  const log = createEventLog({ level: 'debug', destination: { write } });
  const observation = observe({
    host: '127.0.0.1',
    port: 0,
    connectionString: world.database.connectionString,
    processes: 1,
    onEvent: (name, event) => told.events.push([name, event]),
  });
  await observation.start();
  onTestFinished(() => observation.stop());
  const [, { port }] = told.events[0] as [string, { port: number }];
  for (const stream of [process.stdout, process.stderr]) {
    const spy = vi.spyOn(stream, 'write').mockImplementation((chunk) => {
      told.written += String(chunk);
      return true;
    });
    onTestFinished(() => spy.mockRestore());
  }
  const onEvent = ((name, event) => {
    told.events.push([name, event]);
    log(name, event);
    observation.onEvent(name, event);
  }) as NonNullable<ProcessOptions['onEvent']>;
  const metrics = async () => (await fetch(`http://127.0.0.1:${port}/metrics`)).text();
  return { told, metrics, options: { onEvent, credentials: () => KEY } };
}

/** Reads the first bytes of each upload, does that, and goes on reading. */
async function interfering(then: (socket: Socket) => void): Promise<string> {
  const server = createServer((socket) => {
    socket.on('error', () => undefined);
    socket.once('data', () => {
      socket.pause();
      then(socket);
      socket.resume();
    });
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  onTestFinished(() => void server.close());
  return `http://127.0.0.1:${(server.address() as { port: number }).port}`;
}

async function calm({ database }: World): Promise<void> {
  await database.query(
    `update onetake.account_holds set ended_at = now(), ended_by = 'test' where ended_at is null`,
  );
  await database.query(`update onetake.accounts set paused_until = null`);
  await database.query(`update onetake.circuit_breakers set state = 'closed', opened_at = null, retry_at = null,
    probe_attempt_id = null, probe_request_id = null, consecutive_failures = 0`);
}

it('uploads tell nothing of their names, folders, content and addresses, on whatever way they fail', async () => {
  const world = await openRawWorld();
  const { database, raw, client } = world;
  const { told, metrics, options } = await listenTo(world);
  const upload = await uploads();
  const worker = world.worker(options);
  const poller = world.poller(options);
  const cancelWaiting = async () => {
    for (const { id } of await client.list({ state: 'queued' })) {
      await client.cancel(id, { actor: 'an operator', reason: 'no longer wanted' });
    }
  };
  const enqueue = async (input: EnqueueInput) => ((await client.enqueue(input)) as { id: string }).id;

  // Gone, another one, none at all, a pipe: found out when its turn comes.
  const harms: ((path: string) => void)[] = [
    (path) => rmSync(path),
    (path) => appendFileSync(path, 'x'),
    (path) => {
      rmSync(path);
      mkdirSync(path);
    },
    (path) => {
      rmSync(path);
      execFileSync('mkfifo', [path]);
    },
    (path) => {
      rmSync(dirname(path), { recursive: true });
      mkdirSync(dirname(path));
    },
  ];
  for (const [n, harm] of harms.entries()) {
    const path = upload();
    await enqueue(film(path, `harmed ${n}`));
    harm(path);
    await worker.runOnce();
  }
  expect(raw.posts).toHaveLength(0);
  const codes = await database.query<{ code: string }>(
    'select distinct error_code as code from onetake.submission_attempts order by 1',
  );
  expect(codes.map(({ code }) => code)).toEqual(['media_changed', 'media_missing', 'media_unreadable']);
  await cancelWaiting();

  // Answers that repeat what they were sent: the whole form, the address, the key.
  const echo = (call: ProviderCall) => `${call.authorization} ${call.body}`;
  const answers: ((call: ProviderCall) => void)[] = [
    (call) => call.answer(202, echo(call)),
    (call) => call.answer(422, { code: SOURCE, message: echo(call), detail: [{ loc: echo(call) }] }),
    (call) =>
      call.answer(400, {
        code: call.body.includes('canary-token') ? 'canary-token' : 'canary',
        message: echo(call),
      }),
    (call) => call.answer(502, echo(call), { 'retry-after': KEY, 'x-request-id': KEY }),
    (call) => call.answer(308, echo(call), { location: SOURCE }),
    (call) => call.socket.end(`HTTP/1.1 200 ${KEY}\r\ncontent-length: 9999\r\n${KEY}: ${KEY}\r\n\r\n${KEY}`),
    (call) => call.socket.end(`${KEY}\r\n\r\n`),
    (call) => call.socket.resetAndDestroy(),
    (call) => call.accept(),
    (call) => call.answer(402, { code: 'sk_canary_key_91bd', message: echo(call) }),
  ];
  for (const [n, answer] of answers.entries()) {
    raw.onPost = (call) => {
      // While the POST is out: what the sessions and the queue hold then.
      const tables = n % 4 === 0 ? expectCleanTables(database) : undefined;
      void Promise.all([expectCleanSessions(database), tables]).then(
        ([sessions]) => {
          expect(sessions).toBeGreaterThan(0);
          answer(call);
        },
        (leak: unknown) => {
          told.events.push(String(leak));
          call.accept();
        },
      );
    };
    for (const input of [film(upload(), `film ${n}`), fetched(SOURCE, `fetched ${n}`)]) {
      await enqueue(input);
      await calm(world);
      await worker.runOnce();
    }
  }
  await worker.stop();
  expect(raw.posts.length).toBeGreaterThanOrEqual(2 * answers.length - 1);
  await cancelWaiting();

  // Cut in the middle of its body, and a file that somebody shortens, or writes to, meanwhile.
  for (const harm of [
    undefined,
    (path: string) => truncateSync(path, 10),
    (path: string) => appendFileSync(path, '!'),
  ]) {
    const path = upload(4_000_000);
    const baseUrl = await interfering((socket) =>
      harm === undefined ? socket.resetAndDestroy() : harm(path),
    );
    await enqueue(film(path, `cut ${harm}`));
    await calm(world);
    const config = {
      ...world.config,
      providers: { sonilo: { baseUrl } },
      operations: {
        'video-to-music': { deadlines: { connectMs: 500, firstResponseMs: 700, submissionMs: 800 } },
      },
    };
    const cut = world.worker({ ...options, config });
    await cut.runOnce();
    await cut.stop();
  }
  expect(
    await database.query(
      `select error_code from onetake.submission_attempts order by started_at desc limit 3`,
    ),
  ).toEqual(
    [
      'first_response_deadline',
      'media_changed',
      expect.stringMatching(/ECONNRESET|EPIPE|UND_ERR_SOCKET/),
    ].map((error_code) => ({ error_code })),
  );

  // What the database refuses, whose errors hold whole rows; and an outcome that goes to the disk meanwhile.
  const settling = world.worker(options);
  raw.onPost = (call) => call.accept(`task-${call.number}`);
  for (const refused of [`state <> 'submitting'`, `state <> 'accepted'`]) {
    await enqueue(film(upload(), `refused ${refused}`));
    await calm(world);
    await database.query(
      `alter table onetake.generation_requests add constraint refuses check (${refused}) not valid`,
    );
    const running = settling.runOnce();
    const spool = world.config.worker?.spoolDirectory as string;
    if (refused.includes('accepted')) {
      await vi.waitFor(
        () => expect(readdirSync(spool).filter((name) => /^[0-9a-f-]{36}\.json$/.test(name))).toHaveLength(1),
        10_000,
      );
    } else await running;
    for (const name of readdirSync(spool))
      expectNoCanary({ [name]: readFileSync(join(spool, name), 'utf8') });
    await database.query('alter table onetake.generation_requests drop constraint refuses');
    await running;
  }
  await settling.stop();
  raw.onGet = (call) => call.answer(500, `${KEY} ${SOURCE}`);
  for (let n = 0; n < 3; n++) {
    await poller.runOnce();
    await world.passTime(60_000);
  }
  await poller.stop();

  expectNoCanary({
    ...told,
    metrics: await metrics(),
    listed: await client.list(),
    frozen: await client.listAmbiguous(),
  });
  for (const { id } of await client.list()) expectNoCanary({ [id]: await client.get(id) });
  expect(await expectCleanTables(database)).toBeGreaterThan(60);
  expect(told.log.split('\n').length).toBeGreaterThan(80);
});
