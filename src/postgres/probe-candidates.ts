import { rows, type Sql } from './database.ts';
import { LANE_COLUMNS, LANE_JOINS, type Lane } from './lanes.ts';

// Who may be the probe: plain reads, made only when a probe is due. Admission decides again under the locks.

const NEVER_UNKNOWN = `not exists (
  select from onetake.submission_attempts u where u.request_id = r.id and u.certainty = 'unknown'
)`;

/**
 * Lanes with a due request and room for it, best first: accounts with an acceptance in the last hour before
 * the others, then those whose last probe is longest ago, so that tenants who can't pay take turns with those
 * who can. An acceptance from before the account's last probe is no recommendation: that probe told more
 * recently that this account's answers tell nothing. With `freshOnly`, only requests count that never had an
 * unknown attempt.
 */
export async function listProbeLanes(
  sql: Sql,
  provider: string,
  operation: string,
  freshOnly: boolean,
  page: { readonly limit: number; readonly offset: number },
): Promise<Lane[]> {
  return rows(
    sql,
    `with page as materialized (
  select a.name as account, $2::text as operation, due.not_before
  from onetake.accounts a
  cross join lateral (
    select r.not_before
    from onetake.generation_requests r
    where r.state = 'queued' and r.account = a.name and r.operation = $2 and r.not_before <= now()
      and (r.submit_before is null or r.submit_before > now())
      ${freshOnly ? `and ${NEVER_UNKNOWN}` : ''}
    order by r.not_before
    limit 1
  ) due
  where a.provider = $1 and (a.paused_until is null or a.paused_until <= now())
    and not exists (
      select from onetake.account_holds h
      where h.account = a.name and h.ended_at is null and (h.until is null or h.until > now())
        and (h.operation is null or h.operation = $2)
    )
)
select ${LANE_COLUMNS}
${LANE_JOINS}
left join lateral (
  select max(x.started_at) as at
  from onetake.submission_attempts x
  where x.breaker_name = $1 || '/' || $2 and x.account = p.account and x.is_probe
) probed on true
left join lateral (
  select x.started_at as at
  from onetake.submission_attempts x
  where x.account = p.account and x.window_until > s.now - interval '1 hour' and x.certainty = 'accepted'
  order by x.window_until desc
  limit 1
) accepted on true
where w.count < a.requests_per_minute
  and (
    select count(*) from onetake.submission_attempts x
    where x.account = p.account and x.slot_freed_at is null and x.slot_until > s.now
  ) < a.max_concurrent_generations
order by accepted.at is not null and accepted.at >= coalesce(probed.at, accepted.at) desc,
  probed.at nulls first, p.not_before, p.account
limit $3 offset $4`,
    [provider, operation, page.limit, page.offset],
  );
}

/** The lane's longest waiting requests that may be the probe; more than one, since somebody may have the first locked. */
export async function listProbeRequests(
  sql: Sql,
  lane: Pick<Lane, 'account' | 'operation'>,
  freshOnly: boolean,
  limit: number,
): Promise<string[]> {
  const found = await rows<{ id: string }>(
    sql,
    `select r.id
from onetake.generation_requests r
where r.state = 'queued' and r.account = $1 and r.operation = $2 and r.not_before <= now()
  and (r.submit_before is null or r.submit_before > now())
  ${freshOnly ? `and ${NEVER_UNKNOWN}` : ''}
order by r.not_before
limit $3`,
    [lane.account, lane.operation, limit],
  );
  return found.map((row) => row.id);
}
