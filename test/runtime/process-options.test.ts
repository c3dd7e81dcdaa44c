import { describe, expect, it } from 'vitest';
import type { ProcessOptions } from '../../src/worker.ts';
import { createPoller, createWorker } from '../../src/worker.ts';

describe('options of a process', () => {
  // A name is on every spooled outcome: one that a replay takes for damage would cost the outcome.
  const wrong: Readonly<Record<string, unknown>> = {
    'an empty name': { name: '' },
    'a name with a line break': { name: 'worker\n1' },
    'half a character for a name': { name: '\ud800' },
    'too long a name': { name: 'w'.repeat(256) },
    'a number for a name': { name: 1 },
    'a key in the place of credentials': { credentials: 'sk_test_key' },
    'a listener that is none': { onEvent: {} },
    'an empty connection string': { connectionString: '' },
    'no providers': { providers: null },
    'an unknown one': { nam: 'worker' },
  };

  it.each(Object.entries(wrong))('%s is refused before anything runs', (_what, options) => {
    const given = {
      connectionString: 'postgres://127.0.0.1:9/none',
      credentials: () => 'sk',
      ...(options as object),
    };
    for (const create of [createWorker, createPoller]) {
      expect(() => create(given as ProcessOptions)).toThrow(
        expect.objectContaining({ code: 'invalid_option', message: expect.not.stringContaining('sk_test') }),
      );
    }
  });
});
