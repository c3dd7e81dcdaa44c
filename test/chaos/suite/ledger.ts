import { DEFINITE_REFUSALS } from './provider/faults.ts';
import type { LedgerEvent } from './provider/ledger-events.ts';

export interface LedgerPost {
  readonly post: number;
  readonly marker: number;
  readonly account: string;
  readonly behaviour: string;
  /** ms since 1970, by the clock of this machine, as all instants here. */
  readonly at: number;
  /** Of a whole answer that was handed to the connection; null without one. */
  answeredStatus: number | null;
  task: string | null;
}

export interface LedgerTask {
  readonly id: string;
  readonly marker: number;
  readonly account: string;
  readonly post: LedgerPost;
  readonly startedAt: number;
  readonly endsAt: number;
  readonly fails: boolean;
}

export interface PartialPost {
  readonly marker: number | null;
  readonly account: string | null;
  readonly at: number;
}

/**
 * The provider's books, as far as the suite has been told. They can only be behind: read them before the
 * database, and whatever they hold must be there.
 */
export class Ledger {
  readonly posts = new Map<number, LedgerPost>();
  readonly tasks = new Map<string, LedgerTask>();
  readonly partials: PartialPost[] = [];
  readonly protests: string[] = [];
  /** POSTs that arrived before their intent was committed. */
  readonly withoutIntent: number[] = [];
  intentsAsked = 0;
  readonly counts = new Map<string, number>();
  readonly #byMarker = new Map<number, LedgerPost[]>();

  enter(event: LedgerEvent): void {
    switch (event.type) {
      case 'post': {
        const { type: _, ...entry } = event;
        const post: LedgerPost = { ...entry, answeredStatus: null, task: null };
        this.posts.set(post.post, post);
        this.#byMarker.set(post.marker, [...this.postsOf(post.marker), post]);
        this.#count(`post:${event.behaviour}`);
        break;
      }
      case 'upload':
        this.#count(`upload:${event.behaviour}`);
        break;
      case 'partial_post':
        this.partials.push(event);
        this.#count('post:partial');
        break;
      case 'answered': {
        const post = this.posts.get(event.post);
        if (post !== undefined) post.answeredStatus = event.status;
        break;
      }
      case 'charged': {
        const post = this.posts.get(event.post);
        if (post === undefined) break;
        post.task = event.task;
        const { marker, account, at: startedAt } = post;
        const { task: id, endsAt, fails } = event;
        this.tasks.set(id, { id, marker, account, post, startedAt, endsAt, fails });
        break;
      }
      case 'intent':
        this.intentsAsked++;
        if (!event.isCommitted) this.withoutIntent.push(event.marker);
        break;
      case 'reset_on_connect':
        this.#count('connection:reset');
        break;
      case 'get':
        this.#count(`read:${event.behaviour}`);
        break;
      case 'file':
        this.#count(`file:${event.behaviour}`);
        break;
      case 'protest':
        this.protests.push(event.what);
        break;
      case 'ready':
        break;
    }
  }

  /** As it is now: what is entered later does not show in it. */
  copy(): Ledger {
    const copy = new Ledger();
    for (const [number, post] of this.posts) {
      const own = { ...post };
      copy.posts.set(number, own);
      copy.#byMarker.set(own.marker, [...copy.postsOf(own.marker), own]);
    }
    for (const [id, task] of this.tasks) copy.tasks.set(id, task);
    copy.partials.push(...this.partials);
    copy.protests.push(...this.protests);
    copy.withoutIntent.push(...this.withoutIntent);
    return copy;
  }

  postsOf(marker: number): readonly LedgerPost[] {
    return this.#byMarker.get(marker) ?? [];
  }

  tasksOf(marker: number): readonly LedgerTask[] {
    return this.postsOf(marker).flatMap(({ task }) => {
      const found = task === null ? undefined : this.tasks.get(task);
      return found === undefined ? [] : [found];
    });
  }

  markers(): readonly number[] {
    return [...this.#byMarker.keys()];
  }

  #count(what: string): void {
    this.counts.set(what, (this.counts.get(what) ?? 0) + 1);
  }
}

export function isDefiniteRefusal({ answeredStatus }: LedgerPost): boolean {
  return answeredStatus !== null && DEFINITE_REFUSALS.has(answeredStatus);
}
