import { describe, expect, test } from 'vitest';
import { nearestName, OnetakeError, suggestion } from '../../src/core/errors.ts';

describe('OnetakeError', () => {
  test('carries code, message, hint and cause', () => {
    const cause = new Error('below');
    const error = new OnetakeError('invalid_option', 'worker.concurrency: expected 1 to 1000.', {
      hint: 'Lower it.',
      cause,
    });
    expect(error).toBeInstanceOf(Error);
    expect(error).toMatchObject({
      name: 'OnetakeError',
      code: 'invalid_option',
      message: 'worker.concurrency: expected 1 to 1000.',
      hint: 'Lower it.',
      cause,
    });
  });

  test('has neither hint nor cause when none is given', () => {
    const error = new OnetakeError('stopped', 'The client is stopped.');
    expect(error.hint).toBeUndefined();
    expect('cause' in error).toBe(false);
  });
});

describe('nearestName', () => {
  const known = ['prompt', 'duration', 'segments', 'stems'];

  test.each([
    ['prompts', 'prompt'],
    ['promt', 'prompt'],
    ['Prompt', 'prompt'],
    ['durration', 'duration'],
    ['segmnets', 'segments'],
    ['stem', 'stems'],
    ['prompt', 'prompt'],
  ])('takes %s for a typo of %s', (given, expected) => {
    expect(nearestName(given, known)).toBe(expected);
  });

  test.each(['', 'lyrics', 'callback_url', 'a'.repeat(65), `prompt${'t'.repeat(1_000_000)}`])(
    'knows nothing near to name %#',
    (given) => {
      expect(nearestName(given, known)).toBeUndefined();
    },
  );

  // One edit each, then as many as a third of the name, and two at least.
  test.each([
    ['inserted', 'abXc', 'abc', true],
    ['left out', 'ac', 'abc', true],
    ['exchanged', 'aXc', 'abc', true],
    ['two of four', 'aXXd', 'abcd', true],
    ['three of five', 'aXXXe', 'abcde', false],
    ['three of eight', 'abcdeXXX', 'abcdefgh', false],
    ['three of nine', 'abcdefXXX', 'abcdefghi', true],
    ['two put in front', 'XXa', 'a', true],
    ['three put in front', 'XXXa', 'a', false],
    ['two missing in front', 'c', 'abc', true],
    ['three missing in front', 'd', 'abcd', false],
    ['three missing at the end', 'a', 'abcd', false],
    ['three put at the end', 'aXXX', 'a', false],
    ['a known name of 64', 'a'.repeat(64), 'a'.repeat(63), true],
    ['a given name of 65', 'a'.repeat(65), 'a'.repeat(64), false],
  ])('counts letters: %s', (_title, given, name, near) => {
    expect(nearestName(given, [name])).toBe(near ? name : undefined);
  });

  test('prefers the nearer of two, and the earlier of two equally near', () => {
    expect(nearestName('stemss', ['stem', 'stems'])).toBe('stems');
    expect(nearestName('port', ['part', 'sort'])).toBe('part');
  });

  test('counts by code point', () => {
    expect(nearestName('son🎵', ['son🎶'])).toBe('son🎶');
  });

  test('knows nothing when there are no names', () => {
    expect(nearestName('prompt', [])).toBeUndefined();
  });
});

test('a suggestion is a sentence of its own, or nothing', () => {
  expect(suggestion('promt', ['prompt'])).toBe(' Did you mean "prompt"?');
  expect(suggestion('lyrics', ['prompt'])).toBe('');
});
