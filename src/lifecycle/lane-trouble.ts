import { databaseErrorCode, isPassing, isRetryable } from '../postgres/errors.ts';
import type { SubmissionContext } from './context.ts';

/**
 * A lane that fails by itself, such as one whose account somebody has locked or whose queue nobody has made yet,
 * must not keep the others waiting: it is reported, and the answer is undefined. Throws when the database is away.
 */
export async function orReport<Result>(
  ctx: SubmissionContext,
  admission: () => Promise<Result>,
): Promise<Result | undefined> {
  try {
    return await admission();
  } catch (error) {
    if (isPassing(error) && !isRetryable(error)) throw error;
    ctx.emit('process:trouble', { role: 'worker', loop: 'admission', errorCode: databaseErrorCode(error) });
    return undefined;
  }
}
