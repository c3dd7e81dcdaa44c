import type { AccountLimits } from '../core/admission.ts';
import { OnetakeError } from '../core/errors.ts';
import type { InstallationMark, InstallationReading } from '../core/installation.ts';
import { firstRow, rows, type Sql } from './database.ts';
import { INSTALLATION_COLUMNS, installationCheck, markValues } from './installation.ts';

export interface Account extends AccountLimits {
  readonly name: string;
  readonly provider: string;
  readonly pausedUntil: Date | null;
  readonly capacityRefusals: number;
  readonly holdEpoch: number;
}

const COLUMNS = `name, provider, requests_per_minute as "requestsPerMinute",
  max_concurrent_generations as "maxConcurrentGenerations", paused_until as "pausedUntil",
  capacity_refusals as "capacityRefusals", hold_epoch as "holdEpoch"`;

/** Waits for the account's row lock. What is counted must be counted in a later statement. */
export async function lockAccount(tx: Sql, name: string): Promise<Account | undefined> {
  return firstRow(tx, `select ${COLUMNS} from onetake.accounts where name = $1 for no key update`, [name]);
}

/**
 * `lockAccount` for transaction A, which in the same statement asks whether this is the database that was confirmed:
 * a session, behind a pooler, may lead to another server than the last one.
 */
export async function lockAccountToAdmit(
  tx: Sql,
  name: string,
  mark: InstallationMark | null,
): Promise<(Account & InstallationReading) | undefined> {
  return firstRow(
    tx,
    `select ${COLUMNS}, ${INSTALLATION_COLUMNS}
from onetake.accounts a cross join ${installationCheck(2)} i
where a.name = $1
for no key update of a`,
    [name, ...markValues(mark)],
  );
}

export async function findAccount(sql: Sql, name: string): Promise<Account | undefined> {
  return firstRow(sql, `select ${COLUMNS} from onetake.accounts where name = $1`, [name]);
}

export async function listAccountNames(sql: Sql): Promise<string[]> {
  const found = await rows<{ name: string }>(sql, 'select name from onetake.accounts order by name');
  return found.map((row) => row.name);
}

/**
 * Writes what the configuration says; true when that changed anything. Throws `configuration_invalid` for another
 * provider while the old one has something of the account: its tasks would be asked for where nobody knows them.
 */
export async function upsertAccount(
  tx: Sql,
  account: AccountLimits & { readonly name: string; readonly provider: string },
): Promise<boolean> {
  const seen = await findAccount(tx, account.name);
  // Locked only then: `migrate` writes all accounts in one transaction, and fleets wait for their locks.
  if (seen !== undefined && seen.provider !== account.provider) await requireNothingUnderWay(tx, seen);
  const changed = await rows(
    tx,
    `insert into onetake.accounts as a (name, provider, requests_per_minute, max_concurrent_generations)
values ($1, $2, $3, $4)
on conflict (name) do update
set provider = excluded.provider,
  requests_per_minute = excluded.requests_per_minute,
  max_concurrent_generations = excluded.max_concurrent_generations,
  revision = a.revision + 1
where (a.provider, a.requests_per_minute, a.max_concurrent_generations)
  is distinct from (excluded.provider, excluded.requests_per_minute, excluded.max_concurrent_generations)
returning a.name`,
    [account.name, account.provider, account.requestsPerMinute, account.maxConcurrentGenerations],
  );
  return changed.length > 0;
}

/** Under the account's lock, so that nothing is admitted meanwhile. */
async function requireNothingUnderWay(tx: Sql, { name, provider }: Account): Promise<void> {
  await lockAccount(tx, name);
  const [found] = await rows(
    tx,
    `select from onetake.generation_requests
where account = $1 and (state in ('submitting', 'ambiguous', 'accepted') or next_poll_at is not null)
limit 1`,
    [name],
  );
  if (found === undefined) return;
  throw new OnetakeError(
    'configuration_invalid',
    `accounts.${name}.provider: "${provider}" has requests of this account that aren't finished.`,
    { hint: 'Give the other provider an account of another name, or wait until they are.' },
  );
}

/** After a 429. A pause never gets shorter. The caller holds the account's lock. */
export async function pauseAccount(
  tx: Sql,
  name: string,
  kind: 'rate' | 'concurrency',
  pauseMs: number,
): Promise<Date> {
  const row = await firstRow<{ pausedUntil: Date }>(
    tx,
    `update onetake.accounts
set paused_until = greatest(paused_until, clock_timestamp() + $3 * interval '1 ms'),
  pause_kind = case
    when paused_until > clock_timestamp() and pause_kind = 'rate' then 'rate'
    else $2
  end,
  capacity_refusals = capacity_refusals + 1
where name = $1
returning paused_until as "pausedUntil"`,
    [name, kind, pauseMs],
  );
  if (row === undefined) throw new Error('the account to pause has vanished');
  return row.pausedUntil;
}

/** A POST got through: the next concurrency refusal starts its doubling anew. Writes only when needed. */
export async function forgetCapacityRefusals(tx: Sql, name: string): Promise<void> {
  await tx.executeSql(
    'update onetake.accounts set capacity_refusals = 0 where name = $1 and capacity_refusals > 0',
    [name],
  );
}

/** A generation of ours has ended, so the provider has room: a concurrency pause is over. */
export async function endConcurrencyPause(tx: Sql, name: string): Promise<void> {
  await tx.executeSql(
    `update onetake.accounts set paused_until = null, pause_kind = null
where name = $1 and pause_kind = 'concurrency'`,
    [name],
  );
}
