import { describe, expect, test } from 'vitest';
import { encodeFields } from '../../src/core/encode-fields.ts';
import { OnetakeError } from '../../src/core/errors.ts';

function refused(fields: Record<string, unknown>): OnetakeError {
  try {
    encodeFields('text-to-music', fields);
  } catch (error) {
    if (error instanceof OnetakeError) return error;
    throw error;
  }
  throw new Error('was not refused');
}

const circular: unknown[] = [];
circular.push({ start: 0, prompt: 'p', again: circular });

function nested(depth: number): unknown {
  let value: unknown[] = [];
  for (let level = 0; level < depth; level += 1) value = [value];
  return value;
}

describe('text that can be neither stored nor sent', () => {
  const bad = [
    ['NUL', 'secret\u0000', 'contains a NUL character (U+0000)'],
    ['a high surrogate alone', 'secret\ud83c', 'contains a lone surrogate'],
    ['a low surrogate alone', '\udfb5secret', 'contains a lone surrogate'],
    ['surrogates in the wrong order', 'secret\udfb5\ud83c', 'contains a lone surrogate'],
  ] as const;
  const places: [string, (text: string) => Record<string, unknown>][] = [
    ['prompt', (text) => ({ prompt: text })],
    ['segments', (text) => ({ prompt: 'p', segments: [{ start: 0, prompt: text }] })],
    ['segments', (text) => ({ prompt: 'p', segments: [{ start: 0, [text]: 'in a key' }] })],
    ['segments', (text) => ({ prompt: 'p', segments: { a: [[{ b: [text] }]] } })],
    ['segments', (text) => ({ prompt: 'p', segments: [Object(text)] })],
    ['segments', (text) => ({ prompt: 'p', segments: [{ toJSON: () => text }] })],
  ];

  describe.each(places)('in %s (%#)', (path, put) => {
    test.each(bad)('is refused without being repeated: %s', (_title, text, says) => {
      const error = refused(put(text));
      expect(error).toMatchObject({ code: 'invalid_field', hint: expect.any(String) });
      expect(error.message).toContain(`fields.${path}: ${says}`);
      expect(`${error.message} ${error.hint}`).not.toContain('secret');
    });
  });

  test('whole surrogate pairs are fine everywhere', () => {
    const encoded = encodeFields('text-to-music', { prompt: '🎵', segments: [{ '🎵': '🎶' }] });
    expect(encoded).toEqual({ prompt: '🎵', segments: '[{"🎵":"🎶"}]' });
  });
});

describe('what JSON would lose or change', () => {
  test.each([
    ['a circle', circular],
    ['a bigint', [{ start: 1n }]],
    ['a date', new Date(0)],
    ['a boxed string', Object('text')],
    ['a toJSON that gives nothing', { toJSON: () => undefined }],
    ['a toJSON that gives null', { toJSON: () => null }],
    [
      'a getter that throws',
      {
        get start(): number {
          throw new Error('secret');
        },
      },
    ],
    ['endless nesting', nested(200_000)],
  ])('is refused: %s', (_title, segments) => {
    const error = refused({ prompt: 'p', segments });
    expect(error).toMatchObject({
      code: 'invalid_field',
      message: "fields.segments: can't be written as a JSON array or object.",
    });
    expect(error.cause).toBeUndefined();
  });

  test.each([Number.NaN, Number.POSITIVE_INFINITY])('is refused: the number %d', (start) => {
    expect(refused({ prompt: 'p', segments: [{ start, prompt: 'a' }] }).message).toBe(
      "fields.segments: contains a number that isn't finite.",
    );
  });

  test('a __proto__ key stays what it is', () => {
    const segments = JSON.parse('[{"b":null,"a":true,"__proto__":{"x":1}}]') as unknown;
    expect(encodeFields('text-to-music', { prompt: 'p', segments })['segments']).toBe(
      '[{"__proto__":{"x":1},"a":true,"b":null}]',
    );
  });
});

test('an error that is not ours goes through as it is', () => {
  const { proxy, revoke } = Proxy.revocable([], {});
  revoke();
  expect(() => encodeFields('text-to-music', { prompt: proxy })).toThrow(TypeError);
});
