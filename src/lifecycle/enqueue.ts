import { createHash, randomUUID } from 'node:crypto';
import { OnetakeError, suggestion } from '../core/errors.ts';
import type { RequestState } from '../core/generation-request.ts';
import { encodeFields, wireFields } from '../core/operations.ts';
import { findAccount, listAccountNames } from '../postgres/accounts.ts';
import { breakerName, peekCircuitBreaker } from '../postgres/circuit-breakers.ts';
import type { Sql } from '../postgres/database.ts';
import { databaseErrorCode, violatedConstraint } from '../postgres/errors.ts';
import {
  findRequestByKey,
  insertRequest,
  markJobDue,
  notifyNewLane,
} from '../postgres/generation-requests.ts';
import type { JobQueue } from '../queue/boss.ts';

/** One intent, as the caller means it. */
export interface Intent {
  readonly operation: string;
  readonly fields: Readonly<Record<string, unknown>>;
  /** Names the user's intent, 1 to 255 characters, unique per account for ever. */
  readonly requestKey: string;
  readonly account: string;
  readonly fairGroup: string;
  readonly priority: number;
  readonly submitBefore: Date | null;
  readonly supersedes: string | null;
  readonly whenOpen: 'wait' | 'refuse';
}

export type EnqueueResult =
  | { readonly id: string; readonly state: RequestState; readonly created: boolean }
  | { readonly refused: 'breaker_open'; readonly retryAt: Date | null };

/**
 * Writes the request and its job on the given connection, inside a savepoint of ours: an error leaves the
 * caller's transaction usable and without half a request.
 */
export async function enqueue(tx: Sql, queue: JobQueue, intent: Intent): Promise<EnqueueResult> {
  const encoded = encodeFields(intent.operation, intent.fields);
  const request = {
    id: randomUUID(),
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
    if (intent.whenOpen === 'refuse') {
      const refusal = await refusalByBreaker(tx, intent);
      if (refusal !== undefined) return refusal;
    }
    if (!(await insertOrExplain(tx, request))) return existing(tx, intent, request.payloadDigest);
    await notifyNewLane(tx, request.id, request.account, request.operation);
    await sendJob(tx, queue, request);
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

/** A look without a lock: a breaker that opens a moment later simply keeps the request waiting. */
async function refusalByBreaker(tx: Sql, intent: Intent): Promise<EnqueueResult | undefined> {
  if ((await findRequestByKey(tx, intent.account, intent.requestKey)) !== undefined) return undefined;
  const account = await findAccount(tx, intent.account);
  if (account === undefined) throw await unknownAccount(tx, intent.account);
  const row = await peekCircuitBreaker(tx, breakerName(account.provider, intent.operation));
  if (row === undefined || row.breaker.state === 'closed') return undefined;
  return { refused: 'breaker_open', retryAt: row.breaker.state === 'open' ? row.breaker.retryAt : null };
}

async function insertOrExplain(tx: Sql, request: Parameters<typeof insertRequest>[1]): Promise<boolean> {
  try {
    return await inSavepoint(tx, 'onetake_insert', () => insertRequest(tx, request));
  } catch (error) {
    switch (violatedConstraint(error)) {
      case 'generation_requests_account_fk':
        throw await unknownAccount(tx, request.account);
      case 'generation_requests_supersedes_fk':
        throw new OnetakeError(
          'request_not_found',
          'supersedes: there is no generation request with that id.',
        );
      default:
        throw error;
    }
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

async function existing(tx: Sql, intent: Intent, payloadDigest: string): Promise<EnqueueResult> {
  const found = await findRequestByKey(tx, intent.account, intent.requestKey);
  if (found === undefined) {
    // Only under REPEATABLE READ or stricter: the row exists and this snapshot can't see it.
    throw new OnetakeError('request_not_found', 'Another transaction has just enqueued this requestKey.', {
      hint: 'Retry your transaction: under REPEATABLE READ its snapshot is older than that row.',
    });
  }
  if (found.payloadDigest !== payloadDigest) {
    throw new OnetakeError(
      'intent_mismatch',
      `requestKey: request ${found.id} has this key and another payload.`,
      {
        hint: 'A new intent needs a new requestKey; `supersedes` may link the two.',
      },
    );
  }
  return { id: found.id, state: found.state, created: false };
}

/** No request is ever lost on account of a job: a send that fails leaves `job_due` for rescue. */
async function sendJob(
  tx: Sql,
  queue: JobQueue,
  request: { readonly id: string; readonly account: string; readonly operation: string },
): Promise<void> {
  try {
    await inSavepoint(tx, 'onetake_job', () => queue.send(tx, request, null));
  } catch (error) {
    if (error instanceof OnetakeError) throw error;
    await markJobDue(tx, request.id);
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
    await tx.executeSql(`rollback to savepoint ${name}`);
    throw error;
  }
  await tx.executeSql(`release savepoint ${name}`);
  return result;
}
