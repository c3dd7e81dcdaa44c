import { describe, expect, test } from 'vitest';
import {
  type DeliveredFile,
  deliveryWarnings,
  orderedLanguages,
  runLimitMs,
} from '../../src/core/delivery.ts';

const file = (changes: Partial<DeliveredFile> = {}): DeliveredFile => ({
  variant: 0,
  label: null,
  contentType: null,
  ...changes,
});
const tracks = (...variants: number[]) => variants.map((variant) => file({ variant }));
const stems = (variant: number, ...labels: string[]) => labels.map((label) => file({ variant, label }));
const ALL = ['drums', 'bass', 'vocals', 'other'];

describe('what came beside what was ordered', () => {
  test.each<[string, string, Record<string, string>, DeliveredFile[], string[]]>([
    ['as many as ordered', 'text-to-music', { variants_num: '2' }, tracks(0, 1), []],
    ['more', 'text-to-music', { variants_num: '1' }, tracks(0, 1), []],
    ['fewer', 'text-to-music', { variants_num: '3' }, tracks(0, 2), ['fewer_variants']],
    ['only what comes with it', 'text-to-music', {}, stems(0, 'drums'), ['fewer_variants']],
    ['nothing at all', 'text-to-music', { variants_num: '3' }, [], []],
    ['an operation of another release', 'proofread', { variants_num: '3' }, tracks(0), []],
    ['all stems', 'text-to-music', { stems: 'true' }, [...tracks(0), ...stems(0, ...ALL)], []],
    ['no stems ordered', 'text-to-music', { stems: 'false' }, tracks(0), []],
    [
      'a stem less',
      'text-to-music',
      { stems: 'true' },
      [...tracks(0), ...stems(0, 'drums')],
      ['fewer_stems'],
    ],
    [
      'the stems of one of two',
      'text-to-music',
      { stems: 'true', variants_num: '2' },
      [...tracks(0, 1), ...stems(1, ...ALL)],
      ['fewer_stems'],
    ],
    ['each language', 'dubbing', { languages: '["es"]' }, stems(0, 'es', 'fr'), []],
    ['a language less', 'dubbing', { languages: '["es","fr"]' }, stems(0, 'es'), ['fewer_languages']],
  ])('%s', (_what, operation, fields, files, warnings) => {
    expect(deliveryWarnings(operation, fields, files)).toEqual(warnings);
  });

  test.each<[string, string, Record<string, string>, Partial<DeliveredFile>, boolean]>([
    [
      'the one that was ordered',
      'text-to-music',
      { output_format: 'm4a' },
      { contentType: 'audio/x-m4a' },
      false,
    ],
    ['in capitals', 'text-to-sfx', { audio_format: 'aac' }, { contentType: 'Audio/AAC' }, false],
    ['another one', 'text-to-music', { output_format: 'm4a' }, { contentType: 'audio/wav' }, true],
    ['a video for a sound', 'video-to-sound', { output_format: 'wav' }, { contentType: 'video/mp4' }, true],
    ['no known one', 'text-to-music', { output_format: 'm4a' }, {}, false],
    [
      'one that nobody knows',
      'text-to-music',
      { output_format: 'opus' },
      { contentType: 'audio/wav' },
      false,
    ],
    ['none that was ordered', 'video-to-video-sfx', {}, { contentType: 'video/webm' }, false],
    [
      'of a stem',
      'text-to-music',
      { output_format: 'm4a' },
      { contentType: 'audio/wav', label: 'drums' },
      false,
    ],
  ])('a format: %s', (_what, operation, fields, changes, isOther) => {
    const warnings = deliveryWarnings(operation, fields, [file(), file(changes)]);
    expect(warnings.includes('other_format')).toBe(isOther);
  });
});

test.each([
  [{ languages: '["es","fr"]' }, ['es', 'fr']],
  [{ languages: '["es",7,null]' }, ['es']],
  [{ languages: '{}' }, []],
  [{ languages: 'junk' }, []],
  [{}, []],
])('the languages of %j', (fields, languages) => {
  expect(orderedLanguages(fields as Record<string, string>)).toEqual(languages);
});

test.each([
  ['text-to-music', {}, 600_000, 600_000],
  ['text-to-music', { stems: 'false' }, 600_000, 600_000],
  ['text-to-music', { stems: 'true' }, 600_000, 2_400_000],
  ['text-to-music', { stems: 'true' }, 3_600_000, 3_600_000],
  ['dubbing', { stems: 'true' }, 600_000, 600_000],
  ['proofread', { stems: 'true' }, 600_000, 600_000],
])('%s with %j may run %i ms as configured, so %i', (operation, fields, configured, limit) => {
  expect(runLimitMs(operation, fields as Record<string, string>, configured)).toBe(limit);
});
