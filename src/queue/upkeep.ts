import type { JobQueue } from './boss.ts';
import type { Executor } from './executor.ts';
import { QUEUE_SCHEMA } from './jobs.ts';
import { NOTICE_QUEUES } from './notices.ts';

const BATCH = 5_000;

/**
 * One pass over all queues, by any worker at any time. pg-boss's own takes five statements a day for each queue,
 * whatever is in it: minutes for a thousand accounts. So that looks after the few others alone, and of the lanes, whose
 * jobs are never active outside a transaction, only what has ended is deleted. What waits there is never deleted.
 */
export async function keepQueues(queue: JobQueue, goesOn: () => boolean): Promise<void> {
  await queue.use(undefined, async (boss, executor) => {
    for (const name of NOTICE_QUEUES) if (goesOn()) await boss.supervise(name);
    while (goesOn() && (await deleteEnded(executor)) === BATCH);
  });
}

/** Reads the table, which holds what waits and what has ended lately; nobody else touches what has ended. */
async function deleteEnded(executor: Executor): Promise<number> {
  const { rows } = await executor.executeSql(
    `with ended as (
  select name, id from ${QUEUE_SCHEMA}.job
  where name like 'submit/%' and deletion_seconds > 0 and completed_on + deletion_seconds * interval '1 s' < now()
  limit $1
  for update skip locked
), gone as (
  delete from ${QUEUE_SCHEMA}.job j using ended e where j.name = e.name and j.id = e.id returning j.id
)
select count(*)::int as count from gone`,
    [BATCH],
  );
  return (rows as { count: number }[])[0]?.count ?? 0;
}
