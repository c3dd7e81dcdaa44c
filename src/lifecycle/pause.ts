import { setTimeout as wait } from 'node:timers/promises';

/** Waits, on this process's clock; for the gaps between bounded tries only. */
export async function pause(ms: number): Promise<void> {
  await wait(ms);
}
