import type { RequestState } from '../core/generation-request.ts';
import type { EncodedFields } from '../core/operations.ts';
import { rows, type Sql } from './database.ts';

// Statements that a caller's transaction runs. They take every parameter as text and cast it, and answer with
// numbers and texts: other drivers encode typed values in ways of their own.

export interface NewRequest {
  readonly id: string;
  readonly account: string;
  readonly operation: string;
  readonly requestKey: string;
  readonly fields: EncodedFields;
  readonly payloadDigest: string;
  readonly mode: 'async' | 'stream';
  readonly fairGroup: string;
  readonly priority: number;
  /** ISO 8601 */
  readonly submitBefore: string | null;
  readonly supersedes: string | null;
  /** Null: the next one of its group. */
  readonly round: number | null;
}

export type KnownRequest = {
  readonly id: string;
  readonly state: RequestState;
  readonly payloadDigest: string;
};

/** `hidden`: it is there, and the snapshot of the caller's transaction is older. */
export type EnqueueProblem = 'unknown_account' | 'unknown_supersedes' | 'hidden';

/** The database refused, and nothing was written; the transaction is as it was. For whoever branches on `code`. */
export class EnqueueRefusedError extends Error {
  /** SQLSTATE */
  readonly code: string;

  constructor(code: string) {
    super(`the database refused to enqueue (SQLSTATE ${code})`);
    this.name = 'EnqueueRefusedError';
    this.code = code;
  }
}

/**
 * Writes what is new, with its jobs, and tells of each request, in the given order, which row its key names now;
 * one key once. Keys are locked in that order too: whoever gives several sorts them. One round trip, and its own
 * savepoint: whatever the database refuses, the caller's transaction goes on.
 */
export async function enqueueRequests(
  sql: Sql,
  requests: readonly NewRequest[],
): Promise<(KnownRequest | EnqueueProblem)[]> {
  const answers = await rows<{
    number: number | null;
    id: string;
    state: RequestState;
    digest: string;
    problem: EnqueueProblem | null;
    error: string;
  }>(sql, 'select * from onetake.enqueue($1::text::jsonb)', [
    JSON.stringify(
      requests.map((request, number) => ({
        number,
        id: request.id,
        account: request.account,
        operation: request.operation,
        request_key: request.requestKey,
        fields: request.fields,
        payload_digest: request.payloadDigest,
        mode: request.mode,
        fair_group: request.fairGroup,
        priority: request.priority,
        submit_before: request.submitBefore,
        supersedes: request.supersedes,
        round: request.round,
      })),
    ),
  ]);
  const told: (KnownRequest | EnqueueProblem)[] = [];
  for (const { number, id, state, digest, problem, error } of answers) {
    if (number === null) throw new EnqueueRefusedError(error);
    told[number] = problem ?? { id, state, payloadDigest: digest };
  }
  return told;
}

/** Which of these keys name a request already, by their position in the list. */
export async function findRequestsByKey(
  sql: Sql,
  keys: readonly { readonly account: string; readonly requestKey: string }[],
): Promise<Map<number, KnownRequest>> {
  const found = await rows<KnownRequest & { number: number }>(
    sql,
    `select g.number, r.id, r.state, r.payload_digest as "payloadDigest"
from jsonb_to_recordset($1::text::jsonb) as g (number integer, account text, request_key text)
join onetake.generation_requests r on r.account = g.account and r.request_key = g.request_key`,
    [
      JSON.stringify(
        keys.map(({ account, requestKey }, number) => ({ number, account, request_key: requestKey })),
      ),
    ],
  );
  return new Map(found.map(({ number, id, state, payloadDigest }) => [number, { id, state, payloadDigest }]));
}

export interface Turns {
  readonly account: string;
  readonly operation: string;
  readonly fairGroup: string;
  readonly priority: number;
}

/** The next round of each, as one request of that group and priority would get it. */
export async function nextRounds(sql: Sql, turns: readonly Turns[]): Promise<number[]> {
  const found = await rows<{ round: number }>(
    sql,
    `select onetake.next_round(g.account, g.operation, g.fair_group, g.priority) as round
from jsonb_to_recordset($1::text::jsonb)
  as g (number integer, account text, operation text, fair_group text, priority integer)
order by g.number`,
    [
      JSON.stringify(
        turns.map(({ fairGroup, ...turn }, number) => ({ ...turn, number, fair_group: fairGroup })),
      ),
    ],
  );
  return found.map(({ round }) => round);
}
