import { existsSync } from 'node:fs';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect, it, onTestFinished } from 'vitest';
import { processIsAlive, startChild } from '../../support/children.ts';
import { waitFor } from '../../support/wait-for.ts';

const CLI = join(import.meta.dirname, '../../../src/cli/onetake.ts');
const STORY_MS = 100_000;

interface Outcome {
  readonly agrees: boolean;
  readonly differences: readonly string[];
  readonly figures: readonly {
    readonly name: string;
    readonly provider: number;
    readonly database: number;
  }[];
  readonly frozen: readonly { readonly settledAs: string | null }[];
  readonly waitedUntouched: number;
  readonly songs: readonly { readonly files: readonly { readonly location: string }[] }[];
  readonly processes: readonly { readonly pid: number }[];
}

/** One run for both facts, since it is the whole story: agreement, then a charge made by hand. */
it(
  'tells its story to books that agree, and fails once somebody charges a song twice by hand',
  async () => {
    const directory = await mkdtemp(join(tmpdir(), 'onetake-demo-test-'));
    onTestFinished(() => rm(directory, { recursive: true, force: true }));
    await using demo = startChild({
      file: CLI,
      args: ['demo', '--keep', '--json', '--directory', directory],
      // None of them may be read: nothing answers there.
      env: { DATABASE_URL: 'postgres://nobody@127.0.0.1:1/nothing', SONILO_API_KEY: 'sk_never' },
    });
    const told = (words: string) =>
      waitFor(
        async () => {
          if (demo.process.exitCode !== null) throw new Error(`the demo ended early\n${demo.stderr()}`);
          return demo.stderr().includes(words);
        },
        { what: words, timeoutMs: STORY_MS },
      );

    await told('The books agree.');
    await told('Ctrl-C ends it');
    const provider = /http:\/\/127\.0\.0\.1:\d+/.exec(demo.stderr())?.[0];
    const response = await fetch(`${provider}/v1/text-to-music`, {
      method: 'POST',
      headers: { authorization: 'Bearer sk_demo' },
      body: new URLSearchParams({
        prompt: 'candlelight, slow viola',
        duration: '8',
        output_format: 'wav',
        mode: 'async',
        variants_num: '1',
        stems: 'false',
      }),
    });
    expect(response.status).toBe(202);
    const exit = await demo.kill('SIGINT');

    const outcome = demo.messages[0] as Outcome;
    expect(demo.messages).toHaveLength(1);
    expect(exit.code).toBe(1);
    expect(outcome.agrees).toBe(false);
    expect(outcome.differences).toContain(
      'charged twice: the provider says 1, the database says 0, expected 0.',
    );
    expect(outcome.frozen.every(({ settledAs }) => settledAs !== null)).toBe(true);
    expect(outcome.waitedUntouched).toBeGreaterThan(10);
    const files = outcome.songs.flatMap((song) => song.files);
    expect(files).toHaveLength(30);
    expect(files.every(({ location }) => existsSync(join(directory, location)))).toBe(true);
    expect(outcome.processes.filter(({ pid }) => processIsAlive(pid))).toEqual([]);
  },
  STORY_MS + 30_000,
);
