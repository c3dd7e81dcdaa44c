import type { LedgerAnswer, LedgerForm } from '../../simulator/ledger.ts';

// What the demo knows about its songs, from the two sides that keep books: the database and the provider.

export interface AttemptFacts {
  readonly attempt: number;
  readonly generation: number;
  readonly isProbe: boolean;
  readonly httpStatus: number | null;
  readonly health: string | null;
  /** Null while it is in flight. */
  readonly certainty: string | null;
}

export interface FileFacts {
  readonly location: string;
  readonly bytes: number;
  readonly sha256: string;
}

export interface RequestFacts {
  readonly id: string;
  readonly prompt: string;
  readonly state: string;
  readonly charge: string;
  readonly providerTaskId: string | null;
  readonly attempts: readonly AttemptFacts[];
  readonly files: readonly FileFacts[];
}

export interface TransitionFacts {
  readonly number: number;
  readonly at: Date;
  readonly previousState: string;
  readonly nextState: string;
  readonly cause: string;
  readonly httpStatus: number | null;
  readonly generation: number;
}

export interface DatabaseFacts {
  readonly requests: readonly RequestFacts[];
  /** One breaker's, in order. */
  readonly transitions: readonly TransitionFacts[];
  readonly breakerState: string;
  readonly actions: readonly { readonly action: string; readonly subject: string }[];
}

/** One stored file, read back from the disk; `problem` says what is wrong with it. */
export interface FileCheck {
  readonly requestId: string;
  readonly location: string;
  readonly problem?: string;
}

/** What the ledger says of one prompt, whichever account or form it came under. */
export interface Entry {
  readonly posts: number;
  readonly charges: number;
  readonly taskIds: readonly string[];
  readonly answers: readonly LedgerAnswer[];
}

export interface Pair {
  readonly request: RequestFacts;
  readonly entry: Entry;
}

export function entryOf(forms: readonly LedgerForm[] = []): Entry {
  return {
    posts: sum(forms.map(({ posts }) => posts)),
    charges: sum(forms.map(({ charges, refunds }) => charges - refunds)),
    taskIds: forms.flatMap(({ taskIds }) => taskIds),
    answers: forms
      .flatMap(({ answers }) => answers)
      .sort((left, right) => (left.at < right.at ? -1 : left.at > right.at ? 1 : 0)),
  };
}

export function wasSent({ certainty }: AttemptFacts): boolean {
  return certainty !== 'unsent';
}

export function isResolution({ action }: { readonly action: string }): boolean {
  return action.startsWith('resolve_as_') || action === 'abandon';
}

/** What the client can have seen: nothing, when it had left before the answer. */
export function statusOf(answer: LedgerAnswer | undefined): number | null {
  return answer === undefined || answer.end === 'client_gone' ? null : answer.status;
}

export function isAcceptance(answer: LedgerAnswer): boolean {
  const status = statusOf(answer);
  return status !== null && status >= 200 && status < 300;
}

export function isDoubtful(answer: LedgerAnswer): boolean {
  const status = statusOf(answer);
  return status === null || status >= 500;
}

function sum(numbers: readonly number[]): number {
  return numbers.reduce((total, number) => total + number, 0);
}
