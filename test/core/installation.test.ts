import { describe, expect, test } from 'vitest';
import { type InstallationReading, markAfter } from '../../src/core/installation.ts';

const READING: InstallationReading = {
  installation: 'a',
  revision: 5,
  flushed: '0/A0',
  trouble: null,
  loss: null,
};
const MARK = { installation: 'a', revision: 5, flushed: '0/A0', attemptId: 'one' };

describe('what a process remembers of the database', () => {
  test('begins with the first look', () => {
    expect(markAfter(null, READING)).toEqual({ ...MARK, attemptId: null });
  });

  test.each([
    ['0/9F', '0/A0'],
    ['0/A1', '0/A1'],
    ['1/0', '1/0'],
    ['0/FFFFFFFF', '0/FFFFFFFF'],
  ])('is the furthest position: after %s it is %s', (flushed, kept) => {
    expect(markAfter(MARK, { ...READING, flushed })).toEqual({ ...MARK, flushed: kept });
  });

  test('compares positions as numbers of 64 bits, not as text', () => {
    expect(markAfter({ ...MARK, flushed: '9/0' }, { ...READING, flushed: '10/0' })?.flushed).toBe('10/0');
    expect(markAfter({ ...MARK, flushed: '2/1' }, { ...READING, flushed: '1/FFFFFFFF' })?.flushed).toBe(
      '2/1',
    );
  });

  test('keeps the position when a look gives none', () => {
    expect(markAfter(MARK, { ...READING, flushed: null })?.flushed).toBe('0/A0');
    expect(markAfter({ ...MARK, flushed: null }, READING)?.flushed).toBe('0/A0');
    expect(markAfter({ ...MARK, flushed: null }, { ...READING, flushed: null })?.flushed).toBe(null);
  });

  test.each([
    ['another installation', { installation: 'b' }],
    ['another confirmation', { revision: 6 }],
  ])('begins anew with %s', (_, changes) => {
    const reading = { ...READING, ...changes, flushed: '0/1' };
    expect(markAfter(MARK, reading)).toEqual({
      installation: reading.installation,
      revision: reading.revision,
      flushed: '0/1',
      attemptId: null,
    });
  });

  test.each([
    { trouble: 'stepped_back' as const, flushed: '0/1' },
    { installation: null, trouble: 'unconfirmed' as const },
    { revision: null },
    { installation: null },
  ])('learns nothing from a database in trouble: %j', (changes) => {
    expect(markAfter(MARK, { ...READING, ...changes })).toBe(MARK);
  });
});
