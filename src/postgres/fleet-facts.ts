import { rows, type Sql } from './database.ts';

export interface StateCount {
  readonly state: string;
  readonly count: number;
  readonly oldestAgeSeconds: number | null;
}

/**
 * How many requests are in each state that somebody still moves on. Each branch is served by the partial index
 * of that state alone, so that the millions that have ended are never read; `accepted` are those that a poll is
 * planned for.
 */
export async function countLiveRequests(sql: Sql): Promise<StateCount[]> {
  return rows(
    sql,
    `select c.state, c.count::int as count,
  case when c.oldest is not null
    then greatest(0, extract(epoch from clock_timestamp() - c.oldest))::float8 end as "oldestAgeSeconds"
from (
  select 'queued' as state, count(*) as count, min(created_at) as oldest
  from onetake.generation_requests where state = 'queued'
  union all
  select 'submitting', count(*), min(started_at)
  from onetake.submission_attempts where settled_at is null
  union all
  select 'ambiguous', count(*), min(created_at)
  from onetake.generation_requests where state = 'ambiguous'
  union all
  select 'accepted', count(*), null
  from onetake.generation_requests where next_poll_at is not null
) c`,
  );
}

export interface AttentionCount {
  readonly what: string;
  readonly count: number;
}

/** What waits for a person, by kind; the text before the colon of what the view says. */
export async function countAttention(sql: Sql): Promise<AttentionCount[]> {
  return rows(
    sql,
    `select split_part(what, ':', 1) as what, count(*)::int as count
from onetake.attention group by 1 order by 1`,
  );
}
