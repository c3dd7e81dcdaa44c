import type { LedgerAnswer } from '../../simulator/ledger.ts';
import { type AttemptFacts, type DatabaseFacts, isResolution, type Pair, wasSent } from './facts.ts';

export type Phase = 'before' | 'outage' | 'after' | 'operator' | 'unexplained';

export interface PhaseFigures {
  readonly phase: Phase;
  readonly posts: number;
  readonly charges: number;
  readonly accepted: number;
  readonly frozen: number;
}

export interface Frozen {
  readonly requestId: string;
  readonly prompt: string;
  readonly httpStatus: number | null;
  /** By the provider's ledger, for the POST that was frozen. */
  readonly charged: boolean;
  readonly settledAs: 'task_attached' | 'one_more_post' | 'otherwise' | null;
}

const SETTLED_AS: Readonly<Record<string, Frozen['settledAs']>> = {
  resolve_as_accepted: 'task_attached',
  resolve_as_not_accepted: 'one_more_post',
};
const PHASES: readonly Phase[] = ['before', 'outage', 'after', 'operator', 'unexplained'];

export function phasesOf(pairs: readonly Pair[], unknown: readonly LedgerAnswer[]): readonly PhaseFigures[] {
  const counted = new Map(
    PHASES.map((phase) => [phase, { phase, posts: 0, charges: 0, accepted: 0, frozen: 0 }]),
  );
  const add = (phase: Phase, answer: LedgerAnswer | undefined, attempt: AttemptFacts | undefined) => {
    const figures = counted.get(phase);
    if (figures === undefined) return;
    if (answer !== undefined) figures.posts += 1;
    if (answer?.charged === true) figures.charges += 1;
    if (attempt?.certainty === 'accepted') figures.accepted += 1;
    if (attempt?.certainty === 'unknown') figures.frozen += 1;
  };
  for (const { request, entry } of pairs) {
    const sent = request.attempts.filter(wasSent);
    for (let index = 0; index < Math.max(sent.length, entry.answers.length); index += 1) {
      const attempt = sent[index];
      add(attempt === undefined ? 'unexplained' : phaseOf(attempt), entry.answers[index], attempt);
    }
  }
  for (const answer of unknown) add('unexplained', answer, undefined);
  return Array.from(counted.values()).filter(({ phase, posts }) => phase !== 'unexplained' || posts > 0);
}

/** From the database alone: a second POST exists only by an operator's word. */
function phaseOf({ attempt, generation, httpStatus, health }: AttemptFacts): Phase {
  if (attempt > 1) return 'operator';
  if (health === 'dependency_failure' && httpStatus !== null) return 'outage';
  return generation === 1 ? 'before' : 'after';
}

export function frozenOf(pairs: readonly Pair[], { actions }: DatabaseFacts): readonly Frozen[] {
  return pairs.flatMap(({ request, entry }) => {
    const taken = actions.filter(({ action, subject }) => subject === request.id && isResolution({ action }));
    return request.attempts
      .filter(wasSent)
      .map((attempt, index) => ({ attempt, index }))
      .filter(({ attempt }) => attempt.certainty === 'unknown')
      .map(({ attempt, index }, nth) => {
        const action = taken[nth]?.action;
        return {
          requestId: request.id,
          prompt: request.prompt,
          httpStatus: attempt.httpStatus,
          charged: entry.answers[index]?.charged === true,
          settledAs: action === undefined ? null : (SETTLED_AS[action] ?? 'otherwise'),
        };
      });
  });
}
