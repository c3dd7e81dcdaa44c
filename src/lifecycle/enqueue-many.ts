import { OnetakeError, type OnetakeErrorCode } from '../core/errors.ts';
import { type FieldProblem, FieldsError } from '../core/field-problems.ts';
import { listAccountNames } from '../postgres/accounts.ts';
import type { Sql } from '../postgres/database.ts';
import {
  type EnqueueProblem,
  findRequestsByKey,
  type KnownRequest,
  type NewRequest,
  nextRounds,
} from '../postgres/enqueue-requests.ts';
import {
  type EnqueueContext,
  type EnqueueResult,
  hiddenBySnapshot,
  type Intent,
  newRequest,
  type Refusal,
  refusalByBreaker,
  resultOf,
  unknownAccount,
  unknownSupersedes,
  writeRequests,
} from './enqueue.ts';
import { inSavepoint } from './in-savepoint.ts';

/** What `enqueue` of this one alone would have thrown. */
export interface RefusedItem {
  readonly refused: OnetakeErrorCode;
  /** The option or field at fault, such as `requestKey` or `fields.prompt`. */
  readonly field: string | null;
  readonly message: string;
  readonly hint: string | null;
  /** Everything that is wrong with its fields; empty when it was refused for something else. */
  readonly problems: readonly FieldProblem[];
}

export type EnqueueManyResult = EnqueueResult | RefusedItem;

/** Rows of one statement: some 100 ms, and far below any time-out. */
const BATCH = 1_000;
const LAST_ROUND = 2_000_000_000;

/** One key of the call; the first item that names it, and has no problems, is the one that is written. */
interface Keyed {
  readonly request: NewRequest;
  readonly problems: readonly FieldProblem[];
  readonly refusesWhenOpen: boolean;
}

type Answer = (KnownRequest & { readonly isNew?: true }) | EnqueueProblem | Refusal | OnetakeError;

/**
 * Enqueues many in one savepoint, by a few statements for each thousand; one result for each, in the given order. An
 * error in place of an intent is its result. Keys are locked in one order, so that two calls with the same keys don't
 * deadlock.
 */
export async function enqueueMany(
  ctx: EnqueueContext,
  tx: Sql,
  items: readonly (Intent | OnetakeError)[],
  ids: readonly string[],
): Promise<EnqueueManyResult[]> {
  const byKey = new Map<string, Keyed>();
  const requests = items.map((item, index) => {
    if (item instanceof OnetakeError) return item;
    const { problems = [], whenOpen } = item;
    const keyed = {
      request: newRequest(item, ids[index] as string),
      problems,
      refusesWhenOpen: whenOpen === 'refuse',
    };
    const key = keyOf(keyed.request);
    const first = byKey.get(key);
    if (first === undefined || (first.problems.length > 0 && problems.length === 0)) byKey.set(key, keyed);
    return keyed;
  });
  const answers =
    byKey.size === 0
      ? new Map<string, Answer>()
      : await inSavepoint(tx, 'onetake_enqueue', async () => {
          await ctx.makeReady(tx);
          return writeKeys(tx, [...byKey.values()]);
        });
  return requests.map((keyed) => {
    if (keyed instanceof OnetakeError) return refusedItem(keyed);
    try {
      return told(keyed, answers.get(keyOf(keyed.request)) as Answer);
    } catch (error) {
      if (error instanceof OnetakeError) return refusedItem(error);
      throw error;
    }
  });
}

async function writeKeys(tx: Sql, inCallersOrder: readonly Keyed[]): Promise<Map<string, Answer>> {
  const answers = new Map<string, Answer>();
  const tell = ({ request }: Keyed, answer: Answer) => answers.set(keyOf(request), answer);
  const isOpen = (keyed: Keyed) => !answers.has(keyOf(keyed.request));
  // Read first, so that what is there already takes no turns.
  for (const batch of batches(inCallersOrder)) {
    const known = await findRequestsByKey(
      tx,
      batch.map(({ request }) => request),
    );
    for (const [position, found] of known) tell(batch[position] as Keyed, found);
  }
  // Limits move: only what is not there yet is held against them.
  for (const keyed of inCallersOrder.filter(isOpen)) {
    const { request, problems } = keyed;
    if (problems.length > 0) tell(keyed, new FieldsError(request.operation, problems));
  }
  const accounts = await listAccountNames(tx);
  const isKnown = new Set(accounts);
  for (const keyed of inCallersOrder.filter(isOpen)) {
    const { account } = keyed.request;
    if (!isKnown.has(account)) tell(keyed, unknownAccount(account, accounts));
  }
  const refusals = new Map<string, Refusal | undefined>();
  for (const keyed of inCallersOrder.filter((one) => one.refusesWhenOpen && isOpen(one))) {
    const { account, operation } = keyed.request;
    const lane = `${account}/${operation}`;
    if (!refusals.has(lane)) refusals.set(lane, await refusalByBreaker(tx, account, operation));
    const refusal = refusals.get(lane);
    if (refusal !== undefined) tell(keyed, refusal);
  }
  const fresh = await inTurns(tx, inCallersOrder.filter(isOpen));
  for (const batch of batches(fresh.toSorted(byKeyOrder))) {
    const written = await writeRequests(
      tx,
      batch.map(({ request }) => request),
    );
    for (const [position, answer] of written.entries()) {
      // The others can't be kept from a transaction that has to be run again.
      if (answer === 'hidden') throw hiddenBySnapshot();
      tell(batch[position] as Keyed, typeof answer === 'string' ? answer : { ...answer, isNew: true });
    }
  }
  return answers;
}

/** Each with its round: those of one group in the caller's order, whatever order their keys are locked in. */
async function inTurns(tx: Sql, fresh: readonly Keyed[]): Promise<Keyed[]> {
  const first = new Map<string, NewRequest>();
  for (const { request } of fresh) if (!first.has(groupOf(request))) first.set(groupOf(request), request);
  const next = new Map<string, number>();
  for (const batch of batches([...first.entries()])) {
    const rounds = await nextRounds(
      tx,
      batch.map(([, request]) => request),
    );
    for (const [position, [group]] of batch.entries()) next.set(group, rounds[position] as number);
  }
  return fresh.map((keyed) => {
    const group = groupOf(keyed.request);
    const round = Math.min(next.get(group) as number, LAST_ROUND);
    next.set(group, round + 1);
    return { ...keyed, request: { ...keyed.request, round } };
  });
}

function told({ request, problems }: Keyed, answer: Answer): EnqueueManyResult {
  if (answer instanceof OnetakeError) throw answer;
  if (answer === 'unknown_account') throw unknownAccount(request.account, []);
  if (answer === 'unknown_supersedes') throw unknownSupersedes();
  if (answer === 'hidden') throw hiddenBySnapshot();
  if ('refused' in answer) return answer;
  // Another of this call has made it, with fields that are as they should be.
  if (problems.length > 0 && answer.isNew) throw new FieldsError(request.operation, problems);
  return resultOf(request, answer);
}

function refusedItem(error: OnetakeError): RefusedItem {
  const problems = error instanceof FieldsError ? error.problems : [];
  return {
    refused: error.code,
    field: fieldOf(error, problems[0]),
    message: error.message,
    hint: error.hint ?? null,
    problems,
  };
}

/** An option is named before the colon. */
function fieldOf({ message }: OnetakeError, problem: FieldProblem | undefined): string | null {
  if (problem === undefined) return /^([A-Za-z]+): /.exec(message)?.[1] ?? null;
  if (problem.field === '') return null;
  return problem.field === 'fields' ? 'fields' : `fields.${problem.field}`;
}

function keyOf({ account, requestKey }: NewRequest): string {
  return `${account}/${requestKey}`;
}

function groupOf({ account, operation, fairGroup, priority }: NewRequest): string {
  return JSON.stringify([account, operation, fairGroup, Math.sign(priority)]);
}

function byKeyOrder({ request: a }: Keyed, { request: b }: Keyed): number {
  const [x, y] = [keyOf(a), keyOf(b)];
  return x < y ? -1 : x > y ? 1 : 0;
}

function* batches<Item>(all: readonly Item[]): Generator<Item[]> {
  for (let from = 0; from < all.length; from += BATCH) yield all.slice(from, from + BATCH);
}
