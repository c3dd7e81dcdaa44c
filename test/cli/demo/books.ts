import type {
  AttemptFacts,
  DatabaseFacts,
  RequestFacts,
  TransitionFacts,
} from '../../../src/cli/demo/facts.ts';
import type { Ledger, LedgerAnswer, LedgerForm } from '../../../src/simulator/ledger.ts';

/** Three songs on both sides: one went well, one was charged behind a 502, one had to be sent again. */
export interface Books {
  readonly songs: 3;
  readonly ledger: Ledger;
  readonly database: DatabaseFacts;
  readonly checks: readonly { readonly requestId: string; readonly location: string }[];
}

export const OK = 'a sunny morning';
export const CHARGED = 'a charged outage';
export const RESENT = 'a free outage';

export function answer(status: number | null, taskId?: string, end?: LedgerAnswer['end']): LedgerAnswer {
  return {
    at: '2030-01-01T00:00:00.000Z',
    status,
    charged: taskId !== undefined,
    ...(taskId === undefined ? {} : { taskId }),
    ...(end === undefined ? {} : { end }),
  };
}

export function form(prompt: string, answers: readonly LedgerAnswer[], account = 'demo'): LedgerForm {
  const taskIds = answers.flatMap(({ taskId }) => (taskId === undefined ? [] : [taskId]));
  return {
    form: `${account} ${prompt}`,
    account,
    operation: 'text-to-music',
    prompt,
    posts: answers.length,
    charges: taskIds.length,
    refunds: 0,
    taskIds,
    answers,
  };
}

/** The totals as the simulator has them: per form, not per prompt. */
export function ledgerOf(forms: readonly LedgerForm[]): Ledger {
  const sum = (of: (form: LedgerForm) => number) => forms.reduce((total, each) => total + of(each), 0);
  return {
    totals: {
      posts: sum(({ posts }) => posts),
      charges: sum(({ charges }) => charges),
      refunds: 0,
      tasks: sum(({ taskIds }) => taskIds.length),
      chargedTwice: forms.filter(({ charges }) => charges > 1).length,
      maxConcurrency: 1,
    },
    forms,
    accounts: [],
  };
}

export function attempt(values: Partial<AttemptFacts>): AttemptFacts {
  return {
    attempt: 1,
    generation: 1,
    isProbe: false,
    httpStatus: 202,
    health: 'success',
    certainty: 'accepted',
    ...values,
  };
}

export const FAILED_ATTEMPT = { httpStatus: 502, health: 'dependency_failure', certainty: 'unknown' };

export function request(prompt: string, taskId: string, attempts: readonly AttemptFacts[]): RequestFacts {
  return {
    id: `id of ${prompt}`,
    prompt,
    state: 'succeeded',
    charge: 'charged',
    providerTaskId: taskId,
    attempts,
    files: [],
  };
}

function transition(number: number, previousState: string, nextState: string): TransitionFacts {
  const at = new Date(Date.UTC(2030, 0, 1, 0, 0, number));
  return { number, at, previousState, nextState, cause: 'any', httpStatus: null, generation: number + 1 };
}

export const FORMS = [
  form(OK, [answer(202, 'task-1')]),
  form(CHARGED, [answer(502, 'task-2')]),
  form(RESENT, [answer(502), answer(202, 'task-3')]),
] as const;

export function agreeingBooks(): Books {
  const requests = [
    request(OK, 'task-1', [attempt({ generation: 3, isProbe: true })]),
    request(CHARGED, 'task-2', [attempt(FAILED_ATTEMPT)]),
    request(RESENT, 'task-3', [attempt(FAILED_ATTEMPT), attempt({ attempt: 2, generation: 4 })]),
  ];
  return {
    songs: 3,
    ledger: ledgerOf(FORMS),
    database: {
      requests,
      transitions: [
        transition(1, 'closed', 'open'),
        transition(2, 'open', 'half_open'),
        transition(3, 'half_open', 'closed'),
      ],
      breakerState: 'closed',
      actions: [
        { action: 'resolve_as_accepted', subject: `id of ${CHARGED}` },
        { action: 'resolve_as_not_accepted', subject: `id of ${RESENT}` },
      ],
    },
    checks: requests.map(({ id }) => ({ requestId: id, location: `${id}/0.wav` })),
  };
}
