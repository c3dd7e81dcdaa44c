import { accountRefusal, capacityPauseMs, judgeRefusal, TRIAL_STEP_ASIDE_MS } from '../core/admission.ts';
import type { OnetakeEvent } from '../core/events.ts';
import type { SubmissionOutcome } from '../core/provider.ts';
import { insertHold } from '../postgres/account-holds.ts';
import { forgetCapacityRefusals, lockAccount, pauseAccount } from '../postgres/accounts.ts';
import { readClock } from '../postgres/clock.ts';
import type { Sql } from '../postgres/database.ts';
import type { LockedRequest } from '../postgres/generation-requests.ts';
import { countTrialRefusal, endTrials, readTrial, wasRefusedBefore } from '../postgres/hold-trials.ts';
import type { LockedAttempt } from '../postgres/submission-attempts.ts';

export interface Consequences {
  readonly notBefore: Date | null;
  readonly events: readonly OnetakeEvent[];
  /** The request has been the cause of a hold before, and is again: it ends here. */
  readonly rejects?: boolean;
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
    case 'stream_started':
    case 'stream_failed':
      await lockAccount(tx, account);
      await forgetCapacityRefusals(tx, account);
      await endTrials(tx, attempt, request);
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
      if (refusal === undefined || row === undefined) return noConsequences;
      const { hold, reject, countsForTrial } = judgeRefusal({
        kind: refusal.kind,
        isFromBeforeRelease: row.holdEpoch !== attempt.holdEpoch,
        trial: await readTrial(tx, attempt, request),
        wasRefusedBefore: await wasRefusedBefore(tx, attempt, httpStatus),
      });
      if (countsForTrial) await countTrialRefusal(tx, request);
      const notBefore =
        countsForTrial && !hold ? new Date((await readClock(tx)).getTime() + TRIAL_STEP_ASIDE_MS) : null;
      const rest = { notBefore, rejects: reject };
      if (!hold) return { ...rest, events: [] };
      const scope = refusal.scope === 'operation' ? operation : null;
      const { kind } = refusal;
      const set = await insertHold(tx, {
        account,
        operation: scope,
        kind,
        code: errorCode,
        epoch: row.holdEpoch,
      });
      const event = { account, operation: scope, kind, code: errorCode };
      return { ...rest, events: set ? [{ name: 'account:held', event }] : [] };
    }
    default:
      return noConsequences;
  }
}
