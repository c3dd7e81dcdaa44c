import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect, it, onTestFinished } from 'vitest';
import { createEventLog } from '../../src/telemetry/event-log.ts';
import type { ProcessOptions } from '../../src/worker.ts';
import type { ProviderCall } from '../support/raw-provider.ts';
import { openWorld } from '../support/world.ts';
import { expectCleanTables, expectNoCanary } from './canaries.ts';

// Marked customer data goes through every failure that we know; afterwards it is where it belongs, and
// nowhere else.

const PROMPT = 'canary-prompt-7f3a';
const KEY = 'sk_canary_key_91bd';
const RESULT = 'canary-result-c04e';
const ANSWER = 'canary-answer-58aa';

it('prompts, keys, URLs and raw answers reach no log, no error, no job and no table but their own column', async () => {
  const directory = await mkdtemp(join(tmpdir(), 'onetake-generations-'));
  onTestFinished(() => rm(directory, { recursive: true, force: true }));
  const world = await openWorld({
    provider: 'raw',
    config: {
      storage: { directory, allowPrivateHosts: true },
      poller: { intervalMs: 50, maxIntervalMs: 50 },
    },
  });
  const { database, raw } = world;
  const lines: string[] = [];
  const log = createEventLog({ level: 'debug', destination: { write: (line) => void lines.push(line) } });
  const seen: unknown[] = [];
  const options = {
    credentials: () => KEY,
    onEvent: ((name, event) => {
      seen.push([name, event]);
      log(name, event);
    }) as NonNullable<ProcessOptions['onEvent']>,
  };
  const echo = (call: ProviderCall) => `${ANSWER} ${call.authorization} ${call.body}`;
  const detail = (call: ProviderCall) => ({
    code: echo(call),
    message: echo(call),
    detail: [{ msg: echo(call) }],
  });
  const answers: ((call: ProviderCall) => void)[] = [
    (call) => call.answer(202, echo(call)),
    (call) => call.answer(202, { task_id: 17, note: echo(call) }),
    (call) => call.answer(400, detail(call)),
    (call) => call.answer(422, detail(call)),
    (call) => call.answer(418, detail(call)),
    (call) => call.answer(502, echo(call), { 'retry-after': KEY }),
    (call) => call.answer(307, echo(call), { location: `http://${RESULT}/` }),
    (call) => call.answer(429, detail(call), { 'retry-after': ANSWER }),
    (call) => call.socket.resetAndDestroy(),
    (call) => call.socket.end(`HTTP/1.1 999 ${ANSWER}\r\n\r\n`),
    (call) => call.socket.end(`${ANSWER}\r\n\r\n`),
    (call) => call.answer(401, detail(call)),
    (call) => call.accept(),
  ];
  const worker = world.worker(options);
  const poller = world.poller(options);
  raw.onGet = (call) => {
    const media = {
      stream_index: 0,
      url: `http://127.0.0.1:9/${RESULT}?token=${KEY}`,
      content_type: ANSWER,
      file_size: 4,
    };
    call.answer(200, {
      task_id: call.path.split('/').at(-1),
      status: 'succeeded',
      audio: [media],
      title: { title: PROMPT },
    });
  };
  for (const [n, answer] of answers.entries()) {
    raw.onPost = answer;
    await world.song(`request ${n}`, { prompt: `${PROMPT} ${n}` });
    await worker.runOnce();
    await database.query(
      `update onetake.account_holds set ended_at = now(), ended_by = 'test' where ended_at is null`,
    );
    await database.query(`update onetake.circuit_breakers set state = 'closed', opened_at = null, retry_at = null,
      probe_attempt_id = null, probe_request_id = null, consecutive_failures = 0`);
    await world.passTime(120_000);
  }
  raw.onPost = (call) => call.accept();
  await worker.runOnce();
  for (let n = 0; n < 4; n++) {
    await poller.runOnce();
    await world.passTime(60_000);
  }
  // A worker is lost, a row is refused by the database, and the database goes away.
  await world.song('broken', { prompt: `${PROMPT} broken` });
  await database.query(
    `alter table onetake.submission_attempts add constraint refuses check (worker <> worker)  not valid`,
  );
  await worker.runOnce();
  await database.query('alter table onetake.submission_attempts drop constraint refuses');
  const frozen = await world.client.listAmbiguous();
  await world.client.resolve({
    id: frozen[0]?.id as string,
    as: 'not_accepted',
    force: true,
    actor: 'an operator',
    reason: 'not in the ledger',
  });
  await worker.runOnce();
  await worker.stop();
  await poller.stop();

  expect(raw.posts.length).toBeGreaterThanOrEqual(answers.length);
  expect(seen.length).toBeGreaterThan(2 * answers.length);
  const told = { lines: lines.join(''), seen, frozen };
  expectNoCanary(told);
  expect(await expectCleanTables(database)).toBeGreaterThan(3 * answers.length);
});
