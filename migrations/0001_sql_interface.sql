-- The SQL interface: the guard on request moves, the operator's functions, the views.
-- Functions qualify every column: a parameter named like a column is an error at call time.

create function onetake.is_legal_move(from_state text, to_state text) returns boolean
language sql immutable parallel safe
return case from_state
  when 'queued' then to_state in ('submitting', 'cancelled', 'expired', 'accepted', 'rejected', 'ambiguous')
  when 'submitting' then to_state in ('accepted', 'queued', 'rejected', 'ambiguous')
  when 'ambiguous' then to_state in ('queued', 'accepted', 'rejected', 'cancelled', 'failed')
  when 'accepted' then to_state in ('succeeded', 'failed', 'ambiguous')
  else false
end;
--> statement-breakpoint
create function onetake.guard_request_move() returns trigger
language plpgsql set search_path = pg_catalog, pg_temp
as $$
begin
  if tg_op = 'DELETE' then
    raise exception 'onetake: generation request % is a record of money and is not deleted', old.id
      using errcode = 'OT002';
  elsif tg_op = 'INSERT' then
    if new.state <> 'queued' then
      raise exception 'onetake: a generation request begins as queued, not %', new.state using errcode = 'OT002';
    end if;
  elsif tg_op = 'TRUNCATE' then
    raise exception 'onetake: generation requests are records of money and are not truncated' using errcode = 'OT002';
  elsif (old.id, old.account, old.operation, old.request_key, old.fields, old.payload_digest)
    is distinct from (new.id, new.account, new.operation, new.request_key, new.fields, new.payload_digest) then
    raise exception 'onetake: what generation request % is for was fixed when it was enqueued', old.id
      using errcode = 'OT002';
  elsif old.state <> new.state and not onetake.is_legal_move(old.state, new.state) then
    raise exception 'onetake: generation request % can''t move from % to %', old.id, old.state, new.state
      using errcode = 'OT002';
  -- Back to `queued` permits another paid POST: by the function that asks for a name and a reason, or when the
  -- last attempt is known to have bought nothing.
  elsif old.state = 'ambiguous' and new.state = 'queued'
    and current_setting('onetake.rearming', true) is distinct from new.id::text then
    raise exception 'onetake: generation request % is frozen: its outcome is unknown and may have been paid', old.id
      using errcode = 'OT002', hint = 'Use onetake.resolve_as_not_accepted(), which asks for an actor and a reason.';
  elsif old.state = 'submitting' and new.state = 'queued' and not exists (
    select from onetake.submission_attempts a
    where a.request_id = new.id and a.attempt = new.submissions
      -- *Unsent* counts only from the attempt's own worker while its lease ran.
      and (a.certainty = 'refused' or (a.certainty = 'unsent' and a.settled_at <= a.lease_expires_at))
  ) then
    raise exception 'onetake: the last attempt of generation request % is not known to have bought nothing', old.id
      using errcode = 'OT002';
  end if;
  return new;
end
$$;
--> statement-breakpoint
create trigger generation_requests_guard_insert before insert on onetake.generation_requests
for each row execute function onetake.guard_request_move();
--> statement-breakpoint
create trigger generation_requests_guard_move
before update of state, id, account, operation, request_key, fields, payload_digest on onetake.generation_requests
for each row execute function onetake.guard_request_move();
--> statement-breakpoint
-- Whoever waits for it hears of it, and a notice is due to the app that asked for notices: also of what operators,
-- apps and deadlines end. A freeze of a whole table wakes nobody; whoever waits looks now and then.
create function onetake.note_settled() returns trigger
language plpgsql set search_path = pg_catalog, pg_temp
as $$
begin
  new.settled_notice_due := new.settled_at is not null and exists (
    select from onetake.settled_consumer c where c.seen_at > clock_timestamp() - interval '14 days'
  );
  perform pg_notify('onetake', 'settled ' || new.id);
  return new;
end
$$;
--> statement-breakpoint
create trigger generation_requests_note_settled before update of state on onetake.generation_requests
for each row when (
  old.state <> new.state and (new.settled_at is not null or new.state = 'ambiguous')
  and new.state_reason is distinct from 'recovered'
)
execute function onetake.note_settled();
--> statement-breakpoint
-- Whoever moves the schedule ends the lease on what was due: a poller that has read, an operator, another's success.
-- With the owner's rights: no role of ours needs to delete.
create function onetake.end_poll_lease() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
begin
  delete from onetake.poll_leases l where l.request_id = new.id;
  return null;
end
$$;
--> statement-breakpoint
revoke execute on function onetake.end_poll_lease from public;
--> statement-breakpoint
create trigger generation_requests_end_poll_lease after update of next_poll_at on onetake.generation_requests
for each row execute function onetake.end_poll_lease();
--> statement-breakpoint
create trigger generation_requests_guard_delete before delete on onetake.generation_requests
for each row execute function onetake.guard_request_move();
--> statement-breakpoint
create trigger generation_requests_guard_truncate before truncate on onetake.generation_requests
for each statement execute function onetake.guard_request_move();
--> statement-breakpoint
-- The next turn of a group in its lane: after the last that it has queued, and after the one that the lane has come
-- to, so that whoever has been away neither saves turns up nor waits for those that others have queued. Requests above,
-- at and below priority 0 take turns of their own. Two descents of an index and no lock: two transactions that don't
-- see each other share a turn, which is harmless. The highest turn stands 2,147,483,647 off, and room for a priority.
create function onetake.next_round(account text, operation text, fair_group text, priority integer) returns integer
-- A plan from when the tables were small is kept as long as the session. It must be the one that reads no more than the
-- last entry of an index: without statistics any index of the lane seems as good, with a sort of what it holds.
language plpgsql stable set search_path = pg_catalog, pg_temp set enable_seqscan = off set enable_sort = off
as $$
begin
  return least(coalesce(greatest(
    (
      select a.round from onetake.submission_attempts a
      where a.account = next_round.account and a.operation = next_round.operation and a.round is not null
      order by a.round desc
      limit 1
    ),
    (
      select r.round from onetake.generation_requests r
      where r.account = next_round.account and r.operation = next_round.operation
        and r.fair_group = next_round.fair_group and sign(r.priority) = sign(next_round.priority)
        and r.state = 'queued'
      order by r.round desc
      limit 1
    )
  ), 0)::bigint + 1, 2000000000)::integer;
end
$$;
--> statement-breakpoint
-- Writes requests and their jobs in one round trip, and undoes both together: like a savepoint around it, the block
-- keeps an error from ending the caller's transaction. `requests` come in the order in which their keys are locked.
-- One row for each, or one that says no more about an error than its SQLSTATE.
create function onetake.enqueue(requests jsonb)
returns table (number integer, id text, state text, digest text, problem text, error text)
language plpgsql set search_path = pg_catalog, pg_temp set enable_seqscan = off
as $$
#variable_conflict use_column
declare
  jobs jsonb;
  made integer;
  sent integer := 0;
  opens_lane boolean;
begin
  with wanted as materialized (
    select g.* from jsonb_to_recordset(requests) as g (number integer, id uuid, account text, operation text,
      request_key text, fields jsonb, payload_digest text, mode text, fair_group text, priority integer, round integer,
      submit_before timestamptz, supersedes uuid)
    -- Asked for, and not left to the foreign keys: an error would tell nothing about the other requests.
    where exists (select from onetake.accounts a where a.name = g.account)
      and (g.supersedes is null or exists (select from onetake.generation_requests r where r.id = g.supersedes))
  ), inserted as (
    insert into onetake.generation_requests as r (id, account, operation, request_key, fields, payload_digest, mode,
      fair_group, priority, submit_before, supersedes, not_before, round)
    select w.id, w.account, w.operation, w.request_key, w.fields, w.payload_digest, coalesce(w.mode, 'async'),
      w.fair_group, w.priority, w.submit_before, w.supersedes, date_trunc('milliseconds', clock_timestamp()),
      coalesce(w.round, onetake.next_round(w.account, w.operation, w.fair_group, w.priority))
    from wanted w
    order by w.number
    -- Waits for an uncommitted row with the same key, which only the next statement can see.
    on conflict (account, request_key) do nothing
    returning r.id, r.account, r.operation, r.priority - r.round as priority
  ), lanes as (
    select distinct i.account, i.operation from inserted i
  )
  select count(*), jsonb_agg(jsonb_build_object('id', i.id, 'queue', 'submit/' || i.account || '/' || i.operation,
      'priority', i.priority)),
    -- In the snapshot from before the insert.
    (
      select bool_or(not exists (
        select from onetake.generation_requests r
        where r.account = l.account and r.operation = l.operation and r.state = 'queued'
      )) from lanes l
    )
  into made, jobs, opens_lane
  from inserted i;
  if made > 0 then
    -- As pg-boss inserts them, whose own statement would be planned anew for each. No request is ever lost on account
    -- of a job: what can't be sent here, because its lane has no queue yet or for whatever reason, rescue sends.
    begin
      insert into onetake_queue.job (name, data, priority, singleton_key, policy, expire_seconds, deletion_seconds,
        keep_until, retry_limit, retry_delay, retry_backoff, retry_delay_max, dead_letter, heartbeat_seconds)
      select q.name, jsonb_build_object('requestId', j.id), j.priority, j.id, q.policy, q.expire_seconds,
        q.deletion_seconds, now() + q.retention_seconds * interval '1 s', q.retry_limit, q.retry_delay,
        q.retry_backoff, q.retry_delay_max, q.dead_letter, q.heartbeat_seconds
      from jsonb_to_recordset(jobs) as j (id text, queue text, priority integer)
      join onetake_queue.queue q on q.name = j.queue
      on conflict do nothing;
      get diagnostics sent = row_count;
    exception when others then
      sent := 0;
    end;
    if sent < made then
      -- Whichever they are: one that is sent again has a job already, which is as good.
      update onetake.generation_requests r set job_due = true
      from jsonb_to_recordset(jobs) as j (id uuid)
      where r.id = j.id;
    end if;
    -- Only for a lane that was empty: each NOTIFY serialises its commit, cluster-wide.
    if opens_lane then
      perform pg_notify('onetake', 'lane');
    end if;
  end if;
  if made = jsonb_array_length(requests) then
    return query
    select g.number, g.id, 'queued', g.payload_digest, null::text, null::text
    from jsonb_to_recordset(requests) as g (number integer, id text, payload_digest text);
  else
    return query
    select g.number, r.id::text, r.state, r.payload_digest, case
        when r.id is not null then null
        when not exists (select from onetake.accounts a where a.name = g.account) then 'unknown_account'
        when g.supersedes is not null
          and not exists (select from onetake.generation_requests s where s.id = g.supersedes) then 'unknown_supersedes'
        else 'hidden'
      end, null::text
    from jsonb_to_recordset(requests) as g (number integer, account text, request_key text, supersedes uuid)
    left join onetake.generation_requests r on r.account = g.account and r.request_key = g.request_key;
  end if;
exception when query_canceled or others then
  return query select null::integer, null::text, null::text, null::text, null::text, sqlstate;
end
$$;
--> statement-breakpoint
-- What finance may have to pay, over all attempts of a request. Late evidence and an operator's word
-- count; an operator's "not accepted" does not make an unknown outcome known.
create function onetake.charge_of(request_id uuid) returns text
language sql stable set search_path = pg_catalog, pg_temp
as $$
  select case
    when bool_or(facts.accepted and facts.refunded is not true) then 'charged'
    -- What a restored database has forgotten may have been paid.
    when bool_or(facts.unknown) or exists (
      select from onetake.generation_requests r where r.id = charge_of.request_id and r.recovered_at is not null
    ) then 'possible'
    when bool_or(facts.accepted) then 'refunded'
    else 'none'
  end
  from (
    -- Each accepted task counts for itself: one attempt can have been answered with two. A task that is followed
    -- has its refund there; the request's own has it on its attempt.
    select true as accepted, false as unknown,
      case when f.request_id is null then t.refunded else f.refunded end as refunded
    from (
      select a.provider_task_id as task, a.refunded
      from onetake.submission_attempts a
      where a.request_id = charge_of.request_id and a.certainty = 'accepted'
      union
      select e.provider_task_id, a.refunded
      from onetake.submission_attempts a
      join onetake.attempt_evidence e on e.attempt_id = a.id
      where a.request_id = charge_of.request_id and e.certainty = 'accepted' and e.withdrawn_at is null
    ) t
    left join onetake.followed_tasks f on f.request_id = charge_of.request_id and f.provider_task_id = t.task
    union all
    -- An attempt in flight is not unknown yet.
    select false, a.certainty = 'unknown' and not exists (
      select from onetake.attempt_evidence e
      where e.attempt_id = a.id and e.certainty in ('accepted', 'refused') and e.withdrawn_at is null
    ), null
    from onetake.submission_attempts a
    where a.request_id = charge_of.request_id
  ) facts
$$;
--> statement-breakpoint
-- What says that a request has most likely been paid for, in words: an answer of 2xx or a known acceptance, of
-- any of its attempts, in time or late. Null when nothing does.
create function onetake.paid_evidence(request_id uuid) returns text
language sql stable set search_path = pg_catalog, pg_temp
as $$
  select format('attempt %s was %s', f.attempt,
    case when f.task is not null then 'accepted as task ' || f.task else 'answered ' || f.status end)
  from (
    select a.attempt, a.http_status as status, case when a.certainty = 'accepted' then a.provider_task_id end as task
    from onetake.submission_attempts a
    where a.request_id = paid_evidence.request_id
      and (a.http_status between 200 and 299 or a.certainty = 'accepted')
    union all
    select a.attempt, e.http_status, case when e.certainty = 'accepted' then e.provider_task_id end
    from onetake.submission_attempts a
    join onetake.attempt_evidence e on e.attempt_id = a.id
    where a.request_id = paid_evidence.request_id and e.withdrawn_at is null
      and (e.http_status between 200 and 299 or e.certainty = 'accepted')
  ) f
  order by f.task is null, f.attempt desc
  limit 1
$$;
--> statement-breakpoint
-- The attempt that a task belongs to: the one that was answered with its id, in time or late, else the last.
create function onetake.attempt_of_task(request_id uuid, task text) returns uuid
language sql stable set search_path = pg_catalog, pg_temp
as $$
  select a.id
  from onetake.submission_attempts a
  where a.request_id = attempt_of_task.request_id
  order by
    a.provider_task_id is not distinct from attempt_of_task.task or exists (
      select from onetake.attempt_evidence e
      where e.attempt_id = a.id and e.provider_task_id = attempt_of_task.task and e.withdrawn_at is null
    ) desc,
    a.attempt desc
  limit 1
$$;
--> statement-breakpoint
-- Follows every task that the request is known to have been accepted under and that is not its own: to its end, and
-- an hour longer for its refund. Harmless twice; what has ended is not followed again.
create function onetake.follow_other_tasks(request_id uuid) returns void
language sql volatile set search_path = pg_catalog, pg_temp
as $$
  insert into onetake.followed_tasks as f (request_id, provider_task_id, account, attempt_id, since, next_look_at,
    follow_until)
  select r.id, t.task, r.account, t.attempt_id, s.now, s.now, greatest(s.now, t.slot_until) + interval '1 hour'
  from (select clock_timestamp() as now) s
  cross join onetake.generation_requests r
  cross join lateral (
    select distinct on (k.task) k.task, k.attempt_id, k.slot_until
    from (
      select a.provider_task_id as task, a.id as attempt_id, a.slot_until, a.attempt
      from onetake.submission_attempts a
      where a.request_id = r.id and a.certainty = 'accepted'
      union all
      select e.provider_task_id, a.id, a.slot_until, a.attempt
      from onetake.submission_attempts a
      join onetake.attempt_evidence e on e.attempt_id = a.id
      where a.request_id = r.id and e.certainty = 'accepted' and e.withdrawn_at is null
    ) k
    where k.task is not null
    order by k.task, k.attempt desc
  ) t
  where r.id = follow_other_tasks.request_id and t.task is distinct from r.provider_task_id
  on conflict on constraint followed_tasks_pk do update set next_look_at = clock_timestamp()
  where f.next_look_at is null and f.refunded is not true and f.outcome is distinct from 'succeeded'
    and f.follow_until > clock_timestamp();
  select pg_notify('onetake', 'poll')
$$;
--> statement-breakpoint
create type onetake.resolution as (
  id uuid,
  from_state text,
  to_state text,
  posts_permitted integer,
  not_before timestamptz
);
--> statement-breakpoint
-- On one line: what cannot be seen, and what would break the line, is a blank. Blanks of Unicode included.
create function onetake.plain_line(said text) returns text
language sql immutable parallel safe
return btrim(regexp_replace(said,
  '[[:space:][:cntrl:]\u00a0\u1680\u2000-\u200f\u2028-\u202f\u205f-\u2064\u3000\ufeff]+', ' ', 'g'));
--> statement-breakpoint
-- An operator's own words inside a sentence of ours.
create function onetake.quoted_line(said text) returns text
language sql immutable parallel safe
return (
  select case when length(l.line) > 200 then rtrim(left(l.line, 199)) || '…' else l.line end
  from (select onetake.plain_line(left(said, 1000)) as line) l
);
--> statement-breakpoint
-- UTC, with its date when that is not the one that everybody thinks of.
create function onetake.clock_text(at timestamptz, now timestamptz) returns text
language sql stable parallel safe
return to_char(at at time zone 'UTC',
  case when at between now - interval '12 hours' and now + interval '12 hours' then 'HH24:MI:SS'
    else 'YYYY-MM-DD HH24:MI:SS' end);
--> statement-breakpoint
-- Actor and reason are asked for before anything is looked at.
create function onetake.require_operator(actor text, reason text) returns void
language plpgsql immutable set search_path = pg_catalog, pg_temp
as $$
begin
  if coalesce(onetake.plain_line(actor), '') = '' or coalesce(onetake.plain_line(reason), '') = '' then
    raise exception 'onetake: an operator''s action needs an actor and a reason' using errcode = 'OT004';
  end if;
end
$$;
--> statement-breakpoint
-- What an operator was told has happened stays so, whatever the role's default is: a withdrawal that a crash takes back
-- would be paid for. A stricter setting than `on` is left alone.
create function onetake.commit_durably() returns void
language sql volatile set search_path = pg_catalog, pg_temp
as $$
  select set_config('synchronous_commit', 'on', true)
  where current_setting('synchronous_commit') in ('off', 'local', 'remote_write')
$$;
--> statement-breakpoint
create function onetake.record_action(actor text, action text, subject text, reason text) returns void
language sql volatile set search_path = pg_catalog, pg_temp
as $$
  select onetake.commit_durably();
  insert into onetake.operator_actions (at, actor, "session_user", action, subject, reason)
  values (clock_timestamp(), onetake.plain_line(record_action.actor), session_user, record_action.action,
    record_action.subject, btrim(record_action.reason))
$$;
--> statement-breakpoint
-- Locks the request and says in which state it is; OT001 when there is none, OT002 when it is not in
-- one of `states`. The caller's next statement sees everything that the wait for the lock let in.
create function onetake.lock_request(request_id uuid, states text[]) returns text
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
declare
  found_state text;
begin
  select r.state into found_state
  from onetake.generation_requests r
  where r.id = lock_request.request_id
  for no key update;
  if found_state is null then
    raise exception 'onetake: there is no generation request %', lock_request.request_id using errcode = 'OT001';
  end if;
  if not found_state = any (lock_request.states) then
    raise exception 'onetake: generation request % is %, and this needs it to be %',
      lock_request.request_id, found_state, array_to_string(lock_request.states, ' or ') using errcode = 'OT002';
  end if;
  return found_state;
end
$$;
--> statement-breakpoint
-- What an operator's decision about one request does not answer: money that was paid twice stays paid, and a
-- client that sends twice goes on doing so.
create function onetake.lasting_attention(attention text) returns text
language sql immutable parallel safe
return case when attention in ('possibly_paid_twice', 'paid_though_withdrawn', 'repeated_send') then attention end;
--> statement-breakpoint
-- Stands for a POST that a restored database has forgotten and an operator has found at the provider: what hangs on
-- an attempt (evidence, charge, refund, slot) then hangs on this one. The caller holds the request's lock.
create function onetake.add_forgotten_attempt(request_id uuid, out id uuid, out started_at timestamptz)
language sql volatile set search_path = pg_catalog, pg_temp
as $$
  update onetake.generation_requests r set submissions = r.submissions + 1 where r.id = add_forgotten_attempt.request_id;
  insert into onetake.submission_attempts as a (id, request_id, attempt, account, operation, breaker_name, generation,
    hold_epoch, is_probe, worker, started_at, lease_expires_at, window_until, slot_until, quarantine_until, settled_at,
    settled_by, phase, health, certainty, reason, health_applied_at, health_effect)
  select gen_random_uuid(), r.id, r.submissions, r.account, r.operation, c.provider || '/' || r.operation, 0,
    c.hold_epoch, false, 'forgotten', coalesce(r.recovered_at, r.created_at), s.now, s.now, s.now + interval '10 min',
    s.now, s.now, 'rescue', 'lease_over', 'none', 'unknown', 'worker_lost', s.now, 'nothing_to_apply'
  from (select clock_timestamp() as now) s
  cross join onetake.generation_requests r
  join onetake.accounts c on c.name = r.account
  where r.id = add_forgotten_attempt.request_id
  returning a.id, a.started_at
$$;
--> statement-breakpoint
create function onetake.resolve_as_accepted(request_id uuid, provider_task_id text, actor text, reason text)
returns onetake.resolution
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  was text;
  its_attempt uuid;
  started timestamptz;
  whose uuid;
  task text := resolve_as_accepted.provider_task_id;
begin
  perform onetake.require_operator(resolve_as_accepted.actor, resolve_as_accepted.reason);
  was := onetake.lock_request(resolve_as_accepted.request_id, array['ambiguous']);
  if task is null or length(task) not between 1 and 255 or task ~ '[[:cntrl:]]' or task ~ '^\s|\s$' then
    raise exception 'onetake: a provider task id has 1 to 255 characters, no control characters and no space around it'
      using errcode = 'invalid_parameter_value';
  end if;
  select found.id into whose
  from (
    select other.id from onetake.generation_requests other
    join onetake.generation_requests mine on mine.account = other.account
    where mine.id = resolve_as_accepted.request_id and other.id <> mine.id and other.provider_task_id = task
    union all
    select other.request_id from onetake.followed_tasks other
    join onetake.generation_requests mine on mine.account = other.account
    where mine.id = resolve_as_accepted.request_id and other.request_id <> mine.id and other.provider_task_id = task
  ) found
  limit 1;
  if whose is not null then
    raise exception 'onetake: that provider task id belongs to request % of the account', whose
      using errcode = 'OT003';
  end if;
  select a.id, a.started_at into its_attempt, started
  from onetake.submission_attempts a
  where a.id = onetake.attempt_of_task(resolve_as_accepted.request_id, task)
  for no key update;
  if its_attempt is null then
    select n.id, n.started_at into its_attempt, started
    from onetake.add_forgotten_attempt(resolve_as_accepted.request_id) n;
  end if;
  insert into onetake.attempt_evidence (attempt_id, seen_at, source, certainty, provider_task_id)
  values (its_attempt, clock_timestamp(), 'operator', 'accepted', task);
  update onetake.generation_requests r
  set state = 'accepted', state_reason = 'resolved_as_accepted', provider_task_id = task,
    accepted_at = coalesce(started, r.created_at), next_poll_at = clock_timestamp(), poll_errors = 0,
    charge = onetake.charge_of(r.id), job_due = false,
    attention = onetake.lasting_attention(r.attention),
    attention_since = case when onetake.lasting_attention(r.attention) is not null then r.attention_since end
  where r.id = resolve_as_accepted.request_id;
  perform onetake.follow_other_tasks(resolve_as_accepted.request_id);
  perform onetake.record_action(resolve_as_accepted.actor, 'resolve_as_accepted',
    resolve_as_accepted.request_id::text, resolve_as_accepted.reason);
  perform pg_notify('onetake', 'poll');
  return row(resolve_as_accepted.request_id, was, 'accepted', 0, null)::onetake.resolution;
exception when unique_violation then
  raise exception 'onetake: that provider task id belongs to another request of the account'
    using errcode = 'OT003';
end
$$;
--> statement-breakpoint
-- Until when a POST of the request may still arrive; null: each of them is closed. Not the last one's alone: an attempt
-- that the database had lost comes in below the others, and may be on the wire.
create function onetake.quarantine_end(request_id uuid) returns timestamptz
language sql stable set search_path = pg_catalog, pg_temp
as $$
  select greatest(
    (
      select max(a.quarantine_until) from onetake.submission_attempts a
      where a.request_id = quarantine_end.request_id and a.closed_at is null
    ),
    -- A forgotten attempt's worker may have been killed moments before the freeze, and nobody knows its lease.
    (
      select r.recovered_at + interval '5 min' from onetake.generation_requests r
      where r.id = quarantine_end.request_id
    )
  )
$$;
--> statement-breakpoint
-- Permits exactly one more paid POST (or, with resubmit false, ends the request as cancelled). The POST
-- waits for the old attempt to be closed, or else for its quarantine: bytes outlive a killed process.
create function onetake.resolve_as_not_accepted(
  request_id uuid,
  actor text,
  reason text,
  resubmit boolean default true,
  force boolean default false,
  submit_before timestamptz default null
) returns onetake.resolution
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  was text;
  last_attempt onetake.submission_attempts%rowtype;
  paid text;
  at_once timestamptz;
  earliest timestamptz;
begin
  perform onetake.require_operator(resolve_as_not_accepted.actor, resolve_as_not_accepted.reason);
  was := onetake.lock_request(resolve_as_not_accepted.request_id, array['ambiguous']);
  select a.* into last_attempt
  from onetake.submission_attempts a
  where a.request_id = resolve_as_not_accepted.request_id
  order by a.attempt desc
  limit 1
  for no key update;
  paid := onetake.paid_evidence(resolve_as_not_accepted.request_id);
  if paid is not null and not resolve_as_not_accepted.force then
    raise exception 'onetake: request % has most likely been paid for: %', resolve_as_not_accepted.request_id, paid
      using errcode = 'OT002', hint = 'Use force only after the provider has confirmed that nothing was charged.';
  end if;
  at_once := clock_timestamp();
  if resolve_as_not_accepted.submit_before <= at_once then
    raise exception 'onetake: submit_before is over already, so nothing would be submitted'
      using errcode = 'invalid_parameter_value';
  end if;
  if resolve_as_not_accepted.submit_before >= '10000-01-01 00:00:00+00' then
    raise exception 'onetake: submit_before lies before the year 10000' using errcode = 'invalid_parameter_value';
  end if;
  update onetake.submission_attempts a
  set slot_freed_at = coalesce(a.slot_freed_at, at_once)
  where a.id = last_attempt.id;
  if not resolve_as_not_accepted.resubmit then
    update onetake.generation_requests r
    set state = 'cancelled', state_reason = 'resolved_as_not_accepted', settled_at = at_once,
      attention = onetake.lasting_attention(r.attention),
      attention_since = case when onetake.lasting_attention(r.attention) is not null then r.attention_since end
    where r.id = resolve_as_not_accepted.request_id;
    perform onetake.record_action(resolve_as_not_accepted.actor, 'resolve_as_not_accepted_without_resubmit',
      resolve_as_not_accepted.request_id::text, resolve_as_not_accepted.reason);
    perform pg_notify('onetake', 'slot');
    return row(resolve_as_not_accepted.request_id, was, 'cancelled', 0, null)::onetake.resolution;
  end if;
  earliest := greatest(at_once, onetake.quarantine_end(resolve_as_not_accepted.request_id));
  -- The guard lets this one row through, in this transaction.
  perform set_config('onetake.rearming', resolve_as_not_accepted.request_id::text, true);
  update onetake.generation_requests r
  set state = 'queued', state_reason = 'rearmed', not_before = earliest,
    -- The old one was for the first POST: it could end the request before the quarantine does.
    submit_before = resolve_as_not_accepted.submit_before,
    job_due = true,
    attention = onetake.lasting_attention(r.attention),
    attention_since = case when onetake.lasting_attention(r.attention) is not null then r.attention_since end
  where r.id = resolve_as_not_accepted.request_id;
  perform set_config('onetake.rearming', '', true);
  perform onetake.record_action(resolve_as_not_accepted.actor, 'resolve_as_not_accepted',
    resolve_as_not_accepted.request_id::text, resolve_as_not_accepted.reason);
  perform pg_notify('onetake', 'job_due');
  return row(resolve_as_not_accepted.request_id, was, 'queued', 1, earliest)::onetake.resolution;
end
$$;
--> statement-breakpoint
-- Gives up on a request whose outcome nobody will learn, or on an accepted one past its maximum run time.
create function onetake.abandon(request_id uuid, actor text, reason text) returns onetake.resolution
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  was text;
  runs_until timestamptz;
begin
  perform onetake.require_operator(abandon.actor, abandon.reason);
  was := onetake.lock_request(abandon.request_id, array['ambiguous', 'accepted']);
  if was = 'accepted' then
    -- A stream that came late, of an earlier attempt, is read for as long as it likes.
    select max(a.slot_until) into runs_until
    from onetake.submission_attempts a
    where a.request_id = abandon.request_id;
    if runs_until > clock_timestamp() then
      raise exception 'onetake: the task of request % may still be running, until %', abandon.request_id, runs_until
        using errcode = 'OT002', hint = 'It has been paid for. Wait until its maximum run time is over.';
    end if;
  end if;
  update onetake.generation_requests r
  -- A task that we know of may still be refunded.
  set state = 'failed', failure_reason = 'abandoned', settled_at = clock_timestamp(), poll_errors = 0,
    reader_lease_until = null,
    next_poll_at = case when r.provider_task_id is not null then clock_timestamp() end,
    refund_watch_until = case when r.provider_task_id is not null then clock_timestamp() + interval '1 hour' end,
    attention = onetake.lasting_attention(r.attention),
    attention_since = case when onetake.lasting_attention(r.attention) is not null then r.attention_since end
  where r.id = abandon.request_id;
  perform pg_notify('onetake', 'poll') where was = 'accepted';
  perform onetake.record_action(abandon.actor, 'abandon', abandon.request_id::text, abandon.reason);
  return row(abandon.request_id, was, 'failed', 0, null)::onetake.resolution;
end
$$;
--> statement-breakpoint
-- Takes an operator's word back: an accepted request whose task id was given by hand is ambiguous again, and the
-- id is free for the request that it belongs to.
create function onetake.reopen(request_id uuid, actor text, reason text) returns onetake.resolution
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  was text;
begin
  perform onetake.require_operator(reopen.actor, reopen.reason);
  was := onetake.lock_request(reopen.request_id, array['accepted']);
  if not exists (
    select from onetake.generation_requests r
    where r.id = reopen.request_id and r.state_reason = 'resolved_as_accepted' and r.provider_finished_at is null
  ) then
    raise exception 'onetake: request % was accepted by the provider''s answer, or its task has finished',
      reopen.request_id using errcode = 'OT002', hint = 'Only an operator''s own word can be taken back.';
  end if;
  update onetake.attempt_evidence e
  set withdrawn_at = clock_timestamp()
  from onetake.submission_attempts a
  where a.request_id = reopen.request_id and e.attempt_id = a.id and e.source = 'operator' and e.withdrawn_at is null;
  update onetake.generation_requests r
  set state = 'ambiguous', state_reason = 'reopened', provider_task_id = null, accepted_at = null,
    next_poll_at = null, poll_errors = 0, charge = onetake.charge_of(r.id),
    attention = onetake.lasting_attention(r.attention),
    attention_since = case when onetake.lasting_attention(r.attention) is not null then r.attention_since end
  where r.id = reopen.request_id;
  -- What the provider itself has said stands, and is followed from now on like any task without a request.
  perform onetake.follow_other_tasks(reopen.request_id);
  perform onetake.record_action(reopen.actor, 'reopen', reopen.request_id::text, reopen.reason);
  return row(reopen.request_id, was, 'ambiguous', 0, null)::onetake.resolution;
end
$$;
--> statement-breakpoint
-- Somebody has looked: ends what asked for a person's eyes and changes nothing else. What was paid twice stays in
-- `charge`, and is followed as before.
create function onetake.acknowledge(request_id uuid, actor text, reason text) returns onetake.resolution
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  was text;
begin
  perform onetake.require_operator(acknowledge.actor, acknowledge.reason);
  was := onetake.lock_request(acknowledge.request_id, array['queued', 'submitting', 'accepted', 'succeeded', 'failed',
    'rejected', 'ambiguous', 'cancelled', 'expired']);
  update onetake.generation_requests r
  set attention = null, attention_since = null
  where r.id = acknowledge.request_id and r.attention is not null;
  if not found then
    raise exception 'onetake: nothing about request % asks for attention', acknowledge.request_id
      using errcode = 'OT002';
  end if;
  perform onetake.record_action(acknowledge.actor, 'acknowledge', acknowledge.request_id::text, acknowledge.reason);
  return row(acknowledge.request_id, was, was, 0, null)::onetake.resolution;
end
$$;
--> statement-breakpoint
create function onetake.cancel_request(request_id uuid, actor text, reason text) returns onetake.resolution
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  was text;
begin
  perform onetake.require_operator(cancel_request.actor, cancel_request.reason);
  was := onetake.lock_request(cancel_request.request_id, array['queued', 'submitting', 'accepted', 'ambiguous',
    'succeeded', 'failed', 'rejected', 'cancelled', 'expired']);
  if was <> 'queued' then
    raise exception 'onetake: generation request % is %, and only what is queued can be cancelled',
      cancel_request.request_id, was
      using errcode = 'OT002', hint = case was
        when 'submitting' then
          'Its POST is on the way, and the provider can''t cancel: once accepted it runs and is charged.'
        when 'accepted' then
          'The provider has accepted it and can''t cancel: it runs to its end and is charged, unless it fails there.'
        when 'ambiguous' then
          'It may have been accepted, and the provider can''t cancel. `--not-accepted --no-resubmit` ends it, if it was not.'
        else 'It has ended: nothing more is submitted for it.'
      end;
  end if;
  update onetake.generation_requests r
  set state = 'cancelled', state_reason = 'cancelled', settled_at = clock_timestamp(), job_due = false,
    attention = onetake.lasting_attention(r.attention),
    attention_since = case when onetake.lasting_attention(r.attention) is not null then r.attention_since end
  where r.id = cancel_request.request_id;
  perform onetake.record_action(cancel_request.actor, 'cancel_request', cancel_request.request_id::text,
    cancel_request.reason);
  return row(cancel_request.request_id, was, 'cancelled', 0, null)::onetake.resolution;
end
$$;
--> statement-breakpoint
-- Whether an account has that operation (null: all of them); each has a queue since the account was written.
create function onetake.has_lane(account text, operation text) returns boolean
language plpgsql stable set search_path = pg_catalog, pg_temp
as $$
begin
  return has_lane.operation is null or exists (
    select from onetake_queue.queue q where q.name = 'submit/' || has_lane.account || '/' || has_lane.operation
  );
end
$$;
--> statement-breakpoint
-- Ends the account's holds (of one operation, or with null all of them) and says how many. The epoch makes
-- sure that the answer to a POST from before the release can't set a hold again.
create function onetake.release_account(account text, operation text, actor text, reason text) returns integer
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  ended integer;
begin
  perform onetake.require_operator(release_account.actor, release_account.reason);
  update onetake.accounts a
  set hold_epoch = a.hold_epoch + 1
  where a.name = release_account.account;
  if not found then
    raise exception 'onetake: there is no account "%"', release_account.account using errcode = 'OT001';
  end if;
  update onetake.account_holds h
  set ended_at = clock_timestamp(), ended_by = onetake.plain_line(release_account.actor)
  where h.account = release_account.account and h.ended_at is null
    and (release_account.operation is null or h.operation = release_account.operation);
  get diagnostics ended = row_count;
  -- One that was misspelt would be as good as done.
  if ended = 0 and not onetake.has_lane(release_account.account, release_account.operation) then
    raise exception 'onetake: there is no operation of that name' using errcode = '22023';
  end if;
  perform onetake.record_action(release_account.actor, 'release_account',
    concat_ws('/', release_account.account, release_account.operation), release_account.reason);
  perform pg_notify('onetake', 'account');
  return ended;
end
$$;
--> statement-breakpoint
-- Holds the account (one operation of it, or with null all), by an operator's word. One that is in force already is
-- replaced: true, else false. What is on the wire goes on.
create function onetake.hold_account(
  account text,
  operation text,
  actor text,
  reason text,
  until timestamptz default null
) returns boolean
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  ends timestamptz := nullif(hold_account.until, 'infinity');
  epoch_now integer;
  replaced boolean;
begin
  perform onetake.require_operator(hold_account.actor, hold_account.reason);
  if hold_account.operation !~ '^[A-Za-z0-9_.-]{1,63}$' then
    raise exception 'onetake: that is no name of an operation' using errcode = '22023';
  end if;
  if ends <= clock_timestamp() then
    raise exception 'onetake: the hold would have ended already' using errcode = '22023';
  end if;
  if ends >= '10000-01-01 00:00:00+00' then
    raise exception 'onetake: a hold ends before the year 10000, or not by itself' using errcode = '22023';
  end if;
  select a.hold_epoch into epoch_now from onetake.accounts a where a.name = hold_account.account for no key update;
  if epoch_now is null then
    raise exception 'onetake: there is no account "%"', hold_account.account using errcode = 'OT001';
  end if;
  -- One that was misspelt would hold nothing, and nobody would see it.
  if not onetake.has_lane(hold_account.account, hold_account.operation) then
    raise exception 'onetake: there is no operation of that name' using errcode = '22023';
  end if;
  update onetake.account_holds h
  set ended_at = least(h.until, clock_timestamp()),
    ended_by = case when h.until <= clock_timestamp() then 'until' else onetake.plain_line(hold_account.actor) end,
    trial_ended_at = clock_timestamp()
  where h.account = hold_account.account and h.ended_at is null and h.kind = 'operator'
    and h.operation is not distinct from hold_account.operation;
  replaced := found;
  insert into onetake.account_holds (account, operation, kind, reason, since, until, epoch)
  values (hold_account.account, hold_account.operation, 'operator', btrim(hold_account.reason), clock_timestamp(),
    ends, epoch_now);
  perform onetake.record_action(hold_account.actor, 'hold_account',
    concat_ws('/', hold_account.account, hold_account.operation), hold_account.reason);
  perform pg_notify('onetake', 'account');
  return replaced;
end
$$;
--> statement-breakpoint
-- The override that is in force: an expired one is not, whether or not anybody has noted it.
create function onetake.override_in_force(override text, expires_at timestamptz, at timestamptz) returns text
language sql immutable parallel safe
return case when expires_at is null or at < expires_at then override end;
--> statement-breakpoint
-- One row of the override's own chain. The caller holds the breaker's lock and updates the row afterwards.
create function onetake.record_override(
  breaker onetake.circuit_breakers,
  next_state text,
  cause text,
  actor text
) returns void
language sql volatile set search_path = pg_catalog, pg_temp
as $$
  insert into onetake.circuit_breaker_transitions (at, breaker_name, layer, number, previous_state, next_state, cause,
    opened_at, retry_at, generation, actor, shadow)
  values (clock_timestamp(), (record_override.breaker).name, 'override',
    (record_override.breaker).override_transitions + 1, coalesce((record_override.breaker).override, 'none'),
    record_override.next_state, record_override.cause, (record_override.breaker).opened_at,
    (record_override.breaker).retry_at, (record_override.breaker).generation, record_override.actor,
    (record_override.breaker).shadow)
$$;
--> statement-breakpoint
-- Ends an override whose time is over, in the row and in its chain; true when there was one. The state
-- underneath is what it was: `retry_at` has run on meanwhile.
create function onetake.note_expired_override(name text) returns boolean
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
  breaker onetake.circuit_breakers%rowtype;
begin
  select b.* into breaker from onetake.circuit_breakers b where b.name = note_expired_override.name for no key update;
  if breaker.override is null or breaker.override_expires_at is null
    or breaker.override_expires_at > clock_timestamp() then
    return false;
  end if;
  perform onetake.record_override(breaker, 'none', 'override_expired', null);
  update onetake.circuit_breakers b
  set override = null, override_actor = null, override_reason = null, override_expires_at = null,
    override_transitions = b.override_transitions + 1
  where b.name = note_expired_override.name;
  perform pg_notify('onetake', 'breaker');
  return true;
end
$$;
--> statement-breakpoint
-- Lays an override over the breaker, or another one over the last; returns what was in force before.
create function onetake.force_breaker(
  name text,
  mode text,
  actor text,
  reason text,
  expires_at timestamptz default null
) returns text
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
  breaker onetake.circuit_breakers%rowtype;
  ends timestamptz := nullif(force_breaker.expires_at, 'infinity');
begin
  perform onetake.require_operator(force_breaker.actor, force_breaker.reason);
  if force_breaker.mode is null or force_breaker.mode not in ('forced_open', 'forced_closed') then
    raise exception 'onetake: an override is forced_open or forced_closed' using errcode = '22023';
  end if;
  if ends <= clock_timestamp() then
    raise exception 'onetake: the override would have expired already' using errcode = '22023';
  end if;
  -- Later than any program can name.
  if ends >= '10000-01-01 00:00:00+00' then
    raise exception 'onetake: an override ends before the year 10000, or not by itself' using errcode = '22023';
  end if;
  perform onetake.note_expired_override(force_breaker.name);
  select b.* into breaker from onetake.circuit_breakers b where b.name = force_breaker.name for no key update;
  if breaker.name is null then
    raise exception 'onetake: there is no breaker "%"', force_breaker.name using errcode = 'OT001';
  end if;
  perform onetake.record_override(breaker, force_breaker.mode, 'operator', onetake.plain_line(force_breaker.actor));
  update onetake.circuit_breakers b
  set override = force_breaker.mode, override_actor = onetake.plain_line(force_breaker.actor),
    override_reason = btrim(force_breaker.reason), override_expires_at = ends,
    override_transitions = b.override_transitions + 1
  where b.name = force_breaker.name;
  perform onetake.record_action(force_breaker.actor, 'force_breaker_' || force_breaker.mode, force_breaker.name,
    force_breaker.reason);
  perform pg_notify('onetake', 'breaker');
  return coalesce(breaker.override, 'none');
end
$$;
--> statement-breakpoint
-- Takes the override away and shows what is underneath; OT002 when there is none. Returns what was in force.
create function onetake.release_breaker(name text, actor text, reason text) returns text
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
  breaker onetake.circuit_breakers%rowtype;
begin
  perform onetake.require_operator(release_breaker.actor, release_breaker.reason);
  perform onetake.note_expired_override(release_breaker.name);
  select b.* into breaker from onetake.circuit_breakers b where b.name = release_breaker.name for no key update;
  if breaker.name is null then
    raise exception 'onetake: there is no breaker "%"', release_breaker.name using errcode = 'OT001';
  end if;
  if breaker.override is null then
    raise exception 'onetake: breaker "%" is not overridden', release_breaker.name using errcode = 'OT002';
  end if;
  perform onetake.record_override(breaker, 'none', 'operator', onetake.plain_line(release_breaker.actor));
  update onetake.circuit_breakers b
  set override = null, override_actor = null, override_reason = null, override_expires_at = null,
    override_transitions = b.override_transitions + 1
  where b.name = release_breaker.name;
  perform onetake.record_action(release_breaker.actor, 'release_breaker', release_breaker.name, release_breaker.reason);
  perform pg_notify('onetake', 'breaker');
  return breaker.override;
end
$$;
--> statement-breakpoint
-- What there is to tell this database from a copy of it. The timeline in the control file is that of the last
-- checkpoint; the one in the name of the current WAL file is right from the moment of a promotion. A server that keeps
-- one of these to itself gives null for it.
create function onetake.present_installation(
  out system_identifier bigint,
  out timeline integer,
  out database_oid bigint,
  out database_name text,
  out table_oid bigint
)
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
begin
  select d.oid, d.datname into database_oid, database_name from pg_database d where d.datname = current_database();
  table_oid := 'onetake.installation'::regclass::oid;
  begin
    select s.system_identifier into system_identifier from pg_control_system() s;
  exception when insufficient_privilege or undefined_function or feature_not_supported then
    null;
  end;
  begin
    timeline := ('x' || left(pg_walfile_name(pg_current_wal_flush_lsn()), 8))::bit(32)::integer;
  exception when insufficient_privilege or undefined_function or feature_not_supported
    or object_not_in_prerequisite_state then
    null;
  end;
end
$$;
--> statement-breakpoint
-- Makes this database the installation, as it is now. Whatever a process remembers of an earlier confirmation counts
-- no more.
create function onetake.confirm_installation(confirmed_by text, reason text) returns void
language sql volatile set search_path = pg_catalog, pg_temp
as $$
  select onetake.commit_durably();
  insert into onetake.installation as i (revision, system_identifier, timeline, database_oid, database_name, table_oid,
    confirmed_at, confirmed_by, reason)
  select (extract(epoch from clock_timestamp()) * 1000)::bigint, p.system_identifier, p.timeline, p.database_oid, p.database_name, p.table_oid, clock_timestamp(),
    btrim(confirm_installation.confirmed_by), btrim(confirm_installation.reason)
  from onetake.present_installation() p
  on conflict (one) do update
  set revision = greatest(i.revision + 1, excluded.revision), system_identifier = excluded.system_identifier, timeline = excluded.timeline,
    database_oid = excluded.database_oid, database_name = excluded.database_name, table_oid = excluded.table_oid,
    confirmed_at = excluded.confirmed_at, confirmed_by = excluded.confirmed_by, reason = excluded.reason,
    doubt = null, doubted_at = null, doubted_by = null, freeze_before = null
$$;
--> statement-breakpoint
-- Whether this is the database that was confirmed: `trouble` is null when it is. `seen_…` is what a process remembers
-- of it: flushed WAL never goes back, and an attempt that was committed stays; `loss` says which of the two did not
-- hold. Costs some 50 µs, so that admission can ask in each transaction.
create function onetake.check_installation(
  seen_installation uuid default null,
  seen_revision bigint default null,
  seen_flushed pg_lsn default null,
  seen_attempt uuid default null,
  out installation uuid,
  out revision bigint,
  out flushed pg_lsn,
  out trouble text,
  out loss text
)
language plpgsql volatile set search_path = pg_catalog, pg_temp
as $$
declare
  known onetake.installation%rowtype;
  known_table oid;
  moved_on boolean := false;
begin
  select i.* into known from onetake.installation i;
  if not found then
    trouble := 'unconfirmed';
    return;
  end if;
  -- Copies that were confirmed each for itself are different ones, to a process that remembers both.
  installation := md5(concat_ws('/', known.id, known.system_identifier, known.database_oid))::uuid;
  revision := known.revision;
  if known.system_identifier is not null
    and known.system_identifier <> (select s.system_identifier from pg_control_system() s) then
    trouble := 'another_cluster';
  elsif known.database_oid <> (select d.oid from pg_database d where d.datname = current_database()) then
    trouble := 'another_database';
  elsif known.table_oid <> (select i.tableoid from onetake.installation i) then
    trouble := 'restored_tables';
  elsif known.timeline is not null and not pg_is_in_recovery() then
    flushed := pg_current_wal_flush_lsn();
    if known.timeline <> ('x' || left(pg_walfile_name(flushed), 8))::bit(32)::integer then
      trouble := 'another_timeline';
    end if;
  end if;
  if installation = seen_installation and known.revision <= seen_revision then
    if known.revision < seen_revision or flushed < seen_flushed then
      loss := 'stepped_back';
    elsif seen_attempt is not null
      and not exists (select from onetake.submission_attempts a where a.id = seen_attempt) then
      loss := 'intent_lost';
    end if;
  end if;
  trouble := case when known.doubt = 'freezing' then known.doubt else coalesce(trouble, known.doubt, loss) end;
end
$$;
--> statement-breakpoint
-- Accepts the database as it is now, after a failover or move that lost nothing; returns what was wrong with it.
-- After a proven loss that needs `force`.
create function onetake.resume_installation(actor text, reason text, force boolean default false) returns text
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
  known onetake.installation%rowtype;
  was text;
begin
  perform onetake.require_operator(resume_installation.actor, resume_installation.reason);
  select i.* into known from onetake.installation i for no key update;
  select c.trouble into was from onetake.check_installation() c;
  if known.doubt = 'freezing' then
    raise exception 'onetake: a freeze of this database is not finished' using errcode = 'OT002',
      hint = 'Finish it: onetake recover --freeze.';
  elsif known.doubt is not null and not resume_installation.force then
    raise exception 'onetake: this database has lost what it had confirmed (%): what it holds as queued may have been submitted',
      known.doubt using errcode = 'OT002',
      hint = 'Freeze it. Use force only when you know that no submission was lost.';
  end if;
  perform onetake.confirm_installation(resume_installation.actor, resume_installation.reason);
  perform onetake.record_action(resume_installation.actor, 'resume_installation', coalesce(was, 'recognised'),
    resume_installation.reason);
  perform pg_notify('onetake', 'installation');
  return was;
end
$$;
--> statement-breakpoint
-- Accepts the database as it is now, after a restore that may have lost submissions: first every request that it holds
-- as queued becomes ambiguous (`recovered`), for an operator to decide by name. At most `at_most` of them per call;
-- call it again until it is `done`. Admission stops at the first call and goes on after the last. Requests that were
-- enqueued since (or from `enqueued_before` on) can't have been submitted by anything forgotten, and stay.
-- What is `submitting` is left to its own worker, or to rescue when its lease ends: neither submits it again.
create function onetake.freeze_installation(
  actor text,
  reason text,
  enqueued_before timestamptz default null,
  at_most integer default null,
  out frozen integer,
  out done boolean
)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
  known onetake.installation%rowtype;
  was text;
begin
  perform onetake.require_operator(freeze_installation.actor, freeze_installation.reason);
  if freeze_installation.at_most < 1 then
    raise exception 'onetake: at_most is a number of requests, 1 or more' using errcode = '22023';
  end if;
  select i.* into known from onetake.installation i for no key update;
  if not found then
    perform onetake.confirm_installation(freeze_installation.actor, freeze_installation.reason);
    select i.* into known from onetake.installation i for no key update;
  end if;
  if known.doubt is distinct from 'freezing' then
    select c.trouble into was from onetake.check_installation() c;
    known.freeze_before := coalesce(freeze_installation.enqueued_before, clock_timestamp());
    update onetake.installation i
    set doubt = 'freezing', doubted_at = clock_timestamp(), doubted_by = onetake.plain_line(freeze_installation.actor),
      freeze_before = known.freeze_before;
    perform onetake.record_action(freeze_installation.actor, 'freeze_installation', coalesce(was, 'recognised'),
      freeze_installation.reason);
    perform pg_notify('onetake', 'installation');
  end if;
  with waiting as (
    select r.id
    from onetake.generation_requests r
    where r.state = 'queued' and r.created_at < known.freeze_before
    limit freeze_installation.at_most
    for no key update
  )
  update onetake.generation_requests r
  set state = 'ambiguous', state_reason = 'recovered', recovered_at = clock_timestamp(), job_due = false,
    charge = case when r.charge = 'charged' then r.charge else 'possible' end
  from waiting
  where r.id = waiting.id;
  get diagnostics frozen = row_count;
  done := freeze_installation.at_most is null or frozen < freeze_installation.at_most;
  if done then
    perform onetake.confirm_installation(freeze_installation.actor, freeze_installation.reason);
    perform pg_notify('onetake', 'installation');
  end if;
end
$$;
--> statement-breakpoint
create view onetake.ambiguous_submissions as
select
  r.id,
  r.state_reason as reason,
  r.account,
  r.operation,
  (extract(epoch from clock_timestamp() - coalesce(a.settled_at, r.created_at)) * 1000)::bigint as age_ms,
  a.attempt,
  a.phase,
  a.headers_sent,
  a.headers_sent_proof,
  a.http_status,
  a.error_code,
  a.started_at,
  a.settled_at,
  r.charge,
  greatest(onetake.quarantine_end(r.id), case when a.closed_at is not null then a.settled_at end) as rearmable_at,
  onetake.paid_evidence(r.id) is not null as needs_force,
  onetake.paid_evidence(r.id) as paid_evidence,
  (
    select string_agg(concat_ws(' ', 'attempt ' || x.attempt || ':', replace(e.source, '_', ' '), e.certainty,
      e.http_status, e.error_code, 'task ' || e.provider_task_id, f.outcome, case when f.refunded then 'refunded' end),
      '; ' order by e.id)
    from onetake.attempt_evidence e
    join onetake.submission_attempts x on x.id = e.attempt_id
    left join onetake.followed_tasks f on f.request_id = x.request_id and f.provider_task_id = e.provider_task_id
    where x.request_id = r.id and e.withdrawn_at is null
  ) as evidence
from onetake.generation_requests r
left join lateral (
  select x.* from onetake.submission_attempts x where x.request_id = r.id order by x.attempt desc limit 1
) a on true
where r.state = 'ambiguous'
order by r.created_at;
--> statement-breakpoint
create view onetake.breaker_status as
select
  b.name,
  b.state,
  case
    when o.override is not null then o.override
    when b.state = 'open' and s.now >= b.retry_at then 'probe_due'
    when b.state = 'half_open' and (p.id is null or s.now >= p.lease_expires_at) then 'probe_overdue'
    else b.state
  end as effective_state,
  case
    when o.override is not null then format('%s by %s%s: %s; underneath it is %s',
      replace(o.override, '_', ' '), onetake.quoted_line(b.override_actor),
      coalesce(' until ' || onetake.clock_text(b.override_expires_at, s.now), ''),
      onetake.quoted_line(b.override_reason),
      replace(b.state, '_', ' ') || case when b.shadow then ' (shadow)' else '' end)
    when b.state = 'closed' and b.consecutive_failures > 0 then format('closed: %s of %s dependency failures in a row',
      b.consecutive_failures, b.failure_threshold)
    when b.state = 'closed' and b.ramp_acceptances is not null then format(
      'closed: ramping up, at most %s submissions in flight', 2 + 2 * b.ramp_acceptances)
    when b.state = 'closed' then 'closed: submissions flow'
    when b.state = 'half_open' and p.id is null then 'half open: the probe is lost'
    when b.state = 'half_open' and s.now >= p.lease_expires_at then format(
      'half open: the probe of %s is overdue', onetake.clock_text(p.started_at, s.now))
    when b.state = 'half_open' then format('half open: one probe is in flight since %s',
      onetake.clock_text(p.started_at, s.now))
    else format('open since %s: %s, %s %s',
      onetake.clock_text(b.opened_at, s.now),
      case t.cause
        when 'failure_threshold' then format('%s dependency failures in a row', t.failures)
        when 'probe_failed' then 'the probe failed'
        when 'probe_lost' then 'the probe''s worker was lost'
        when 'probe_neutral' then 'the probe told nothing'
        else 'why is not on record'
      end || case
        when t.http_status is not null then ' (last answer ' || t.http_status || ')'
        when t.cause in ('failure_threshold', 'probe_failed') then ' (no answer)'
        else ''
      end,
      case when s.now >= b.retry_at then 'a probe is due since' else 'next probe at' end,
      onetake.clock_text(b.retry_at, s.now))
  end || case when b.shadow and o.override is null then ' (shadow: nothing is refused)' else '' end as why,
  coalesce(t.at, b.created_at) as since,
  -- Since when it has not been closed, over all its probes.
  case when b.state <> 'closed' then e.at end as not_closed_since,
  b.generation,
  b.consecutive_failures,
  b.failure_threshold,
  b.cooldown_ms,
  b.cooldown_growth,
  b.max_cooldown_ms,
  b.jitter,
  b.shadow,
  b.failed_probes,
  b.opened_at,
  b.retry_at,
  case
    when b.state = 'open' then greatest(0, ceil(extract(epoch from b.retry_at - s.now) * 1000))::bigint
  end as retry_in_ms,
  o.override,
  case when o.override is not null then b.override_actor end as override_actor,
  case when o.override is not null then b.override_reason end as override_reason,
  case when o.override is not null then b.override_expires_at end as override_expires_at,
  b.probe_attempt_id,
  b.probe_request_id,
  b.revision
from (select clock_timestamp() as now) s
cross join onetake.circuit_breakers b
cross join lateral (select onetake.override_in_force(b.override, b.override_expires_at, s.now) as override) o
left join onetake.submission_attempts p on p.id = b.probe_attempt_id
left join lateral (
  select x.at, x.cause, x.http_status, x.failures
  from onetake.circuit_breaker_transitions x
  where x.breaker_name = b.name and x.layer = 'state'
  order by x.number desc
  limit 1
) t on true
left join lateral (
  select x.at
  from onetake.circuit_breaker_transitions x
  where b.state <> 'closed' and x.breaker_name = b.name and x.layer = 'state' and x.cause = 'failure_threshold'
  order by x.number desc
  limit 1
) e on true;
--> statement-breakpoint
create view onetake.request_overview as
select
  r.id,
  r.account,
  r.operation,
  r.request_key,
  r.state,
  r.state_reason,
  r.failure_reason,
  r.failure_code,
  r.result_status,
  case r.state
    when 'queued' then case
      when i.trouble is not null then format('an operator: this database is not recognised (%s)',
        replace(i.trouble, '_', ' '))
      when h.since is not null then format('account held: %s since %s', replace(h.kind, '_', ' '),
        to_char(h.since at time zone 'UTC', 'HH24:MI')) || coalesce(': ' || onetake.quoted_line(h.reason), '')
      when q.ended_at is not null then format('account released at %s: one request%s goes first, alone (%s); %s wait%s',
        to_char(q.ended_at at time zone 'UTC', 'HH24:MI'), ' of ' || q.operation,
        coalesce('under way since ' || onetake.clock_text(w.since, s.now), 'none is under way'),
        case when w.waiting > 1000 then 'more than 1,000' else w.waiting::text end,
        case when w.waiting = 1 then 's' end)
      when o.override = 'forced_open' then format('breaker forced open by %s: %s',
        onetake.quoted_line(b.override_actor), onetake.quoted_line(b.override_reason))
      when b.state = 'open' and s.now < b.retry_at and o.refuses then format('breaker open until %s (%s)',
        onetake.clock_text(b.retry_at, s.now),
        case t.cause
          when 'failure_threshold' then format('%s × %s', t.failures, coalesce(t.http_status::text, 'no answer'))
          else replace(t.cause, '_', ' ')
        end)
      when b.state = 'half_open' and o.refuses then 'breaker half open: one probe is in flight'
      when c.paused_until > s.now then format('%s limit of the provider: paused until %s', c.pause_kind,
        onetake.clock_text(c.paused_until, s.now))
      when r.mode = 'stream' and r.state_reason = 'unsent_own_doing' and (
        select x.error_code in ('storage_not_configured', 'storage_unavailable') from onetake.submission_attempts x
        where x.request_id = r.id and x.attempt = r.submissions
      ) then 'a worker with storage that it can write to: a stream is stored as it comes'
      when r.not_before > s.now then format('not before %s (%s)',
        onetake.clock_text(r.not_before, s.now), coalesce(replace(r.state_reason, '_', ' '), 'as asked'))
      when l.windows >= c.requests_per_minute then format('rate: %s of %s requests this minute, next slot in %s s',
        l.windows, c.requests_per_minute, ceil(extract(epoch from l.opens_at - s.now)))
      when l.slots >= c.max_concurrent_generations then format('%s of %s generations running', l.slots,
        c.max_concurrent_generations) || case when l.unknown > 0
          then format(', %s perhaps: outcome unknown', l.unknown) else '' end
      when b.state = 'open' and o.refuses then 'breaker open: a probe is due'
      when b.ramp_acceptances is not null and o.refuses then 'breaker closed again: submissions ramp up'
      else 'a worker'
    end
    when 'submitting' then 'the provider''s answer'
    when 'accepted' then case
      when r.poll_trouble = 'file_storage' then 'storage that can be written to: its files can''t be stored'
      when r.poll_trouble like 'file\_%' then format('its files: they can''t be brought in (%s)',
        replace(substr(r.poll_trouble, 6), '_', ' '))
      when r.attention = 'poll_failing' then format('the provider: its task can''t be read (%s)',
        coalesce(r.poll_trouble, 'no answer'))
      when r.reader_lease_until is not null then 'its stream' ||
        coalesce(': ' || pg_size_pretty(r.hand_off_bytes) || ' so far', '') ||
        case when r.reader_missed_at is not null then '; its worker has not been heard of' else '' end
      when r.provider_finished_at is not null and r.hand_off_bytes is null then 'its files'
      when r.provider_finished_at is not null then format('its files: %s stored, %s%s of the next',
        (select count(*) from onetake.assets x where x.request_id = r.id and x.stored_at is not null),
        pg_size_pretty(r.hand_off_bytes), ' of ' || pg_size_pretty(r.hand_off_total_bytes))
      else 'the provider: task accepted, still running'
    end
    when 'ambiguous' then 'outcome unknown: needs an operator'
  end as waiting_for,
  r.charge,
  r.refunded,
  r.provider_task_id,
  r.submissions,
  r.not_before,
  r.submit_before,
  r.attention,
  r.warnings,
  r.created_at,
  r.settled_at
from (select clock_timestamp() as now) s
cross join onetake.check_installation() i
cross join onetake.generation_requests r
join onetake.accounts c on c.name = r.account
left join onetake.circuit_breakers b on r.state = 'queued' and b.name = c.provider || '/' || r.operation
left join lateral (
  select f.override, f.override is null and not b.shadow as refuses
  from (select onetake.override_in_force(b.override, b.override_expires_at, s.now) as override) f
) o on true
left join lateral (
  select x.cause, x.failures, x.http_status
  from onetake.circuit_breaker_transitions x
  where b.state = 'open' and x.breaker_name = b.name and x.layer = 'state'
  order by x.number desc
  limit 1
) t on true
-- Its end is not proven yet by an acceptance.
left join lateral (
  select max(least(x.ended_at, x.until)) as ended_at,
    -- Null: of the whole account.
    case when bool_and(x.operation is not null) then r.operation end as operation
  from onetake.account_holds x
  where r.state = 'queued' and x.account = r.account and x.trial_ended_at is null
    and least(x.ended_at, x.until) <= s.now and (x.operation is null or x.operation = r.operation)
) q on true
left join lateral (
  select
    (
      select min(x.started_at) from onetake.submission_attempts x
      where x.account = r.account and x.slot_freed_at is null and x.settled_at is null
        and (q.operation is null or x.operation = q.operation)
    ) as since,
    -- No more than the sentence tells: a list asks for each of its rows.
    (
      select count(*)
      from (
        select from onetake.generation_requests x
        where x.account = r.account and x.state = 'queued' and (q.operation is null or x.operation = q.operation)
        limit 1001
      ) y
    ) as waiting
  where q.ended_at is not null
) w on true
left join lateral (
  select x.kind, x.since, x.reason
  from onetake.account_holds x
  where r.state = 'queued' and x.account = r.account and x.ended_at is null and (x.until is null or x.until > s.now)
    and (x.operation is null or x.operation = r.operation)
  order by x.since
  limit 1
) h on true
left join lateral (
  select
    w.windows,
    w.opens_at,
    g.slots,
    g.unknown
  from (
    select count(*) as windows, min(x.window_until) as opens_at
    from onetake.submission_attempts x
    where x.account = r.account and x.window_until > s.now
  ) w
  cross join (
    select count(*) as slots, count(*) filter (where x.certainty = 'unknown') as unknown
    from onetake.submission_attempts x
    where x.account = r.account and x.slot_freed_at is null and x.slot_until > s.now
  ) g
  where r.state = 'queued'
) l on true;
--> statement-breakpoint
-- Tasks that were accepted and belong to no request: each has been paid for, until `refunded` says otherwise.
create view onetake.unclaimed_tasks as
select
  f.request_id,
  r.account,
  r.operation,
  r.request_key,
  r.state,
  a.attempt,
  f.provider_task_id,
  r.provider_task_id as task_of_request,
  f.since,
  coalesce(f.outcome, 'processing') as status,
  f.refunded,
  -- Null: nobody looks any more.
  case when f.next_look_at is not null then f.follow_until end as followed_until
from onetake.followed_tasks f
join onetake.generation_requests r on r.id = f.request_id
join onetake.submission_attempts a on a.id = f.attempt_id
where f.provider_task_id is distinct from r.provider_task_id
order by f.since;
--> statement-breakpoint
-- What was paid for, came to nothing and has not been given back: tasks and streams that failed, and those that belong
-- to no request. Whether the money of a stream came back nobody can look up: it has no task. `refunded` false is the
-- provider's last word, null that it has said nothing. Oldest first.
create view onetake.money_not_returned as
select r.id as request_id, r.account, r.operation, r.request_key, r.provider_task_id,
  coalesce(r.failure_reason, 'unclaimed') as why,
  r.settled_at as since, r.refunded,
  -- Null: nobody looks any more.
  case when r.next_poll_at is not null then r.refund_watch_until end as watched_until
from onetake.generation_requests r
where r.state in ('failed', 'rejected', 'cancelled', 'expired') and r.refunded is not true
  and (r.provider_task_id is not null or r.stream_attempt_id is not null)
union all
select u.request_id, u.account, u.operation, u.request_key, u.provider_task_id, 'unclaimed', u.since, u.refunded,
  u.followed_until
from onetake.unclaimed_tasks u
where u.refunded is not true
union all
select r.id, r.account, r.operation, r.request_key, null, 'unclaimed', a.stream_unclaimed_at, null, null
from onetake.submission_attempts a
join onetake.generation_requests r on r.id = a.request_id
where a.stream_unclaimed_at is not null
order by since;
--> statement-breakpoint
-- Everything that wants a person, oldest first, with the command that ends it.
create view onetake.attention as
select 'request' as subject_kind, r.id::text as subject, 'outcome unknown: ' || r.state_reason as what,
  coalesce(a.settled_at, r.created_at) as since, 'onetake ambiguous show ' || r.id as command
from onetake.generation_requests r
left join lateral (
  select x.settled_at from onetake.submission_attempts x where x.request_id = r.id order by x.attempt desc limit 1
) a on true
where r.state = 'ambiguous'
union all
select 'request', r.id::text,
  case
    when r.attention = 'poll_failing' and r.poll_trouble = 'file_storage' then 'its files can''t be stored'
    when r.attention = 'poll_failing' and r.poll_trouble like 'file\_%'
      then 'its files can''t be brought in: ' || replace(substr(r.poll_trouble, 6), '_', ' ')
    when r.attention = 'poll_failing' then concat_ws(': ', 'poll failing', r.poll_trouble)
    else replace(r.attention, '_', ' ')
  end,
  r.attention_since,
  case
    -- The task is there and paid for; its key or the storage is what wants repair.
    when r.attention = 'poll_failing' and r.poll_trouble in ('http_401', 'http_402', 'http_403', 'file_storage')
      then 'onetake doctor'
    -- Only a person can say that nothing comes of it any more.
    when r.attention in ('overdue', 'poll_failing')
      then format('onetake ambiguous resolve %s --abandon --reason ''…''', r.id)
    when r.attention = 'not_refunded' then format('onetake requests acknowledge %s --reason ''…''', r.id)
    else 'onetake requests show ' || r.id
  end
from onetake.generation_requests r
where r.attention is not null
union all
-- One that is over in a moment wants nobody. Submissions go on.
select 'account', p.account, 'its tasks can''t be read: ' || p.reason, p.since, 'onetake doctor'
from onetake.read_pauses p
where p.since < clock_timestamp() - interval '1 minute'
union all
select 'account', concat_ws('/', h.account, h.operation), 'held: ' || replace(h.kind, '_', ' '), h.since,
  concat('onetake accounts release ', h.account, ' --operation ' || h.operation, ' --reason ''…''')
from onetake.account_holds h
where h.ended_at is null and (h.until is null or h.until > clock_timestamp())
union all
-- One that heals by itself soon wants nobody; one that doesn't, does.
select 'breaker', b.name, 'not closed for long: ' || b.why, b.not_closed_since, 'onetake breaker show ' || b.name
from onetake.breaker_status b
where b.not_closed_since < clock_timestamp() - interval '5 minutes' and not b.shadow
union all
-- Nothing is submitted from it until an operator says what happened.
select 'installation', current_database()::text, 'nothing is submitted: ' || case c.trouble
    when 'unconfirmed' then 'nobody has confirmed this database'
    when 'freezing' then 'a freeze of this database is not finished'
    when 'intent_lost' then 'this database has lost a submission that it had confirmed'
    when 'stepped_back' then 'this database was put back to an earlier state'
    when 'restored_tables' then 'the tables of this database were restored from a dump'
    when 'another_timeline' then 'this database was restored, or another server took over'
    else 'this is a copy of the database that was confirmed'
  end || ' (' || c.trouble || ')', coalesce(i.doubted_at, pg_postmaster_start_time()), 'onetake recover'
from onetake.check_installation() c
left join onetake.installation i on true
where c.trouble is not null
order by since;
--> statement-breakpoint
revoke execute on all functions in schema onetake from public;
--> statement-breakpoint
-- Pure, or no more than the caller may read or write: the trigger and the workers call them with their own rights.
grant execute on function onetake.is_legal_move(text, text), onetake.charge_of(uuid),
  onetake.enqueue(jsonb),
  onetake.next_round(text, text, text, integer), onetake.lasting_attention(text), onetake.paid_evidence(uuid),
  onetake.quarantine_end(uuid), onetake.attempt_of_task(uuid, text),
  onetake.plain_line(text), onetake.quoted_line(text), onetake.clock_text(timestamptz, timestamptz),
  onetake.override_in_force(text, timestamptz, timestamptz), onetake.note_expired_override(text),
  onetake.present_installation(), onetake.check_installation(uuid, bigint, pg_lsn, uuid),
  onetake.follow_other_tasks(uuid) to public;
