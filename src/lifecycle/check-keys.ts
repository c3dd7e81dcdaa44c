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

/** Read at once, so that accounts whose keys other processes have don't hide ours; and checked in one round. */
const [PAGE, AT_MOST] = [1_000, 20] as const;
const CHECK_TIMEOUT_MS = 5_000;

type KeyContext = Pick<SubmissionContext, 'database' | 'emit' | 'providerNamed' | 'apiKeyOf'> & {
  readonly hasKey: (account: string) => boolean;
  /** False once the process stops. */
  readonly goesOn: () => boolean;
};

/**
 * Tries refused keys with a free call, each by one process at a time, more and more seldom, and ends the hold of
 * one that was refused and passes now. The first request after that goes alone, as after every hold.
 */
export async function checkKeys(ctx: KeyContext): Promise<void> {
  let checked = 0;
  for (const due of await listKeysToCheck(ctx.database, PAGE)) {
    if (checked >= AT_MOST || !ctx.goesOn()) return;
    if (ctx.providerNamed(due.provider)?.checkKey === undefined || !ctx.hasKey(due.account)) continue;
    const checks = await claimKeyCheck(ctx.database, due.holdId, CHECK_TIMEOUT_MS * 2);
    if (checks === undefined) continue;
    checked++;
    await checkKey(ctx, { ...due, checks });
  }
}

async function checkKey(ctx: KeyContext, key: KeyToCheck): Promise<void> {
  const check = await askProvider(ctx, key);
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

/** Outside any transaction. A key that can't be had is no answer. */
async function askProvider(ctx: KeyContext, key: KeyToCheck) {
  try {
    const provider = ctx.providerNamed(key.provider);
    const apiKey = await ctx.apiKeyOf(key.account);
    return (await provider?.checkKey?.(apiKey, CHECK_TIMEOUT_MS)) ?? 'unknown';
  } catch {
    return 'unknown';
  }
}
