const LAST = new WeakMap<object, Promise<unknown>>();

/**
 * Runs `work` after everything that came before it for the same object. Two enqueues on one transaction share
 * its savepoints: side by side, the failure of one would undo what the other has reported as done.
 */
export function inTurn<Result>(key: object, work: () => Promise<Result>): Promise<Result> {
  const before = LAST.get(key) ?? Promise.resolve();
  const mine = before.then(work);
  LAST.set(
    key,
    mine.catch(() => {}),
  );
  return mine;
}
