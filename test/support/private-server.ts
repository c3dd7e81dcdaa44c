import { type ChildProcess, execFileSync, spawn } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import {
  chmodSync,
  closeSync,
  mkdtempSync,
  openSync,
  readFileSync,
  rmSync,
  statSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import pg from 'pg';
import { startEmbeddedPostgres } from '../../src/embedded/start-embedded-postgres.ts';
import { openTestDatabase, type TestDatabase } from './test-database.ts';
import { unusedPort } from './unused-port.ts';
import { waitFor } from './wait-for.ts';

export type Manner = 'fast' | 'immediate' | 'kill';

/** A PostgreSQL of one test file's own, which may be ended in any manner and started again on its port. */
export interface PrivateServer {
  readonly port: number;
  /** Superuser, maintenance database. */
  readonly connectionString: string;
  /** `kill`: SIGKILL of the postmaster alone; its children notice by themselves. */
  stop(manner: Manner): Promise<void>;
  start(settings?: Readonly<Record<string, string>>): Promise<void>;
  query<Row extends pg.QueryResultRow>(text: string): Promise<Row[]>;
  /** An empty database. */
  createDatabase(): Promise<TestDatabase>;
  /** A hot standby of this server, which restarts for it. */
  addStandby(): Promise<PrivateServer>;
  /** Copies its data, for which it restarts; the returned function ends it and puts them back, for the next start. */
  copyData(): Promise<() => Promise<void>>;
  log(): string;
  [Symbol.asyncDispose](): Promise<void>;
}

interface Place {
  readonly binary: string;
  readonly directory: string;
  readonly data: string;
  readonly password: string;
  readonly port: number;
}

/** So that a test run that is killed leaves no server behind: the shell sees its stdin end. */
const GUARD = `exec 3<&0
"$@" <&- 3<&- &
server=$!
{ cat <&3 >/dev/null; kill -QUIT $server 2>/dev/null; } &
wait $server`;

export async function startPrivateServer(
  settings: Readonly<Record<string, string>> = {},
): Promise<PrivateServer> {
  const directory = mkdtempSync(join(tmpdir(), 'onetake-private-'));
  // The system user `postgres` must pass through.
  chmodSync(directory, 0o711);
  const made = await startEmbeddedPostgres({ mode: 'persistent', directory: join(directory, 'cluster') });
  const binary = execFileSync('readlink', [`/proc/${made.postmasterPid}/exe`], { encoding: 'utf8' }).trim();
  const data = readFileSync(`/proc/${made.postmasterPid}/cmdline`, 'utf8')
    .split('\0')
    .find((_, index, all) => all[index - 1] === '-D');
  if (data === undefined) throw new Error('the server does not say where its data are');
  const password = new URL(made.connectionString).password;
  await made.stop();
  return open({ binary, directory, data, password, port: made.port }, settings);
}

async function open(place: Place, first: Readonly<Record<string, string>>): Promise<PrivateServer> {
  const { binary, directory, data, password, port } = place;
  const connectionString = `postgresql://postgres:${password}@127.0.0.1:${port}/postgres`;
  const { uid, gid } = statSync(data);
  const logFile = join(directory, `server-${port}.log`);
  let guard: ChildProcess | undefined;
  let latest = first;

  const spawnOnce = (): ChildProcess => {
    const all: Record<string, string> = {
      port: String(port),
      listen_addresses: '127.0.0.1',
      unix_socket_directories: '',
      fsync: 'off',
      lc_messages: 'C',
      max_connections: '100',
      ...latest,
    };
    const log = openSync(logFile, 'a');
    const flags = Object.entries(all).flatMap(([name, value]) => ['-c', `${name}=${value}`]);
    const child = spawn('/bin/sh', ['-c', GUARD, 'sh', binary, '-D', data, ...flags], {
      ...(process.getuid?.() === 0 ? { uid, gid } : {}),
      cwd: '/',
      env: { PATH: process.env['PATH'] ?? '', LC_ALL: 'C' },
      stdio: ['pipe', log, log],
    });
    closeSync(log);
    child.stdin?.on('error', () => undefined);
    child.once('exit', () => child.stdin?.destroy());
    return child;
  };
  const hasEnded = (child: ChildProcess) => child.exitCode !== null || child.signalCode !== null;
  const answers = async (): Promise<boolean> => {
    const client = new pg.Client({ connectionString, connectionTimeoutMillis: 2_000 });
    client.on('error', () => undefined);
    try {
      await client.connect();
      return true;
    } catch {
      return false;
    } finally {
      await client.end().catch(() => undefined);
    }
  };
  const server: PrivateServer = {
    port,
    connectionString,
    async start(settings) {
      if (settings !== undefined) latest = settings;
      guard = spawnOnce();
      await waitFor(
        async () => {
          // After a kill -9 its children may still hold the shared memory for a moment.
          if (guard === undefined || hasEnded(guard)) guard = spawnOnce();
          return answers();
        },
        { what: `the private server to start; ${server.log().slice(-400)}`, timeoutMs: 40_000 },
      );
    },
    async stop(manner) {
      if (guard === undefined || hasEnded(guard)) return;
      const ended = once(guard, 'exit');
      const pid = Number.parseInt(readFileSync(join(data, 'postmaster.pid'), 'utf8'), 10);
      process.kill(pid, { fast: 'SIGINT', immediate: 'SIGQUIT', kill: 'SIGKILL' }[manner]);
      await ended;
      guard = undefined;
    },
    async query<Row extends pg.QueryResultRow>(text: string) {
      const client = new pg.Client({ connectionString });
      client.on('error', () => undefined);
      await client.connect();
      try {
        return (await client.query<Row>(text)).rows;
      } finally {
        await client.end();
      }
    },
    async createDatabase() {
      const name = `private_${randomBytes(6).toString('hex')}`;
      await server.query(`create database ${name} template template0 encoding 'UTF8' locale 'C'`);
      const url = new URL(connectionString);
      url.pathname = `/${name}`;
      // It goes with the server.
      return openTestDatabase(url.href, async () => undefined);
    },
    async addStandby() {
      await server.stop('fast');
      const copy = join(directory, `standby-${Date.now()}`);
      execFileSync('cp', ['-a', data, copy]);
      rmSync(join(copy, 'postmaster.pid'), { force: true });
      writeFileSync(join(copy, 'standby.signal'), '');
      await server.start();
      return open(
        { ...place, data: copy, port: await unusedPort() },
        {
          ...latest,
          primary_conninfo: `host=127.0.0.1 port=${port} user=postgres password=${password}`,
        },
      );
    },
    async copyData() {
      await server.stop('fast');
      const copy = join(directory, `copy-${randomBytes(4).toString('hex')}`);
      execFileSync('cp', ['-a', data, copy]);
      await server.start();
      return async () => {
        await server.stop('immediate');
        rmSync(data, { recursive: true, force: true });
        execFileSync('cp', ['-a', copy, data]);
      };
    },
    log: () => readFileSync(logFile, { encoding: 'utf8', flag: 'a+' }),
    async [Symbol.asyncDispose]() {
      await server.stop('immediate');
      rmSync(directory, { recursive: true, force: true, maxRetries: 5, retryDelay: 50 });
    },
  };
  await server.start();
  return server;
}
