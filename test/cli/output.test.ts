import { PassThrough } from 'node:stream';
import { describe, expect, test } from 'vitest';
import { createTerminal, type Terminal } from '../../src/cli/output.ts';
import { readEnvironment } from '../../src/runtime/environment.ts';

interface Options {
  readonly json?: boolean;
  readonly isTTY?: boolean;
  readonly columns?: number;
  readonly env?: Readonly<Record<string, string>>;
}

function setUp({ json = false, isTTY = false, columns, env = {} }: Options = {}) {
  const stream = () => Object.assign(new PassThrough(), { isTTY }, columns === undefined ? {} : { columns });
  const [stdin, stdout, stderr] = [stream(), stream(), stream()];
  const terminal: Terminal = createTerminal(
    { stdin, stdout, stderr },
    { json, environment: readEnvironment(env) },
  );
  const read = (from: PassThrough) => String(from.read() ?? '');
  return { terminal, stdin, stdout, stderr, out: () => read(stdout), err: () => read(stderr) };
}

describe('the terminal', () => {
  test('prints a value as one line in a pipe, and laid out where a person reads it', () => {
    const value = { at: new Date('2026-03-01T12:00:00.000Z') };
    const pipe = setUp({ json: true });
    pipe.terminal.value(value);
    expect(pipe.out()).toBe('{"at":"2026-03-01T12:00:00.000Z"}\n');
    const person = setUp({ json: true, isTTY: true });
    person.terminal.value(value);
    expect(person.out()).toBe('{\n  "at": "2026-03-01T12:00:00.000Z"\n}\n');
  });

  test('puts an error on stderr, for a person and as JSON', () => {
    const report = { code: 'invalid_option', message: 'Wrong.', hint: 'Do this.', exitCode: 2 };
    const person = setUp();
    person.terminal.error(report);
    expect([person.out(), person.err()]).toEqual(['', 'error: Wrong.\nhint: Do this.\n']);
    const program = setUp({ json: true });
    program.terminal.error({ code: 'stopped', message: 'Over.', exitCode: 1 });
    expect([program.out(), program.err()]).toEqual([
      '',
      '{"error":{"code":"stopped","message":"Over.","hint":null}}\n',
    ]);
  });

  test.each([
    ['a pipe', {}, false],
    ['a terminal', { isTTY: true }, true],
    ['a terminal under NO_COLOR', { isTTY: true, env: { NO_COLOR: '1' } }, false],
    ['a dumb terminal', { isTTY: true, env: { TERM: 'dumb' } }, false],
  ])('colours for %s: %j is %s', (_where, options, isColoured) => {
    const { terminal } = setUp(options);
    expect(terminal.paint('red', 'x') !== 'x').toBe(isColoured);
    expect(terminal.paintNote('red', 'x') !== 'x').toBe(isColoured);
  });

  test('is 80 columns wide in a pipe, and as wide as the terminal is', () => {
    expect(setUp({ columns: 120 }).terminal.columns).toBe(80);
    expect(setUp({ isTTY: true, columns: 120 }).terminal.columns).toBe(120);
    expect(setUp({ isTTY: true, columns: 3 }).terminal.columns).toBe(40);
    expect(setUp({ isTTY: true, columns: 0 }).terminal.columns).toBe(80);
  });

  test('cuts no cell of a table in a pipe, and fits a terminal', () => {
    const why = 'because '.repeat(20).trim();
    const show = (options: Options) => {
      const { terminal, out } = setUp(options);
      terminal.table([why], [{ title: 'why', value: (row) => row, flexible: true }]);
      return out();
    };
    expect(show({})).toBe(`why\n${why}\n`);
    expect(show({ isTTY: true, columns: 60 }).split('\n')[1]).toMatch(/^.{59}…$/);
    expect(show({ env: { COLUMNS: '60' } }).split('\n')[1]).toMatch(/^.{59}…$/);
    expect(show({ env: { COLUMNS: 'wide' } })).toBe(`why\n${why}\n`);
  });

  test('drops what it prints after its reader has left, and says so once', async () => {
    const { terminal, stdout } = setUp();
    terminal.print('one');
    expect(terminal.closed.aborted).toBe(false);
    stdout.destroy(Object.assign(new Error('write EPIPE'), { code: 'EPIPE' }));
    await new Promise<void>((resolve) => terminal.closed.addEventListener('abort', () => resolve()));
    expect(() => terminal.print('two')).not.toThrow();
  });

  test.each([
    ['y\n', true],
    ['YES\n', true],
    ['n\n', false],
    ['\n', false],
    ['yesterday\n', false],
  ])('takes %j as %s', async (typed, expected) => {
    const { terminal, stdin, err } = setUp({ isTTY: true });
    const answer = terminal.confirm('Permit one more paid POST?');
    stdin.write(typed);
    expect(await answer).toBe(expected);
    expect(err()).toContain('Permit one more paid POST? [y/N]');
  });

  test('takes the end of the input as no', async () => {
    const { terminal, stdin } = setUp({ isTTY: true });
    const answer = terminal.confirm('Really?');
    stdin.end();
    expect(await answer).toBe(false);
  });

  test('does not ask where there is no terminal', async () => {
    const { terminal, err } = setUp();
    expect(await terminal.confirm('Really?')).toBeUndefined();
    expect(err()).toBe('');
  });
});
