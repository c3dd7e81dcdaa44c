import { OnetakeError } from '../core/errors.ts';
import type { Sql } from '../postgres/database.ts';
import { databaseErrorCode } from '../postgres/errors.ts';

/** Undoes what `work` did when it throws, and nothing before it: the caller's transaction goes on. */
export async function inSavepoint<Result>(
  tx: Sql,
  name: string,
  work: () => Promise<Result>,
): Promise<Result> {
  try {
    await tx.executeSql(`savepoint ${name}`);
  } catch (error) {
    if (databaseErrorCode(error) !== '25P01') throw error;
    throw new OnetakeError('invalid_option', 'tx: no transaction is open on that connection.', {
      hint: 'Begin one first, or leave `tx` out and let onetake use a transaction of its own.',
    });
  }
  let result: Result;
  try {
    result = await work();
  } catch (error) {
    // On a connection that is gone this fails too, and the first error tells more.
    await tx.executeSql(`rollback to savepoint ${name}`).then(
      () => tx.executeSql(`release savepoint ${name}`),
      () => {},
    );
    throw error;
  }
  await tx.executeSql(`release savepoint ${name}`);
  return result;
}
