import { accountRefusal, capacityPauseMs } from '../core/admission.ts';
import type { OnetakeEvent } from '../core/events.ts';
import type { SubmissionOutcome } from '../core/provider.ts';
import { insertHold } from '../postgres/account-holds.ts';
import { forgetCapacityRefusals, lockAccount, pauseAccount } from '../postgres/accounts.ts';
import type { Sql } from '../postgres/database.ts';
import type { LockedRequest } from '../postgres/generation-requests.ts';
import type { LockedAttempt } from '../postgres/submission-attempts.ts';

export interface Consequences {
  readonly notBefore: Date | null;
  readonly events: readonly OnetakeEvent[];
}

export const noConsequences: Consequences = { notBefore: null, events: [] };

/** Holds or pauses the account in the very settle that tells why, under the account's lock. */
export async function disciplineAccount(
  tx: Sql,
  request: LockedRequest,
  attempt: LockedAttempt,
  outcome: SubmissionOutcome,
): Promise<Consequences> {
  const { account, operation } = request;
  switch (outcome.reason) {
    case 'task_accepted':
      await forgetCapacityRefusals(tx, account);
      return noConsequences;
    case 'rate_limited':
    case 'concurrency_limited': {
      const row = await lockAccount(tx, account);
      const kind = outcome.reason === 'rate_limited' ? 'rate' : 'concurrency';
      const pauseMs = capacityPauseMs(kind, outcome.retryAfterMs, (row?.capacityRefusals ?? 0) + 1);
      const until = await pauseAccount(tx, account, kind, pauseMs);
      // Concurrency is over when a generation of ours ends, and so is the pause: the request waits for no more.
      return {
        notBefore: kind === 'rate' ? until : null,
        events: [{ name: 'account:paused', event: { account, kind, until } }],
      };
    }
    case 'account_refused': {
      const { httpStatus, errorCode } = outcome.evidence;
      const refusal = accountRefusal(httpStatus ?? 0, errorCode);
      const row = await lockAccount(tx, account);
      // The answer to a POST from before a release can't set the hold again.
      if (refusal === undefined || row === undefined || row.holdEpoch !== attempt.holdEpoch)
        return noConsequences;
      const scope = refusal.scope === 'operation' ? operation : null;
      const hold = { account, operation: scope, kind: refusal.kind, code: errorCode, epoch: row.holdEpoch };
      if (!(await insertHold(tx, hold))) return noConsequences;
      const event = { account, operation: scope, kind: refusal.kind, code: errorCode };
      return { notBefore: null, events: [{ name: 'account:held', event }] };
    }
    default:
      return noConsequences;
  }
}
