import { createHash, randomUUID } from 'node:crypto';
import { encodeFields } from '../core/encode-fields.ts';
import { OnetakeError, suggestion } from '../core/errors.ts';
import { type FieldProblem, FieldsError } from '../core/field-problems.ts';
import type { RequestState } from '../core/generation-request.ts';
import { wireFields } from '../core/operations.ts';
import { findAccount, listAccountNames } from '../postgres/accounts.ts';
import { breakerName, peekRefusal } from '../postgres/circuit-breakers.ts';
import type { Sql } from '../postgres/database.ts';
import { databaseErrorCode } from '../postgres/errors.ts';
import {
  findRequestByKey,
  insertRequest,
  markJobDue,
  type NewRequest,
  notifyNewLane,
  requestExists,
} from '../postgres/generation-requests.ts';
import type { JobQueue } from '../queue/boss.ts';
import type { RequestToSend } from '../queue/jobs.ts';

const SERIALIZATION_FAILURE = '40001';

/** One intent, as the caller means it. */
export interface Intent {
  readonly operation: string;
  readonly fields: Readonly<Record<string, unknown>>;
  /** What the provider is known to refuse about the fields; nothing new is made of them then. */
  readonly problems?: readonly FieldProblem[];
  /** Names the user's intent, 1 to 255 characters, unique per account for ever. */
  readonly requestKey: string;
  readonly account: string;
  readonly fairGroup: string;
  readonly priority: number;
  readonly submitBefore: Date | null;
  readonly supersedes: string | null;
  readonly whenOpen: 'wait' | 'refuse';
}

/** What enqueue works with beside the connection that it is given. */
export interface EnqueueContext {
  readonly queue: JobQueue;
  /** Refuses a database that this build can't work with. Runs on the connection of the enqueue. */
  readonly requireSchema: (sql: Sql) => Promise<void>;
}

export type EnqueueResult =
  | { readonly id: string; readonly state: RequestState; readonly created: boolean }
  | { readonly refused: 'breaker_open'; readonly retryAt: Date | null };

/**
 * Writes the request and its job on the given connection, inside a savepoint of ours: an error leaves the
 * caller's transaction usable and without half a request. Given the same `id` again, after a COMMIT whose
 * answer was lost, it says `created` of the row that it made the first time.
 */
export async function enqueue(
  ctx: EnqueueContext,
  tx: Sql,
  intent: Intent,
  id: string = randomUUID(),
): Promise<EnqueueResult> {
  const encoded = encodeFields(intent.operation, intent.fields);
  const request = {
    id,
    account: intent.account,
    operation: intent.operation,
    requestKey: intent.requestKey,
    fields: wireFields(intent.operation, encoded),
    payloadDigest: digestOf(intent.operation, encoded),
    fairGroup: intent.fairGroup,
    priority: intent.priority,
    submitBefore: intent.submitBefore?.toISOString() ?? null,
    supersedes: intent.supersedes,
  };
  return inSavepoint(tx, 'onetake_enqueue', async () => {
    await ctx.requireSchema(tx);
    // Limits move: what the key names already is the same request still.
    if (intent.problems !== undefined && intent.problems.length > 0) {
      const found = await findRequestByKey(tx, request.account, request.requestKey);
      if (found === undefined) throw new FieldsError(intent.operation, intent.problems);
      return sameIntent(request, found);
    }
    if (intent.whenOpen === 'refuse') {
      const refusal = await refusalByBreaker(tx, intent);
      if (refusal !== undefined) return refusal;
    }
    const inserted = await insertNew(tx, request);
    if (inserted === undefined) return existing(tx, request);
    await notifyNewLane(tx, request.id, request.account, request.operation);
    await sendJob(tx, ctx.queue, { ...request, ...inserted });
    return { id: request.id, state: 'queued', created: true };
  });
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
async function refusalByBreaker(tx: Sql, intent: Intent): Promise<EnqueueResult | undefined> {
  if ((await findRequestByKey(tx, intent.account, intent.requestKey)) !== undefined) return undefined;
  const account = await findAccount(tx, intent.account);
  if (account === undefined) throw await unknownAccount(tx, intent.account);
  // Once a probe is due somebody has to be it: with nothing queued, the breaker would stay open for ever.
  const refusal = await peekRefusal(tx, breakerName(account.provider, intent.operation));
  return refusal === undefined ? undefined : { refused: 'breaker_open', ...refusal };
}

async function insertNew(tx: Sql, request: NewRequest): ReturnType<typeof insertRequest> {
  try {
    return await insertRequest(tx, request);
  } catch (error) {
    throw databaseErrorCode(error) === SERIALIZATION_FAILURE ? hiddenBySnapshot(error) : error;
  }
}

async function unknownAccount(tx: Sql, name: string): Promise<OnetakeError> {
  const known = await listAccountNames(tx);
  return new OnetakeError(
    'unknown_account',
    `account: there is no account "${name}".${suggestion(name, known)}`,
    {
      hint: 'Add it to `accounts` in the configuration and run `onetake migrate`, or call upsertAccount().',
    },
  );
}

async function existing(tx: Sql, request: NewRequest): Promise<EnqueueResult> {
  const found = await findRequestByKey(tx, request.account, request.requestKey);
  if (found === undefined) throw await whyNotInserted(tx, request);
  return sameIntent(request, found);
}

function sameIntent(
  request: NewRequest,
  found: NonNullable<Awaited<ReturnType<typeof findRequestByKey>>>,
): EnqueueResult {
  if (found.payloadDigest !== request.payloadDigest) {
    throw new OnetakeError(
      'intent_mismatch',
      `requestKey: request ${found.id} has this key and another payload.`,
      { hint: 'A new intent needs a new requestKey; `supersedes` may link the two.' },
    );
  }
  return { id: found.id, state: found.state, created: found.id === request.id };
}

async function whyNotInserted(tx: Sql, request: NewRequest): Promise<OnetakeError> {
  if ((await findAccount(tx, request.account)) === undefined) return unknownAccount(tx, request.account);
  if (request.supersedes !== null && !(await requestExists(tx, request.supersedes))) {
    return new OnetakeError('request_not_found', 'supersedes: there is no generation request with that id.');
  }
  return hiddenBySnapshot();
}

/** Under REPEATABLE READ or stricter: the row is there, and the caller's snapshot is older. */
function hiddenBySnapshot(cause?: unknown): OnetakeError {
  return new OnetakeError(
    'serialization_failure',
    'requestKey: another transaction has just enqueued it, and the snapshot of this one is older.',
    {
      hint: 'Run the whole transaction again, or use READ COMMITTED.',
      ...(cause === undefined ? {} : { cause }),
    },
  );
}

/** No request is ever lost on account of a job: a send that fails leaves `job_due` for rescue. */
async function sendJob(tx: Sql, queue: JobQueue, request: RequestToSend): Promise<void> {
  try {
    await inSavepoint(tx, 'onetake_job', () => queue.send(tx, request, null));
  } catch (error) {
    if (error instanceof OnetakeError) throw error;
    try {
      await markJobDue(tx, request.id);
    } catch {
      // The transaction is beyond that, and why tells more, to whoever may run it again.
      throw error;
    }
  }
}

async function inSavepoint<Result>(tx: Sql, name: string, work: () => Promise<Result>): Promise<Result> {
  try {
    await tx.executeSql(`savepoint ${name}`);
  } catch (error) {
    if (databaseErrorCode(error) !== '25P01') throw error;
    throw new OnetakeError('invalid_option', 'tx: no transaction is open on that connection.', {
      hint: 'Begin one first, or leave `tx` out and let onetake use a transaction of its own.',
    });
  }
  let result: Result;
  try {
    result = await work();
  } catch (error) {
    // On a connection that is gone this fails too, and the first error tells more.
    await tx.executeSql(`rollback to savepoint ${name}`).then(
      () => tx.executeSql(`release savepoint ${name}`),
      () => {},
    );
    throw error;
  }
  await tx.executeSql(`release savepoint ${name}`);
  return result;
}
