import { createHash, randomUUID } from 'node:crypto';
import { encodeFields } from '../core/encode-fields.ts';
import { OnetakeError, suggestion } from '../core/errors.ts';
import { type FieldProblem, FieldsError } from '../core/field-problems.ts';
import type { RequestState } from '../core/generation-request.ts';
import { intentOf } from '../core/media.ts';
import { type EncodedFields, wireFields } from '../core/operations.ts';
import { findAccount, listAccountNames } from '../postgres/accounts.ts';
import { breakerName, peekRefusal } from '../postgres/circuit-breakers.ts';
import type { Sql } from '../postgres/database.ts';
import {
  type EnqueueProblem,
  EnqueueRefusedError,
  enqueueRequests,
  findRequestsByKey,
  type KnownRequest,
  type NewRequest,
} from '../postgres/enqueue-requests.ts';
import { inSavepoint } from './in-savepoint.ts';

const SERIALIZATION_FAILURE = '40001';

/** One intent, as the caller means it. */
export interface Intent {
  readonly operation: string;
  readonly fields: Readonly<Record<string, unknown>>;
  /** What the provider is known to refuse about the fields; nothing new is made of them then. */
  readonly problems?: readonly FieldProblem[];
  /** The references of its local files, by field, as `inspectSourceFile` wrote them. */
  readonly media?: EncodedFields;
  /** Names the user's intent, 1 to 255 characters, unique per account for ever. */
  readonly requestKey: string;
  readonly account: string;
  readonly mode: 'async' | 'stream';
  /** The caller's own word, and so a part of the intent. */
  readonly modeIsGiven: boolean;
  readonly fairGroup: string;
  readonly priority: number;
  readonly submitBefore: Date | null;
  readonly supersedes: string | null;
  readonly whenOpen: 'wait' | 'refuse';
}

/** What enqueue works with beside the connection that it is given. */
export interface EnqueueContext {
  /** Whether `makeReady` has found everything in order before. */
  readonly isReady: () => boolean;
  /** Refuses a database, or a queue in it, that this build can't work with. Runs on the connection of the enqueue. */
  readonly makeReady: (sql: Sql) => Promise<void>;
}

export interface EnqueueTerms {
  /** Given again after a COMMIT whose answer was lost, the row that was made the first time is told as created. */
  readonly id?: string;
  /** That a transaction is open is known; else it is found out, which costs two round trips. */
  readonly isOpen?: boolean;
}

export type Refusal = { readonly refused: 'breaker_open'; readonly retryAt: Date | null };
export type EnqueueResult =
  | { readonly id: string; readonly state: RequestState; readonly created: boolean }
  | Refusal;

/**
 * Writes the request and its job on the given connection, as inside a savepoint of ours: an error leaves the
 * caller's transaction usable and without half a request.
 */
export async function enqueue(
  ctx: EnqueueContext,
  tx: Sql,
  intent: Intent,
  { id = randomUUID(), isOpen = false }: EnqueueTerms = {},
): Promise<EnqueueResult> {
  const request = newRequest(intent, id);
  const { problems = [], whenOpen } = intent;
  if (isOpen && ctx.isReady() && problems.length === 0 && whenOpen === 'wait') {
    const [answer] = await writeRequests(tx, [request]);
    if (typeof answer === 'object') return resultOf(request, answer);
    // Nothing was written, and why is asked for below.
  }
  return inSavepoint(tx, 'onetake_enqueue', async () => {
    await ctx.makeReady(tx);
    if (problems.length > 0 || whenOpen === 'refuse') {
      // Limits move and breakers open: what the key names already is the same request still.
      const found = (await findRequestsByKey(tx, [request])).get(0);
      if (found !== undefined) return resultOf(request, found);
      if (problems.length > 0) throw new FieldsError(intent.operation, problems);
      const refusal = await refusalByBreaker(tx, intent.account, intent.operation);
      if (refusal !== undefined) return refusal;
    }
    const [answer] = await writeRequests(tx, [request]);
    if (typeof answer === 'object') return resultOf(request, answer);
    throw await explain(tx, request, answer);
  });
}

export function newRequest(intent: Intent, id: string): NewRequest {
  const encoded = { ...encodeFields(intent.operation, intent.fields), ...intent.media };
  const isStream = intent.mode === 'stream';
  return {
    id,
    account: intent.account,
    operation: intent.operation,
    requestKey: intent.requestKey,
    fields: { ...wireFields(intent.operation, encoded), ...(isStream ? { mode: 'stream' } : {}) },
    payloadDigest: digestOf(intent.operation, {
      ...intentOf(intent.operation, encoded),
      // An async one keeps the digest that it had before there were streams.
      ...(isStream && intent.modeIsGiven ? { mode: 'stream' } : {}),
    }),
    mode: intent.mode,
    fairGroup: intent.fairGroup,
    priority: intent.priority,
    submitBefore: intent.submitBefore?.toISOString() ?? null,
    supersedes: intent.supersedes,
    round: null,
  };
}

/**
 * SHA-256 over operation and the caller's own fields in canonical order: the same intent has the same
 * digest, whatever our defaults are by then.
 */
export function digestOf(operation: string, encoded: Readonly<Record<string, string>>): string {
  const canonical = Object.keys(encoded)
    .sort()
    .map((name) => [name, encoded[name]]);
  return createHash('sha256')
    .update(JSON.stringify([operation, canonical]))
    .digest('hex');
}

/**
 * A look without a lock: a breaker that opens a moment later simply keeps the request waiting. It refuses
 * what a permit would be refused to, and not when a probe is due: where every caller asks first, nothing
 * else would ever be queued that could be the probe.
 */
export async function refusalByBreaker(
  tx: Sql,
  accountName: string,
  operation: string,
): Promise<Refusal | undefined> {
  const account = await findAccount(tx, accountName);
  if (account === undefined) throw unknownAccount(accountName, await listAccountNames(tx));
  // Once a probe is due somebody has to be it: with nothing queued, the breaker would stay open for ever.
  const refusal = await peekRefusal(tx, breakerName(account.provider, operation));
  return refusal === undefined ? undefined : { refused: 'breaker_open', ...refusal };
}

export async function writeRequests(
  tx: Sql,
  requests: readonly NewRequest[],
): Promise<(KnownRequest | EnqueueProblem)[]> {
  try {
    return await enqueueRequests(tx, requests);
  } catch (error) {
    const isStale = error instanceof EnqueueRefusedError && error.code === SERIALIZATION_FAILURE;
    throw isStale ? hiddenBySnapshot(error) : error;
  }
}

/** The row that the request's key names now, or `intent_mismatch`. */
export function resultOf(request: NewRequest, found: KnownRequest): EnqueueResult {
  if (found.payloadDigest !== request.payloadDigest) {
    throw new OnetakeError(
      'intent_mismatch',
      `requestKey: request ${found.id} has this key and another payload.`,
      { hint: 'A new intent needs a new requestKey; `supersedes` may link the two.' },
    );
  }
  return { id: found.id, state: found.state, created: found.id === request.id };
}

async function explain(
  tx: Sql,
  request: NewRequest,
  problem: EnqueueProblem | undefined,
): Promise<OnetakeError> {
  switch (problem) {
    case 'unknown_account':
      return unknownAccount(request.account, await listAccountNames(tx));
    case 'unknown_supersedes':
      return unknownSupersedes();
    default:
      return hiddenBySnapshot();
  }
}

export function unknownAccount(name: string, known: readonly string[]): OnetakeError {
  return new OnetakeError(
    'unknown_account',
    `account: there is no account "${name}".${suggestion(name, known)}`,
    {
      hint: 'Add it to `accounts` in the configuration and run `onetake migrate`, or call upsertAccount().',
    },
  );
}

export function unknownSupersedes(): OnetakeError {
  return new OnetakeError('request_not_found', 'supersedes: there is no generation request with that id.');
}

/**
 * Under REPEATABLE READ or stricter: the row is there, and the caller's snapshot is older. Under SERIALIZABLE also any
 * two at once in one lane: each reads what turns there are, and adds one.
 */
export function hiddenBySnapshot(cause?: unknown): OnetakeError {
  return new OnetakeError(
    'serialization_failure',
    'requestKey: another transaction has just enqueued it, or under SERIALIZABLE something beside it, and the snapshot of this one is older.',
    {
      hint: 'Run the whole transaction again, or use READ COMMITTED.',
      ...(cause === undefined ? {} : { cause }),
    },
  );
}
