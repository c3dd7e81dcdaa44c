import type { Command } from 'commander';
import { OnetakeError, suggestion } from '../core/errors.ts';
import type { BreakerStatus } from '../postgres/breaker-history.ts';
import type { Client } from '../runtime/client.ts';
import { instantOf, wholeNumber } from './arguments.ts';
import { historyJson, showHistory, showList, showOne, statusJson } from './breaker-view.ts';
import type { Runner } from './context.ts';
import { usageError } from './errors.ts';
import { inWords } from './in-words.ts';

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
        .option(
          '--expires-in <seconds>',
          'ends by itself',
          wholeNumber('--expires-in', 1, 999_999_999, ' of seconds'),
        )
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
            const was = await inWords(HINTS, () =>
              client.overrideBreaker({
                name: chosen.name,
                mode,
                actor: options.actor ?? context.environment.actor(),
                reason: options.reason,
                ...expiry,
              }),
            );
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

const HINTS: Readonly<Record<string, string>> = {
  breaker_not_overridden:
    'See `onetake breaker list`: an override may have expired, or somebody has released it.',
  invalid_option: "It is the database's clock that counts: give a later --expires-at, or --expires-in.",
};

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
