import type { Account } from './accounts.ts';
import type { FaultEnd } from './script.ts';
import type { Task } from './tasks.ts';

/** How one POST was answered. */
export interface LedgerAnswer {
  /** When the POST had arrived whole. ISO 8601 UTC. */
  readonly at: string;
  /** Null while nothing has been answered, and when nothing ever was. */
  readonly status: number | null;
  /** `client_gone`: the client left before its answer. Absent: answered whole, or not yet. */
  readonly end?: FaultEnd | 'client_gone';
  readonly charged: boolean;
  readonly taskId?: string;
}

/** Everything that was posted under one form by one account. */
export interface LedgerForm {
  /** SHA-256 (hex) of the canonical form, see `formDigest`. */
  readonly form: string;
  /** The configured name, or `key-` and a fingerprint; null for a key that is no account. */
  readonly account: string | null;
  readonly operation: string;
  readonly prompt: string;
  readonly posts: number;
  readonly charges: number;
  readonly refunds: number;
  readonly taskIds: readonly string[];
  readonly answers: readonly LedgerAnswer[];
}

export interface LedgerTotals {
  /** POSTs to generation endpoints, refused ones and those cut short by the client included. */
  readonly posts: number;
  readonly charges: number;
  readonly refunds: number;
  readonly tasks: number;
  /** Forms with more than one charge that was not refunded. */
  readonly chargedTwice: number;
  /** The most generations at once, over all accounts. */
  readonly maxConcurrency: number;
}

export interface LedgerAccount {
  readonly account: string;
  readonly posts: number;
  readonly maxConcurrency: number;
}

export interface Ledger {
  readonly totals: LedgerTotals;
  readonly forms: readonly LedgerForm[];
  readonly accounts: readonly LedgerAccount[];
}

type Mutable<T> = { -readonly [K in keyof T]: T[K] };

interface FormEntry {
  readonly form: string;
  readonly account: string | null;
  readonly operation: string;
  readonly prompt: string;
  posts: number;
  charges: number;
  readonly tasks: Task[];
  readonly answers: Mutable<LedgerAnswer>[];
}

/** The provider's books. Refunds are a matter of the clock, so they are counted when the books are read. */
export class Books {
  posts = 0;
  charges = 0;
  maxConcurrency = 0;
  readonly #forms = new Map<string, FormEntry>();

  /** Counts a POST that arrived whole; `answered` is called once, when its end is known. */
  enter(post: {
    form: string;
    account: string | null;
    operation: string;
    prompt: string;
    at: number;
  }): BookedPost {
    const key = JSON.stringify([post.account, post.operation, post.form]);
    const { at, ...identity } = post;
    let entry = this.#forms.get(key);
    if (entry === undefined) {
      entry = { ...identity, posts: 0, charges: 0, tasks: [], answers: [] };
      this.#forms.set(key, entry);
    }
    entry.posts += 1;
    const answer: Mutable<LedgerAnswer> = { at: new Date(at).toISOString(), status: null, charged: false };
    entry.answers.push(answer);
    const found = entry;
    return {
      repetition: entry.posts,
      charge: (task) => {
        this.charges += 1;
        found.charges += 1;
        answer.charged = true;
        if (task === undefined) return;
        found.tasks.push(task);
        answer.taskId = task.id;
      },
      answered: (status, end) => {
        answer.status = status;
        if (end !== undefined) answer.end = end;
      },
    };
  }

  read(now: number, accounts: readonly Account[]): Ledger {
    const forms = Array.from(this.#forms.values(), (entry) => readEntry(entry, now));
    return {
      totals: {
        posts: this.posts,
        charges: this.charges,
        refunds: forms.reduce((sum, form) => sum + form.refunds, 0),
        tasks: forms.reduce((sum, form) => sum + form.taskIds.length, 0),
        chargedTwice: forms.filter(({ charges, refunds }) => charges - refunds > 1).length,
        maxConcurrency: this.maxConcurrency,
      },
      forms,
      accounts: accounts.map(({ name, posts, maxConcurrency }) => ({ account: name, posts, maxConcurrency })),
    };
  }
}

export interface BookedPost {
  /** The how manieth POST of this form this is, from 1. */
  readonly repetition: number;
  charge(task: Task | undefined): void;
  answered(status: number | null, end: FaultEnd | 'client_gone' | undefined): void;
}

function readEntry({ tasks, answers, ...entry }: FormEntry, now: number): LedgerForm {
  return {
    ...entry,
    refunds: tasks.filter(({ refundsAt }) => refundsAt !== undefined && refundsAt <= now).length,
    taskIds: tasks.map(({ id }) => id),
    answers: answers.map((answer) => ({ ...answer })),
  };
}
