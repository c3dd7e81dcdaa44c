import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { createCli } from './cli.ts';

interface Ready {
  readonly event: string;
  readonly url: string;
  readonly filesUrl: string;
}

const FREE = ['--port', '0', '--files-port', '0'];

test('onetake simulate speaks as the provider, follows its script, prints JSON events and ends on SIGTERM', async () => {
  const cli = createCli();
  writeFileSync(join(cli.directory, 'outage.json'), '[{ "posts": [2, 2], "respond": { "status": 502 } }]');
  const child = cli.start(['simulate', ...FREE, '--script', 'outage.json']);
  const { url, filesUrl } = await child.message<Ready>(
    (line) => line.event === 'simulator:ready',
    'it was ready',
  );
  expect(new URL(filesUrl).port).not.toBe(new URL(url).port);
  const post = async () => {
    const body = new FormData();
    body.set('prompt', 'hunter2canary');
    body.set('mode', 'async');
    const headers = { authorization: 'Bearer sk_canary' };
    return (await fetch(`${url}/v1/text-to-music`, { method: 'POST', body, headers })).status;
  };
  expect([await post(), await post()]).toEqual([202, 502]);
  await child.message<{ event: string; status: number }>(
    ({ event, status }) => event === 'simulator:answer' && status === 502,
    'it told of the 502',
  );
  expect(await child.kill('SIGTERM')).toEqual({ code: 0, signal: null });
  expect(child.messages).toHaveLength(child.stdout().trimEnd().split('\n').length);
  expect(child.stdout()).not.toContain('canary');
});

test('onetake simulate refuses a script that is no JSON, one with a wrong rule, and a taken port', async () => {
  const cli = createCli();
  writeFileSync(join(cli.directory, 'broken.json'), '[{]');
  writeFileSync(join(cli.directory, 'wrong.json'), '[{ "post": [1, 2], "respond": {} }]');
  const refused = (...args: string[]) => cli.error(['simulate', ...args]);
  expect(await refused('--script', 'none.json')).toMatchObject({ code: 'invalid_option', exitCode: 2 });
  expect(await refused('--script', 'broken.json')).toMatchObject({
    message: expect.stringContaining("isn't valid JSON"),
    exitCode: 2,
  });
  expect(await refused('--script', 'wrong.json')).toMatchObject({ code: 'invalid_option', exitCode: 2 });
  const first = cli.start(['simulate', ...FREE]);
  const { url } = await first.message<Ready>((line) => line.event === 'simulator:ready', 'it was ready');
  expect(await refused('--port', new URL(url).port, '--files-port', '0')).toMatchObject({
    code: 'simulator_failed',
    exitCode: 1,
    hint: 'Another program has that port. Give --port another one, or 0 for a free one.',
  });
  expect((await refused('--port', '0', '--files-port', new URL(url).port)).hint).toContain('--files-port');
});
