import type { Violation } from './checks.ts';
import type { AttemptRow, Snapshot, TransitionRow } from './snapshot.ts';

/** Transition chains without a gap, one probe per half-open episode, and nothing else let through meanwhile. */
export function checkBreakers({ transitions, breakers, attempts }: Snapshot): Violation[] {
  return breakers.flatMap((breaker) => {
    const own = transitions.filter((row) => row.breaker === breaker.name);
    const states = own.filter(({ layer }) => layer === 'state');
    const overrides = own.filter(({ layer }) => layer === 'override');
    const of = (what: string) => ({ rule: 'breaker', what: `${breaker.name}: ${what}` });
    const rows = [...chainFaults(states), ...chainFaults(overrides), ...generationFaults(states)];
    const found = [...rows, ...states.flatMap(moveFault)].map(of);
    if (states.length !== breaker.transitions || overrides.length !== breaker.overrideTransitions) {
      found.push(of('its row counts other transitions than there are'));
    }
    const last = states.at(-1)?.next ?? 'closed';
    if (last !== breaker.state) found.push(of(`is ${breaker.state}, and its last transition led to ${last}`));
    const admitted = attempts.filter((attempt) => attempt.breaker === breaker.name);
    return [...found, ...admissionFaults(states, admitted).map(of)];
  });
}

function chainFaults(rows: readonly TransitionRow[]): string[] {
  return rows.flatMap((row, n) => {
    const before = rows[n - 1];
    const faults: string[] = [];
    if (row.number !== n + 1) faults.push(`transition ${n + 1} of ${row.layer} has the number ${row.number}`);
    if (before !== undefined && before.next !== row.previous) {
      faults.push(
        `transition ${row.number} of ${row.layer} begins at ${row.previous}, not at ${before.next}`,
      );
    }
    if (before !== undefined && before.at > row.at)
      faults.push(`transition ${row.number} is older than the one before`);
    return faults;
  });
}

function generationFaults(states: readonly TransitionRow[]): string[] {
  return states.flatMap((row, n) => {
    const before = states[n - 1];
    if (before === undefined || row.generation === before.generation + 1) return [];
    return [`transition ${row.number}: generation ${before.generation} to ${row.generation}`];
  });
}

/** Every move of the layer `state`, and what may cause it. */
const MOVES: Readonly<Record<string, readonly string[]>> = {
  'closed to open': ['failure_threshold'],
  'open to half_open': ['probe_granted'],
  'half_open to open': ['probe_failed', 'probe_neutral', 'probe_lost'],
  'half_open to closed': ['probe_succeeded'],
};

function moveFault({ number, previous, next, cause }: TransitionRow): string[] {
  const isLegal = MOVES[`${previous} to ${next}`]?.includes(cause) ?? false;
  return isLegal ? [] : [`transition ${number} from ${previous} to ${next} by ${cause}`];
}

/** Instants of attempts and transitions are read under the breaker's lock, so they can be compared. */
function admissionFaults(states: readonly TransitionRow[], attempts: readonly AttemptRow[]): string[] {
  return states.flatMap((row, n) => {
    if (row.next === 'closed') return [];
    const until = states[n + 1]?.at ?? Number.POSITIVE_INFINITY;
    const during = attempts.filter(
      ({ override, startedAt }) => override === null && startedAt >= row.at && startedAt < until,
    );
    const probes = during.filter(({ isProbe }) => isProbe).length;
    const allowed = row.next === 'half_open' ? 1 : 0;
    const faults: string[] = [];
    if (probes > allowed) faults.push(`${probes} probes after transition ${row.number} to ${row.next}`);
    const others = during.length - probes;
    if (others > 0)
      faults.push(`${others} attempts let through after transition ${row.number} to ${row.next}`);
    if (row.next === 'half_open' && probes === 0)
      faults.push(`transition ${row.number} granted a probe nobody has`);
    return faults;
  });
}
