import type { BreakerOverride } from '../core/circuit-breaker.ts';
import { OnetakeError, type OnetakeErrorCode } from '../core/errors.ts';
import type { RequestState } from '../core/generation-request.ts';
import type { InstallationTrouble } from '../core/installation.ts';
import { firstRow, rows, type Sql } from './database.ts';
import { databaseErrorCode } from './errors.ts';

// The operator's SQL functions, called from TypeScript. What they check, they check under the row's lock.

export interface Resolution {
  readonly id: string;
  readonly from: RequestState;
  readonly to: RequestState;
  /** How many more paid POSTs this permits. */
  readonly postsPermitted: number;
  readonly notBefore: Date | null;
}

export interface OperatorNote {
  readonly actor: string;
  readonly reason: string;
}

const RESOLUTION = `id, from_state as "from", to_state as "to", posts_permitted as "postsPermitted",
  not_before as "notBefore"`;

export async function resolveAsAccepted(
  sql: Sql,
  id: string,
  taskId: string,
  note: OperatorNote,
): Promise<Resolution> {
  return resolution(sql, `select ${RESOLUTION} from onetake.resolve_as_accepted($1, $2, $3, $4)`, [
    id,
    taskId,
    note.actor,
    note.reason,
  ]);
}

export interface NotAcceptedOptions {
  /** False: the request ends `cancelled` instead of being permitted one more POST. Default true. */
  readonly resubmit?: boolean;
  /** Needed after a 2xx answer. */
  readonly force?: boolean;
  readonly submitBefore?: Date | null;
}

export async function resolveAsNotAccepted(
  sql: Sql,
  id: string,
  note: OperatorNote,
  options: NotAcceptedOptions = {},
): Promise<Resolution> {
  return resolution(
    sql,
    `select ${RESOLUTION} from onetake.resolve_as_not_accepted($1, $2, $3, $4, $5, $6)`,
    [
      id,
      note.actor,
      note.reason,
      options.resubmit ?? true,
      options.force ?? false,
      options.submitBefore ?? null,
    ],
  );
}

export async function abandonRequest(sql: Sql, id: string, note: OperatorNote): Promise<Resolution> {
  return resolution(sql, `select ${RESOLUTION} from onetake.abandon($1, $2, $3)`, [
    id,
    note.actor,
    note.reason,
  ]);
}

/** Takes an operator's *accepted* back. */
export async function reopenRequest(sql: Sql, id: string, note: OperatorNote): Promise<Resolution> {
  return resolution(sql, `select ${RESOLUTION} from onetake.reopen($1, $2, $3)`, [
    id,
    note.actor,
    note.reason,
  ]);
}

export async function cancelRequest(sql: Sql, id: string, note: OperatorNote): Promise<Resolution> {
  return resolution(sql, `select ${RESOLUTION} from onetake.cancel_request($1, $2, $3)`, [
    id,
    note.actor,
    note.reason,
  ]);
}

/** Ends what asks for a person's eyes, and changes nothing else. */
export async function acknowledgeAttention(sql: Sql, id: string, note: OperatorNote): Promise<Resolution> {
  return resolution(sql, `select ${RESOLUTION} from onetake.acknowledge($1, $2, $3)`, [
    id,
    note.actor,
    note.reason,
  ]);
}

/** Ends the holds of one operation, or with null of the whole account; says how many. */
export async function releaseAccount(
  sql: Sql,
  account: string,
  operation: string | null,
  note: OperatorNote,
): Promise<number> {
  return mapped(
    async () => {
      const row = await firstRow<{ ended: number }>(
        sql,
        'select onetake.release_account($1, $2, $3, $4) as ended',
        [account, operation, note.actor, note.reason],
      );
      return (row as { ended: number }).ended;
    },
    { OT001: 'unknown_account' },
  );
}

/** Holds one operation, or with null the whole account; true: in place of an operator's earlier hold. */
export async function holdAccount(
  sql: Sql,
  account: string,
  operation: string | null,
  until: Date | null,
  note: OperatorNote,
): Promise<boolean> {
  return mapped(
    async () => {
      const row = await firstRow<{ replaced: boolean }>(
        sql,
        'select onetake.hold_account($1, $2, $3, $4, $5) as replaced',
        [account, operation, note.actor, note.reason, until],
      );
      return (row as { replaced: boolean }).replaced;
    },
    { OT001: 'unknown_account' },
  );
}

const BREAKER_CODES = { OT001: 'unknown_breaker', OT002: 'breaker_not_overridden' } as const;

/** Lays an override over a breaker; returns what was in force before, or `none`. */
export async function forceBreaker(
  sql: Sql,
  name: string,
  mode: BreakerOverride,
  expiry: { readonly at: Date } | { readonly inMs: number } | null,
  note: OperatorNote,
): Promise<string> {
  return mapped(async () => {
    const row = await firstRow<{ was: string }>(
      sql,
      // "In so many ms" is counted by the database's clock, like everything that processes share.
      `select onetake.force_breaker($1, $2, $3, $4,
  coalesce($5::timestamptz, clock_timestamp() + $6::float8 * interval '1 ms')) as was`,
      [
        name,
        mode,
        note.actor,
        note.reason,
        expiry !== null && 'at' in expiry ? expiry.at : null,
        expiry !== null && 'inMs' in expiry ? expiry.inMs : null,
      ],
    );
    return (row as { was: string }).was;
  }, BREAKER_CODES);
}

/** Takes the override away; returns what was in force. */
export async function releaseBreaker(sql: Sql, name: string, note: OperatorNote): Promise<string> {
  return mapped(async () => {
    const row = await firstRow<{ was: string }>(sql, 'select onetake.release_breaker($1, $2, $3) as was', [
      name,
      note.actor,
      note.reason,
    ]);
    return (row as { was: string }).was;
  }, BREAKER_CODES);
}

const INSTALLATION_CODES = { OT002: 'installation_in_doubt' } as const;

/** Accepts the database as it is now; returns what was wrong with it. */
export async function resumeInstallation(
  sql: Sql,
  note: OperatorNote,
  force: boolean,
): Promise<InstallationTrouble | null> {
  return mapped(async () => {
    const row = await firstRow<{ was: InstallationTrouble | null }>(
      sql,
      'select onetake.resume_installation($1, $2, $3) as was',
      [note.actor, note.reason, force],
    );
    return (row as { was: InstallationTrouble | null }).was;
  }, INSTALLATION_CODES);
}

/** One step of a freeze: at most `atMost` requests. The last step, which is `done`, accepts the database. */
export async function freezeInstallation(
  sql: Sql,
  note: OperatorNote,
  enqueuedBefore: Date | null,
  atMost: number,
): Promise<{ readonly frozen: number; readonly done: boolean }> {
  return mapped(async () => {
    const row = await firstRow<{ frozen: number; done: boolean }>(
      sql,
      'select frozen, done from onetake.freeze_installation($1, $2, $3, $4)',
      [note.actor, note.reason, enqueuedBefore, atMost],
    );
    return row as { frozen: number; done: boolean };
  });
}

async function resolution(sql: Sql, text: string, values: unknown[]): Promise<Resolution> {
  return mapped(async () => (await firstRow<Resolution>(sql, text, values)) as Resolution);
}

const CODES: Readonly<Record<string, OnetakeErrorCode>> = {
  OT001: 'request_not_found',
  OT002: 'request_not_in_state',
  OT003: 'task_id_in_use',
  OT004: 'operator_identity_missing',
  // A provider task id that can't be one; an override that makes no sense.
  '22023': 'invalid_option',
};

/** The functions' own messages are written for people and hold ids and states only. */
async function mapped<Result>(
  call: () => Promise<Result>,
  codes: Readonly<Record<string, OnetakeErrorCode>> = {},
): Promise<Result> {
  try {
    return await call();
  } catch (error) {
    const state = databaseErrorCode(error);
    const code = codes[state] ?? CODES[state];
    if (code === undefined) throw error;
    const { message, hint } = error as { message: string; hint?: string };
    throw new OnetakeError(code, message.replace(/^onetake: /, ''), hint === undefined ? {} : { hint });
  }
}

export interface AmbiguousSubmission {
  readonly id: string;
  readonly reason: string;
  readonly account: string;
  readonly operation: string;
  readonly ageMs: number;
  readonly attempt: number | null;
  readonly phase: string | null;
  /** Whether the first byte of the POST went out; null: nobody can tell. */
  readonly headersSent: boolean | null;
  readonly headersSentProof: string | null;
  readonly httpStatus: number | null;
  readonly errorCode: string | null;
  readonly startedAt: Date | null;
  readonly charge: string;
  readonly rearmableAt: Date | null;
  readonly needsForce: boolean;
  /** What says that it has most likely been paid for, in words. */
  readonly paidEvidence: string | null;
  readonly evidence: string | null;
}

/** Oldest first; of one request when `id` is given. */
export async function listAmbiguousSubmissions(
  sql: Sql,
  filter: { readonly id?: string; readonly limit?: number } = {},
): Promise<AmbiguousSubmission[]> {
  return rows(
    sql,
    `select id, reason, account, operation, age_ms::float8 as "ageMs", attempt, phase,
  headers_sent as "headersSent", headers_sent_proof as "headersSentProof", http_status as "httpStatus",
  error_code as "errorCode", started_at as "startedAt", charge, rearmable_at as "rearmableAt",
  needs_force as "needsForce", paid_evidence as "paidEvidence", evidence
from onetake.ambiguous_submissions
where $1::uuid is null or id = $1
limit $2`,
    [filter.id ?? null, filter.limit ?? 1_000],
  );
}
