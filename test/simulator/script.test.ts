import { describe, expect, test } from 'vitest';
import { parseScript, Script, type ScriptRule } from '../../src/simulator/script.ts';

/** Which of the POSTs 1 to `count` meet a fault; every third is a video's. */
function matched(
  rules: readonly ScriptRule[],
  count = 12,
  elapsedMs = (number: number) => number * 100,
): number[] {
  const script = new Script(rules);
  const numbers: number[] = [];
  const byOperation = new Map<string, number>();
  for (let number = 1; number <= count; number += 1) {
    const operation = number % 3 === 0 ? 'video-to-music' : 'text-to-music';
    const operationNumber = (byOperation.get(operation) ?? 0) + 1;
    byOperation.set(operation, operationNumber);
    if (script.take({ operation, number, operationNumber, elapsedMs: elapsedMs(number) }))
      numbers.push(number);
  }
  return numbers;
}

const respond = { status: 502 };

describe('a rule', () => {
  test.each<[string, Omit<ScriptRule, 'respond'>, number[]]>([
    ['without conditions matches every POST', {}, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]],
    ['by range matches its first and its last', { posts: [3, 5] }, [3, 4, 5]],
    ['by operation counts its POSTs alone', { operation: 'video-to-music', posts: [2, 3] }, [6, 9]],
    ['by every nth', { everyNth: 5 }, [5, 10]],
    ['by every nth of an operation', { operation: 'video-to-music', everyNth: 2 }, [6, 12]],
    ['by time includes from and excludes to', { from: 300, to: 500 }, [3, 4]],
    ['by times stops after so many', { times: 2 }, [1, 2]],
    ['needs all of its conditions', { posts: [2, 9], everyNth: 2, from: 400, times: 2 }, [4, 6]],
  ])('%s', (_title, conditions, expected) => {
    expect(matched([{ ...conditions, respond }])).toEqual(expected);
  });

  test('that comes first decides, and one that is used up lets the next', () => {
    const script = new Script([
      { posts: [1, 2], times: 1, respond: { status: 500 } },
      { posts: [1, 2], respond: { status: 503 } },
    ]);
    const position = { operation: 'text-to-music', elapsedMs: 0 };
    const statuses = [1, 2, 3].map(
      (number) => script.take({ ...position, number, operationNumber: number })?.status,
    );
    expect(statuses).toEqual([500, 503, undefined]);
  });

  test.each([
    [{ status: 502 }, false],
    [{ status: 429 }, false],
    [{ status: 502, charge: true }, true],
    [{ status: 202 }, true],
    [{ end: 'hang' as const }, true],
    [{ delayMs: 10 }, true],
    [{ end: 'reset' as const, charge: false }, false],
  ])('that says %o charges: %s', (response, charge) => {
    const script = new Script([{ respond: response }]);
    const position = { operation: 'text-to-music', number: 1, operationNumber: 1, elapsedMs: 0 };
    expect(script.take(position)?.charge).toBe(charge);
  });
});

describe('reading a script', () => {
  test.each<[string, unknown, string]>([
    [
      'an unknown key of a rule',
      [{ respond }, { evryNth: 2, respond }],
      'script[1].evryNth: unknown key. Did you mean "everyNth"?',
    ],
    [
      'an unknown key of a response',
      [{ respond: { stauts: 1 } }],
      'script[0].respond.stauts: unknown key. Did you mean "status"?',
    ],
    [
      'an unknown end',
      [{ respond: { end: 'cutt' } }],
      'script[0].respond.end: expected one of reset, close, hang, cut, got "cutt". Did you mean "cut"?',
    ],
    ['an unknown operation', [{ operation: 'text-to-musik', respond }], 'Did you mean "text-to-music"?'],
    ['no response', [{ posts: [1, 2] }], 'script[0].respond: missing.'],
    ['a numeric string', [{ everyNth: '2', respond }], 'script[0].everyNth: expected a whole number from 1'],
    ['a fraction', [{ times: 1.5, respond }], 'script[0].times: expected a whole number'],
    ['a range that is none', [{ posts: 3, respond }], 'script[0].posts: expected [first, last], got 3.'],
    ['a range from zero', [{ posts: [0, 3], respond }], 'script[0].posts[0]: expected a whole number from 1'],
    ['a range with a hole', [{ posts: [1, null], respond }], 'script[0].posts[1]: expected'],
    [
      'a range backwards',
      [{ posts: [3, 1], respond }],
      'script[0].posts: expected the first POST not to come after',
    ],
    ['a time backwards', [{ from: 5, to: 5, respond }], 'script[0].to: expected more than from.'],
    [
      'a status of 100',
      [{ respond: { status: 100 } }],
      'script[0].respond.status: expected a whole number from 200 to 599',
    ],
    [
      'a header that frames',
      [{ respond: { status: 202, headers: { 'Content-Length': '3' } } }],
      'headers.content-length: is set by the server.',
    ],
    [
      'a header of two lines',
      [{ respond: { headers: { a: 'b\r\nc: d' } } }],
      'headers.a: expected one line of text',
    ],
    [
      'no charge and no answer',
      [{ respond: { charge: false } }],
      'script[0].respond.charge: false needs a status',
    ],
    ['an object', { respond }, 'script: expected a list of rules, got an object.'],
    ['null', null, 'script: expected a list of rules, got null.'],
    ['null for a rule', [null], 'script[0]: expected an object, got null.'],
  ])('refuses %s', (_what, script, message) => {
    expect(() => parseScript(script)).toThrow(
      expect.objectContaining({ code: 'invalid_option', message: expect.stringContaining(message) }),
    );
  });

  test('names all problems at once', () => {
    const script = [{ everyNth: 0, respond: { end: 'x' } }, { respond: 3 }];
    expect(() => parseScript(script)).toThrow(
      /script\[0\]\.everyNth.*script\[0\]\.respond\.end.*script\[1\]\.respond/s,
    );
  });

  test('keeps what it is given', () => {
    const rules = [
      { operation: 'text-to-music', posts: [1, 2], respond: { status: 202, body: null, charge: true } },
    ];
    expect(parseScript(JSON.parse(JSON.stringify(rules)))).toEqual(rules);
  });
});
