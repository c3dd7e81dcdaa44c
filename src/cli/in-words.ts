import { OnetakeError } from '../core/errors.ts';

/**
 * What is refused is refused by the database, which writes its messages as a server does: without a capital, a full
 * stop, and what to do. `hints` says the last by code.
 */
export async function inWords<Result>(
  hints: Readonly<Record<string, string>>,
  act: () => Promise<Result>,
): Promise<Result> {
  try {
    return await act();
  } catch (error) {
    if (!(error instanceof OnetakeError) || error.hint !== undefined) throw error;
    const hint = hints[error.code];
    if (hint === undefined) throw error;
    const message = `${error.message.charAt(0).toUpperCase()}${error.message.slice(1).replace(/\.$/, '')}.`;
    throw new OnetakeError(error.code, message, { hint, cause: error });
  }
}
