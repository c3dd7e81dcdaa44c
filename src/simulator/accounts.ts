import { createHash } from 'node:crypto';
import { type Answer, refusal, usualRefusal } from './answers.ts';

/**
 * What the simulator makes of one key. A number is the status that its calls are refused with: 402 refuses
 * POSTs only, any other every call.
 */
export type KeyBehaviour =
  | 'valid'
  | number
  | {
      /** Keys that name the same account share its tasks and limits. Default: one account per key. */
      readonly account?: string;
      readonly status?: number;
      /** The `code` of the refusal, for example `trial_exhausted`. */
      readonly code?: string;
      readonly message?: string;
      readonly requestsPerMinute?: number;
      readonly maxConcurrentGenerations?: number;
    };

export type RetryAfterStyle = 'seconds' | 'http-date' | 'absent';

export interface AccountLimits {
  readonly requestsPerMinute: number;
  readonly maxConcurrentGenerations: number;
}

/** The provider's window: fixed, begun by its first call, and over after 60 s whatever came in it. */
const WINDOW_MS = 60_000;

/** One thing in production; `endsAt` moves when a stream ends early or late. */
export interface Generation {
  endsAt: number;
}

export class Account {
  /** Shown in the ledger: the name that was configured, or a fingerprint; never the key. */
  readonly name: string;
  readonly limits: AccountLimits;
  posts = 0;
  maxConcurrency = 0;
  readonly usage: { at: number; seconds: number; cost: number }[] = [];
  #windowStart = Number.NEGATIVE_INFINITY;
  #windowCalls = 0;
  #running: Generation[] = [];

  constructor(name: string, limits: AccountLimits) {
    this.name = name;
    this.limits = limits;
  }

  /** Counts this POST, refused or not; the milliseconds until the window is over when it is full. */
  countPost(now: number): number | undefined {
    this.posts += 1;
    if (now >= this.#windowStart + WINDOW_MS) {
      this.#windowStart = now;
      this.#windowCalls = 0;
    }
    this.#windowCalls += 1;
    if (this.#windowCalls <= this.limits.requestsPerMinute) return undefined;
    return this.#windowStart + WINDOW_MS - now;
  }

  running(now: number): number {
    this.#running = this.#running.filter(({ endsAt }) => endsAt > now);
    return this.#running.length;
  }

  begin(generation: Generation, now: number): void {
    this.#running.push(generation);
    this.maxConcurrency = Math.max(this.maxConcurrency, this.running(now));
  }
}

export type Authorization =
  | { readonly account: Account; readonly refusal?: undefined; readonly postRefusal?: Answer }
  | { readonly account?: Account; readonly refusal: Answer };

/** Who is calling. Any `sk_…` or `sks_…` key is an account of its own unless `keys` says otherwise. */
export class Accounts {
  #keys: ReadonlyMap<string, KeyBehaviour>;
  readonly #limits: AccountLimits;
  readonly #accounts = new Map<string, Account>();

  constructor(keys: ReadonlyMap<string, KeyBehaviour>, limits: AccountLimits) {
    this.#keys = keys;
    this.#limits = limits;
  }

  /** Accounts that exist keep their limits. */
  setKeys(keys: ReadonlyMap<string, KeyBehaviour>): void {
    this.#keys = keys;
  }

  authorize(header: string | undefined): Authorization {
    const key = /^Bearer +(\S+)$/i.exec(header ?? '')?.[1];
    if (key === undefined) return { refusal: usualRefusal(401) };
    const configured = this.#keys.get(key);
    if (configured === undefined && !/^sks?_\S+$/.test(key)) return { refusal: usualRefusal(401) };
    const behaviour =
      typeof configured === 'object'
        ? configured
        : typeof configured === 'number'
          ? { status: configured }
          : {};
    const account = this.#account(key, behaviour);
    if (behaviour.status === undefined) return { account };
    const refused = keyRefusal(behaviour.status, behaviour.code, behaviour.message);
    return behaviour.status === 402 ? { account, postRefusal: refused } : { account, refusal: refused };
  }

  all(): readonly Account[] {
    return Array.from(this.#accounts.values());
  }

  #account(key: string, behaviour: Exclude<KeyBehaviour, 'valid' | number>): Account {
    const fingerprint = createHash('sha256').update(key).digest('hex').slice(0, 12);
    const name = behaviour.account ?? `key-${fingerprint}`;
    const known = this.#accounts.get(name);
    if (known !== undefined) return known;
    const account = new Account(name, {
      requestsPerMinute: behaviour.requestsPerMinute ?? this.#limits.requestsPerMinute,
      maxConcurrentGenerations: behaviour.maxConcurrentGenerations ?? this.#limits.maxConcurrentGenerations,
    });
    this.#accounts.set(name, account);
    return account;
  }
}

function keyRefusal(status: number, code: string | undefined, message: string | undefined): Answer {
  if (code === undefined && message === undefined) return usualRefusal(status);
  return refusal(status, code ?? 'invalid_request', message ?? 'The request was refused');
}

export function rateRefusal(limit: number, waitMs: number, now: number, style: RetryAfterStyle): Answer {
  const message = `Rate limit exceeded: your account allows ${limit} requests per minute`;
  return refusal(429, 'rate_limit_exceeded', message, retryAfter(waitMs, now, style));
}

export function concurrencyRefusal(
  running: number,
  limit: number,
  now: number,
  style: RetryAfterStyle,
): Answer {
  const message = `Too many concurrent generations: ${running} of ${limit} in progress`;
  return refusal(429, 'rate_limit_exceeded', message, retryAfter(1_000, now, style));
}

function retryAfter(waitMs: number, now: number, style: RetryAfterStyle): Record<string, string> {
  if (style === 'absent') return {};
  if (style === 'http-date') return { 'retry-after': new Date(now + waitMs).toUTCString() };
  return { 'retry-after': String(Math.max(1, Math.ceil(waitMs / 1_000))) };
}
