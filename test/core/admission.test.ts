import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import {
  accountRefusal,
  capacityPauseMs,
  decideAdmission,
  judgeRefusal,
  keyCheckDelayMs,
  type LaneLoad,
  RATE_WINDOW_MS,
  retryAfterMs,
} from '../../src/core/admission.ts';

const NOW = new Date('2026-08-18T12:00:00.000Z');
const LIMITS = { requestsPerMinute: 60, maxConcurrentGenerations: 4 };
const IDLE: LaneLoad = {
  windowCount: 0,
  slotCount: 0,
  pausedUntil: null,
  held: false,
  trialInFlight: null,
  permit: { permit: 'allow' },
};

function inMs(ms: number): Date {
  return new Date(NOW.getTime() + ms);
}

describe('judgeRefusal', () => {
  const REFUSED = {
    kind: 'payment_required',
    isFromBeforeRelease: false,
    trial: null,
    wasRefusedBefore: false,
  } as const;
  const NOTHING = { hold: false, reject: false, countsForTrial: false };

  test.each(['key_refused', 'payment_required', 'access_denied'] as const)(
    'holds at the first %s',
    (kind) => {
      expect(judgeRefusal({ ...REFUSED, kind })).toEqual({ ...NOTHING, hold: true });
      expect(judgeRefusal({ ...REFUSED, kind, wasRefusedBefore: true })).toEqual({ ...NOTHING, hold: true });
    },
  );

  test('makes nothing of an answer to a POST from before a release, or before a hold ended', () => {
    const early = { ...REFUSED, wasRefusedBefore: true };
    expect(judgeRefusal({ ...early, isFromBeforeRelease: true })).toEqual(NOTHING);
    expect(judgeRefusal({ ...early, trial: { isFirst: false, refusals: 2 } })).toEqual(NOTHING);
  });

  test.each([
    ['key_refused', 0, true],
    ['payment_required', 0, false],
    ['payment_required', 1, false],
    ['payment_required', 2, true],
    ['payment_required', 3, true],
    ['access_denied', 1, false],
    ['access_denied', 2, true],
  ] as const)('in a trial, %s after %i refusals holds: %s', (kind, refusals, hold) => {
    const trial = { isFirst: true, refusals };
    expect(judgeRefusal({ ...REFUSED, kind, trial })).toEqual({ hold, reject: false, countsForTrial: true });
  });

  test('rejects what was refused before, and in one trial only once', () => {
    const again = { ...REFUSED, wasRefusedBefore: true };
    expect(judgeRefusal({ ...again, trial: { isFirst: true, refusals: 0 } }).reject).toBe(true);
    expect(judgeRefusal({ ...again, trial: { isFirst: true, refusals: 1 } }).reject).toBe(false);
    expect(judgeRefusal({ ...REFUSED, trial: { isFirst: true, refusals: 0 } }).reject).toBe(false);
  });
});

describe('decideAdmission', () => {
  test.each([
    ['as many as are wanted', {}, 3, 3],
    ['as many as slots are free', {}, 9, 4],
    ['as many as the minute still holds', { windowCount: 58 }, 9, 2],
    ['the last of the minute', { windowCount: 59 }, 9, 1],
    ['the last slot', { slotCount: 3 }, 9, 1],
    ['none to somebody who wants none', {}, 0, 0],
    ['one while a release has to prove itself', { trialInFlight: 0 }, 9, 1],
    ['again at the very end of a pause', { pausedUntil: NOW }, 1, 1],
  ])('permits %s', (_title, load, wanted, permits) => {
    expect(decideAdmission(LIMITS, { ...IDLE, ...load }, wanted, NOW)).toEqual({
      permits,
      probe: 'none',
    });
  });

  test.each([
    ['held', { held: true }],
    ['paused', { pausedUntil: inMs(1) }],
    ['breaker', { permit: { permit: 'refuse', retryAt: inMs(30_000) } as const }],
    ['breaker', { permit: { permit: 'refuse', retryAt: undefined } as const }],
    ['rate', { windowCount: 60 }],
    ['rate', { windowCount: 61 }],
    ['concurrency', { slotCount: 4 }],
    ['concurrency', { slotCount: 5 }],
    ['ramp', { permit: { permit: 'allow', atMost: 2 } as const, inFlight: 2 }],
    ['ramp', { permit: { permit: 'allow', atMost: 2 } as const, inFlight: 9 }],
  ])('permits nothing and says why: %s (%#)', (blockedBy, load) => {
    expect(decideAdmission(LIMITS, { ...IDLE, ...load }, 1, NOW)).toEqual({ permits: 0, blockedBy });
  });

  test('names the block that a person must end before those that end by themselves', () => {
    const load: LaneLoad = {
      windowCount: 60,
      slotCount: 4,
      pausedUntil: inMs(1),
      held: true,
      trialInFlight: 1,
      permit: { permit: 'refuse', retryAt: undefined },
      inFlight: 4,
    };
    const blocks: unknown[] = [];
    for (const relief of [
      {},
      { held: false },
      { trialInFlight: 0 },
      { pausedUntil: null },
      { permit: { permit: 'allow', atMost: 4 } as const },
      { permit: { permit: 'allow' } as const },
      { windowCount: 0 },
    ]) {
      Object.assign(load, relief);
      blocks.push(decideAdmission(LIMITS, load, 1, NOW));
    }
    expect(blocks).toEqual(
      ['held', 'trial', 'paused', 'breaker', 'ramp', 'rate', 'concurrency'].map((blockedBy) => ({
        permits: 0,
        blockedBy,
      })),
    );
  });

  test('permits one probe, however many are wanted', () => {
    const probing: LaneLoad = { ...IDLE, permit: { permit: 'probe' } };
    expect(decideAdmission(LIMITS, probing, 9, NOW)).toEqual({ permits: 1, probe: 'alone' });
    expect(decideAdmission(LIMITS, probing, 0, NOW)).toEqual({ permits: 0, probe: 'alone' });
  });

  test.each([
    ['as many as the ramp still has room for', 10, 7, 9, 3],
    ['no more than the account allows, whatever the ramp does', 1_000, 0, 9, 4],
    ['no more than are wanted', 10, 0, 1, 1],
  ])('during a ramp permits %s', (_title, atMost, inFlight, wanted, permits) => {
    const ramping: LaneLoad = { ...IDLE, permit: { permit: 'allow', atMost }, inFlight };
    expect(decideAdmission(LIMITS, ramping, wanted, NOW)).toEqual({ permits, probe: 'none' });
  });

  test('takes nothing for in flight when nobody counted', () => {
    const ramping: LaneLoad = { ...IDLE, permit: { permit: 'allow', atMost: 2 } };
    expect(decideAdmission(LIMITS, ramping, 9, NOW)).toEqual({ permits: 2, probe: 'none' });
  });

  test('knows a ramp only where one is named', () => {
    expect(decideAdmission(LIMITS, { ...IDLE, inFlight: 1_000 }, 9, NOW)).toEqual({
      permits: 4,
      probe: 'none',
    });
    const probing: LaneLoad = { ...IDLE, permit: { permit: 'probe' }, inFlight: 1_000 };
    expect(decideAdmission(LIMITS, probing, 9, NOW)).toEqual({ permits: 1, probe: 'alone' });
  });

  test('in shadow permits as many as ever, and marks the first as the probe', () => {
    const shadowed: LaneLoad = { ...IDLE, permit: { permit: 'shadow_probe' } };
    expect(decideAdmission(LIMITS, shadowed, 9, NOW)).toEqual({ permits: 4, probe: 'first' });
    expect(decideAdmission(LIMITS, { ...shadowed, windowCount: 60 }, 9, NOW)).toEqual({
      permits: 0,
      blockedBy: 'rate',
    });
  });

  test.each([
    ['held', { held: true }],
    ['paused', { pausedUntil: inMs(1) }],
    ['rate', { windowCount: 60 }],
    ['concurrency', { slotCount: 4 }],
  ])('permits no probe to an account that is blocked by %s', (blockedBy, load) => {
    const probing: LaneLoad = { ...IDLE, ...load, permit: { permit: 'probe' } };
    expect(decideAdmission(LIMITS, probing, 1, NOW)).toEqual({ permits: 0, blockedBy });
  });
});

test('a POST occupies the minute and a quarter of a second', () => {
  expect(RATE_WINDOW_MS).toBe(60_250);
});

describe('Retry-After', () => {
  const DAY_MS = 86_400_000;

  const table: [string, string | null, number | null][] = [
    ['absent', null, null],
    ['empty', '', null],
    ['blanks', '   ', null],
    ['0', '0', 0],
    ['1', '1', 1_000],
    ['120', '120', 120_000],
    ['120 among blanks', ' 120\t', 120_000],
    ['leading zeros', '007', 7_000],
    ['a fraction of a second', '0.0001', 1],
    ['1.5', '1.5', 1_500],
    ['+3', '+3', null],
    ['-3', '-3', null],
    ['1e9', '1e9', null],
    ['Infinity', 'Infinity', null],
    ['NaN', 'NaN', null],
    ['1000abc', '1000abc', null],
    ['hexadecimal', '0x10', null],
    ['99999999999', '99999999999', DAY_MS],
    ['more digits than a number can hold', '9'.repeat(400), DAY_MS],
    ['two values', '120, 60', null],
    ['a date', 'Tue, 18 Aug 2026 12:02:00 GMT', 120_000],
    ['a date of RFC 850', 'Tuesday, 18-Aug-26 12:02:00 GMT', 120_000],
    ['a date of asctime, which means UTC', 'Tue Aug 18 12:02:00 2026', 120_000],
    ['an asctime date with a padded day', 'Tue Sep  1 12:00:00 2026', DAY_MS],
    ['this very second', 'Tue, 18 Aug 2026 12:00:00 GMT', 0],
    ['a past date', 'Sun, 06 Nov 1994 08:49:37 GMT', 0],
    ['a past date of RFC 850', 'Sunday, 06-Nov-94 08:49:37 GMT', 0],
    ['a date of RFC 850 that is 50 years ahead', 'Friday, 06-Nov-76 08:49:37 GMT', DAY_MS],
    ['a date of RFC 850 that would be 51 years ahead', 'Sunday, 06-Nov-77 08:49:37 GMT', 0],
    ['a far future date', 'Fri, 31 Dec 9999 23:59:59 GMT', DAY_MS],
    ['a malformed date', 'Tue, 18 Foo 2026 12:02:00 GMT', null],
    ['a date with an hour 25', 'Tue, 18 Aug 2026 25:02:00 GMT', null],
    ['a date with a day 32', 'Sat, 32 Aug 2026 12:02:00 GMT', null],
    ['a date in another zone', 'Tue, 18 Aug 2026 12:02:00 PST', null],
    ['a date without a time', 'Tue, 18 Aug 2026', null],
    ['an ISO date', '2026-08-18T12:02:00Z', null],
    ['a weekday and a number', 'Sunday 3', null],
  ];

  test.each(table)('reads %s', (_title, header, expected) => {
    expect(retryAfterMs(header, NOW)).toBe(expected);
  });

  test.each(table)('pauses for a rate limit within floor and cap, with %s', (_title, header, read) => {
    const pause = capacityPauseMs('rate', retryAfterMs(header, NOW), 1);
    expect(pause).toBeGreaterThanOrEqual(60_000);
    expect(pause).toBeLessThanOrEqual(900_000);
    if (read !== null && read > 60_000 && read < 900_000) expect(pause).toBe(read);
  });

  test.each([
    ['whatever text comes', fc.string({ maxLength: 40 })],
    ['whatever looks like one', fc.stringMatching(/^[-+ 0-9.:,A-Za-z]{0,40}$/)],
  ])('never leaves floor and cap, %s', (_title, headers) => {
    fc.assert(
      fc.property(headers, (header) => {
        const read = retryAfterMs(header, NOW);
        expect(read === null || (read >= 0 && read <= DAY_MS)).toBe(true);
        const pause = capacityPauseMs('rate', read, 1);
        expect(pause >= 60_000 && pause <= 900_000).toBe(true);
      }),
    );
  });

  test('any date that we write in any of the three forms is read back', () => {
    const seconds = fc.integer({ min: 0, max: 86_400 });
    fc.assert(
      fc.property(seconds, (ahead) => {
        const date = inMs(ahead * 1_000);
        const [weekday, day, month, year, time] = date.toUTCString().replace(',', '').split(' ') as string[];
        const rfc850 = `Wednesday, ${day}-${month}-${year?.slice(2)} ${time} GMT`;
        for (const form of [date.toUTCString(), rfc850, `${weekday} ${month} ${day} ${time} ${year}`]) {
          expect(retryAfterMs(form, NOW)).toBe(ahead * 1_000);
        }
      }),
    );
  });
});

describe('the pause for a rate limit', () => {
  test.each([
    [null, 60_000],
    [0, 60_000],
    [59_999, 60_000],
    [60_001, 60_001],
    [899_999, 899_999],
    [900_001, 900_000],
    [Number.POSITIVE_INFINITY, 900_000],
  ])('with Retry-After read as %s is %d ms, however many came before', (retryAfter, expected) => {
    for (const consecutive of [1, 2, 50]) {
      expect(capacityPauseMs('rate', retryAfter, consecutive)).toBe(expected);
    }
  });
});

describe('the pause for a concurrency limit', () => {
  test.each([
    [0, 5_000],
    [1, 5_000],
    [2, 10_000],
    [3, 20_000],
    [4, 40_000],
    [5, 60_000],
    [6, 60_000],
    [1_000_000, 60_000],
  ])('after %d refusals in a row is %d ms, whatever Retry-After says', (consecutive, expected) => {
    for (const retryAfter of [null, 0, 120_000, 86_400_000]) {
      expect(capacityPauseMs('concurrency', retryAfter, consecutive)).toBe(expected);
    }
  });
});

describe('what a refusal holds', () => {
  test.each([
    [401, null, 'key_refused', 'account'],
    [401, 'trial_exhausted', 'key_refused', 'account'],
    [402, null, 'payment_required', 'account'],
    [402, 'insufficient_balance', 'payment_required', 'account'],
    [402, 'trial_exhausted', 'payment_required', 'operation'],
    [403, null, 'access_denied', 'operation'],
  ])('%d with code %s: %s for the %s', (status, code, kind, scope) => {
    expect(accountRefusal(status, code)).toEqual({ kind, scope });
  });

  test('is nothing for every other status', () => {
    for (let status = 100; status < 600; status += 1) {
      if (![401, 402, 403].includes(status))
        expect(accountRefusal(status, 'trial_exhausted')).toBeUndefined();
    }
  });
});

test('a refused key is checked after 30 s, and then more and more seldom, up to each 15 min', () => {
  expect([0, 1, 2, 3, 4, 5, 6, 7, 1_000].map(keyCheckDelayMs)).toEqual([
    30_000, 30_000, 60_000, 120_000, 240_000, 480_000, 900_000, 900_000, 900_000,
  ]);
});
