import type { Command } from 'commander';
import { INSTALLATION_TROUBLE_MEANS } from '../core/installation.ts';
import type { InstallationIdentity, InstallationStatus } from '../postgres/installation.ts';
import type { RecoverInput } from '../runtime/client-options.ts';
import type { Recovery } from '../runtime/recover.ts';
import { instantOf } from './arguments.ts';
import type { Context, Runner } from './context.ts';
import { CommandError, EXIT, usageError } from './errors.ts';
import type { Terminal } from './output.ts';
import { instant } from './text.ts';

interface RecoverOptions {
  readonly freeze?: true;
  readonly resume?: true;
  readonly reason?: string;
  readonly actor?: string;
  readonly enqueuedBefore?: Date;
  readonly force?: true;
  readonly yes?: true;
}

export function addRecover(program: Command, run: Runner): void {
  program
    .command('recover')
    .summary('what a restored, cloned or failed-over database waits for')
    .description(
      'A database that was restored, cloned or taken over by a standby may hold as queued what has been paid for. ' +
        'Nothing is submitted from it until somebody says what happened. Without an option: whether this database is ' +
        'the one that was confirmed.',
    )
    .option(
      '--freeze',
      'submissions may be lost: what is queued becomes ambiguous, for you to decide by name',
    )
    .option('--resume', 'nothing is lost (a switch-over, a synchronous standby): submissions go on')
    .option('--reason <text>', 'what happened, for the record')
    .option('--actor <name>', 'who decides (default: $ONETAKE_ACTOR, else the system user)')
    .option(
      '--enqueued-before <instant>',
      'with --freeze: what was enqueued from then on, after the restore, stays queued',
      instantOf('--enqueued-before'),
    )
    .option('--force', 'with --resume: although the database has provably lost something')
    .option('--yes', 'does not ask')
    .addHelpText(
      'after',
      `
Examples:
  $ onetake recover
  $ onetake recover --freeze --reason 'restored the backup of 04:00'
  $ onetake recover --resume --reason 'switched over to db-2, nothing lost'`,
    )
    .action(run((context, options: RecoverOptions) => recover(context, options)));
}

async function recover(context: Context, options: RecoverOptions): Promise<number | undefined> {
  const { terminal } = context;
  const decision = decisionOf(context, options);
  return context.withClient(async (client) => {
    const status = await client.installation();
    if (decision === undefined) return show(terminal, status);
    if (options.yes !== true) await requireConsent(terminal, status, decision.mode);
    const recovery = await client.recover(
      decision.mode === 'resume' ? decision : { ...decision, onProgress: progress(terminal, status.queued) },
    );
    if (terminal.json) terminal.value(recovery);
    else report(terminal, recovery, status);
    return undefined;
  });
}

/** Undefined: the caller only wants to look. */
function decisionOf(context: Context, options: RecoverOptions): RecoverInput | undefined {
  const { freeze, resume, reason, enqueuedBefore, force, yes } = options;
  if (freeze && resume) throw usageError('--freeze and --resume: give one of them.');
  const mode = freeze ? 'freeze' : resume ? 'resume' : undefined;
  if (force && mode !== 'resume') throw usageError('--force belongs to --resume.');
  if (enqueuedBefore && mode !== 'freeze') throw usageError('--enqueued-before belongs to --freeze.');
  if (mode === undefined) {
    if (reason === undefined && options.actor === undefined && !yes) return undefined;
    throw usageError('Say what happened: --freeze or --resume.', 'See `onetake recover --help`.');
  }
  if (reason === undefined) throw usageError(`--${mode} needs --reason.`, REASON_HINT);
  const note = { actor: options.actor ?? context.environment.actor(), reason };
  if (mode === 'freeze') {
    return { mode, ...note, ...(enqueuedBefore === undefined ? {} : { enqueuedBefore }) };
  }
  return { mode, ...note, ...(force ? { force } : {}) };
}

const REASON_HINT = 'Say what happened, in your own words: it is kept with your name.';

function show(terminal: Terminal, status: InstallationStatus): number {
  const { trouble, confirmed, present, doubt, queued, submitting } = status;
  if (terminal.json) {
    terminal.value({ recognised: trouble === null, ...status });
  } else {
    terminal.block([
      ['database', trouble === null ? 'recognised' : `NOT recognised (${trouble})`],
      ['why', trouble === null ? null : INSTALLATION_TROUBLE_MEANS[trouble]],
      ['said by', doubt === null ? null : `${doubt.by}, ${instant(doubt.at)}`],
      ['this one', identity(present)],
      ['confirmed', confirmed === null ? 'none' : identity(confirmed)],
      ['', confirmed === null ? null : `${instant(confirmed.at)} by ${confirmed.by}: ${confirmed.reason}`],
      ['queued', queued],
      ['in flight', submitting],
    ]);
    if (trouble !== null) {
      terminal.note(
        '',
        'Nothing is submitted from it. Polling and enqueuing go on.',
        'If submissions may be lost:  onetake recover --freeze --reason ...',
        'If nothing can be lost:      onetake recover --resume --reason ...',
      );
    }
  }
  return trouble === null ? EXIT.done : EXIT.failed;
}

function identity({ databaseName, systemIdentifier, timeline }: InstallationIdentity): string {
  return `${databaseName}, cluster ${systemIdentifier ?? 'unknown'}, timeline ${timeline ?? 'unknown'}`;
}

async function requireConsent(
  terminal: Terminal,
  { trouble, queued }: InstallationStatus,
  mode: RecoverInput['mode'],
): Promise<void> {
  const requests = `${queued} queued request${queued === 1 ? '' : 's'}`;
  const consent = await terminal.confirm(
    mode === 'freeze' ? `Freeze ${requests}?` : `Submit ${requests}?`,
    trouble === null
      ? 'This is the database that was confirmed.'
      : `This database is not recognised: ${INSTALLATION_TROUBLE_MEANS[trouble]}.`,
    mode === 'freeze'
      ? 'Each then waits for an operator, who looks it up at the provider.'
      : 'What was submitted already, and is forgotten here, will be paid for twice.',
  );
  if (consent === true) return;
  if (consent === false) throw new CommandError('declined', 'Nothing was changed.', EXIT.failed);
  throw usageError(
    `--${mode} decides about ${requests}, and there is no terminal to ask on.`,
    'Add --yes when you are sure. `onetake recover` shows what there is.',
  );
}

function progress(terminal: Terminal, queued: number): (frozen: number) => void {
  return (frozen) => terminal.note(`${frozen} of about ${queued} frozen ...`);
}

function report(
  terminal: Terminal,
  { mode, was, frozen }: Recovery,
  { submitting }: InstallationStatus,
): void {
  const before = was === null ? 'It was recognised before.' : `It was not recognised (${was}).`;
  terminal.print(`This database is confirmed: submissions go on. ${before}`);
  if (mode !== 'freeze') return;
  terminal.print(`Frozen: ${frozen}. In flight, left to their workers: ${submitting}.`);
  if (frozen > 0)
    terminal.note('See `onetake ambiguous list`; settle each with `onetake ambiguous resolve`.');
}
