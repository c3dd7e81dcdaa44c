import type { InstallationTrouble } from '../core/installation.ts';
import type { Database } from '../postgres/database.ts';
import { checkInstallation } from '../postgres/installation.ts';
import { freezeInstallation, resumeInstallation } from '../postgres/operator-functions.ts';
import type { RecoverInput } from './client-options.ts';

export interface Recovery {
  readonly mode: 'resume' | 'freeze';
  /** What was wrong with the database; null: nothing that could be told. */
  readonly was: InstallationTrouble | null;
  /** Requests that became `ambiguous`. */
  readonly frozen: number;
}

/** Row locks of one step are held for well under a second. */
const STEP = 500;

/** A freeze goes step by step, each in a transaction of its own; one that was interrupted is gone on with. */
export async function recover(database: Database, input: RecoverInput): Promise<Recovery> {
  const note = { actor: input.actor, reason: input.reason };
  if (input.mode === 'resume') {
    const force = input.force ?? false;
    const was = await database.retryingTransaction((tx) => resumeInstallation(tx, note, force));
    return { mode: 'resume', was, frozen: 0 };
  }
  const { trouble: was } = await checkInstallation(database, null);
  const before = input.enqueuedBefore ?? null;
  for (let frozen = 0; ; ) {
    const step = await database.retryingTransaction((tx) => freezeInstallation(tx, note, before, STEP));
    frozen += step.frozen;
    if (step.done) return { mode: 'freeze', was, frozen };
    input.onProgress?.(frozen);
  }
}
