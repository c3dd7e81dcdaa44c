import { describe, expect, it } from 'vitest';
import { checkBreakers } from './breaker-checks.ts';
import { attemptRow, breakerRow, snapshotOf, transitionRow } from './example-facts.ts';
import type { AttemptRow, BreakerRow, TransitionRow } from './snapshot.ts';

const CHAIN = [
  transitionRow(1, 'closed', 'open', { cause: 'failure_threshold' }),
  transitionRow(2, 'open', 'half_open', { cause: 'probe_granted' }),
  transitionRow(3, 'half_open', 'closed', { cause: 'probe_succeeded' }),
];
const at = (n: number, offset = 0) => (CHAIN[n - 1] as TransitionRow).at + offset;
const PROBE = attemptRow(1, { isProbe: true, startedAt: at(2) });

function faults(
  transitions: readonly TransitionRow[],
  attempts: readonly AttemptRow[] = [PROBE],
  breaker: Partial<BreakerRow> = {},
) {
  const row = breakerRow({ transitions: transitions.length, ...breaker });
  return checkBreakers(snapshotOf({ transitions, attempts, breakers: [row] })).map(({ what }) => what);
}

describe('the history of a breaker', () => {
  it('is in order when it opens, lets one probe through and closes', () => {
    expect(
      faults(CHAIN, [attemptRow(2, { startedAt: at(1, -1) }), PROBE, attemptRow(3, { startedAt: at(3) })]),
    ).toEqual([]);
  });

  it('has no gap', () => {
    const [first, second, third] = CHAIN as [TransitionRow, TransitionRow, TransitionRow];
    expect(faults([first, second, { ...third, number: 4 }])).not.toEqual([]);
    expect(faults([first, second, { ...third, previous: 'open' }])).not.toEqual([]);
    expect(faults([first, second, { ...third, generation: 9 }])).not.toEqual([]);
    expect(faults([first, { ...second, at: third.at + 1 }, third])).not.toEqual([]);
    expect(faults(CHAIN, [PROBE], { transitions: 4 })).not.toEqual([]);
    expect(faults(CHAIN, [PROBE], { state: 'open' })).not.toEqual([]);
  });

  it('is closed by its own probe’s success alone', () => {
    const [first, second, third] = CHAIN as [TransitionRow, TransitionRow, TransitionRow];
    expect(faults([first, second, { ...third, cause: 'failure_threshold' }])).toHaveLength(1);
    expect(faults([first, { ...second, next: 'closed' }], [])).not.toEqual([]);
  });

  it('has one probe in each half-open episode', () => {
    expect(faults(CHAIN, [PROBE, attemptRow(2, { isProbe: true, startedAt: at(2, 10) })])).toHaveLength(1);
    expect(faults(CHAIN, [])).toHaveLength(1);
  });

  it('lets nothing else through while it is open or half open', () => {
    expect(faults(CHAIN, [PROBE, attemptRow(2, { startedAt: at(1, 10) })])).toHaveLength(1);
    expect(faults(CHAIN, [PROBE, attemptRow(2, { startedAt: at(2, 10) })])).toHaveLength(1);
    expect(
      faults(CHAIN, [PROBE, attemptRow(2, { startedAt: at(1, 10), override: 'forced_closed' })]),
    ).toEqual([]);
  });

  it('has a chain of its own for overrides', () => {
    const layer = 'override' as const;
    const over = [
      transitionRow(1, 'none', 'forced_open', { layer }),
      transitionRow(2, 'forced_open', 'none', { layer }),
    ];
    expect(faults([...CHAIN, ...over], [PROBE], { transitions: 3, overrideTransitions: 2 })).toEqual([]);
    const broken = [over[0] as TransitionRow, { ...(over[1] as TransitionRow), previous: 'forced_closed' }];
    expect(faults([...CHAIN, ...broken], [PROBE], { transitions: 3, overrideTransitions: 2 })).toHaveLength(
      1,
    );
  });
});
