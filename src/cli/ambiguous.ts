import { type Command, Option } from 'commander';
import type { AmbiguousSubmission, Resolution } from '../postgres/operator-functions.ts';
import type { Client, ResolveInput } from '../runtime/client.ts';
import { instantOf, wholeNumber } from './arguments.ts';
import type { Runner } from './context.ts';
import { CommandError, EXIT, usageError } from './errors.ts';
import { inWords } from './in-words.ts';
import type { Terminal } from './output.ts';
import { OUTCOME_UNKNOWN } from './request-view.ts';
import { duration, instant, shortId } from './text.ts';

export function addAmbiguous(program: Command, run: Runner): void {
  const ambiguous = program
    .command('ambiguous')
    .summary('submissions whose outcome is unknown: look, then settle each')
    .description(
      'Submissions whose outcome is unknown, possibly charged. Nothing re-sends them; an operator settles each one ' +
        'after a look at the provider.',
    );
  ambiguous
    .command('list')
    .description('All of them, oldest first.')
    .option('--limit <n>', 'at most so many', wholeNumber('--limit', 1, 100_000), 1_000)
    .action(
      run(({ terminal, withClient }, { limit }: { limit: number }) =>
        withClient(async (client) => {
          const rows = await client.listAmbiguous({ limit });
          if (terminal.json) terminal.value(rows.map(listJson));
          else showList(terminal, rows);
          return undefined;
        }),
      ),
    );
  ambiguous
    .command('show <id>')
    .description('One of them, with its evidence and the ways to settle it.')
    .action(
      run(({ terminal, withClient }, id: string) =>
        withClient(async (client) => {
          const row = await requireAmbiguous(client, id);
          const { errorCode, headersSent, headersSentProof, startedAt, needsForce, evidence } = row;
          const more = { errorCode, headersSent, headersSentProof, startedAt, needsForce, evidence };
          if (terminal.json) terminal.value({ ...listJson(row), ...more });
          else showOne(terminal, row);
          return undefined;
        }),
      ),
    );
  addResolve(ambiguous, run);
  addReopen(ambiguous, run);
}

function taskId(text: string): string {
  if (text.length > 0 && text.trim() === text) return text;
  throw usageError('--accepted: expected the task id at the provider, without spaces around it.');
}

interface ResolveOptions {
  readonly accepted?: string;
  readonly notAccepted?: true;
  readonly abandon?: true;
  readonly resubmit: boolean;
  readonly force?: true;
  readonly submitBefore?: Date;
  readonly reason: string;
  readonly actor?: string;
  readonly yes?: true;
}

function addResolve(ambiguous: Command, run: Runner): void {
  ambiguous
    .command('resolve <id>')
    .description('Settles one, by what the provider says about it. Exactly one of the first three is needed.')
    .option('--accepted <task-id>', 'the provider has it: it goes on with this task', taskId)
    .addOption(
      new Option('--not-accepted', 'the provider has nothing of it: permits one more paid POST').conflicts([
        'accepted',
        'abandon',
      ]),
    )
    .addOption(new Option('--abandon', 'nobody will ever know: ends it as failed').conflicts('accepted'))
    .requiredOption('--reason <text>', 'why, for the record')
    .option('--actor <name>', 'who decides (default: $ONETAKE_ACTOR, else the system user)')
    .option('--no-resubmit', 'with --not-accepted: ends it as cancelled, without another POST')
    .option('--force', 'with --not-accepted: although the provider answered with success')
    .option(
      '--submit-before <instant>',
      'with --not-accepted: not submitted by then, it expires',
      instantOf('--submit-before'),
    )
    .option('--yes', 'with --not-accepted: does not ask')
    .addHelpText(
      'after',
      `
Examples:
  $ onetake ambiguous resolve 0f3c1a2b --accepted TASK_ID --reason found
  $ onetake ambiguous resolve 0f3c1a2b --not-accepted --reason 'not in ledger'
  $ onetake ambiguous resolve 0f3c1a2b --not-accepted --no-resubmit --reason old`,
    )
    .action(
      run(({ terminal, environment, withClient }, id: string, options: ResolveOptions) => {
        const decision = decisionOf(options);
        const note = { actor: options.actor ?? environment.actor(), reason: options.reason };
        return withClient(async (client) => {
          if (permitsPost(decision)) await requireConsent(terminal, client, id, options.yes === true);
          const resolution = await inWords(HINTS, () => client.resolve({ id, ...note, ...decision }));
          if (terminal.json) terminal.value(resolution);
          else showResolution(terminal, resolution);
          return undefined;
        });
      }),
    );
}

function addReopen(ambiguous: Command, run: Runner): void {
  ambiguous
    .command('reopen <id>')
    .description(
      'Takes back `resolve --accepted` with a wrong task id: the request is ambiguous again, and the id is free. ' +
        'Refused once its task has finished, and for what the provider itself accepted.',
    )
    .requiredOption('--reason <text>', 'why, for the record')
    .option('--actor <name>', 'who decides (default: $ONETAKE_ACTOR, else the system user)')
    .addHelpText(
      'after',
      "\nExample:\n  $ onetake ambiguous reopen 0f3c1a2b --reason 'the task of another song'",
    )
    .action(
      run(({ terminal, environment, withClient }, id: string, options: ReopenOptions) => {
        const note = { actor: options.actor ?? environment.actor(), reason: options.reason };
        return withClient(async (client) => {
          const resolution = await inWords(HINTS, () => client.reopen(id, note));
          if (terminal.json) terminal.value(resolution);
          else showResolution(terminal, resolution);
          return undefined;
        });
      }),
    );
}

interface ReopenOptions {
  readonly reason: string;
  readonly actor?: string;
}

type Decision = ResolveInput extends infer Each
  ? Each extends unknown
    ? Omit<Each, 'id' | 'actor' | 'reason'>
    : never
  : never;

function decisionOf(options: ResolveOptions): Decision {
  const { accepted, notAccepted, abandon, resubmit, force, submitBefore } = options;
  if (notAccepted) {
    return {
      as: 'not_accepted',
      resubmit,
      ...(force ? { force } : {}),
      ...(submitBefore === undefined ? {} : { submitBefore }),
    };
  }
  const alone = [!resubmit && '--no-resubmit', force && '--force', submitBefore && '--submit-before'].find(
    Boolean,
  );
  if (typeof alone === 'string') throw usageError(`${alone} belongs to --not-accepted.`);
  if (accepted !== undefined) return { as: 'accepted', providerTaskId: accepted };
  if (abandon) return { as: 'abandoned' };
  throw usageError('Say what became of it: --accepted TASK_ID, --not-accepted or --abandon.');
}

function permitsPost(decision: Decision): boolean {
  return decision.as === 'not_accepted' && decision.resubmit !== false;
}

/** Whoever permits a paid POST sees first what it may buy a second time. */
async function requireConsent(
  terminal: Terminal,
  client: Client,
  id: string,
  isGiven: boolean,
): Promise<void> {
  if (isGiven) return;
  const row = await requireAmbiguous(client, id);
  const consent = await terminal.confirm(
    'Permit one more paid POST?',
    `Request ${row.id} (${row.operation}, account ${row.account}): ${evidenceOf(row)}, ${duration(row.ageMs)} ago.`,
    'If the provider has it after all, it will be paid for twice.',
  );
  if (consent === true) return;
  if (consent === false) throw new CommandError('declined', 'Nothing was changed.', EXIT.failed);
  throw usageError(
    '--not-accepted permits one more paid POST, and there is no terminal to ask on.',
    'Add --yes when the provider has confirmed that it has nothing of it, or --no-resubmit.',
  );
}

const HINTS = {
  request_not_found: 'See `onetake ambiguous list` for what there is to settle.',
  request_not_in_state: 'See `onetake requests show ID` for where it is now, and why.',
  task_id_in_use: 'Look at the task id again, and at that request: `onetake requests show ID`.',
};

async function requireAmbiguous(client: Client, id: string): Promise<AmbiguousSubmission> {
  const [row] = await client.listAmbiguous({ id });
  if (row !== undefined) return row;
  const request = await client.get(id);
  const state = request === undefined ? 'gone' : request.state;
  throw new CommandError(
    'not_ambiguous',
    `Request ${shortId(request?.id ?? id)} is ${state}, not ambiguous.`,
    EXIT.failed,
    'See `onetake ambiguous list`.',
  );
}

function listJson(row: AmbiguousSubmission) {
  const { id, reason, account, operation, ageMs, attempt, phase, httpStatus, charge, rearmableAt } = row;
  return { id, reason, account, operation, ageMs, attempt, phase, httpStatus, charge, rearmableAt };
}

function showList(terminal: Terminal, rows: readonly AmbiguousSubmission[]): void {
  if (rows.length === 0) {
    terminal.note('No submission is ambiguous.');
    return;
  }
  terminal.table<AmbiguousSubmission>(rows, [
    { title: 'id', value: (row) => shortId(row.id) },
    { title: 'reason', value: (row) => row.reason.replaceAll('_', ' '), flexible: 'wrap' },
    { title: 'answer', value: (row) => row.httpStatus ?? row.errorCode, flexible: 'wrap' },
    { title: 'account', value: (row) => row.account, flexible: true },
    { title: 'operation', value: (row) => row.operation, flexible: true },
    { title: 'age', value: (row) => duration(row.ageMs), align: 'right' },
    { title: 'charge', value: (row) => row.charge },
  ]);
  terminal.note(
    OUTCOME_UNKNOWN,
    'Look each up at the provider, then settle it: onetake ambiguous resolve --help',
  );
}

function showOne(terminal: Terminal, row: AmbiguousSubmission): void {
  const id = shortId(row.id);
  terminal.block([
    ['id', row.id],
    ['reason', row.reason.replaceAll('_', ' ')],
    ['what is known', evidenceOf(row)],
    ['first byte', firstByteOf(row)],
    ['evidence since', row.evidence],
    ['charge', row.charge],
    ['account', row.account],
    ['operation', row.operation],
    ['submitted', row.startedAt === null ? null : instant(row.startedAt)],
    ['ambiguous for', duration(row.ageMs)],
    ['next POST from', row.rearmableAt === null ? null : `${fromWhen(row.rearmableAt)}, if one is permitted`],
  ]);
  terminal.print('', terminal.paint('yellow', OUTCOME_UNKNOWN));
  const command = `onetake ambiguous resolve ${id}`;
  terminal.note(
    `The provider has it:      ${command} --accepted TASK_ID --reason '…'`,
    `The provider has nothing: ${command} --not-accepted${row.needsForce ? ' --force' : ''} --reason '…'`,
    `Nobody will ever know:    ${command} --abandon --reason '…'`,
  );
}

function fromWhen(at: Date): string {
  return at.getTime() <= Date.now() ? 'at once' : instant(at);
}

/** Null where an answer says it anyway, or nobody was there to look. */
function firstByteOf({ headersSent, headersSentProof, httpStatus }: AmbiguousSubmission): string | null {
  if (headersSent === null || httpStatus !== null) return null;
  return `${headersSent ? 'went out' : 'did not go out'} (proof: ${(headersSentProof ?? 'none').replaceAll('_', ' ')})`;
}

function evidenceOf({ attempt, httpStatus, errorCode, phase }: AmbiguousSubmission): string {
  if (attempt === null) return 'no attempt is recorded';
  if (httpStatus !== null) return `attempt ${attempt}: the provider answered ${httpStatus}`;
  return `attempt ${attempt}: ${errorCode ?? 'no answer'}${phase === null ? '' : ` (${phase.replaceAll('_', ' ')})`}`;
}

function showResolution(terminal: Terminal, { id, from, to, postsPermitted, notBefore }: Resolution): void {
  terminal.print(`${id}: ${from} -> ${to}`);
  if (postsPermitted > 0) {
    const earliest = notBefore === null ? '' : `, not before ${instant(notBefore)}`;
    terminal.print(`One more POST is permitted${earliest}.`);
  }
}
