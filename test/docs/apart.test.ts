import { mkdirSync, mkdtempSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect, onTestFinished, test } from 'vitest';
import { startChild } from '../support/children.ts';
import { waitFor } from '../support/wait-for.ts';
import { codeBlocks, REPOSITORY, readPage } from './pages.ts';

const page = readPage('docs/testing-your-app.md');
const [, section = ''] = page.text.split('## Worker and poller apart, without the provider\n');
const blocks = codeBlocks({ ...page, text: section });
const blocksOf = (language: string) =>
  blocks.filter((block) => block.language === language).map(({ code }) => code);

const PROGRAM = join(REPOSITORY, 'src', 'cli', 'onetake.ts');

test('the recipe for worker and poller apart runs word for word, but for the ports', async () => {
  const directory = mkdtempSync(join(tmpdir(), 'onetake-apart-'));
  const env: Record<string, string | undefined> = { DATABASE_URL: undefined, SONILO_API_KEY: undefined };
  const run = (file: string, args: readonly string[]) => {
    const child = startChild({ file, args, cwd: directory, env });
    onTestFinished(() => child[Symbol.asyncDispose]());
    return child;
  };
  const command = (line: string) => {
    const words = [...line.matchAll(/(?:[^\s']|'[^']*')+/g)].map(([word]) => word.replaceAll("'", ''));
    expect(words.slice(0, 2), line).toEqual(['npx', 'onetake']);
    return run(PROGRAM, words.slice(2));
  };
  onTestFinished(() => rmSync(directory, { recursive: true, force: true, maxRetries: 20 }));

  const [database = ''] = blocksOf('js');
  const [config = ''] = blocksOf('json');
  const [first = '', key = '', others = ''] = blocksOf('sh');
  const [node, simulate = ''] = first.trim().split('\n');
  const [migrate = '', worker = '', poller = '', enqueue = ''] = others.trim().split('\n');
  expect(node).toBe('node database.mjs');
  // What `npm i` would have put there.
  const installed = join(directory, 'node_modules', 'onetake');
  mkdirSync(installed, { recursive: true });
  symlinkSync(join(REPOSITORY, 'src'), join(installed, 'src'));
  writeFileSync(
    join(installed, 'package.json'),
    JSON.stringify({ name: 'onetake', type: 'module', exports: { './testing': './src/testing.ts' } }),
  );

  writeFileSync(join(directory, 'database.mjs'), database);
  const postgres = run(join(directory, 'database.mjs'), []);
  await waitFor(() => postgres.stdout().includes('\n'), { what: 'the database to be ready' });
  env['DATABASE_URL'] = /^export DATABASE_URL=(.+)\n$/.exec(postgres.stdout())?.[1];
  env['SONILO_API_KEY'] = /^export SONILO_API_KEY=(.+)\n$/.exec(key)?.[1];
  const simulator = command(simulate.replace(/port \d+/g, 'port 0'));
  const { url } = await simulator.message<{ event: string; url: string }>(
    (line) => line.event === 'simulator:ready',
    'the simulator to be ready',
  );
  const port = /--port (\d+)/.exec(simulate)?.[1];
  writeFileSync(
    join(directory, 'onetake.config.json'),
    config.replace(`http://127.0.0.1:${port}`, () => url),
  );
  expect((await command(migrate).exited).code).toBe(0);
  const processes = [command(worker), command(poller)];
  const song = command(enqueue);
  expect((await song.exited).code, song.stderr()).toBe(0);
  expect(song.stdout()).toMatch(/^state +succeeded: stored$/m);
  for (const child of processes) expect(await child.kill('SIGTERM')).toEqual({ code: 0, signal: null });
}, 60_000);
