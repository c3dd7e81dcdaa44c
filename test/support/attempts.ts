import { onTestFinished } from 'vitest';
import { type AdmittedBatch, admit } from '../../src/lifecycle/admit.ts';
import { rescue } from '../../src/lifecycle/rescue.ts';
import { type LifecycleContext, laneOf, lifecycleContext } from './lifecycle-context.ts';
import { LEASE_MS, openWorld, type World, type WorldOptions } from './world.ts';

export type Attempt = AdmittedBatch['attempts'][number];

export const OPERATOR = { actor: 'an operator', reason: 'looked it up in the ledger' };

/** A world in which the test itself is the worker: it admits, and says what became of each POST. */
export interface AttemptWorld extends World {
  readonly ctx: LifecycleContext;
  /** The next one that waits. */
  admitted(): Promise<Attempt>;
  /** Enqueued and admitted; then its worker is gone, and rescue has frozen the request. */
  lost(requestKey: string): Promise<Attempt>;
  /** Re-armed by an operator, and its job sent. */
  rearmed(attempt: Attempt, options?: { readonly force?: boolean }): Promise<void>;
  /** Re-armed and admitted a second time. */
  again(attempt: Attempt, options?: { readonly force?: boolean }): Promise<Attempt>;
}

export async function openAttemptWorld(options: WorldOptions = {}): Promise<AttemptWorld> {
  const world = await openWorld({
    provider: 'raw',
    ...options,
    operation: { rearmQuarantineMs: 0, ...options.operation },
  });
  const ctx = await lifecycleContext(
    { connectionString: world.database.connectionString, config: world.config },
    { emit: (name, event) => void (world.events as object[]).push({ name, event }) },
  );
  onTestFinished(() => ctx.stop());
  const admitted = async (): Promise<Attempt> => {
    const batch = await admit(ctx, await laneOf(ctx), { wanted: 1 });
    if (!('attempts' in batch)) throw new Error(`not admitted: ${batch.blockedBy}`);
    return batch.attempts[0] as Attempt;
  };
  const rearmed: AttemptWorld['rearmed'] = async ({ requestId }, { force = false } = {}) => {
    await world.client.resolve({ id: requestId, as: 'not_accepted', force, ...OPERATOR });
    await rescue(ctx);
  };
  return Object.assign(world, {
    ctx,
    admitted,
    async lost(requestKey: string) {
      const id = await world.song(requestKey);
      const attempt = await admitted();
      if (attempt.requestId !== id) throw new Error('another request was admitted');
      await world.passTime(LEASE_MS + 1);
      await rescue(ctx);
      return attempt;
    },
    rearmed,
    async again(attempt: Attempt, more = {}) {
      await rearmed(attempt, more);
      const next = await admitted();
      if (next.requestId !== attempt.requestId) throw new Error('another request was admitted');
      return next;
    },
  });
}
