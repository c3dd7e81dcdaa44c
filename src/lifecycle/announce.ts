import type { BreakerTransition } from '../core/events.ts';
import { markAnnounced } from '../postgres/breaker-history.ts';
import type { RescueContext } from './context.ts';
import { withDeadline } from './pause.ts';

/** The probe's POST may be next, and its send budget runs. */
const MARK_WITHIN_MS = 100;

/**
 * The event of a transition that was committed just now, then the mark that it is out. In this order: a
 * process that dies in between makes rescue emit it once more, which its `number` tells, instead of never.
 */
export async function announce(
  ctx: Pick<RescueContext, 'database' | 'emit'>,
  transition: BreakerTransition,
): Promise<void> {
  ctx.emit('breaker:transition', transition);
  // Left undone, rescue emits it once more.
  const marked = markAnnounced(ctx.database, transition).catch(() => undefined);
  await withDeadline(marked, MARK_WITHIN_MS, undefined);
}
