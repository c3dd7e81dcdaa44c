import { existsSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import type { Child } from '../support/children.ts';
import { createCli } from './cli.ts';

interface Ready {
  readonly event: string;
  readonly role?: string;
  readonly databaseUrl: string;
  readonly simulatorUrl: string;
}

const START_MS = 60_000;

async function untilReady(child: Child): Promise<Ready> {
  const ready = await child.message<Ready>((line) => line.event === 'dev:ready', 'dev was ready', START_MS);
  await child.message<Ready>(
    ({ event, role }) => event === 'process:started' && role === 'poller',
    'the poller ran',
  );
  return ready;
}

test('onetake dev runs all that an app needs, whatever the environment holds, and keeps port and data', async () => {
  // Neither works anywhere, not even at the simulator: a dev that used them would fail.
  const cli = createCli({
    env: { DATABASE_URL: 'postgres://nobody:canary@127.0.0.1:1/nowhere', SONILO_API_KEY: 'real-canary' },
  });
  const dev = cli.start(['dev']);
  const first = await untilReady(dev);
  expect(new URL(first.databaseUrl).hostname).toBe('127.0.0.1');
  expect(new URL(first.simulatorUrl).hostname).toBe('127.0.0.1');
  // The password of the database lies there.
  expect(readFileSync(join(cli.directory, '.onetake', '.gitignore'), 'utf8')).toBe('*\n');
  const env = { DATABASE_URL: first.databaseUrl };
  const args = [
    'enqueue',
    'text-to-music',
    '--field',
    'prompt=rain',
    '--field',
    'duration=5',
    '--wait',
    '--json',
  ];
  const { code, stdout } = await cli.run(args, env);
  expect(code).toBe(0);
  const request = JSON.parse(stdout) as { id: string; files: { location: string }[] };
  expect(existsSync(join(cli.directory, 'generations', request.files[0]?.location ?? ''))).toBe(true);
  expect(await dev.kill('SIGINT')).toEqual({ code: 0, signal: null });
  expect(dev.stdout() + dev.stderr()).not.toContain('canary');

  const again = cli.start(['dev']);
  expect((await untilReady(again)).databaseUrl).toBe(first.databaseUrl);
  expect(await cli.json(['requests', 'show', request.id], env)).toMatchObject({ state: 'succeeded' });
  // Its first signal may come at any time, also twice.
  again.process.kill('SIGTERM');
  expect(await again.kill('SIGTERM')).toEqual({ code: 0, signal: null });
}, 180_000);
