import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { expect, it } from 'vitest';
import { startChild } from '../../support/children.ts';

const LEASH = join(import.meta.dirname, '../../../src/cli/demo/end-with-parent.ts');

function leashed(module: string) {
  return startChild({ module, execArgv: ['--import', pathToFileURL(LEASH).href] });
}

it('ends a busy child when the pipe from its parent closes, as it does at a SIGKILL', async () => {
  await using child = leashed('setInterval(() => {}, 1_000); console.log(\'"ready"\');');
  await child.message((message) => message === 'ready', 'it was ready');

  child.process.stdin?.end();

  expect(await child.exited).toEqual({ code: 0, signal: null });
});

it('does not keep a child that has nothing left to do', async () => {
  await using child = leashed('process.exitCode = 7;');

  expect(await child.exited).toEqual({ code: 7, signal: null });
});
