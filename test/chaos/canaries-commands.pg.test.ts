import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, it, onTestFinished } from 'vitest';
import { createCli } from '../cli/cli.ts';
import { startChild } from '../support/children.ts';
import type { ProviderCall } from '../support/raw-provider.ts';
import { expectNoCanary, fetched, film, KEY, openRawWorld, PROMPT, SOURCE, uploads } from './canaries.ts';

/** Said by `cli-child.ts` after each command, on both streams. */
const AFTER = '### exit ';

it('no command tells anything of a file, an address or a key, as text or as JSON', async () => {
  const world = await openRawWorld();
  const { client, raw } = world;
  const upload = await uploads();
  const path = upload();
  const answers: ((call: ProviderCall) => void)[] = [
    (call) => call.answer(418, call.body),
    (call) => call.accept(),
  ];
  raw.onPost = (call) => (answers.shift() as (call: ProviderCall) => void)(call);
  raw.onGet = (call) =>
    call.answer(200, {
      task_id: call.path.split('/').at(-1),
      status: 'succeeded',
      audio: [{ stream_index: 0, url: SOURCE, content_type: 'audio/mp4', file_size: 4 }],
    });
  const worker = world.worker({ credentials: () => KEY });
  const frozen = (await client.enqueue(film(path, 'frozen'))) as { id: string };
  await worker.runOnce();
  const linked = (await client.enqueue(fetched(SOURCE, 'linked'))) as { id: string };
  await worker.runOnce();
  await world.passTime(1_000);
  await world.poller({ credentials: () => KEY }).runOnce();
  expect(await client.get(linked.id)).toMatchObject({
    resultStatus: 'linked',
    files: [{ location: SOURCE }],
  });
  const waiting = (await client.enqueue(film(upload(), 'waiting'))) as { id: string };

  const cli = createCli({ config: world.config });
  const lines = [
    film(`${path}.none`, 'a'),
    film(path, 'b'),
    fetched('http://127.0.0.1/canary', 'c'),
    { fields: PROMPT },
  ];
  writeFileSync(join(cli.directory, 'jobs.ndjson'), lines.map((line) => JSON.stringify(line)).join('\n'));
  writeFileSync(join(cli.directory, 'torn.ndjson'), `{"canary": "${PROMPT}`);
  const enqueue = (...fields: string[]) => [
    'enqueue',
    'video-to-music',
    ...fields.flatMap((field) => ['--field', field]),
  ];
  const because = ['--reason', 'looked it up', '--actor', 'ada'];
  const commands: string[][] = [
    enqueue(`video=${path}.none`),
    enqueue(`video=/${'canary/'.repeat(2_000)}`),
    enqueue(`video=${path}`, `prompt=${PROMPT}`),
    enqueue(`video=${path}`, `video_url=${SOURCE}`),
    enqueue(`video_url=http://127.0.0.1/canary`, `segments=${PROMPT}`),
    enqueue(PROMPT),
    ['enqueue', 'video-to-music', '--field', `prompt=${PROMPT}`, 'and', PROMPT],
    ['enqueue', '--file', 'jobs.ndjson'],
    ['enqueue', '--file', 'torn.ndjson'],
    ['enqueue', '--file', `${path}.none`],
    ['requests', 'list'],
    ...[frozen, linked, waiting].map(({ id }) => ['requests', 'show', id]),
    ['requests', 'show', PROMPT],
    ['requests', 'cancel', frozen.id, ...because],
    ['requests', 'cancel', waiting.id, ...because],
    ['requests', 'acknowledge', frozen.id, ...because],
    ['ambiguous', 'list'],
    ['ambiguous', 'show', frozen.id],
    ['ambiguous', 'show', linked.id],
    ['ambiguous', 'reopen', linked.id, ...because],
    ['ambiguous', 'resolve', linked.id, '--accepted', 'task-9', ...because],
    ['ambiguous', 'resolve', frozen.id, '--not-accepted', '--yes', ...because],
    ['breaker', 'list', '--all'],
    ['breaker', 'show', 'sonilo/video-to-music'],
    ['breaker', 'history', 'sonilo/video-to-music'],
    ['breaker', 'force-open', 'sonilo/video-to-music', ...because],
    ['breaker', 'release', 'sonilo/video-to-music', ...because],
    ['accounts', 'list'],
    ['accounts', 'hold', 'default', ...because],
    ['accounts', 'release', 'default', ...because],
    ['recover'],
    ['recover', '--freeze', '--yes', ...because],
    ['migrate', '--check'],
    ['doctor'],
  ];
  const asText = commands.filter(([group, verb]) => group === 'doctor' || verb === 'show' || verb === 'list');
  const all = [...asText, ...commands.map((command) => [...command, '--json'])];
  const child = startChild({
    file: join(import.meta.dirname, 'cli-child.ts'),
    args: [JSON.stringify(all)],
    cwd: cli.directory,
    env: { DATABASE_URL: world.database.connectionString, SONILO_API_KEY: KEY },
  });
  onTestFinished(() => child[Symbol.asyncDispose]());
  await child.exited;
  const [stdout, stderr] = [child.stdout(), child.stderr()];
  expect(stdout.split(AFTER).length, stderr).toBe(all.length + 1);
  expectNoCanary({ stdout, stderr });
});
