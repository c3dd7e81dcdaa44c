import { createHash } from 'node:crypto';
import { describe, expect, it } from 'vitest';
import type { SpooledOutcome } from '../../src/core/spooled-outcome.ts';
import { decodeSpooled, encodeSpooled, SPOOL_FORMAT } from '../../src/storage/spool-file.ts';
import { spooledOutcome } from '../support/spooled.ts';

/** The file that `spooled` makes, with its content changed by hand and its digest put right. */
function forged(change: (content: Record<string, Record<string, unknown>>) => void, version = SPOOL_FORMAT) {
  const { content } = JSON.parse(encodeSpooled(spooledOutcome()));
  change(content);
  const sha256 = createHash('sha256').update(JSON.stringify(content)).digest('hex');
  return `${JSON.stringify({ version, sha256, content })}\n`;
}

const OUTCOMES: Record<string, SpooledOutcome> = {
  acceptance: spooledOutcome(),
  'acceptance as the probe, under an override': spooledOutcome({
    intent: { isProbe: true, override: 'forced_closed', attempt: 7, generation: 12, holdEpoch: 3 },
    evidence: { providerTaskId: '歌 "1" \\ é' },
  }),
  refusal: spooledOutcome({
    outcome: {
      certainty: 'refused',
      health: 'capacity_signal',
      reason: 'rate_limited',
      retryAfterMs: 60_000,
    },
    evidence: { httpStatus: 429, providerTaskId: null, errorCode: 'rate_limit_exceeded' },
  }),
  'unknown outcome': spooledOutcome({
    outcome: { certainty: 'unknown', health: 'dependency_failure', reason: 'transport', alert: true },
    evidence: {
      phase: 'sent',
      httpStatus: null,
      providerTaskId: null,
      errorCode: 'ECONNRESET',
      headersSent: null,
      headersSentProof: null,
      repeatedSend: true,
      responseAgeMs: null,
      closed: false,
    },
  }),
  'unsent attempt': spooledOutcome({
    intent: { isUnconfirmed: true },
    outcome: { certainty: 'unsent', health: 'none', reason: 'unsent_own_doing' },
    evidence: {
      phase: 'unsent',
      headersSent: false,
      headersSentProof: 'kept_back',
      httpStatus: null,
      providerTaskId: null,
      errorCode: 'gate_closed',
    },
  }),
};

describe('a spooled outcome', () => {
  it.each(Object.entries(OUTCOMES))('comes back as it was: %s', (_what, spooled) => {
    expect(decodeSpooled(encodeSpooled(spooled))).toEqual({ kind: 'outcome', spooled });
  });

  it('holds ids and evidence only, whatever the attempt and the outcome carry besides', () => {
    const { intent, outcome } = spooledOutcome();
    const carried = {
      intent: { ...intent, fields: { prompt: 'CANARY' }, apiKey: 'CANARY' },
      outcome: { ...outcome, body: 'CANARY', evidence: { ...outcome.evidence, url: 'CANARY' } },
    };
    expect(encodeSpooled(carried)).not.toContain('CANARY');
    expect(encodeSpooled(carried)).toBe(encodeSpooled({ intent, outcome }));
  });

  it('is damaged when it is cut anywhere', () => {
    const text = encodeSpooled(spooledOutcome());
    for (let length = 0; length < text.length - 1; length++) {
      expect(decodeSpooled(text.slice(0, length)), `${length} bytes`).toEqual({ kind: 'damaged' });
    }
  });

  it('is damaged when a byte of its content is another', () => {
    const text = encodeSpooled(spooledOutcome());
    for (const [was, is] of [
      ['a-task', 'b-task'],
      ['202', '422'],
      ['accepted', 'refused'],
      ['"attempt":1', '"attempt":2'],
    ] as const) {
      expect(text).toContain(was);
      expect(decodeSpooled(text.replace(was, is)), `${was} → ${is}`).toEqual({ kind: 'damaged' });
    }
  });

  it.each(['', '\u0000'.repeat(512), 'null', '[]', '7', '"x"', '{}', '{"version":1}', '{"version":"1"}'])(
    'is damaged when it is something else: %j',
    (text) => {
      expect(decodeSpooled(text)).toEqual({ kind: 'damaged' });
    },
  );

  it('is left to a newer release when it is of one', () => {
    expect(decodeSpooled(forged(() => undefined, SPOOL_FORMAT + 1))).toEqual({ kind: 'newer' });
    // Nothing but the version is looked at: its rules are another release's.
    expect(decodeSpooled(`{"version":${SPOOL_FORMAT + 1},"more":1}`)).toEqual({ kind: 'newer' });
  });

  const WRONG: Record<string, Record<string, readonly unknown[]>> = {
    intent: {
      attemptId: ['x', null, '../../etc/passwd', 1],
      requestId: ['x', undefined],
      attempt: [-1, 1.5, '1', null, 2 ** 31],
      account: ['', 'a b', null],
      operation: ['', null],
      breakerName: ['sonilo', null],
      generation: [null],
      holdEpoch: ['0'],
      isProbe: [0, null],
      override: ['open', 1],
      worker: ['', 'a\u0000b'],
      startedAt: ['yesterday', null, '2026-99-01T00:00:00.000Z'],
      leaseExpiresAt: [0],
      windowUntil: [undefined],
      slotUntil: [''],
      quarantineUntil: [null],
      isUnconfirmed: [null, 'no'],
    },
    outcome: {
      health: ['fine', null],
      certainty: ['sure', null],
      reason: ['', 'DROP TABLE', null],
      alert: ['false'],
      retryAfterMs: [-1, '60'],
      evidence: [null, 'x'],
    },
  };
  it.each(
    Object.entries(WRONG).flatMap(([part, fields]) =>
      Object.entries(fields).flatMap(([field, values]) =>
        values.map((value) => [`${part}.${field}`, value, part, field]),
      ),
    ) as [string, unknown, string, string][],
  )('is damaged, digest or not, with %s %j', (_what, value, part, field) => {
    const text = forged((content) => {
      (content[part] as Record<string, unknown>)[field] = value;
    });
    expect(decodeSpooled(text)).toEqual({ kind: 'damaged' });
  });

  it.each([
    ['phase', 'lease_over'],
    ['headersSent', 1],
    ['headersSentProof', 'word'],
    ['repeatedSend', null],
    ['httpStatus', '202'],
    ['errorCode', 'two words'],
    ['providerTaskId', ''],
    ['providerTaskId', 7],
    ['providerTaskId', 'a\u0000b'],
    ['responseAgeMs', -1],
    ['closed', null],
  ])('is damaged, digest or not, with evidence.%s %j', (field, value) => {
    const text = forged((content) => {
      (content['outcome']?.['evidence'] as Record<string, unknown>)[field] = value;
    });
    expect(decodeSpooled(text)).toEqual({ kind: 'damaged' });
  });
});
