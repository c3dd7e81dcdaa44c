import { writeFileSync } from 'node:fs';
import { createServer } from 'node:net';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { createCli, type Env } from './cli.ts';

const SECRET = 'hunter2canary';
const URL_OF_NOTHING = `postgres://app:${SECRET}@127.0.0.1:1/app`;
const ENQUEUE = ['enqueue', 'text-to-music', '--field', 'prompt=rain'];

/** One clear message, a remedy, no stack trace and no secret, both for a person and for a program. */
async function expectRefusal(
  cli: ReturnType<typeof createCli>,
  args: readonly string[],
  expected: { code: string; exitCode: number; message: RegExp | string; hint?: RegExp },
  env: Env = {},
): Promise<void> {
  const { message, hint = /./, ...rest } = expected;
  expect(await cli.error(args, env)).toMatchObject({
    ...rest,
    message: expect.stringMatching(message),
    hint: expect.stringMatching(hint),
  });
  const { code, stdout, stderr } = await cli.run(args, env);
  expect([code, stdout]).toEqual([expected.exitCode, '']);
  expect(stderr).toMatch(/^error: .+\n(.+\n)*hint: .+\n$/);
  expect(stderr).not.toMatch(/^\s+at /m);
  expect(stderr).not.toContain(SECRET);
}

describe('bad input', () => {
  test.each([
    ['is not set', undefined],
    ['is empty', ' '],
    ["doesn't begin with postgres://", `mysql://app:${SECRET}@db/app`],
    ["isn't a valid URL", `postgres://app:${SECRET}@db:not-a-port/app`],
  ])('a connection string that %s is refused by its variable', async (problem, value) => {
    await expectRefusal(
      createCli(),
      ['requests', 'list'],
      {
        code: 'configuration_invalid',
        exitCode: 2,
        message: new RegExp(`DATABASE_URL ${problem}`),
        hint: /^Set DATABASE_URL/,
      },
      { DATABASE_URL: value },
    );
  });

  test('start tells of every variable that it lacks', async () => {
    await expectRefusal(createCli(), ['start'], {
      code: 'configuration_invalid',
      exitCode: 2,
      message: /DATABASE_URL is not set\.(.|\n)*SONILO_API_KEY is not set/,
      hint: /^Set DATABASE_URL to .* Set SONILO_API_KEY to /,
    });
  });

  test.each(['worker', 'poller'])('%s without its key does not start', async (command) => {
    await expectRefusal(createCli({ env: { DATABASE_URL: URL_OF_NOTHING } }), [command], {
      code: 'missing_api_key',
      exitCode: 2,
      message: /SONILO_API_KEY is not set/,
      hint: /^Set SONILO_API_KEY/,
    });
  });

  test.each([['worker'], ['poller'], ['start'], ['migrate'], ['requests', 'list'], ENQUEUE])(
    '%s on a database that nobody runs says so',
    async (...args) => {
      const cli = createCli({ env: { DATABASE_URL: URL_OF_NOTHING, SONILO_API_KEY: `sk_${SECRET}` } });
      await expectRefusal(cli, args, {
        code: 'database_unreachable',
        exitCode: 1,
        message: /The database can't be reached \(ECONNREFUSED\)/,
        hint: /DATABASE_URL/,
      });
    },
  );

  test('a server that is no PostgreSQL is told as unreachable', async () => {
    const server = createServer((socket) => socket.end('HTTP/1.1 400 Bad Request\r\n\r\n'));
    await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
    const { port } = server.address() as { port: number };
    try {
      const error = await createCli().error(['requests', 'list'], {
        DATABASE_URL: `postgres://app:${SECRET}@127.0.0.1:${port}/app`,
      });
      expect(error).toMatchObject({ code: 'database_unreachable', exitCode: 1 });
    } finally {
      server.close();
    }
  });

  test('every problem of a configuration is told at once, each by its path and with a suggestion', async () => {
    const cli = createCli();
    const config = {
      storage: { directry: './x' },
      accounts: { default: { requestsPerMinute: '60' } },
      providers: { sonilo: { baseUrl: `http://user:${SECRET}@api.test` } },
    };
    writeFileSync(join(cli.directory, 'onetake.config.json'), JSON.stringify(config));
    await expectRefusal(cli, ['worker'], {
      code: 'configuration_invalid',
      exitCode: 2,
      message:
        /storage\.directry: unknown setting\. Did you mean "directory"\?[\s\S]*providers\.sonilo\.baseUrl: [\s\S]*requestsPerMinute: expected a whole number/,
    });
  });

  test('a configuration that is not there is named', async () => {
    await expectRefusal(createCli(), ['--config', 'onetake.confg.ts', 'worker'], {
      code: 'configuration_not_found',
      exitCode: 2,
      message: /onetake\.confg\.ts: there is no such file/,
    });
  });

  test('a .env file that is not there is named, and one that is there is read', async () => {
    const cli = createCli();
    // Node itself looks for --env-file in every argument of the command line, and is the first to refuse it.
    const { code, stdout, stderr } = await cli.run(['--env-file', 'no.env', 'requests', 'list']);
    expect([code === 0, stdout]).toEqual([false, '']);
    expect(stderr).toMatch(/no\.env: (not found|there is no such file)/);
    writeFileSync(join(cli.directory, 'my.env'), `DATABASE_URL=${URL_OF_NOTHING}\n`);
    expect(await cli.error(['requests', 'list', '--env-file', 'my.env'])).toMatchObject({
      code: 'database_unreachable',
    });
  });

  test.each<[string[], string, RegExp]>([
    [['requets'], 'invalid_option', /Unknown command 'requets'/],
    [['accounts', 'show'], 'invalid_option', /Unknown command 'show' of `onetake accounts`/],
    [['requests', 'list', '--limmit', '3'], 'invalid_option', /Unknown option '--limmit'/],
    [['requests', 'show'], 'invalid_option', /Missing required argument 'id'/],
    [
      ['enqueue', 'text-to-sfx', '--field', 'prompt=rain', '--mode', 'stream'],
      'invalid_option',
      /text-to-sfx has no streams/,
    ],
    [['enqueue', 'text-to-musik'], 'unknown_operation', /Did you mean "text-to-music"\?/],
    [['enqueue', 'text-to-music', '--field', 'duration'], 'invalid_option', /--field "duration": expected/],
    [
      [...ENQUEUE, '--field', `duration=${SECRET}`],
      'invalid_field',
      /fields\.duration: expected a whole number/,
    ],
    [[...ENQUEUE, '--field', `prompt=${SECRET}`], 'invalid_option', /more than one prompt/],
    [[...ENQUEUE, 'a', SECRET, 'song'], 'invalid_option', /Too many arguments/],
    [[...ENQUEUE, `--prompt=${SECRET}`], 'invalid_option', /Unknown option '--prompt'/],
  ])('%j is refused as %s', async (args, code, message) => {
    const cli = createCli({ env: { DATABASE_URL: URL_OF_NOTHING } });
    const { message: said, hint, problems, ...rest } = await cli.error(args);
    expect({ ...rest, said }).toEqual({ code, exitCode: 2, said: expect.stringMatching(message) });
    expect(`${said}${hint}${JSON.stringify(problems)}`).not.toContain(SECRET);
    expect(problems?.length).toBe(code === 'invalid_field' ? 1 : undefined);
  });

  test.each([
    [['--reason', 'r']],
    [['--accepted', '--yes', '--reason', 'r']],
    [['--accepted', ' ', '--reason', 'r']],
    [['--accepted', 't', '--not-accepted', '--reason', 'r']],
    [['--abandon', '--not-accepted', '--reason', 'r']],
    [['--accepted', 't', '--abandon', '--reason', 'r']],
    [['--accepted', 't', '--force', '--reason', 'r']],
    [['--abandon', '--no-resubmit', '--reason', 'r']],
    [['--abandon']],
  ])('ambiguous resolve refuses %j before it opens a connection', async (options) => {
    const cli = createCli({ env: { DATABASE_URL: URL_OF_NOTHING } });
    expect(await cli.error(['ambiguous', 'resolve', '0f3c1a2b', ...options])).toMatchObject({
      code: 'invalid_option',
      exitCode: 2,
    });
  });

  test('a command that a group has not is answered with those that it has', async () => {
    expect((await createCli().error(['accounts', 'show'])).hint).toBe(
      'Commands: onetake accounts list, onetake accounts hold, onetake accounts release.',
    );
    expect((await createCli().error(['requests', 'lst'])).message).toMatch(/Did you mean "list"\?$/);
  });

  test('no command at all prints help to stderr and exits 2', async () => {
    const { code, stdout, stderr } = await createCli().run([]);
    expect([code, stdout]).toEqual([2, '']);
    expect(stderr).toMatch(/^Usage: onetake /);
    expect(await createCli().error([])).toMatchObject({ code: 'invalid_option', exitCode: 2 });
  });
});

describe('help', () => {
  test.each([['--help'], ['enqueue', '--help'], ['ambiguous', 'resolve', '--help'], ['help', 'breaker']])(
    '%s goes to stdout, within 80 columns, and exits 0',
    async (...args) => {
      const { code, stdout, stderr } = await createCli().run(args);
      expect([code, stderr]).toEqual([0, '']);
      expect(stdout).toMatch(/^Usage: onetake/);
      expect(Math.max(...stdout.split('\n').map((line) => line.length))).toBeLessThanOrEqual(80);
    },
  );

  test('--version prints the version alone', async () => {
    const { code, stdout } = await createCli().run(['--version']);
    expect(code).toBe(0);
    expect(stdout).toMatch(/^\d+\.\d+\.\d+\n$/);
  });
});
