#!/bin/sh
# Runs the postgres tests, or any other command, against a private cluster of an installed PostgreSQL:
#   test/support/run-on-postgres.sh /usr/lib/postgresql/15/bin [command …]
# The command finds the cluster in TEST_DATABASE_URL, and its tools first on the PATH. The cluster is gone at the end.
set -eu

if [ $# -eq 0 ] || [ ! -x "$1/initdb" ]; then
  echo "usage: $0 <directory with initdb and pg_ctl> [command …]" >&2
  exit 2
fi
bin=$(cd "$1" && pwd)
shift
[ $# -gt 0 ] || set -- npm run test:postgres
cd "$(dirname "$0")/../.."

# PostgreSQL refuses to run as root.
as_owner() {
  if [ "$(id -u)" -eq 0 ]; then (cd / && runuser -u postgres -- "$@"); else "$@"; fi
}

directory=$(mktemp -d)
stop() {
  as_owner "$bin/pg_ctl" stop --pgdata="$directory/data" --mode=immediate --silent || true
  rm -rf "$directory"
}
trap stop EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

password=$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')
printf '%s\n' "$password" >"$directory/password"
[ "$(id -u)" -ne 0 ] || chown -R postgres "$directory"
port=$(npx node -e "const s = require('node:net').createServer().listen(0, '127.0.0.1', () => { console.log(s.address().port); s.close(); })")

as_owner "$bin/initdb" --pgdata="$directory/data" --username=postgres --pwfile="$directory/password" \
  --auth=scram-sha-256 --encoding=UTF8 --locale=C --no-sync >/dev/null
as_owner "$bin/pg_ctl" start --pgdata="$directory/data" --log="$directory/log" --wait --silent --options="-p $port \
  -c listen_addresses=127.0.0.1 -c unix_socket_directories=$directory -c max_connections=300 -c fsync=off" \
  || { cat "$directory/log" >&2; exit 1; }

"$bin/postgres" --version >&2
PATH="$bin:$PATH" TEST_DATABASE_URL="postgresql://postgres:$password@127.0.0.1:$port/postgres" "$@"
