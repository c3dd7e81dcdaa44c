import { spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { chmodSync, chownSync, existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import pg from 'pg';
import { unusedPort } from './unused-port.ts';
import { waitFor } from './wait-for.ts';

const PLACES = [
  '/usr/sbin/pgbouncer',
  '/usr/bin/pgbouncer',
  '/usr/local/bin/pgbouncer',
  '/opt/homebrew/bin/pgbouncer',
];
const NOBODY = 65_534;

export interface Pgbouncer {
  /** The same database and user, through it. */
  readonly connectionString: string;
  /** Ends it in the midst of everything, and starts it again on its port. */
  restart(): Promise<void>;
  log(): string;
  [Symbol.asyncDispose](): Promise<void>;
}

export interface PgbouncerOptions {
  readonly mode: 'session' | 'transaction' | 'statement';
  readonly poolSize?: number;
}

/** Where it is installed, or why tests that need it can't run; they say so. */
export function findPgbouncer(): { readonly binary: string } | { readonly missing: string } {
  const binary = PLACES.find((place) => existsSync(place));
  if (binary === undefined) {
    return { missing: 'pgbouncer is not installed (apt-get install pgbouncer)' };
  }
  const { status } = spawnSync(binary, ['--version']);
  return status === 0 ? { binary } : { missing: `${binary} does not run` };
}

/** A pgbouncer of the test's own before the database that the connection string names. */
export async function startPgbouncer(target: string, options: PgbouncerOptions): Promise<Pgbouncer> {
  const found = findPgbouncer();
  if ('missing' in found) throw new Error(found.missing);
  const url = new URL(target);
  const directory = mkdtempSync(join(tmpdir(), 'onetake-pgbouncer-'));
  const port = await unusedPort();
  const database = url.pathname.slice(1);
  const file = (name: string) => join(directory, name);
  const login = `user=${url.username} password='${decodeURIComponent(url.password)}'`;
  writeFileSync(
    file('pgbouncer.ini'),
    `[databases]
${database} = host=${url.hostname} port=${url.port} dbname=${database} ${login}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = ${port}
unix_socket_dir =
auth_type = any
pool_mode = ${options.mode}
default_pool_size = ${options.poolSize ?? 3}
reserve_pool_size = 0
max_client_conn = 200
server_login_retry = 0.2
query_wait_timeout = 30
logfile = ${file('log')}
pidfile = ${file('pid')}
`,
  );
  // It refuses to run as root.
  const user = process.getuid?.() === 0 ? { uid: NOBODY, gid: NOBODY } : {};
  if ('uid' in user) {
    for (const path of [directory, file('pgbouncer.ini')]) chownSync(path, NOBODY, NOBODY);
  }
  chmodSync(directory, 0o700);
  url.hostname = '127.0.0.1';
  url.port = String(port);
  const connectionString = url.href;
  let running = spawn(found.binary, [file('pgbouncer.ini')], { ...user, cwd: '/', stdio: 'ignore' });
  const log = () => (existsSync(file('log')) ? readFileSync(file('log'), 'utf8') : '');
  const ready = () =>
    waitFor(
      async () => {
        const client = new pg.Client({ connectionString });
        client.on('error', () => undefined);
        try {
          await client.connect();
          await client.query('select 1');
          return true;
        } catch {
          return false;
        } finally {
          await client.end().catch(() => undefined);
        }
      },
      { what: 'pgbouncer to answer' },
    );
  const end = async () => {
    if (running.exitCode !== null || running.signalCode !== null) return;
    const ended = once(running, 'exit');
    running.kill('SIGKILL');
    await ended;
  };
  await ready();
  return {
    connectionString,
    async restart() {
      await end();
      rmSync(file('pid'), { force: true });
      running = spawn(found.binary, [file('pgbouncer.ini')], { ...user, cwd: '/', stdio: 'ignore' });
      await ready();
    },
    log,
    async [Symbol.asyncDispose]() {
      await end();
      rmSync(directory, { recursive: true, force: true });
    },
  };
}
