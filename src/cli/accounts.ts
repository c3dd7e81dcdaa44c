import type { Command } from 'commander';
import { OnetakeError, suggestion } from '../core/errors.ts';
import type { AccountOverview } from '../postgres/account-holds.ts';
import type { Client } from '../runtime/client.ts';
import { instantOf } from './arguments.ts';
import type { Runner } from './context.ts';
import type { Terminal } from './output.ts';
import { instant } from './text.ts';

export function addAccounts(program: Command, run: Runner): void {
  const accounts = program
    .command('accounts')
    .summary('accounts: limits, what is in use, and holds')
    .description('Accounts at the provider: limits, what is in use, pauses and holds.');
  accounts
    .command('list')
    .description('All accounts.')
    .action(
      run(({ terminal, withClient }) =>
        withClient(async (client) => {
          const rows = await client.listAccounts();
          if (terminal.json) terminal.value(rows.map(accountJson));
          else showList(terminal, rows);
          return undefined;
        }),
      ),
    );
  accounts
    .command('hold <account>')
    .description('Submits nothing for an account until its release. What was submitted goes on.')
    .option('--operation <name>', 'only this operation')
    .option('--until <instant>', 'ends by itself', instantOf('--until'))
    .requiredOption('--reason <text>', 'why, for the record')
    .option('--actor <name>', 'who decides (default: $ONETAKE_ACTOR, else the system user)')
    .addHelpText('after', "\nExample:\n  $ onetake accounts hold default --reason 'the key is being changed'")
    .action(
      run(({ terminal, environment, withClient }, account: string, options: HoldOptions) => {
        const { operation = null, until, reason, actor = environment.actor() } = options;
        return withClient(async (client) => {
          await knownAccount(client, account);
          const note = { actor, reason, ...(until === undefined ? {} : { until }) };
          const replaced = await client.holdAccount(account, operation, note);
          if (terminal.json)
            terminal.value({ account, operation, until: until?.toISOString() ?? null, replaced });
          else {
            const subject = operation === null ? account : `${account} for ${operation}`;
            terminal.print(`Held ${subject}${until === undefined ? '' : ` until ${instant(until)}`}.`);
          }
          return undefined;
        });
      }),
    );
  accounts
    .command('release <account>')
    .description('Ends the holds of an account, once key, balance or permission are in order again.')
    .option('--operation <name>', 'only the hold of this operation')
    .requiredOption('--reason <text>', 'why, for the record')
    .option('--actor <name>', 'who decides (default: $ONETAKE_ACTOR, else the system user)')
    .addHelpText('after', "\nExample:\n  $ onetake accounts release default --reason 'new key is in place'")
    .action(
      run(({ terminal, environment, withClient }, account: string, options: ReleaseOptions) => {
        const { operation = null, reason, actor = environment.actor() } = options;
        return withClient(async (client) => {
          await knownAccount(client, account);
          const released = await client.releaseAccount(account, operation, { actor, reason });
          if (terminal.json) terminal.value({ account, operation, released });
          else terminal.print(sentence(account, operation, released));
          return undefined;
        });
      }),
    );
}

async function knownAccount(client: Client, account: string): Promise<void> {
  const names = (await client.listAccounts()).map((each) => each.name);
  if (names.includes(account)) return;
  throw new OnetakeError(
    'unknown_account',
    `There is no account of that name.${suggestion(account, names)}`,
    {
      hint: `Accounts: ${names.join(', ') || 'none; run `onetake migrate`'}.`,
    },
  );
}

interface HoldOptions extends ReleaseOptions {
  readonly until?: Date;
}

interface ReleaseOptions {
  readonly operation?: string;
  readonly reason: string;
  readonly actor?: string;
}

function sentence(account: string, operation: string | null, released: number): string {
  const subject = operation === null ? account : `${account} for ${operation}`;
  if (released === 0) return `There was no hold on ${subject}.`;
  return `Released ${subject}: ${released} hold${released === 1 ? '' : 's'} ended. Its queued requests go on.`;
}

function accountJson(row: AccountOverview) {
  const dated = <Part extends { since: string }>(part: Part) => ({
    ...part,
    since: new Date(part.since).toISOString(),
  });
  return { ...row, holds: row.holds.map(dated), trials: row.trials.map(dated) };
}

function showList(terminal: Terminal, rows: readonly AccountOverview[]): void {
  if (rows.length === 0) {
    terminal.note('There are no accounts yet: run `onetake migrate`.');
    return;
  }
  terminal.table<AccountOverview>(rows, [
    { title: 'account', value: (row) => row.name, flexible: true },
    { title: 'provider', value: (row) => row.provider, flexible: true },
    { title: 'this minute', value: (row) => `${row.window} of ${row.requestsPerMinute}`, align: 'right' },
    { title: 'running', value: (row) => `${row.slots} of ${row.maxConcurrentGenerations}`, align: 'right' },
    {
      title: 'status',
      value: statusOf,
      flexible: 'wrap',
      format: (row) =>
        row.holds.length > 0
          ? 'red'
          : row.pausedUntil !== null || row.trials.length > 0
            ? 'yellow'
            : undefined,
    },
  ]);
  for (const { name, holds } of rows) {
    if (holds.length > 0) {
      terminal.note(`Put the cause right, then: onetake accounts release ${name} --reason '…'`);
    }
  }
}

/** The wider of several things comes first: what holds, what is tried out, what pauses. */
function statusOf(row: AccountOverview): string {
  const parts = [
    ...row.holds.map(
      (hold) =>
        `held${scopeOf(hold)}: ${hold.kind.replaceAll('_', ' ')} since ${instant(new Date(hold.since))}`,
    ),
    ...row.trials.map(
      (trial) =>
        `one goes first${scopeOf(trial)} since the release of ${instant(new Date(trial.since))}: ` +
        `${trial.inFlight === 0 ? 'none under way' : 'under way'}, ${trial.waiting} waiting`,
    ),
    ...(row.unknownSlots === 0 ? [] : [`${row.unknownSlots} perhaps running: see onetake ambiguous list`]),
    ...(row.pausedUntil === null ? [] : [`paused (${row.pauseKind}) until ${instant(row.pausedUntil)}`]),
  ];
  if (row.holds.length === 0 && row.trials.length === 0 && row.pausedUntil === null) parts.unshift('ready');
  return parts.join('; ');
}

function scopeOf({ operation }: { readonly operation: string | null }): string {
  return operation === null ? '' : ` for ${operation}`;
}
