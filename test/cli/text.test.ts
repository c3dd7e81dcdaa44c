import { describe, expect, test } from 'vitest';
import { displayWidth, duration, instant, plain, size, truncate, wrap } from '../../src/cli/text.ts';

describe('text for a terminal', () => {
  test('counts a wide character as two columns and a combining mark as none', () => {
    expect([
      displayWidth('rain'),
      displayWidth('雨の歌'),
      displayWidth('e\u0301'),
      displayWidth('🎵'),
    ]).toEqual([4, 6, 1, 2]);
  });

  test('cuts to the width and marks the cut', () => {
    expect(truncate('provider', 8)).toBe('provider');
    expect(truncate('provider', 7)).toBe('provid…');
    expect(truncate('雨の歌', 5)).toBe('雨の…');
    expect(truncate('雨の歌', 4)).toBe('雨…');
  });

  test('takes escape sequences, line breaks and direction overrides out of stored text', () => {
    expect(plain('a\u001b[2Jb\nc\u202ed\ud800')).toBe('a?[2Jb?c?d?');
  });

  test('wraps at blanks', () => {
    expect(wrap('one two three', 7)).toEqual(['one two', 'three']);
    expect(wrap('unbreakable', 4)).toEqual(['unbreakable']);
  });

  test('says durations, sizes and instants in one unit, in UTC', () => {
    expect([-5, 850, 12_999, 180_000, 7_200_000, 172_800_000].map(duration)).toEqual([
      '0 ms',
      '850 ms',
      '12 s',
      '3 min',
      '2 h',
      '2 d',
    ]);
    expect([999, 1_400, 999_949, 999_950, 2_500_000].map(size)).toEqual([
      '999 B',
      '1.4 kB',
      '999.9 kB',
      '1.0 MB',
      '2.5 MB',
    ]);
    expect(instant(new Date('2026-03-01T13:00:30.123+01:00'))).toBe('2026-03-01 12:00:30Z');
  });
});
