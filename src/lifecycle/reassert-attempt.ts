import type { AttemptIntent } from '../core/spooled-outcome.ts';
import type { Sql } from '../postgres/database.ts';
import { freezeRequest, lockRequest, resumeSubmitting } from '../postgres/generation-requests.ts';
import { insertLostAttempt } from '../postgres/lost-attempts.ts';
import { lockAttempt } from '../postgres/submission-attempts.ts';

/**
 * An attempt whose POST this process holds open, on a database that may have lost it: written again before its
 * outcome is known, so that nobody submits its request meanwhile. True when it was lost. What is settled in some way
 * already, or unknown, is left to B1, which raises the alarm that is due.
 */
export async function reassertAttempt(tx: Sql, intent: AttemptIntent): Promise<boolean> {
  const request = await lockRequest(tx, intent.requestId);
  if (request === undefined || (await lockAttempt(tx, intent.attemptId)) !== undefined) return false;
  if (!['queued', 'submitting', 'ambiguous'].includes(request.state)) return true;
  await insertLostAttempt(tx, intent);
  if (request.state !== 'queued') return true;
  // Under a later attempt there is no state for two at once: what can't be told apart is frozen.
  if (request.submissions < intent.attempt) await resumeSubmitting(tx, request.id);
  else await freezeRequest(tx, request.id, 'intent_lost');
  return true;
}
