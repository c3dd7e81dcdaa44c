import type { Ledger } from '../../simulator/ledger.ts';
import { tableLines } from '../table.ts';
import { shortId } from '../text.ts';
import { runCommand } from './children.ts';
import { entryOf } from './facts.ts';
import { DemoFailure } from './failure.ts';
import { readLedger } from './read-facts.ts';
import { type Screen, WIDTH } from './screen.ts';
import type { Stage } from './stage.ts';

/** One frozen song, and what the provider's ledger knows of it. */
interface Case {
  readonly id: string;
  readonly title: string;
  readonly posts: number;
  readonly charges: number;
  readonly taskId: string | undefined;
}

/** Plays the operator, aloud: lists, looks up, settles one by one with the CLI's own commands. */
export async function playOperator(
  stage: Stage,
  screen: Screen,
  frozen: readonly { readonly id: string; readonly title: string }[],
  signal: AbortSignal,
): Promise<void> {
  const onetake = (...command: readonly string[]) => perform(command, stage, screen, signal);
  await onetake('ambiguous', 'list');

  const ledger = await readLedger(stage.providerUrl, signal);
  const cases = frozen.map(({ id, title }) => lookUp(ledger, id, title));
  screen.print('');
  screen.say("The provider's books say what was charged. By prompt:");
  screen.print(
    '',
    screen.paint('bold', `GET ${stage.providerUrl}/__simulator/ledger`),
    ...caseLines(cases, screen),
  );

  const charged = cases.filter(({ taskId }) => taskId !== undefined);
  const free = cases.filter(({ taskId }) => taskId === undefined);
  if (charged.length > 0) {
    screen.print('');
    screen.say(`Charged: ${charged.length}. The song exists, so its task is attached. No POST.`);
  }
  for (const { id, taskId } of charged) {
    const reason = 'charged, by the ledger';
    await onetake('ambiguous', 'resolve', shortId(id), '--accepted', taskId as string, '--reason', reason);
  }
  if (free.length > 0) {
    screen.print('');
    screen.say(`Not charged: ${free.length}. One more POST is permitted for each, and only one.`);
  }
  for (const { id } of free) {
    const reason = 'not charged, by the ledger';
    await onetake('ambiguous', 'resolve', shortId(id), '--not-accepted', '--yes', '--reason', reason);
  }
  screen.print('');
}

function lookUp(ledger: Ledger, id: string, title: string): Case {
  const { posts, charges, taskIds } = entryOf(ledger.forms.filter(({ prompt }) => prompt === title));
  return { id, title, posts, charges, taskId: taskIds[0] };
}

function caseLines(cases: readonly Case[], { paint }: Screen): string[] {
  return tableLines(
    cases,
    [
      { title: 'REQUEST', value: ({ id }) => shortId(id) },
      { title: 'PROMPT', value: ({ title }) => title, flexible: true },
      { title: 'POSTS', value: ({ posts }) => posts, align: 'right' },
      {
        title: 'CHARGES',
        value: ({ charges }) => charges,
        align: 'right',
        format: ({ charges }) => (charges === 0 ? undefined : 'yellow'),
      },
      { title: 'TASK', value: ({ taskId }) => (taskId === undefined ? '-' : `${taskId.slice(0, 8)}…`) },
    ],
    WIDTH,
    paint,
  );
}

/** Prints a command as it would be typed, runs it, and prints what it says. */
async function perform(
  command: readonly string[],
  stage: Stage,
  screen: Screen,
  signal: AbortSignal,
): Promise<void> {
  await screen.together(async () => {
    screen.print('', ...commandLines(command).map((line) => screen.paint('bold', line)));
    const { exitCode, stdout, stderr } = await runCommand(command, stage.surroundings, signal);
    screen.print(...linesOf(stdout), ...linesOf(stderr));
    if (exitCode !== 0) {
      throw new DemoFailure(
        `onetake ${command.slice(0, 2).join(' ')} ended with exit code ${exitCode}.`,
        stderr,
      );
    }
  });
}

function linesOf(output: string): string[] {
  return output.trimEnd() === '' ? [] : output.trimEnd().split('\n');
}

/** Broken before an option, as one would in a shell. */
export function commandLines(command: readonly string[]): string[] {
  const words = command.map((word) => (/^[\w./:-]+$/.test(word) ? word : `'${word}'`));
  const lines: string[] = [];
  let line = '$ onetake';
  for (const [index, word] of words.entries()) {
    const value = word.startsWith('--') ? words[index + 1] : undefined;
    const together = value === undefined || value.startsWith('--') ? word : `${word} ${value}`;
    if (line.length + 1 + together.length > WIDTH - 2 && word.startsWith('--')) {
      lines.push(`${line} \\`);
      line = `    ${word}`;
    } else line += ` ${word}`;
  }
  return [...lines, line];
}
