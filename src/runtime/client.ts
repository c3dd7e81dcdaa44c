import { randomUUID } from 'node:crypto';
import type pg from 'pg';
import type { AccountLimits } from '../core/admission.ts';
import type { BreakerOverride } from '../core/circuit-breaker.ts';
import { OnetakeError, type OnetakeErrorCode, suggestion } from '../core/errors.ts';
import { isTerminal, type RequestState } from '../core/generation-request.ts';
import { OPERATION_NAMES, operationNamed } from '../core/operations.ts';
import type { ResultDocument } from '../core/provider.ts';
import { type EnqueueResult, enqueue } from '../lifecycle/enqueue.ts';
import { type EnqueueManyResult, enqueueMany } from '../lifecycle/enqueue-many.ts';
import { type AccountOverview, listAccounts } from '../postgres/account-holds.ts';
import { listAccountNames, upsertAccount } from '../postgres/accounts.ts';
import {
  type BreakerHistoryRow,
  type BreakerStatus,
  listBreakerStatus,
  listTransitions,
} from '../postgres/breaker-history.ts';
import { CommitUnknownError, Database, type Sql } from '../postgres/database.ts';
import { listUnclaimedTasks, type UnclaimedTask } from '../postgres/followed-tasks.ts';
import { type InstallationStatus, readInstallation } from '../postgres/installation.ts';
import { type Decision, listDecisions } from '../postgres/operator-actions.ts';
import {
  type AmbiguousSubmission,
  abandonRequest,
  acknowledgeAttention,
  cancelRequest,
  forceBreaker,
  holdAccount,
  listAmbiguousSubmissions,
  type OperatorNote,
  type Resolution,
  releaseAccount,
  releaseBreaker,
  reopenRequest,
  resolveAsAccepted,
  resolveAsNotAccepted,
} from '../postgres/operator-functions.ts';
import {
  type AttemptRow,
  type FileRow,
  findIdsByPrefix,
  findRequest,
  listAttempts,
  listFiles,
  listRequests,
  listUnrefunded,
  type RequestFilter,
  type RequestRow,
  readDocument,
  type UnrefundedFilter,
  type UnrefundedRow,
} from '../postgres/request-overview.ts';
import { requireSchema } from '../postgres/schema-version.ts';
import { JobQueue } from '../queue/boss.ts';
import { type CallerTransaction, callerExecutor, isKnownOpen } from '../queue/caller-transaction.ts';
import { NoticeQueue } from '../queue/notices.ts';
import {
  checkAccount,
  checkFilter,
  checkFrozen,
  checkHistory,
  checkHold,
  checkNote,
  checkOverride,
  checkRecover,
  checkResolve,
  checkSettled,
  checkUnrefunded,
  checkWait,
  type OverrideBreakerInput,
  type RecoverInput,
} from './client-options.ts';
import { explainDatabaseError, withoutValues } from './database-errors.ts';
import type { OnetakeConfig } from './define-config.ts';
import { checkEnqueue, checkEnqueueMany, type EnqueueInput, enqueueRules } from './enqueue-options.ts';
import { checkConnectionString } from './environment.ts';
import { inTurn } from './in-turn.ts';
import { inspectMedia, inspectMediaOf } from './inspect-media.ts';
import { openFile } from './open-file.ts';
import { checkKeys } from './option-object.ts';
import { type ResolvedConfig, resolveConfig } from './options.ts';
import { type Recovery, recover } from './recover.ts';
import { checkIdPrefix, isRequestId } from './request-id.ts';
import { SettledConsumer } from './settled-consumer.ts';
import { SettledWaits } from './settled-waits.ts';
import { SharedListener } from './shared-listener.ts';
import { throughBlips } from './through-blips.ts';

export interface ClientOptions {
  /** Either this or `pool`. Connects on first use. */
  readonly connectionString?: string;
  /** A pool of yours, of any size; it is not closed by `stop()`. */
  readonly pool?: pg.Pool;
  /** As in `onetake.config.ts`: `operations.*.limits` and `storage.allowPrivateHosts` hold for what is enqueued here. */
  readonly config?: OnetakeConfig | ResolvedConfig;
}

/** `requests show`, whole. */
export interface RequestDetails extends RequestRow {
  readonly attempts: readonly AttemptRow[];
  /** Tasks that were accepted beside `providerTaskId`, and paid for unless refunded. */
  readonly otherTasks: readonly UnclaimedTask[];
  readonly files: readonly FileRow[];
  /** What is no file: what `video-analysis` found, or the `title` of music. Null where there is none. */
  readonly document: ResultDocument | null;
}

export type ResolveInput = { readonly id: string; readonly actor: string; readonly reason: string } & (
  | { readonly as: 'accepted'; readonly providerTaskId: string }
  | {
      readonly as: 'not_accepted';
      readonly resubmit?: boolean;
      readonly force?: boolean;
      readonly submitBefore?: Date;
    }
  | { readonly as: 'abandoned' }
);

export interface WaitOptions {
  readonly signal?: AbortSignal;
  /** Told what it is about twice a second until it has ended. */
  readonly onProgress?: (request: RequestDetails) => void;
}

export type SettledHandler = (request: RequestDetails) => void | Promise<void>;

export interface SettledOptions {
  /** Handlers at once in this process; 1 to 1,000, default 4. */
  readonly concurrency?: number;
  /** Told what the handler threw; it is stored nowhere. */
  readonly onError?: (error: unknown, requestId: string) => void;
}

export interface SettledSubscription {
  /** Takes nothing more and waits for the handlers under way. */
  stop(): Promise<void>;
  [Symbol.asyncDispose](): Promise<void>;
}

export interface Client {
  /**
   * Enqueues up to 100,000 at once, set-based and all or nothing; one result for each, in the given order. What
   * `enqueue` would throw for one of them is its result here, and keeps no other out. Of two with the same key the
   * first is written. Two calls with the same keys don't deadlock, whatever their orders.
   */
  enqueue(
    inputs: readonly EnqueueInput[],
    options?: { readonly tx?: CallerTransaction },
  ): Promise<EnqueueManyResult[]>;
  // Last, since a compiler explains a wrong call by its last overload.
  /**
   * Enqueues one intent; with `tx`, on that connection only and inside a savepoint, so that it commits and
   * rolls back with the caller. Throws `intent_mismatch`, `unknown_operation`, `unknown_account`,
   * `invalid_field`, `unknown_field`; after any of them the transaction is still usable. Under REPEATABLE
   * READ or stricter also `serialization_failure`, when another transaction has just enqueued the key (under
   * SERIALIZABLE anything of that account and operation).
   * Transactions that enqueue the same keys in different orders can deadlock (40P01), as with any unique key.
   */
  enqueue(input: EnqueueInput, options?: { readonly tx?: CallerTransaction }): Promise<EnqueueResult>;
  /** Undefined when there is none with that id (or unique prefix of 8 or more). */
  get(id: string): Promise<RequestDetails | undefined>;
  /**
   * What operators decided about it, oldest first: for whoever asks later, and not for your customers. Throws
   * `request_not_found`.
   */
  listDecisions(id: string): Promise<Decision[]>;
  /** Newest first. Throws `unknown_account`, `unknown_operation` when nothing has such a name. */
  list(filter?: RequestFilter): Promise<RequestRow[]>;
  /**
   * What was paid for, came to nothing, and has not been given back as far as is known, oldest first. Throws
   * `unknown_account`.
   */
  listUnrefunded(filter?: UnrefundedFilter): Promise<UnrefundedRow[]>;
  /**
   * Resolves at a terminal state, or when an operator is needed (`ambiguous`). However many wait, they share one
   * connection that listens; where none can, through a pooler, they share a look each second.
   */
  waitForGeneration(id: string, options?: WaitOptions): Promise<RequestDetails>;
  /**
   * Calls `handler` for each request that ends from when this resolves on, whoever ends it: at least once, by any
   * one of the processes that ask. A handler that rejects gets it again later, up to 20 times over about half a
   * day; then `attention` says `notice_undelivered`. Keeps the process alive until `stop`.
   */
  onSettled(handler: SettledHandler, options?: SettledOptions): Promise<SettledSubscription>;
  /**
   * A stored file, read no faster than it is consumed. Throws `storage_not_configured`, `request_not_found`,
   * `file_not_found`, `file_not_stored`, `file_missing`.
   */
  openFile(id: string, index: number): Promise<ReadableStream<Uint8Array>>;
  cancel(id: string, note: OperatorNote): Promise<Resolution>;
  listAmbiguous(filter?: { readonly id?: string; readonly limit?: number }): Promise<AmbiguousSubmission[]>;
  resolve(input: ResolveInput): Promise<Resolution>;
  /** Takes back the task id that an operator attached: the request is ambiguous again. */
  reopen(id: string, note: OperatorNote): Promise<Resolution>;
  /** Ends what asks for a person's eyes (`attention`), and changes nothing else. */
  acknowledge(id: string, note: OperatorNote): Promise<Resolution>;
  breakerStatus(): Promise<BreakerStatus[]>;
  breakerHistory(name: string, limit?: number): Promise<BreakerHistoryRow[]>;
  /** Forces a breaker open or closed, or releases it; resolves to what was in force before, or `none`. */
  overrideBreaker(input: OverrideBreakerInput): Promise<BreakerOverride | 'none'>;
  listAccounts(): Promise<AccountOverview[]>;
  upsertAccount(account: AccountLimits & { readonly name: string; readonly provider: string }): Promise<void>;
  /** Nothing of it is submitted until its release, or `until`. True: in place of an operator's earlier hold. */
  holdAccount(
    account: string,
    operation: string | null,
    note: OperatorNote & { readonly until?: Date },
  ): Promise<boolean>;
  releaseAccount(account: string, operation: string | null, note: OperatorNote): Promise<number>;
  /** Whether this is the database that was confirmed, and what an operator wants to know before a decision. */
  installation(): Promise<InstallationStatus>;
  /**
   * Says what happened to a database that is not recognised. Throws `installation_in_doubt` for a resumption of one
   * that has provably lost something.
   */
  recover(input: RecoverInput): Promise<Recovery>;
  /** Ends waits (`stopped`), and waits for handlers of settled requests. */
  stop(): Promise<void>;
  [Symbol.asyncDispose](): Promise<void>;
}

const POOL_MAX = 5;
const PROGRESS_MS = 500;
const HANDLERS = 4;

/** Connects on first use, leaves no timer that keeps a script alive, works through a transaction pooler. */
export function createClient(given: ClientOptions): Client {
  // Without types, whoever gives nothing is told the same as whoever gives too little.
  const options = given ?? {};
  checkKeys(options, ['connectionString', 'pool', 'config']);
  const config = resolveConfig(options.config ?? {});
  const rules = enqueueRules(config, options.config !== undefined);
  const database = open(options);
  const queue = new JobQueue({ executor: database.upkeep, role: 'client', onError: () => {} });
  // What an operator's function did is undone as a whole when its transaction fails, so it may be asked again.
  const act = <Result>(work: (tx: Sql) => Promise<Result>) => database.retryingTransaction(work);
  let isReady = false;
  const context = {
    isReady: () => isReady,
    makeReady: async (sql: Sql) => {
      if (isReady) return;
      await requireSchema(sql);
      await queue.start(sql);
      isReady = true;
    },
  };
  const listener = new SharedListener(database);
  const waits = new SettledWaits({ database, listener, isAway });
  const consumers = new Set<SettledConsumer>();
  let stopping: Promise<void> | undefined;
  const explained = async <Result>(call: () => Promise<Result>): Promise<Result> => {
    if (stopping === undefined) return throughBlips(call);
    throw stopped();
  };

  /** What the driver throws inside a transaction of the caller is for the caller, who may branch on it. */
  const inTheirs = async <Result>(call: () => Promise<Result>): Promise<Result> => {
    if (stopping !== undefined) throw stopped();
    try {
      return await call();
    } catch (error) {
      const explained = explainDatabaseError(error);
      throw explained instanceof OnetakeError && FOR_ANYBODY.has(explained.code)
        ? explained
        : withoutValues(error);
    }
  };

  const resolveId = async (given: string): Promise<string | undefined> => {
    if (isRequestId(given)) return given;
    const [first, second] = await findIdsByPrefix(database, checkIdPrefix(given));
    if (second === undefined) return first;
    throw new OnetakeError('ambiguous_id_prefix', `id: more than one request begins with ${given}.`, {
      hint: 'Give more of its digits.',
    });
  };
  const requireId = async (given: string): Promise<string> => {
    const id = await resolveId(given);
    if (id !== undefined) return id;
    throw notFound(given);
  };
  const list = async (filter: RequestFilter): Promise<RequestRow[]> => {
    const found = await listRequests(database, filter);
    // Nothing there is an answer, but not to a misspelt name.
    if (found.length === 0) {
      if (filter.operation !== undefined) operationNamed(filter.operation);
      if (filter.account !== undefined) await requireAccount(filter.account);
    }
    return found;
  };
  const unrefunded = async (filter: UnrefundedFilter): Promise<UnrefundedRow[]> => {
    const found = await listUnrefunded(database, filter);
    if (found.length === 0 && filter.account !== undefined) await requireAccount(filter.account);
    return found;
  };
  const requireAccount = async (name: string): Promise<void> => {
    const known = await listAccountNames(database);
    if (known.includes(name)) return;
    throw new OnetakeError(
      'unknown_account',
      `account: there is no account "${name}".${suggestion(name, known)}`,
      {
        hint: 'See `onetake accounts list`.',
      },
    );
  };
  const get = async (given: string): Promise<RequestDetails | undefined> => {
    const id = await resolveId(given);
    const request = id === undefined ? undefined : await findRequest(database, id);
    if (request === undefined) return undefined;
    const [attempts, otherTasks, files, document] = await Promise.all([
      listAttempts(database, request.id),
      listUnclaimedTasks(database, request.id),
      listFiles(database, request.id),
      readDocument(database, request.id),
    ]);
    return { ...request, attempts, otherTasks, files, document };
  };

  const enqueueOn = async <Result>(
    tx: CallerTransaction | undefined,
    work: (sql: Sql, isOpen: boolean) => Promise<Result>,
  ): Promise<Result> => {
    if (tx !== undefined) {
      // Checked before it is a key: only an object can be one.
      const executor = callerExecutor(tx);
      return inTurn(tx, () => inTheirs(() => work(executor, isKnownOpen(tx))));
    }
    const own = () => database.retryingTransaction((sql) => work(sql, true));
    // Whether a COMMIT without an answer happened or not: the same keys and ids give the same answers.
    return explained(async () => {
      try {
        return await own();
      } catch (error) {
        if (!(error instanceof CommitUnknownError)) throw error;
        return own();
      }
    });
  };

  const enqueueEither = async (
    input: EnqueueInput | readonly EnqueueInput[],
    options: { readonly tx?: CallerTransaction } = {},
  ) => {
    // A misspelt `tx` would enqueue beside the caller's transaction, in silence.
    checkKeys(options, ['tx']);
    if (!Array.isArray(input)) {
      const intent = await inspectMedia(checkEnqueue(input as EnqueueInput, rules), rules);
      const id = randomUUID();
      return enqueueOn(options.tx, (sql, isOpen) => enqueue(context, sql, intent, { id, isOpen }));
    }
    const items = await inspectMediaOf(checkEnqueueMany(input, rules), rules);
    const ids = items.map(() => randomUUID());
    return enqueueOn(options.tx, (sql) => enqueueMany(context, sql, items, ids));
  };

  const self: Client = {
    enqueue: enqueueEither as Client['enqueue'],
    get: (id) => explained(() => get(id)),
    listDecisions: (id) => explained(async () => listDecisions(database, await requireId(id))),
    list: (filter = {}) => explained(() => list(checkFilter(filter))),
    async waitForGeneration(given, options = {}) {
      const { signal, onProgress } = checkWait(options);
      const id = await explained(() => requireId(given));
      for (let seen = false; ; ) {
        if (signal?.aborted) throw aborted(id, signal.reason);
        try {
          const request = await explained(() => get(id));
          // One whose enqueue is not committed yet is not there either: wait after the commit.
          if (request === undefined) throw notFound(given);
          if (isSettled(request.state)) return request;
          seen = true;
          onProgress?.(request);
        } catch (error) {
          if (stopping !== undefined) throw stopped();
          if (!isAway(error) || !seen) throw error;
        }
        await waits.settled(id, signal, onProgress === undefined ? undefined : PROGRESS_MS);
      }
    },
    onSettled: (handler, options = {}) =>
      explained(async () => {
        const { concurrency = HANDLERS, onError } = checkSettled(handler, options);
        await requireSchema(database);
        const notices = new NoticeQueue(queue);
        const handle = async (requestId: string) => {
          try {
            const request = await throughBlips(() => get(requestId));
            if (request !== undefined) await handler(request);
          } catch (error) {
            onError?.(error, requestId);
            throw error;
          }
        };
        const consumer = new SettledConsumer({ database, notices, listener, concurrency, handle });
        await consumer.start();
        consumers.add(consumer);
        const stop = () => consumer.stop().finally(() => consumers.delete(consumer));
        return { stop, [Symbol.asyncDispose]: stop };
      }),
    openFile: (given, index) =>
      explained(async () => openFile(database, config.storage, await requireId(given), index)),
    cancel: (given, note) =>
      explained(async () => {
        checkNote(note);
        const id = await requireId(given);
        return act((tx) => cancelRequest(tx, id, note));
      }),
    listUnrefunded: (filter = {}) => explained(async () => unrefunded(checkUnrefunded(filter))),
    listAmbiguous: (filter = {}) =>
      explained(async () => {
        const { id } = checkFrozen(filter);
        const asked = id === undefined ? filter : { ...filter, id: await requireId(id) };
        return listAmbiguousSubmissions(database, asked);
      }),
    resolve: (input) =>
      explained(async () => {
        checkResolve(input);
        const id = await requireId(input.id);
        const note = { actor: input.actor, reason: input.reason };
        switch (input.as) {
          case 'accepted':
            return act((tx) => resolveAsAccepted(tx, id, input.providerTaskId, note));
          case 'not_accepted':
            return act((tx) => resolveAsNotAccepted(tx, id, note, input));
          case 'abandoned':
            return act((tx) => abandonRequest(tx, id, note));
        }
      }),
    reopen: (given, note) =>
      explained(async () => {
        checkNote(note);
        const id = await requireId(given);
        return act((tx) => reopenRequest(tx, id, note));
      }),
    acknowledge: (given, note) =>
      explained(async () => {
        checkNote(note);
        const id = await requireId(given);
        return act((tx) => acknowledgeAttention(tx, id, note));
      }),
    breakerStatus: () => explained(() => listBreakerStatus(database)),
    breakerHistory: (name, limit = 100) =>
      explained(async () => {
        checkHistory(name, limit);
        return listTransitions(database, name, limit);
      }),
    overrideBreaker: (input) =>
      explained(async () => {
        const expiry = checkOverride(input);
        const note = { actor: input.actor, reason: input.reason };
        const was = await act((tx) =>
          input.mode === 'released'
            ? releaseBreaker(tx, input.name, note)
            : forceBreaker(tx, input.name, input.mode, expiry, note),
        );
        return was as BreakerOverride | 'none';
      }),
    listAccounts: () => explained(() => listAccounts(database)),
    upsertAccount: (account) =>
      explained(async () => {
        checkAccount(account);
        await requireSchema(database);
        await queue.start();
        await act((tx) => upsertAccount(tx, account));
        for (const operation of OPERATION_NAMES) await queue.ensureQueue(account.name, operation);
      }),
    holdAccount: (account, operation, note) =>
      explained(async () => {
        checkHold(note);
        if (operation !== null) operationNamed(operation);
        return act((tx) => holdAccount(tx, account, operation, note.until ?? null, note));
      }),
    releaseAccount: (account, operation, note) =>
      explained(async () => {
        checkNote(note);
        if (operation !== null) operationNamed(operation);
        return act((tx) => releaseAccount(tx, account, operation, note));
      }),
    installation: () => explained(() => readInstallation(database)),
    recover: (input) =>
      explained(async () => {
        checkRecover(input);
        return recover(database, input);
      }),
    stop() {
      stopping ??= (async () => {
        waits.stop(stopped());
        await Promise.all([...consumers].map((consumer) => consumer.stop()));
        await queue.stop();
        await database.close();
      })();
      return stopping;
    },
    [Symbol.asyncDispose]: () => self.stop(),
  };
  return self;
}

/** The same for whoever asks, in a transaction of the caller's or not. */
const FOR_ANYBODY: ReadonlySet<OnetakeErrorCode> = new Set(['schema_not_migrated', 'database_unreachable']);

function isAway(error: unknown): boolean {
  return error instanceof OnetakeError && /^database_(unreachable|busy)$/.test(error.code);
}

function stopped(): OnetakeError {
  return new OnetakeError('stopped', 'This client has been stopped.', { hint: 'Create another one.' });
}

function notFound(id: string): OnetakeError {
  return new OnetakeError('request_not_found', `There is no generation request ${id}.`);
}

function isSettled(state: RequestState): boolean {
  return isTerminal(state) || state === 'ambiguous';
}

function aborted(id: string, reason: unknown): OnetakeError {
  return new OnetakeError(
    'wait_aborted',
    `Waiting for request ${id} was aborted; the request itself goes on.`,
    { cause: reason },
  );
}

function open(options: ClientOptions): Database {
  const { pool } = options;
  if (pool !== undefined) {
    if (typeof pool?.connect === 'function') return new Database(pool, false);
    throw new OnetakeError('invalid_option', 'pool: expected a Pool of the package `pg`.');
  }
  if (options.connectionString !== undefined) {
    checkConnectionString(options.connectionString);
    return Database.connect(options.connectionString, {
      max: POOL_MAX,
      applicationName: 'onetake client',
      mayExit: true,
    });
  }
  throw new OnetakeError('invalid_option', 'createClient needs `connectionString` or `pool`.', {
    hint: 'For example createClient({ connectionString: process.env.DATABASE_URL }).',
  });
}
