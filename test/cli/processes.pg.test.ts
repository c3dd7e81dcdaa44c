import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import type { Child } from '../support/children.ts';
import { insertRequest } from '../support/fixtures.ts';
import { waitFor } from '../support/wait-for.ts';
import { KEY, setStage } from './stage.ts';

interface Line {
  readonly event: string;
  readonly role?: string;
  readonly to?: string;
}

const PROMPT = 'hunter2canary waltz';

const untilStarted = (child: Child, role: string) =>
  child.message<Line>(
    (line) => line.event === 'process:started' && line.role === role,
    `the ${role} started`,
  );

function promise(): { readonly fulfilled: Promise<void>; fulfil(): void } {
  let fulfil = () => {};
  const fulfilled = new Promise<void>((resolve) => {
    fulfil = resolve;
  });
  return { fulfilled, fulfil: () => fulfil() };
}

describe('worker and poller processes', () => {
  test.each([['SIGTERM'], ['SIGINT'], ['SIGHUP']] as const)(
    'a worker told %s lets its POST end, settles it and exits 0',
    async (signal) => {
      const [posted, released] = [promise(), promise()];
      const { cli, database } = await setStage({
        onPost: async () => {
          posted.fulfil();
          await released.fulfilled;
        },
      });
      const worker = cli.start(['worker']);
      const { id } = await cli.json<{ id: string }>(['enqueue', 'text-to-music', '--field', 'prompt=rain']);
      await posted.fulfilled;
      worker.process.kill(signal);
      await worker.message<Line>((line) => line.event === 'process:stopping', 'it began to stop');
      // A second signal changes nothing: the POST is paid for.
      worker.process.kill(signal);
      const held = await database.query('select state from onetake.generation_requests where id = $1', [id]);
      expect(held).toEqual([{ state: 'submitting' }]);
      released.fulfil();
      expect(await worker.exited).toEqual({ code: 0, signal: null });
      const settled = await database.query('select state from onetake.generation_requests where id = $1', [
        id,
      ]);
      expect(settled).toEqual([{ state: 'accepted' }]);
      expect(worker.stderr()).toBe('');
    },
  );

  test('start runs both; every line of its stdout is one JSON event', async () => {
    const { cli } = await setStage();
    const child = cli.start(['start']);
    await Promise.all([untilStarted(child, 'worker'), untilStarted(child, 'poller')]);
    expect(await child.kill('SIGTERM')).toEqual({ code: 0, signal: null });
    const lines = child.stdout().trimEnd().split('\n');
    expect(child.messages).toHaveLength(lines.length);
    const stopped = child.messages.filter((line) => (line as Line).event === 'process:stopped');
    expect(stopped.map((line) => (line as Line).role).sort()).toEqual(['poller', 'worker']);
  });

  test('a worker whose reader leaves drains and exits 0, without a word', async () => {
    const { cli } = await setStage();
    const worker = cli.start(['worker']);
    await untilStarted(worker, 'worker');
    worker.process.stdout?.destroy();
    // What it says next meets the closed pipe.
    await cli.json(['enqueue', 'text-to-music', '--field', 'prompt=rain']);
    expect(await worker.exited).toEqual({ code: 0, signal: null });
    expect(worker.stderr()).toBe('');
  });

  test('a list whose reader leaves ends quietly', async () => {
    const { cli, database } = await setStage();
    await insertRequest(database);
    const list = cli.start(['requests', 'list', '--json']);
    list.process.stdout?.destroy();
    expect(await list.exited).toEqual({ code: 0, signal: null });
    expect(list.stderr()).toBe('');
  });

  test('a schema that goes on being missing stops a start before anything ran', async () => {
    const { cli, database } = await setStage();
    await database.query('drop schema onetake cascade');
    const child = cli.start(['start']);
    expect(await child.exited).toEqual({ code: 1, signal: null });
    expect(child.stdout()).toBe('');
    expect(child.stderr()).toMatch(
      /^error: The database has no onetake schema yet\.\nhint: .*onetake migrate/,
    );
  });

  test('neither key nor prompt nor a URL is ever written to stdout or stderr', async () => {
    const { cli, database } = await setStage();
    const running = [cli.start(['worker']), cli.start(['poller'])];
    const written: string[] = [];
    const run = async (...args: string[]) => {
      const { stdout, stderr } = await cli.run(args);
      written.push(stdout, stderr);
    };
    const enqueue = (fault: string, ...more: string[]) =>
      run(
        'enqueue',
        'text-to-music',
        '--field',
        `prompt=${PROMPT} ${fault}`,
        '--field',
        'duration=5',
        ...more,
      );
    await enqueue('', '--wait');
    await enqueue('[simulate fail=internal_error]', '--wait', '--json');
    await enqueue('[simulate status=400]', '--wait');
    await enqueue('[simulate status=502]', '--wait');
    await enqueue('[simulate end=reset]', '--wait');
    await enqueue('[simulate status=401]');
    await waitFor(
      async () =>
        (await database.query('select id from onetake.account_holds')).length > 0 ? true : undefined,
      { what: 'the refused key to hold the account' },
    );
    await run('requests', 'list');
    for (const what of ['requests', 'ambiguous', 'accounts']) await run(what, 'list', '--json');
    for (const child of running) {
      expect(await child.kill('SIGTERM')).toEqual({ code: 0, signal: null });
      written.push(child.stdout(), child.stderr());
    }
    const all = written.join('');
    expect(all).toContain('"event":"submission:settled"');
    for (const secret of ['canary', KEY, 'http://', 'postgres://', 'postgresql://']) {
      expect(all).not.toContain(secret);
    }
    const [directory] = readdirSync(join(cli.directory, 'generations')).filter((name) => name !== '.partial');
    expect(
      readFileSync(join(cli.directory, 'generations', directory as string, '0.wav')).length,
    ).toBeGreaterThan(1_000);
  }, 120_000);
});
