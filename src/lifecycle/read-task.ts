import type { Provider, TaskRead, TaskReading } from '../core/provider.ts';
import { withDeadline } from './pause.ts';
import { printableCode } from './printable-code.ts';

export interface ReadContext {
  readonly providerNamed: (name: string) => Provider | undefined;
  readonly apiKeyOf: (account: string) => string | Promise<string>;
  readonly readTimeoutMs: number;
}

const READ_MARGIN_MS = 2_000;

/** One look at a task. Never rejects; what told nothing is `unreadable`. */
export async function readTask(
  ctx: ReadContext,
  task: Pick<TaskRead, 'taskId' | 'operation' | 'fields'> & {
    readonly provider: string;
    readonly account: string;
  },
): Promise<TaskReading> {
  const provider = ctx.providerNamed(task.provider);
  if (provider === undefined) return unreadable('unknown_provider');
  try {
    const read = async (): Promise<TaskReading> => {
      const apiKey = await ctx.apiKeyOf(task.account);
      const { taskId, operation, fields } = task;
      return provider.readTask({ taskId, operation, fields, apiKey, timeoutMs: ctx.readTimeoutMs });
    };
    // A key or a provider of the app's own may never come back; one hung task must not hold its place for ever.
    const silent = unreadable('provider_silent');
    const reading = await withDeadline(read(), ctx.readTimeoutMs + READ_MARGIN_MS, silent);
    return 'errorCode' in reading ? { ...reading, errorCode: printableCode(reading.errorCode) } : reading;
  } catch {
    return unreadable('provider_threw');
  }
}

function unreadable(errorCode: string): TaskReading {
  return { kind: 'unreadable', reason: 'transport', httpStatus: null, errorCode, retryAfterMs: null };
}

/** Statuses that are the account's trouble and not the task's: asked again with more patience. */
export const ACCOUNT_TROUBLE: ReadonlySet<number> = new Set([401, 402, 403, 429]);
