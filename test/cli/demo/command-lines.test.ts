import { describe, expect, it } from 'vitest';
import { commandLines } from '../../../src/cli/demo/operator.ts';

describe('commandLines', () => {
  it('shows a short command on one line', () => {
    expect(commandLines(['ambiguous', 'list'])).toEqual(['$ onetake ambiguous list']);
  });

  it('quotes what a shell would split', () => {
    expect(commandLines(['ambiguous', 'resolve', 'abcd1234', '--reason', 'not charged'])).toEqual([
      "$ onetake ambiguous resolve abcd1234 --reason 'not charged'",
    ]);
  });

  it('breaks a long command before an option, and keeps each option with its value', () => {
    const taskId = '8d1f6c5e-0a4b-4a57-9d7f-0f6f0f3b2c11';

    expect(
      commandLines(['ambiguous', 'resolve', 'abcd1234', '--accepted', taskId, '--reason', 'by the ledger']),
    ).toEqual([
      '$ onetake ambiguous resolve abcd1234 \\',
      `    --accepted ${taskId} --reason 'by the ledger'`,
    ]);
  });
});
