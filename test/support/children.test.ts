import { describe, expect, it } from 'vitest';
import { processIsAlive, startChild } from './children.ts';

describe('a child process', () => {
  it('answers in JSON lines, beside which it may print anything', async () => {
    await using child = startChild({
      module: `
        import { createInterface } from 'node:readline';
        import { suggestion } from './src/core/errors.ts';
        console.log('hello');
        createInterface({ input: process.stdin }).on('line', (line) => {
          console.log(JSON.stringify({ echo: JSON.parse(line), from: process.env.NAME, typeof: typeof suggestion }));
        });`,
      env: { NAME: 'child' },
    });
    child.send({ a: 1 });
    const answer = await child.message<{ echo: unknown }>((message) => 'echo' in message, 'an echo');
    expect(answer).toEqual({ echo: { a: 1 }, from: 'child', typeof: 'function' });
    expect(child.stdout()).toContain('hello\n');
  });

  it('names what was waited for, and shows its stderr, when it ends without that', async () => {
    await using child = startChild({ module: `console.error('lost my way'); process.exit(3)` });
    await expect(child.message(() => true, 'it said anything')).rejects.toThrow(
      /ended \(3\) before it said anything\n.*lost my way/s,
    );
    expect(await child.exited).toEqual({ code: 3, signal: null });
  });

  it('is killed at the end of the scope that holds it', async () => {
    let pid = 0;
    {
      await using child = startChild({ module: 'process.stdin.resume()' });
      pid = child.pid;
      expect(processIsAlive(pid)).toBe(true);
    }
    expect(processIsAlive(pid)).toBe(false);
  });
});
