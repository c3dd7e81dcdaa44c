import { describe, expect, it, test } from 'vitest';
import { isContentCode, judgeStreamEnd, READER_LOST, type StreamEnd } from '../../src/core/stream.ts';

describe('the end of a stream', () => {
  const interrupted = 'stream_interrupted';
  test.each<[string, StreamEnd, object]>([
    [
      'a whole one has nothing to add',
      { kind: 'complete', streams: 1, document: null },
      { to: 'succeeded', failureReason: null, code: 'complete', health: 'none' },
    ],
    [
      'an error of the provider counts',
      { kind: 'failed', errorCode: 'FAL_ERROR', isContent: false },
      { to: 'failed', failureReason: 'provider', code: 'FAL_ERROR', health: 'dependency_failure' },
    ],
    [
      'an error without a code has one',
      { kind: 'failed', errorCode: null, isContent: false },
      { to: 'failed', failureReason: 'provider', code: 'stream_error', health: 'dependency_failure' },
    ],
    [
      'a word about the content counts for nothing',
      { kind: 'failed', errorCode: 'CONTENT_POLICY', isContent: true },
      { to: 'failed', failureReason: 'provider', code: 'CONTENT_POLICY', health: 'none' },
    ],
    [
      'one that breaks counts',
      { kind: 'interrupted', errorCode: 'stream_cut' },
      { to: 'failed', failureReason: interrupted, code: 'stream_cut', health: 'dependency_failure' },
    ],
    [
      'our own disk says nothing of the provider',
      { kind: 'interrupted', errorCode: 'storage', isOurs: true },
      { to: 'failed', failureReason: interrupted, code: 'storage', health: 'none' },
    ],
    [
      'nor does a lost reader',
      READER_LOST,
      { to: 'failed', failureReason: interrupted, code: 'reader_lost', health: 'none' },
    ],
  ])('%s', (_name, end, verdict) => {
    expect(judgeStreamEnd(end)).toEqual(verdict);
  });
});

it('knows the codes that are about the content, in any case', () => {
  const codes = ['CONTENT_POLICY'];
  expect(isContentCode('content_policy', codes)).toBe(true);
  expect(isContentCode('FAL_ERROR', codes)).toBe(false);
  expect(isContentCode(null, codes)).toBe(false);
});
