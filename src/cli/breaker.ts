import type { Command } from 'commander';
import { OnetakeError, suggestion } from '../core/errors.ts';
import type { BreakerHistoryRow, BreakerStatus } from '../postgres/breaker-history.ts';
import type { Client } from '../runtime/client.ts';
import { instantOf, wholeNumber } from './arguments.ts';
import type { Runner } from './context.ts';
import { usageError } from './errors.ts';
import type { Terminal } from './output.ts';
import type { Format } from './style.ts';
import { duration, instant, shortId } from './text.ts';

export function addBreaker(program: Command, run: Runner): void {
  const breaker = program
    .command('breaker')
    .summary('circuit breakers: is a submission path healthy, and why not')
    .description(
      'Circuit breakers, one per provider and operation. They stop new submissions; accepted tasks are followed in ' +
        'every state.',
    );
  breaker
    .command('list')
    .description('All breakers.')
    .action(
      run(({ terminal, withClient }) =>
        withClient(async (client) => {
          const rows = await client.breakerStatus();
          if (terminal.json) terminal.value(rows.map(statusJson));
          else showList(terminal, rows);
          return undefined;
        }),
      ),
    );
  breaker
    .command('show [name]')
    .description('One breaker, such as sonilo/text-to-music or text-to-music, and why it is in its state.')
    .option('--all', 'every breaker', false)
    .addHelpText('after', '\nExample:\n  $ onetake breaker show text-to-music')
    .action(
      run(({ terminal, withClient }, name: string | undefined, { all }: { all: boolean }) =>
        withClient(async (client) => {
          const chosen = await choose(client, name, all);
          if (terminal.json)
            terminal.value(all ? chosen.map(statusJson) : statusJson(chosen[0] as BreakerStatus));
          else for (const each of chosen) showOne(terminal, each, each !== chosen[0]);
          return undefined;
        }),
      ),
    );
  breaker
    .command('history [name]')
    .description('The transitions of one breaker, newest last.')
    .option('--all', 'of every breaker', false)
    .option('--limit <n>', 'at most so many', wholeNumber('--limit', 1, 10_000), 100)
    .addHelpText('after', '\nExample:\n  $ onetake breaker history text-to-music --limit 20')
    .action(
      run(
        (
          { terminal, withClient },
          name: string | undefined,
          { all, limit }: { all: boolean; limit: number },
        ) =>
          withClient(async (client) => {
            const chosen = await choose(client, name, all);
            const histories = await Promise.all(
              chosen.map((each) => client.breakerHistory(each.name, limit)),
            );
            const rows = histories.flat().sort((a, b) => a.at.getTime() - b.at.getTime());
            const newest = rows.slice(-limit);
            if (terminal.json) terminal.value(newest.map(historyJson));
            else showHistory(terminal, newest);
            return undefined;
          }),
      ),
    );
  addOverrides(breaker, run);
}

interface OverrideOptions {
  readonly reason: string;
  readonly actor?: string;
  readonly expiresAt?: Date;
  readonly expiresIn?: number;
}

/** Force open, force closed, release: each says who and why, and prints what the breaker is afterwards. */
function addOverrides(breaker: Command, run: Runner): void {
  const overrides = [
    ['force-open', 'forced_open', 'Stops new submissions until it is released, whatever the provider does.'],
    ['force-closed', 'forced_closed', 'Lets submissions through whatever the breaker would say.'],
    ['release', 'released', 'Takes the override away and shows what is underneath.'],
  ] as const;
  for (const [verb, mode, description] of overrides) {
    const command = breaker
      .command(`${verb} [name]`)
      .description(description)
      .requiredOption('--reason <text>', 'why; kept in onetake.operator_actions')
      .option('--actor <name>', 'who (default: $ONETAKE_ACTOR, else the system user)');
    if (mode !== 'released') {
      command
        .option('--expires-in <seconds>', 'ends by itself', wholeNumber('--expires-in', 1, 999_999_999))
        .option('--expires-at <instant>', 'ends by itself', instantOf('--expires-at'));
    }
    command
      .addHelpText(
        'after',
        `\nExample:\n  $ onetake breaker ${verb} text-to-music --reason 'provider maintenance'`,
      )
      .action(
        run((context, name: string | undefined, options: OverrideOptions) => {
          const expiry = expiryOf(options);
          return context.withClient(async (client) => {
            const [chosen] = (await choose(client, name)) as [BreakerStatus];
            const was = await client.overrideBreaker({
              name: chosen.name,
              mode,
              actor: options.actor ?? context.environment.actor(),
              reason: options.reason,
              ...expiry,
            });
            const now = (await client.breakerStatus()).find(
              (row) => row.name === chosen.name,
            ) as BreakerStatus;
            if (context.terminal.json) context.terminal.value({ ...statusJson(now), previousOverride: was });
            else {
              context.terminal.print(`${now.name}: ${was} -> ${now.override ?? 'none'}`);
              context.terminal.print(now.why);
            }
            return undefined;
          });
        }),
      );
  }
}

function expiryOf({ expiresAt, expiresIn }: OverrideOptions): { expiresAt?: Date; expiresInMs?: number } {
  if (expiresAt !== undefined && expiresIn !== undefined) {
    throw usageError('--expires-in and --expires-at: give one of them.');
  }
  // Counted by the database's clock, not by this machine's.
  if (expiresIn !== undefined) return { expiresInMs: expiresIn * 1_000 };
  return expiresAt === undefined ? {} : { expiresAt };
}

/**
 * A whole name, an operation that only one provider has, or nothing where there is only one breaker. `all`:
 * whether `--all` was given; undefined for a command that has no such option.
 */
async function choose(client: Client, name: string | undefined, all?: boolean): Promise<BreakerStatus[]> {
  const known = await client.breakerStatus();
  if (all === true) return known;
  const names = known.map((each) => each.name);
  const fitting = known.filter(
    (each) => name === undefined || each.name === name || each.name.endsWith(`/${name}`),
  );
  if (fitting.length === 1) return fitting;
  const list =
    names.length === 0 ? 'There is none yet: run `onetake migrate`.' : `Breakers: ${names.join(', ')}.`;
  const orAll = all === undefined ? '' : ', or --all';
  if (name === undefined) throw usageError(`Which breaker? Give its name${orAll}.`, list);
  if (fitting.length > 1)
    throw usageError('More than one breaker has that operation: give the whole name.', list);
  const near = suggestion(name, [...names, ...names.map((each) => each.replace(/^[^/]*\//, ''))]);
  throw new OnetakeError('unknown_breaker', `There is no breaker of that name.${near}`, { hint: list });
}

function statusJson(row: BreakerStatus) {
  const { name, state, effectiveState, why, since, consecutiveFailures } = row;
  const { openedAt, retryAt, retryInMs, override, probeRequestId, shadow, notClosedSince } = row;
  const { overrideActor, overrideReason, overrideExpiresAt } = row;
  const { failureThreshold, cooldownMs, cooldownGrowth, maxCooldownMs, jitter } = row;
  return {
    name,
    state,
    effectiveState,
    why,
    since,
    consecutiveFailures,
    openedAt,
    retryAt,
    retryInMs,
    override,
    overrideActor,
    overrideReason,
    overrideExpiresAt,
    probeRequestId,
    shadow,
    notClosedSince,
    failureThreshold,
    cooldownMs,
    cooldownGrowth,
    maxCooldownMs,
    jitter,
  };
}

function historyJson(row: BreakerHistoryRow) {
  const { at, number, layer, breakerName, previousState, nextState, cause, outcomeKind, httpStatus } = row;
  const { openedAt, retryAt, requestId, providerTaskId, generation, actor, shadow } = row;
  return {
    at,
    number,
    layer,
    breakerName,
    previousState,
    nextState,
    cause,
    outcomeKind,
    httpStatus,
    openedAt,
    retryAt,
    requestId,
    providerTaskId,
    generation,
    actor,
    shadow,
  };
}

const FORMAT: Readonly<Record<string, Format>> = {
  closed: 'green',
  open: 'red',
  half_open: 'yellow',
  probe_due: 'yellow',
  probe_overdue: 'red',
  forced_open: 'red',
  forced_closed: 'yellow',
};

function showList(terminal: Terminal, rows: readonly BreakerStatus[]): void {
  if (rows.length === 0) {
    terminal.note('There are no breakers yet: run `onetake migrate`.');
    return;
  }
  terminal.table<BreakerStatus>(rows, [
    { title: 'name', value: (row) => row.name, flexible: true },
    {
      title: 'state',
      value: (row) => row.effectiveState.replaceAll('_', ' '),
      format: (row) => FORMAT[row.effectiveState],
    },
    {
      title: 'why',
      value: (row) => row.why.replace(/^(closed|open|half open)( since [^:]*:[^:]*:[^:]*)?: /, ''),
      flexible: 'wrap',
    },
  ]);
}

function showOne(terminal: Terminal, row: BreakerStatus, isNext: boolean): void {
  if (isNext) terminal.print('');
  terminal.block([
    ['name', row.name],
    ['state', row.effectiveState.replaceAll('_', ' ')],
    ['why', row.why],
    ['since', instant(row.since)],
    [
      'failures',
      row.state === 'closed' ? `${row.consecutiveFailures} in a row; ${row.failureThreshold} open it` : null,
    ],
    ['not closed since', row.notClosedSince === null ? null : instant(row.notClosedSince)],
    ['cooldown', cooldown(row)],
    ['opened', row.openedAt === null ? null : instant(row.openedAt)],
    ['next probe', row.retryAt === null ? null : nextProbe(row.retryAt, row.retryInMs)],
    ['probe', row.probeRequestId === null ? null : `request ${shortId(row.probeRequestId)}`],
    ['override', row.override?.replaceAll('_', ' ') ?? null],
    ['by', row.overrideActor],
    ['reason', row.overrideReason],
    ['until', row.overrideExpiresAt === null ? null : instant(row.overrideExpiresAt)],
    ['shadow', row.shadow ? 'yes: it records, and refuses nothing' : null],
  ]);
}

function cooldown({ cooldownMs, cooldownGrowth, maxCooldownMs, jitter }: BreakerStatus): string {
  const grows =
    cooldownGrowth > 1 ? `, × ${cooldownGrowth} a failed probe, at most ${duration(maxCooldownMs)}` : '';
  const spread = jitter > 0 ? `, up to ${Math.round(jitter * 100)} % more` : '';
  return `${duration(cooldownMs)}${grows}${spread}`;
}

function nextProbe(at: Date, inMs: number | null): string {
  return inMs === null || inMs <= 0 ? 'due now' : `in ${duration(inMs)}, at ${instant(at)}`;
}

function showHistory(terminal: Terminal, rows: readonly BreakerHistoryRow[]): void {
  if (rows.length === 0) {
    terminal.note('There was no transition yet.');
    return;
  }
  const several = rows.some((row) => row.breakerName !== rows[0]?.breakerName);
  terminal.table<BreakerHistoryRow>(rows, [
    ...(several
      ? [{ title: 'breaker', value: (row: BreakerHistoryRow) => row.breakerName, flexible: true as const }]
      : []),
    { title: 'at', value: (row) => instant(row.at) },
    // One column: beside overrides, two would leave the cause no room.
    {
      title: 'transition',
      value: (row) => `${row.previousState} -> ${row.nextState}`.replaceAll('_', ' '),
      format: (row) => FORMAT[row.nextState],
    },
    { title: 'cause', value: (row) => row.cause.replaceAll('_', ' '), flexible: 'wrap' },
    {
      title: 'answer',
      // Without an answer, at least what that was taken for.
      value: (row) => row.httpStatus ?? row.outcomeKind?.replaceAll('_', ' ') ?? null,
      flexible: 'wrap',
    },
    { title: 'request', value: (row) => (row.requestId === null ? null : shortId(row.requestId)) },
  ]);
}
