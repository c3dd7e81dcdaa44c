import { describe, expect, test } from 'vitest';
import { parseFields } from '../../src/cli/field-text.ts';
import { encodeFields } from '../../src/core/encode-fields.ts';
import { OnetakeError } from '../../src/core/errors.ts';

const fieldsOf = (...texts: string[]) => parseFields('video-to-music', texts);

function errorOf(work: () => unknown): OnetakeError {
  try {
    work();
  } catch (error) {
    if (error instanceof OnetakeError) return error;
    throw error;
  }
  throw new Error('nothing was thrown');
}

describe('--field texts', () => {
  test('become values of the type that the operation says', () => {
    expect(
      fieldsOf('prompt=7', 'variants_num=2', 'prompt_influence=.5', 'stems=true', 'segments=[{"start":0}]'),
    ).toEqual({ prompt: '7', variants_num: 2, prompt_influence: 0.5, stems: true, segments: [{ start: 0 }] });
  });

  test('keep everything after the first equals sign', () => {
    expect(fieldsOf('prompt=a=b = c', 'video_url=')).toEqual({ prompt: 'a=b = c', video_url: '' });
    expect(fieldsOf('video=./a=b.mp4')).toEqual({ video: { file: './a=b.mp4' } });
  });

  test.each([
    'variants_num=2.0',
    'variants_num=0x2',
    'variants_num=',
    'variants_num= 2',
    'prompt_influence=Infinity',
    'prompt_influence=half',
    'stems=yes',
    'stems=TRUE',
    'segments=[',
  ])('leave %s as it is, and enqueue refuses it by the field, without its value', (text) => {
    const [name, value] = text.split('=') as [string, string];
    const error = errorOf(() =>
      encodeFields('video-to-music', { video_url: 'https://a.example', ...fieldsOf(text) }),
    );
    expect(error.code).toBe('invalid_field');
    expect(error.message).toContain(`fields.${name}: expected`);
    if (value.trim().length > 3) expect(error.message).not.toContain(value);
  });

  test('refuse a field without a value, and name it', () => {
    const error = errorOf(() => fieldsOf('stems'));
    expect([error.code, error.message]).toEqual(['invalid_option', '--field "stems": expected name=value.']);
  });

  test('refuse a text without a name, and do not repeat it', () => {
    for (const text of ['=secret words', 'secret words']) {
      expect(errorOf(() => fieldsOf(text)).message).toBe('--field: expected name=value.');
    }
  });

  test('refuse the same field twice', () => {
    expect(errorOf(() => fieldsOf('prompt=a', 'prompt=b')).message).toBe(
      '--field: there is more than one prompt.',
    );
  });

  test('leave an unknown field to enqueue, which suggests the right one', () => {
    expect(fieldsOf('promt=a', '__proto__=b')).toMatchObject({ promt: 'a' });
  });

  test('refuse an unknown operation with a suggestion', () => {
    const error = errorOf(() => parseFields('text-to-musik', []));
    expect([error.code, error.message]).toEqual([
      'unknown_operation',
      'Unknown operation "text-to-musik". Did you mean "text-to-music"?',
    ]);
  });
});
