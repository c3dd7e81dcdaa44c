import { renameSync, rmSync } from 'node:fs';
import { createServer } from 'node:net';
import { setTimeout as delay } from 'node:timers/promises';
import { OnetakeError } from '../core/errors.ts';
import type { EmbeddedPostgresClass } from './binaries.ts';
import { findPostmaster } from './postmaster.ts';
import type { ProcessIdentity } from './process-identity.ts';

export const SUPERUSER = 'postgres';

const START_LIMIT_MS = 60_000;
const PORT_ATTEMPTS = 5;
const DEFAULT_PORT = 5432;
const LOG_TAIL_LINES = 20;

export interface Cluster {
  readonly EmbeddedPostgres: EmbeddedPostgresClass;
  readonly dataDirectory: string;
  readonly password: string;
  /** Tried first; with `portIsFixed` it is the only one. */
  readonly port: number | null;
  readonly portIsFixed: boolean;
  readonly durable: boolean;
  readonly createUser: boolean;
}

type Server = InstanceType<EmbeddedPostgresClass>;

/** Appears at its place only when it is complete, so that an interrupted run leaves nothing half-made there. */
export async function initialiseCluster(cluster: Cluster, temporaryDirectory: string): Promise<void> {
  const log = createLog();
  const unfinished = { ...cluster, dataDirectory: `${cluster.dataDirectory}.new` };
  rmSync(unfinished.dataDirectory, { recursive: true, force: true });
  // The package writes the password into the temporary directory, for anyone to read while initdb runs.
  const restore = overrideTemporaryDirectory(temporaryDirectory);
  try {
    await createServerHandle(unfinished, DEFAULT_PORT, log).initialise();
  } catch (error) {
    throw failed(
      'PostgreSQL could not create its data directory',
      log,
      (error as Error | undefined)?.message,
    );
  } finally {
    restore();
  }
  renameSync(unfinished.dataDirectory, cluster.dataDirectory);
}

export async function startCluster(cluster: Cluster): Promise<{ port: number; postmaster: ProcessIdentity }> {
  for (let attempt = 1; ; attempt += 1) {
    const port = await choosePort(
      attempt === 1 || cluster.portIsFixed ? cluster.port : null,
      cluster.portIsFixed,
    );
    const log = createLog();
    const server = createServerHandle(cluster, port, log);
    // Between our probe and its bind another process may take the port.
    const portWasTaken = () =>
      !cluster.portIsFixed && attempt < PORT_ATTEMPTS && log.includes('could not bind');
    try {
      await becomesReady(server, log);
    } catch (error) {
      if (portWasTaken()) continue;
      throw failed(`PostgreSQL did not start on port ${port}`, log, (error as Error | undefined)?.message);
    }
    const postmaster = findPostmaster(cluster.dataDirectory);
    if (postmaster === undefined) throw failed('PostgreSQL ended as soon as it had started', log);
    return { port, postmaster };
  }
}

function createServerHandle(cluster: Cluster, port: number, log: Log): Server {
  return new cluster.EmbeddedPostgres({
    databaseDir: cluster.dataDirectory,
    port,
    user: SUPERUSER,
    password: cluster.password,
    authMethod: 'scram-sha-256',
    // The package would delete the directory on its own; ours is removed with its workspace.
    persistent: true,
    createPostgresUser: cluster.createUser,
    initdbFlags: [
      '--encoding=UTF8',
      '--locale=C',
      '--no-instructions',
      ...(cluster.durable ? [] : ['--no-sync']),
    ],
    postgresFlags: serverSettings(cluster.durable).flatMap((setting) => ['-c', setting]),
    onLog: log.add,
    onError: (error: unknown) => log.add(String(error)),
  });
}

function serverSettings(durable: boolean): string[] {
  return [
    'listen_addresses=127.0.0.1',
    // No socket file: the default directory may not exist, and its path has a length limit.
    'unix_socket_directories=',
    'max_connections=300',
    'logging_collector=off',
    'lc_messages=C',
    // The log tail goes into errors: it must not carry statements, which hold prompts.
    'log_min_error_statement=panic',
    'log_error_verbosity=terse',
    ...(durable ? [] : ['fsync=off', 'full_page_writes=off']),
  ];
}

/**
 * The package looks for the ready line in single chunks of the log, so a line cut in two would go unseen:
 * the whole log is looked at here as well. It rejects with undefined when the server ends.
 */
async function becomesReady(server: Server, log: Log): Promise<void> {
  const settled = new AbortController();
  const watch = async (): Promise<void> => {
    for (const end = performance.now() + START_LIMIT_MS; performance.now() < end; ) {
      if (log.includes('database system is ready to accept connections')) return;
      await delay(20, undefined, { signal: settled.signal });
    }
    throw new Error(`not ready within ${START_LIMIT_MS / 1000} seconds`);
  };
  try {
    await Promise.race([server.start(), watch()]);
  } finally {
    settled.abort();
  }
}

async function choosePort(preferred: number | null, isFixed: boolean): Promise<number> {
  if (preferred !== null && (await listenOnce(preferred)) !== undefined) return preferred;
  if (preferred !== null && isFixed) {
    throw new OnetakeError('embedded_postgres_failed', `port ${preferred} is taken by another process`, {
      hint: 'Choose another port, or none.',
    });
  }
  for (;;) {
    const port = await listenOnce(0);
    if (port !== undefined && port !== DEFAULT_PORT) return port;
  }
}

/** The port that could be listened on, or undefined when it is taken. */
function listenOnce(port: number): Promise<number | undefined> {
  return new Promise((resolve) => {
    const server = createServer();
    server.once('error', () => resolve(undefined));
    server.listen({ host: '127.0.0.1', port }, () => {
      const address = server.address();
      server.close(() => resolve(address !== null && typeof address === 'object' ? address.port : undefined));
    });
  });
}

function overrideTemporaryDirectory(directory: string): () => void {
  const names = ['TMPDIR', 'TEMP', 'TMP'];
  const before = names.map((name) => [name, process.env[name]] as const);
  for (const name of names) process.env[name] = directory;
  return () => {
    for (const [name, value] of before) {
      if (value === undefined) delete process.env[name];
      else process.env[name] = value;
    }
  };
}

interface Log {
  readonly add: (chunk: string) => void;
  readonly includes: (words: string) => boolean;
  readonly tail: () => string;
}

function createLog(): Log {
  let text = '';
  return {
    add: (chunk) => {
      text = (text + chunk).slice(-16_384);
    },
    includes: (words) => text.includes(words),
    tail: () => text.trimEnd().split('\n').slice(-LOG_TAIL_LINES).join('\n'),
  };
}

function failed(what: string, log: Log, why?: string): OnetakeError {
  const tail = log.tail();
  const reason = why === undefined || tail.includes(why) ? '' : `: ${why}`;
  return new OnetakeError('embedded_postgres_failed', `${what}${reason}${tail === '' ? '' : `\n${tail}`}`);
}
