import { setTimeout as wait } from 'node:timers/promises';

/** Waits, on this process's clock, or until given up; for the gaps between bounded tries only. */
export async function pause(ms: number, giveUp?: AbortSignal): Promise<void> {
  if (giveUp === undefined) return wait(ms);
  await unlessGivenUp(giveUp, () => wait(ms));
}

/** Undefined once `giveUp` is aborted. What was begun goes on by itself, and its end is nobody's business. */
export async function unlessGivenUp<Result>(
  giveUp: AbortSignal,
  begin: () => Promise<Result>,
): Promise<Result | undefined> {
  if (giveUp.aborted) return undefined;
  let end = () => {};
  const givenUp = new Promise<undefined>((resolve) => {
    end = () => resolve(undefined);
  });
  giveUp.addEventListener('abort', end, { once: true });
  try {
    return await Promise.race([begin(), givenUp]);
  } finally {
    giveUp.removeEventListener('abort', end);
  }
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
