import { Command, Option } from 'commander';
import { describe, expect, it } from 'vitest';
import { refuseOptionsAsValues } from '../../src/cli/arguments.ts';

function parse(...args: string[]): Record<string, unknown> {
  const command = new Command('resolve')
    .exitOverride()
    .option('--reason <text>')
    .option('--limit <n>', 'a number', Number, 7)
    .option('--field <pair>', 'many', (pair: string, before: string[] = []) => [...before, pair])
    .addOption(new Option('--yes'))
    .option('--no-resubmit');
  refuseOptionsAsValues(command, ['--json']);
  return command.parse(args, { from: 'user' }).opts();
}

describe('an option whose value is missing', () => {
  it.each([
    ['--reason', '--yes'],
    ['--reason', '--no-resubmit'],
    ['--limit', '--reason', 'r'],
    ['--field', '--field', 'a=b'],
    ['--reason', '--json'],
  ])('%s does not take %s for it', (option, next, ...rest) => {
    expect(() => parse(option, next, ...rest)).toThrow(
      `${option}: its value is missing, ${next} is an option.`,
    );
  });

  it('leaves every other value as it is, one with dashes too', () => {
    expect(parse('--reason', '--maybe', '--field', 'a=--yes', '--field', 'b', '--limit', '3')).toEqual({
      reason: '--maybe',
      field: ['a=--yes', 'b'],
      limit: 3,
      resubmit: true,
    });
    expect(parse()).toEqual({ limit: 7, resubmit: true });
  });
});
