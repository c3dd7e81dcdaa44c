import { describe, expect, test } from 'vitest';
import { FIELD_LIMITS, type MediaLimit } from '../../src/core/field-limits.ts';
import {
  checkMedia,
  decodeMedia,
  encodeMedia,
  fileFields,
  intentOf,
  type MediaFacts,
} from '../../src/core/media.ts';

const LIMIT = FIELD_LIMITS['video-to-music']['video'] as MediaLimit;
const FINE: MediaFacts = { bytes: 1, container: 'mp4', codec: 'avc', seconds: 360 };
const REFERENCE = { file: '/videos/a.mp4', bytes: 7, sha256: 'abc', container: 'mp4' };

test.each<[Partial<MediaFacts>, string[]]>([
  [{}, []],
  [{ seconds: null }, []],
  [{ bytes: LIMIT.maxBytes }, []],
  [{ bytes: 0, container: null }, ['media_empty']],
  [{ bytes: LIMIT.maxBytes + 1 }, ['media_too_large']],
  [{ seconds: 360.1 }, ['media_too_long']],
  [{ container: 'avi' }, ['media_container']],
  [{ codec: 'mpeg video' }, ['media_codec']],
  [{ container: null }, ['media_unreadable']],
  [{ codec: null, seconds: 900 }, ['media_unreadable']],
  [{ codec: 'x', container: 'y', seconds: 900 }, ['media_container', 'media_codec', 'media_too_long']],
])('of a file with %j it is told: %j', (facts, codes) => {
  const problems = checkMedia('video', { ...FINE, ...facts }, LIMIT);
  expect(problems.map(({ code, field }) => [code, field])).toEqual(codes.map((code) => [code, 'video']));
});

test.each<[Partial<MediaFacts>, string[]]>([
  [{ container: 'wav', codec: null }, []],
  [{ container: null, codec: null }, ['media_unreadable']],
  [{ container: 'wav', codec: null, seconds: 361 }, ['media_too_long']],
])('of sound with %j it is told: %j', (facts, codes) => {
  const limit = FIELD_LIMITS['audio-ducking']['voice_file'] as MediaLimit;
  expect(checkMedia('voice_file', { ...FINE, ...facts }, limit).map(({ code }) => code)).toEqual(codes);
});

test('without a limit only a file of no bytes is refused', () => {
  expect(checkMedia('video', { ...FINE, codec: null, seconds: 9_999 }, undefined)).toEqual([]);
  expect(checkMedia('video', { ...FINE, bytes: 0 }, undefined)).toMatchObject([{ code: 'media_empty' }]);
});

describe('a reference', () => {
  test('is read as it was written', () => {
    expect(decodeMedia(encodeMedia(REFERENCE))).toEqual(REFERENCE);
  });

  test.each([
    '{}',
    '{"file":"a"}',
    '{"file":"a","bytes":"7"}',
    '{"file":"a","bytes":7,"sha256":"x"}',
    '{"file":"a","bytes":7,"container":"x"}',
    'x',
  ])('is nothing else: %s', (text) => {
    expect(() => decodeMedia(text)).toThrow();
  });

  test('is a part of the intent by its content, not by its place', () => {
    const fields = { prompt: 'p', video: encodeMedia(REFERENCE) };
    const moved = { prompt: 'p', video: encodeMedia({ ...REFERENCE, file: '/elsewhere/b.mov' }) };
    const other = { prompt: 'p', video: encodeMedia({ ...REFERENCE, sha256: 'def' }) };
    expect(intentOf('video-to-music', moved)).toEqual(intentOf('video-to-music', fields));
    expect(intentOf('video-to-music', other)).not.toEqual(intentOf('video-to-music', fields));
    expect(intentOf('text-to-music', { prompt: 'p' })).toEqual({ prompt: 'p' });
  });

  test('is looked for in fields of that type alone', () => {
    expect(fileFields('video-to-music', { prompt: 'p', video: 'x', video_url: 'y' })).toEqual(['video']);
    // Of a newer release.
    expect(fileFields('text-to-opera', { video: 'x' })).toEqual([]);
  });
});
