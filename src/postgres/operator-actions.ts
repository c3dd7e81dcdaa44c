import { rows, type Sql } from './database.ts';

export interface Decision {
  readonly at: Date;
  readonly actor: string;
  /** The operator's function that was called, such as `resolve_as_accepted`. */
  readonly action: string;
  readonly reason: string;
}

/** What operators decided about one request, oldest first. */
export async function listDecisions(sql: Sql, requestId: string): Promise<Decision[]> {
  return rows(
    sql,
    'select at, actor, action, reason from onetake.operator_actions where subject = $1 order by id',
    [requestId],
  );
}
