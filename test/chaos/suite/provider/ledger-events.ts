import type { Weather } from './faults.ts';

/** What the provider tells the suite, in the order in which it happened; instants are `Date.now()` of its own. */
export type LedgerEvent =
  | { readonly type: 'ready'; readonly port: number }
  /** The whole request is here. `post` numbers all POSTs. */
  | {
      readonly type: 'post';
      readonly post: number;
      readonly marker: number;
      readonly account: string;
      readonly behaviour: string;
      readonly at: number;
    }
  /** The body of an upload has begun, and this is what comes of it. */
  | { readonly type: 'upload'; readonly behaviour: string }
  /** The connection ended in the middle of a POST. */
  | {
      readonly type: 'partial_post';
      readonly marker: number | null;
      readonly account: string | null;
      readonly at: number;
    }
  /** A whole answer was handed to the connection. */
  | { readonly type: 'answered'; readonly post: number; readonly status: number; readonly at: number }
  | {
      readonly type: 'charged';
      readonly post: number;
      readonly task: string;
      readonly endsAt: number;
      readonly fails: boolean;
    }
  /** Whether the intent of a POST was committed when the POST arrived. */
  | { readonly type: 'intent'; readonly marker: number; readonly isCommitted: boolean }
  | { readonly type: 'reset_on_connect' }
  | { readonly type: 'get'; readonly behaviour: string }
  | { readonly type: 'file'; readonly behaviour: string }
  /** The key reached the host of the files, or was none of ours. */
  | { readonly type: 'protest'; readonly what: string };

/** What the suite tells the provider. */
export type ProviderOrder =
  | { readonly type: 'weather'; readonly weather: Weather }
  /** From now on it does as it should. */
  | { readonly type: 'heal' };

/** In the environment variable CHAOS_PROVIDER, as JSON. */
export interface ProviderOptions {
  readonly seed: string;
  /** How the suite's proxy is reached: what result URLs name. */
  readonly publicUrl: string;
  /** Of the database, past every proxy. */
  readonly connectionString: string;
}
