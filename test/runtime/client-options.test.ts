import { describe, expect, test } from 'vitest';
import { checkOverride, type OverrideBreakerInput } from '../../src/runtime/client-options.ts';

const INPUT: OverrideBreakerInput = {
  name: 'sonilo/text-to-music',
  mode: 'forced_open',
  actor: 'ada',
  reason: 'test',
};
const AT = new Date('2026-08-18T12:00:00.000Z');

describe('the expiry of an override', () => {
  test.each<[string, object, unknown]>([
    ['none', {}, null],
    ['none when both are undefined', { expiresAt: undefined, expiresInMs: undefined }, null],
    ['an instant', { expiresAt: AT }, { at: AT }],
    ['the shortest time', { expiresInMs: 1 }, { inMs: 1 }],
    ['the longest time', { expiresInMs: 1_000_000_000_000 }, { inMs: 1_000_000_000_000 }],
    ['none of a release', { mode: 'released' }, null],
  ])('is %s', (_what, change, expiry) => {
    expect(checkOverride({ ...INPUT, ...change } as OverrideBreakerInput)).toEqual(expiry);
  });
});

describe('an override is refused', () => {
  test.each<[string, object, RegExp]>([
    ['with an option that is none', { expiresIn: 60 }, /^Unknown option "expiresIn"\. Did you mean/],
    ['of a name that is no text', { name: undefined }, /^name: /],
    [
      'by a mode that is none',
      { mode: 'open' },
      /^mode: expected one of forced_open, forced_closed, released/,
    ],
    ['by no mode', { mode: undefined }, /^mode: /],
    [
      'with two expiries',
      { expiresAt: AT, expiresInMs: 60_000 },
      /^expiresAt, expiresInMs: give one of them/,
    ],
    ['as a release with an instant', { mode: 'released', expiresAt: AT }, /none to a release/],
    ['as a release with a time', { mode: 'released', expiresInMs: 1 }, /none to a release/],
    ['for no time', { expiresInMs: 0 }, /^expiresInMs: expected a whole number from 1/],
    ['for a time in the past', { expiresInMs: -60_000 }, /^expiresInMs: /],
    ['for a fraction of a ms', { expiresInMs: 0.5 }, /^expiresInMs: /],
    ['for a number as text', { expiresInMs: '60000' }, /^expiresInMs: /],
    ['for null', { expiresInMs: null }, /^expiresInMs: /],
    ['for a time that no calendar has', { expiresInMs: 1e300 }, /^expiresInMs: /],
    ['until an instant as text', { expiresAt: AT.toISOString() }, /^expiresAt: expected a valid Date/],
    ['until no instant', { expiresAt: new Date(Number.NaN) }, /^expiresAt: /],
  ])('%s', (_what, change, message) => {
    expect(() => checkOverride({ ...INPUT, ...change } as OverrideBreakerInput)).toThrow(
      expect.objectContaining({ code: 'invalid_option', message: expect.stringMatching(message) }),
    );
  });
});
