import { spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, onTestFinished, test } from 'vitest';
import { TcpProxy } from '../chaos/suite/tcp-proxy.ts';
import type { Child } from '../support/children.ts';
import { hold, type ProviderCall } from '../support/raw-provider.ts';
import { waitFor } from '../support/wait-for.ts';
import { LEASE_MS, openWorld, type World } from '../support/world.ts';
import { type Cli, createCli } from './cli.ts';

// Signals of real processes, with everything in flight that there is.

interface Line {
  readonly event: string;
  readonly role?: string;
}

async function stage(): Promise<{ world: World; cli: Cli }> {
  const world = await openWorld({
    provider: 'raw',
    config: { poller: { intervalMs: 50, maxIntervalMs: 50, concurrency: 20 } },
  });
  const cli = createCli({
    config: world.config,
    env: { DATABASE_URL: world.database.connectionString, SONILO_API_KEY: 'sk_test_key' },
  });
  return { world, cli };
}

const stopping = (child: Child, role: string) =>
  child.message<Line>((line) => line.event === 'process:stopping' && line.role === role, `the ${role} stops`);
const processing = (call: ProviderCall): void =>
  call.answer(200, { task_id: call.path.split('/').at(-1), status: 'processing' });

/** Twenty accepted tasks that are being read, five POSTs on the wire, and one more song than that. */
async function underWay(
  world: World,
  cli: Cli,
): Promise<{ child: Child; ids: string[]; accepted: string[] }> {
  const accepted = await world.songs(20, 'accepted');
  const first = world.worker();
  while ((await first.runOnce()) > 0);
  await first.stop();
  expect(world.posts()).toBe(20);
  await world.passTime(1_000);
  world.raw.onPost = hold;
  world.raw.onGet = hold;
  const ids = await world.songs(5, 'in flight');
  const child = cli.start(['start']);
  await waitFor(() => world.posts() === 25 && world.raw.gets.length === 20, {
    what: 'five POSTs and twenty reads in flight',
    timeoutMs: 60_000,
  });
  return { child, ids, accepted };
}

describe('a process with five POSTs and twenty reads in flight', () => {
  test('told to stop again and again lets each end, stores it, and exits 0', async () => {
    const { world, cli } = await stage();
    const { child, ids, accepted } = await underWay(world, cli);
    child.process.kill('SIGTERM');
    await Promise.all([stopping(child, 'worker'), stopping(child, 'poller')]);
    const late = await world.song('late');
    for (const signal of ['SIGTERM', 'SIGINT', 'SIGTERM', 'SIGHUP', 'SIGINT'] as const) {
      child.process.kill(signal);
    }
    for (const id of ids) expect(await world.request(id)).toMatchObject({ state: 'submitting' });

    for (const call of world.raw.gets) processing(call);
    // One after the other: the last of them is waited for as well.
    for (const [n, call] of world.raw.posts.slice(20).entries()) {
      call.accept();
      await waitFor(
        async () => {
          const states = await Promise.all(ids.map(async (id) => (await world.request(id))['state']));
          return states.filter((state) => state === 'accepted').length === n + 1;
        },
        { what: `answer ${n + 1} to be stored` },
      );
    }
    expect(await child.exited).toEqual({ code: 0, signal: null });
    expect(child.stderr()).toBe('');
    const ended = child.messages.filter((line) => (line as Line).event === 'process:stopped');
    expect(ended.map((line) => (line as Line).role).sort()).toEqual(['poller', 'worker']);
    expect(world.posts()).toBe(25);
    expect(await world.request(late)).toMatchObject({ state: 'queued', submissions: 0 });
    for (const id of [...ids, ...accepted]) {
      expect(await world.request(id)).toMatchObject({ state: 'accepted', submissions: 1, poll_errors: 0 });
    }
    // The next one sends what waits and nothing else.
    world.raw.onPost = (call) => call.accept();
    await world.worker().runOnce();
    expect(world.posts()).toBe(26);
    expect(await world.request(late)).toMatchObject({ state: 'accepted' });
  }, 120_000);

  test('killed in the middle of that is a crash: each POST was made once, and none is made again', async () => {
    const { world, cli } = await stage();
    const { child, ids, accepted } = await underWay(world, cli);
    child.process.kill('SIGTERM');
    await stopping(child, 'worker');
    world.raw.posts[20]?.accept();
    await waitFor(
      async () => Object.values(await world.states()).filter((state) => state === 'accepted').length === 21,
      { what: 'the one answer to be stored' },
    );
    expect(await child.kill('SIGKILL')).toEqual({ code: null, signal: 'SIGKILL' });

    await world.passTime(LEASE_MS + 1);
    const next = world.worker();
    for (let n = 0; n < 3; n++) {
      await next.runOnce();
      await world.passTime(60_000);
    }
    const states = await Promise.all(ids.map(async (id) => (await world.request(id))['state']));
    expect(states.sort()).toEqual(['accepted', 'ambiguous', 'ambiguous', 'ambiguous', 'ambiguous']);
    for (const id of accepted) expect(await world.request(id)).toMatchObject({ state: 'accepted' });
    expect(world.posts()).toBe(25);
  }, 120_000);
});

describe('a process whose database keeps silent', () => {
  test.each([['worker'], ['poller'], ['start']])(
    '%s: told to stop as it starts, exits 0 at once',
    async (role) => {
      const { world, cli } = await stage();
      const proxy = await silentDatabase(world);
      const child = cli.start([role], { DATABASE_URL: proxy.url });
      await waitFor(() => proxy.tcp.connections > 0, { what: 'a connection', timeoutMs: 60_000 });
      const told = performance.now();
      expect(await child.kill('SIGTERM')).toEqual({ code: 0, signal: null });
      // Connecting alone may take 10 s.
      expect(performance.now() - told).toBeLessThan(8_000);
      expect(child.stderr()).toBe('');
    },
    60_000,
  );

  test('while a POST is in flight: its outcome goes to the spool, and the process ends all the same', async () => {
    const { world, cli } = await stage();
    const proxy = await silentDatabase(world);
    proxy.tcp.pass();
    world.raw.onPost = hold;
    const id = await world.song('one');
    const child = cli.start(['worker'], { DATABASE_URL: proxy.url });
    const call = await world.raw.post(1);
    proxy.tcp.stall();
    child.process.kill('SIGTERM');
    await stopping(child, 'worker');
    call.accept('paid-for');
    expect(await child.exited).toEqual({ code: 0, signal: null });
    expect(await world.request(id)).toMatchObject({ state: 'submitting' });
    // The next run of the same machine knows it.
    await cli
      .start(['worker'])
      .message<Line>((line) => line.event === 'process:started', 'the next one runs');
    expect(await world.request(id)).toMatchObject({ state: 'accepted', provider_task_id: 'paid-for' });
    expect(world.posts()).toBe(1);
  }, 120_000);
});

describe('a signal that comes early', () => {
  test('ends a worker in order, whatever it was at', async () => {
    const { cli } = await stage();
    for (let life = 0; life < 700; life += 90) {
      const child = cli.start(['worker']);
      await waitFor(() => bootedFor(child.pid) >= life, { what: `${life} ms of its life` });
      const { code, signal } = await child.kill('SIGTERM');
      // By the signal only before it has a hand of its own.
      expect([0, 143, 'SIGTERM'], `${life} ms: ${code} ${signal}`).toContain(code ?? signal);
      expect(child.stderr()).toBe('');
    }
  }, 180_000);

  test('ends a worker whose configuration is never read', async () => {
    const { cli } = await stage();
    rmSync(join(cli.directory, 'onetake.config.json'));
    const config = 'console.error("reading"); await new Promise((resolve) => setTimeout(resolve, 600_000));';
    writeFileSync(join(cli.directory, 'onetake.config.mjs'), config);
    const child = cli.start(['worker']);
    await waitFor(() => child.stderr().includes('reading'), { what: 'the configuration to be read' });
    expect(await child.kill('SIGTERM')).toEqual({ code: 0, signal: null });
  }, 60_000);
});

/** Where this machine lets us be one: it has no defaults for signals, so what nobody listens to is lost. */
describe.skipIf(!canBeFirst())('the first process of a container', () => {
  test('drains', async () => {
    const { world, cli } = await stage();
    world.raw.onPost = hold;
    const id = await world.song('one');
    const first = await asFirstProcess(cli, world, ['worker']);
    const call = await world.raw.post(1);
    process.kill(first.pid, 'SIGTERM');
    await waitFor(() => first.text().includes('process:stopping'), { what: 'it to stop' });
    process.kill(first.pid, 'SIGTERM');
    call.accept();
    expect(await first.exited).toBe(0);
    expect(await world.request(id)).toMatchObject({ state: 'accepted' });
  }, 60_000);

  test.each(['SIGTERM', 'SIGINT', 'SIGHUP'] as const)(
    'hears %s before the program is loaded',
    async (signal) => {
      const { world, cli } = await stage();
      const first = await asFirstProcess(cli, world, ['worker'], ['--import', HOLD_MAIN]);
      await waitFor(() => first.text().includes('held'), { what: 'the gate', timeoutMs: 30_000 });
      process.kill(first.pid, signal);
      expect(await first.exited).toBe({ SIGTERM: 143, SIGINT: 130, SIGHUP: 129 }[signal]);
    },
    60_000,
  );

  test('hears SIGTERM in a command that does not drain', async () => {
    const { world, cli } = await stage();
    const { url, tcp } = await silentDatabase(world);
    const first = await asFirstProcess(cli, world, ['requests', 'list'], [], url);
    await waitFor(() => tcp.connections > 0, { what: 'a connection', timeoutMs: 30_000 });
    process.kill(first.pid, 'SIGTERM');
    expect(await first.exited).toBe(143);
  }, 60_000);
});

/** Says so, and never loads the program behind the gate. */
const HOLD_HOOK = `export async function resolve(specifier, context, next) {
  if (!specifier.endsWith("main.ts")) return next(specifier, context);
  (await import("node:fs")).writeSync(2, "held");
  await new Promise(() => undefined);
}`;
const HOLD_MAIN = dataUrl(
  `import { register } from "node:module"; setInterval(() => undefined, 1_000); register(${JSON.stringify(dataUrl(HOLD_HOOK))});`,
);

function dataUrl(module: string): string {
  return `data:text/javascript,${encodeURIComponent(module)}`;
}

async function silentDatabase(world: World): Promise<{ tcp: TcpProxy; url: string }> {
  const url = new URL(world.database.connectionString);
  const target = Number(url.port || 5432);
  const tcp = await TcpProxy.open(() => target);
  onTestFinished(() => tcp.close());
  tcp.stall();
  url.hostname = '127.0.0.1';
  url.port = String(tcp.port);
  return { tcp, url: url.href };
}

/** Ms of processor time that it has had; a fact about its boot that other processes don't blur. */
function bootedFor(pid: number): number {
  const fields = readFileSync(`/proc/${pid}/stat`, 'utf8')
    .replace(/^.*\) /s, '')
    .split(' ');
  return (Number(fields[11]) + Number(fields[12])) * 10;
}

function canBeFirst(): boolean {
  return spawnSync('unshare', ['-Urpf', '--kill-child', '--mount-proc', 'true']).status === 0;
}

interface FirstProcess {
  /** As this namespace knows it. */
  readonly pid: number;
  readonly exited: Promise<number | null>;
  text(): string;
}

/** The command line as process 1 of a namespace of its own. */
async function asFirstProcess(
  cli: Cli,
  world: World,
  args: readonly string[],
  execArgv: readonly string[] = [],
  databaseUrl = world.database.connectionString,
): Promise<FirstProcess> {
  const program = join(import.meta.dirname, '..', '..', 'src', 'cli', 'onetake.ts');
  const child = spawn(
    'unshare',
    ['-Urpf', '--kill-child', '--mount-proc', process.execPath, ...execArgv, program, ...args],
    {
      cwd: cli.directory,
      env: { ...process.env, DATABASE_URL: databaseUrl, SONILO_API_KEY: 'sk_test_key' },
      stdio: ['ignore', 'pipe', 'pipe'],
    },
  );
  let text = '';
  for (const stream of [child.stdout, child.stderr]) {
    stream.setEncoding('utf8').on('data', (chunk: string) => {
      text += chunk;
    });
  }
  onTestFinished(() => void child.kill('SIGKILL'));
  const exited = once(child, 'close').then(([code]) => code as number | null);
  const pid = await waitFor(
    () => {
      const children = readFileSync(`/proc/${child.pid}/task/${child.pid}/children`, 'utf8').trim();
      return children === '' ? undefined : Number(children.split(' ')[0]);
    },
    { what: 'the first process' },
  );
  return { pid, exited, text: () => text };
}
