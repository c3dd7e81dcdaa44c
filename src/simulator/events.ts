import type { FaultEnd } from './script.ts';
import type { TaskStatus } from './tasks.ts';

/** One POST that was read, decided and, if so, charged; its answer has not left. */
export interface SimulatorPost {
  /** From 1, over all operations. */
  readonly number: number;
  readonly operation: string;
  /** The form's digest, as in the ledger. */
  readonly form: string;
  readonly prompt: string;
  /** The task that was created for it, whatever will be answered. */
  readonly taskId?: string;
}

/** What happens, for a live display. `at` is milliseconds of the simulator's clock. */
export type SimulatorEvent =
  | { readonly type: 'post'; readonly at: number; readonly number: number; readonly operation: string }
  | {
      readonly type: 'answer';
      readonly at: number;
      readonly number: number;
      readonly operation: string;
      readonly form: string;
      readonly status: number | null;
      readonly end?: FaultEnd | 'client_gone';
      readonly charged: boolean;
      readonly taskId?: string;
    }
  | {
      readonly type: 'poll';
      readonly at: number;
      readonly taskId: string;
      readonly httpStatus: number;
      readonly status?: TaskStatus;
    }
  | { readonly type: 'download'; readonly at: number; readonly taskId: string; readonly httpStatus: number }
  | { readonly type: 'control'; readonly at: number; readonly action: 'script' | 'keys' | 'reset' };
