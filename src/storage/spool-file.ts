import { createHash } from 'node:crypto';
import {
  type Certainty,
  type Health,
  isUsableTaskId,
  type OutcomeReason,
  type Phase,
} from '../core/outcome.ts';
import type { SubmissionOutcome, WireEvidence, WireProof } from '../core/provider.ts';
import type { AttemptIntent, SpooledOutcome } from '../core/spooled-outcome.ts';

/** Grows with every change that an older release would misread; an older one then leaves the file alone. */
export const SPOOL_FORMAT = 1;

export type SpoolReading =
  | { readonly kind: 'outcome'; readonly spooled: SpooledOutcome }
  | { readonly kind: 'damaged' }
  /** Written by a newer release, which will replay it. */
  | { readonly kind: 'newer' };

interface Envelope {
  readonly version: unknown;
  readonly sha256: unknown;
  readonly content: unknown;
}

/**
 * One JSON line. Every field is named one by one: what an admitted attempt carries besides (the prompt) stays
 * out, whatever is added to it one day. The digest tells a whole file from a torn, mended or foreign one.
 */
export function encodeSpooled({ intent, outcome }: SpooledOutcome): string {
  const content = { intent: plainIntent(intent), outcome: plainOutcome(outcome) };
  const envelope: Envelope = { version: SPOOL_FORMAT, sha256: digestOf(content), content };
  return `${JSON.stringify(envelope)}\n`;
}

export function decodeSpooled(text: string): SpoolReading {
  let envelope: Partial<Envelope> | null;
  try {
    envelope = JSON.parse(text);
  } catch {
    return { kind: 'damaged' };
  }
  const version = envelope?.version;
  if (typeof version !== 'number' || !Number.isInteger(version)) return { kind: 'damaged' };
  if (version > SPOOL_FORMAT) return { kind: 'newer' };
  if (envelope?.sha256 !== digestOf(envelope?.content)) return { kind: 'damaged' };
  try {
    const { intent, outcome } = envelope.content as { intent: Fields; outcome: Fields };
    return { kind: 'outcome', spooled: { intent: readIntent(intent), outcome: readOutcome(outcome) } };
  } catch {
    return { kind: 'damaged' };
  }
}

function digestOf(content: unknown): string {
  return createHash('sha256')
    .update(JSON.stringify(content) ?? '')
    .digest('hex');
}

type Fields = Readonly<Record<string, unknown>>;

function plainIntent(intent: AttemptIntent): AttemptIntent {
  return {
    attemptId: intent.attemptId,
    requestId: intent.requestId,
    attempt: intent.attempt,
    account: intent.account,
    operation: intent.operation,
    breakerName: intent.breakerName,
    generation: intent.generation,
    holdEpoch: intent.holdEpoch,
    isProbe: intent.isProbe,
    override: intent.override,
    worker: intent.worker,
    startedAt: intent.startedAt,
    leaseExpiresAt: intent.leaseExpiresAt,
    windowUntil: intent.windowUntil,
    slotUntil: intent.slotUntil,
    quarantineUntil: intent.quarantineUntil,
    isUnconfirmed: intent.isUnconfirmed ?? false,
  };
}

function plainOutcome(outcome: SubmissionOutcome): SubmissionOutcome {
  const { evidence } = outcome;
  return {
    health: outcome.health,
    certainty: outcome.certainty,
    reason: outcome.reason,
    alert: outcome.alert,
    retryAfterMs: outcome.retryAfterMs,
    evidence: {
      phase: evidence.phase,
      headersSent: evidence.headersSent ?? null,
      headersSentProof: evidence.headersSentProof ?? null,
      repeatedSend: evidence.repeatedSend ?? false,
      httpStatus: evidence.httpStatus,
      errorCode: evidence.errorCode,
      providerTaskId: evidence.providerTaskId,
      responseAgeMs: evidence.responseAgeMs,
      closed: evidence.closed,
    },
  };
}

// What is read goes into SQL as it is: a field of another type or form makes the file a damaged one.

function readIntent(fields: Fields): AttemptIntent {
  return {
    attemptId: text(fields, 'attemptId', UUID),
    requestId: text(fields, 'requestId', UUID),
    attempt: count(fields, 'attempt'),
    account: text(fields, 'account', NAME),
    operation: text(fields, 'operation', NAME),
    breakerName: text(fields, 'breakerName', BREAKER),
    generation: count(fields, 'generation'),
    holdEpoch: count(fields, 'holdEpoch'),
    isProbe: truth(fields, 'isProbe'),
    override: orNull(fields, 'override', (at, key) => text(at, key, OVERRIDE)) as AttemptIntent['override'],
    worker: text(fields, 'worker', WORKER),
    startedAt: instant(fields, 'startedAt'),
    leaseExpiresAt: instant(fields, 'leaseExpiresAt'),
    windowUntil: instant(fields, 'windowUntil'),
    slotUntil: instant(fields, 'slotUntil'),
    quarantineUntil: instant(fields, 'quarantineUntil'),
    isUnconfirmed: truth(fields, 'isUnconfirmed'),
  };
}

function readOutcome(fields: Fields): SubmissionOutcome {
  return {
    health: text(fields, 'health', HEALTH) as Health,
    certainty: text(fields, 'certainty', CERTAINTY) as Certainty,
    reason: text(fields, 'reason', WORD) as OutcomeReason,
    alert: truth(fields, 'alert'),
    retryAfterMs: orNull(fields, 'retryAfterMs', count),
    evidence: readEvidence(fields['evidence'] as Fields),
  };
}

function readEvidence(fields: Fields): WireEvidence {
  const providerTaskId = fields['providerTaskId'];
  if (providerTaskId !== null && !isUsableTaskId(providerTaskId)) throw new DamagedError();
  return {
    phase: text(fields, 'phase', PHASE) as Phase,
    headersSent: orNull(fields, 'headersSent', truth),
    headersSentProof: orNull(fields, 'headersSentProof', (at, key) =>
      text(at, key, PROOF),
    ) as WireProof | null,
    repeatedSend: truth(fields, 'repeatedSend'),
    httpStatus: orNull(fields, 'httpStatus', count),
    errorCode: orNull(fields, 'errorCode', (at, key) => text(at, key, CODE)),
    providerTaskId,
    responseAgeMs: orNull(fields, 'responseAgeMs', count),
    closed: truth(fields, 'closed'),
  };
}

const UUID = /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/;
const NAME = /^[A-Za-z0-9_.-]{1,63}$/;
const BREAKER = /^[A-Za-z0-9_.-]{1,63}\/[A-Za-z0-9_.-]{1,63}$/;
const WORKER = /^[^\p{Cc}\p{Cs}]{1,1000}$/u;
const OVERRIDE = /^forced_(open|closed)$/;
const CERTAINTY = /^(accepted|refused|unsent|unknown)$/;
const HEALTH =
  /^(success|dependency_failure|capacity_signal|request_or_account_failure|unknown_failure|none)$/;
const PHASE = /^(unsent|sent|response_started|answered)$/;
const PROOF = /^(oracle|error_code|kept_back|answer|provider)$/;
const WORD = /^[a-z_]{1,64}$/;
const CODE = /^[A-Za-z0-9_.:-]{1,64}$/;
const LARGEST_INTEGER = 2_147_483_647;

class DamagedError extends Error {
  constructor() {
    super('a spooled outcome is damaged');
    this.name = 'DamagedError';
  }
}

function text(fields: Fields, key: string, form: RegExp): string {
  const value = fields[key];
  if (typeof value !== 'string' || !form.test(value)) throw new DamagedError();
  return value;
}

function count(fields: Fields, key: string): number {
  const value = fields[key];
  const isCount = Number.isInteger(value) && Number(value) >= 0 && Number(value) <= LARGEST_INTEGER;
  if (!isCount) throw new DamagedError();
  return value as number;
}

function truth(fields: Fields, key: string): boolean {
  const value = fields[key];
  if (typeof value !== 'boolean') throw new DamagedError();
  return value;
}

function instant(fields: Fields, key: string): Date {
  const at = new Date(text(fields, key, /^\d{4}-\d\d-\d\dT[\d:.]+Z$/));
  if (Number.isNaN(at.getTime())) throw new DamagedError();
  return at;
}

function orNull<T>(fields: Fields, key: string, read: (fields: Fields, key: string) => T): T | null {
  return fields[key] === null ? null : read(fields, key);
}
