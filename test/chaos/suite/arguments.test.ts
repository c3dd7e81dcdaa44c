import { describe, expect, it } from 'vitest';
import { parseArguments, USAGE } from './arguments.ts';

const parse = (...args: string[]) => parseArguments(args, () => 'fresh');

describe('the options of the chaos suite', () => {
  it('have defaults, a fresh seed among them', () => {
    expect(parse()).toMatchObject({
      kind: 'run',
      options: { minutes: 2, seed: 'fresh', ordersPerMinute: 240 },
    });
  });

  it('are taken as given', () => {
    expect(parse('--minutes', '2.5', '--seed', 'a-1', '--keep-going', '--json')).toMatchObject({
      options: { minutes: 2.5, seed: 'a-1', keepGoing: true, json: true },
    });
  });

  it.each([
    ['--minutes', 'abc'],
    ['--minutes', '0'],
    ['--minutes', '1e3'],
    ['--minutes', '601'],
    ['--minutes', ''],
    ['--orders', '-1'],
    ['--seed', 'with blanks'],
    ['--seed', ''],
  ])('are refused by name: %s "%s"', (name, value) => {
    const parsed = parse(`${name}=${value}`);
    expect(parsed).toMatchObject({ kind: 'wrong' });
    expect(JSON.stringify(parsed)).toContain(name);
  });

  it('are refused when they are unknown', () => {
    expect(parse('--minuets', '3')).toMatchObject({ kind: 'wrong' });
  });

  it('are all in the help, which fits 80 columns', () => {
    expect(parse('--help')).toEqual({ kind: 'help' });
    for (const name of ['minutes', 'seed', 'orders', 'keep-going', 'plan', 'output', 'json']) {
      expect(USAGE).toContain(`--${name}`);
    }
    for (const line of USAGE.split('\n')) expect(line.length).toBeLessThanOrEqual(80);
  });
});
