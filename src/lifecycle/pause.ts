import { setTimeout as wait } from 'node:timers/promises';

/** Waits, on this process's clock; for the gaps between bounded tries only. */
export async function pause(ms: number): Promise<void> {
  await wait(ms);
}

/** Settles with `late` when `work` takes longer: what an app brought along may never come back. */
export async function withDeadline<Result>(work: Promise<Result>, ms: number, late: Result): Promise<Result> {
  let timer: NodeJS.Timeout | undefined;
  const tooLate = new Promise<Result>((resolve) => {
    timer = setTimeout(() => resolve(late), ms);
  });
  try {
    return await Promise.race([work, tooLate]);
  } finally {
    clearTimeout(timer);
  }
}
