-- The app's own table. onetake keeps what it knows in its own schema; this row says whose song it is.
create table songs (
  request_id uuid primary key,
  user_id text not null,
  title text not null,
  created_at timestamptz not null default now()
);
