import { keyCheckDelayMs } from '../core/admission.ts';
import {
  claimKeyCheck,
  endHoldByCheck,
  type KeyToCheck,
  listKeysToCheck,
  noteKeyCheck,
} from '../postgres/key-checks.ts';
import { notify } from '../postgres/notifications.ts';
import type { SubmissionContext } from './context.ts';
import { withDeadline } from './pause.ts';

/** Read at once; and checked in one round. */
const [PAGE, AT_MOST] = [1_000, 20] as const;
/** For the key, and for the answer. */
const CHECK_TIMEOUT_MS = 5_000;

type KeyContext = Pick<SubmissionContext, 'database' | 'emit' | 'providerNamed' | 'apiKeyOf'> & {
  readonly hasKey: (account: string) => boolean;
  /** False once the process stops. */
  readonly goesOn: () => boolean;
};

/**
 * Tries refused keys with a free call, each by one process at a time, more and more seldom, and ends the hold of
 * one that was refused and passes now. The first request after that goes alone, as after every hold. The longest due
 * come first, and a check moves its key to the end, so that each has its turn however many are held; those of other
 * processes are passed over.
 */
export async function checkKeys(ctx: KeyContext, timeoutMs: number = CHECK_TIMEOUT_MS): Promise<void> {
  let checked = 0;
  for (let page = await listKeysToCheck(ctx.database, null, PAGE); ; ) {
    for (const due of page) {
      if (checked >= AT_MOST || !ctx.goesOn()) return;
      if (ctx.providerNamed(due.provider)?.checkKey === undefined || !ctx.hasKey(due.account)) continue;
      const checks = await claimKeyCheck(ctx.database, due.holdId, timeoutMs * 2);
      if (checks === undefined) continue;
      checked++;
      await checkKey(ctx, { ...due, checks }, timeoutMs);
    }
    const last = page.at(-1);
    if (last === undefined || page.length < PAGE) return;
    page = await listKeysToCheck(ctx.database, last, PAGE);
  }
}

async function checkKey(ctx: KeyContext, key: KeyToCheck, timeoutMs: number): Promise<void> {
  const check = await askProvider(ctx, key, timeoutMs);
  if (check === 'accepted') {
    const ended = await ctx.database.retryingTransaction(async (tx) => {
      const hold = await endHoldByCheck(tx, key);
      if (hold !== undefined) await notify(tx, 'lane');
      return hold;
    });
    if (ended !== undefined) {
      ctx.emit('account:released', { account: key.account, operation: ended.operation, reason: 'key_check' });
      return;
    }
  }
  await noteKeyCheck(ctx.database, key.holdId, check === 'refused', keyCheckDelayMs(key.checks));
}

/** Outside any transaction. A key that can't be had, or doesn't come, is no answer; nor is a provider's silence. */
async function askProvider(ctx: KeyContext, key: KeyToCheck, timeoutMs: number) {
  const ask = async () => {
    const provider = ctx.providerNamed(key.provider);
    const apiKey = await withDeadline(Promise.resolve(ctx.apiKeyOf(key.account)), timeoutMs, undefined);
    return apiKey === undefined ? 'unknown' : ((await provider?.checkKey?.(apiKey, timeoutMs)) ?? 'unknown');
  };
  try {
    return await withDeadline(ask(), timeoutMs * 2, 'unknown');
  } catch {
    return 'unknown';
  }
}
