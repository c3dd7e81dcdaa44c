import { tableLines } from '../table.ts';
import type { TransitionFacts } from './facts.ts';
import type { Frozen, Phase } from './phases.ts';
import type { Reconciliation } from './reconcile.ts';
import { type Screen, WIDTH } from './screen.ts';

const PHASE_NAMES: Readonly<Record<Phase, string>> = {
  before: 'before the outage',
  outage: 'during the outage',
  after: 'after it',
  operator: "by the operator's word",
  unexplained: 'NOT EXPLAINED BY THE DATABASE',
};

/** The closing ledger: phases, both sides' figures, the frozen, the breaker. */
export function showLedger(
  screen: Screen,
  reconciliation: Reconciliation,
  transitions: readonly TransitionFacts[],
): void {
  screen.print(...phaseLines(reconciliation, screen), '', ...figureLines(reconciliation, screen), '');
  screen.say(frozenSentence(reconciliation.frozen));
  screen.print('', ...transitionLines(transitions, screen), '');
}

function indented(lines: readonly string[]): string[] {
  return lines.map((line) => `  ${line}`);
}

function phaseLines({ phases }: Reconciliation, { paint }: Screen): string[] {
  return indented(
    tableLines(
      phases,
      [
        { title: 'PHASE', value: ({ phase }) => PHASE_NAMES[phase].padEnd(30) },
        { title: '   POSTS', value: ({ posts }) => posts, align: 'right' },
        { title: ' CHARGES', value: ({ charges }) => charges, align: 'right' },
        { title: 'ACCEPTED', value: ({ accepted }) => accepted, align: 'right' },
        { title: '  FROZEN', value: ({ frozen }) => frozen, align: 'right' },
      ],
      WIDTH - 2,
      paint,
    ),
  );
}

function figureLines({ figures }: Reconciliation, { paint }: Screen): string[] {
  return indented(
    tableLines(
      figures,
      [
        { title: 'FIGURE', value: ({ name }) => name.padEnd(30) },
        { title: 'PROVIDER', value: ({ provider }) => provider, align: 'right' },
        { title: 'DATABASE', value: ({ database }) => database, align: 'right' },
        {
          title: '',
          value: ({ provider, database, expected }) => {
            const known = [provider, database, expected].filter((value) => value !== null);
            return new Set(known).size <= 1 ? '✓' : `✗ expected ${expected ?? 'the same'}`;
          },
        },
      ],
      WIDTH - 2,
      paint,
    ),
  );
}

function frozenSentence(frozen: readonly Frozen[]): string {
  const count = (settledAs: Frozen['settledAs']) =>
    frozen.filter((each) => each.settledAs === settledAs).length;
  const attached = count('task_attached');
  const permitted = count('one_more_post');
  const open = frozen.length - attached - permitted;
  return (
    `Frozen: ${frozen.length}. ${attached} had been charged: the task id was attached. ` +
    `${permitted} had not: one more POST was permitted.${open === 0 ? '' : ` ${open} settled otherwise, or not at all.`}`
  );
}

function transitionLines(transitions: readonly TransitionFacts[], { paint }: Screen): string[] {
  const [first] = transitions;
  if (first === undefined) return ['  The breaker never moved.'];
  const since = (at: Date) => `+${((at.getTime() - first.at.getTime()) / 1_000).toFixed(1)} s`;
  return indented(
    tableLines(
      transitions,
      [
        { title: '#', value: ({ number }) => number, align: 'right' },
        { title: 'AT', value: ({ at }) => since(at), align: 'right' },
        { title: 'BREAKER', value: ({ previousState, nextState }) => `${previousState} → ${nextState}` },
        { title: 'CAUSE', value: ({ cause }) => cause },
        { title: 'HTTP', value: ({ httpStatus }) => httpStatus },
      ],
      WIDTH - 2,
      paint,
    ),
  );
}
