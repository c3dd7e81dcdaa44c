import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { extname, join } from 'node:path';
import { createInterface } from 'node:readline';
import { pathToFileURL } from 'node:url';
import { DemoFailure } from './failure.ts';

/** Where the children stand and what they know: nothing of this process's environment. */
export interface ChildSurroundings {
  /** Holds `onetake.config.json`, so that the commands need no `--config`. */
  readonly directory: string;
  readonly environment: Readonly<Record<string, string>>;
}

export interface ServiceChild {
  readonly name: string;
  readonly pid: number;
  /** SIGTERM and a while to drain, then SIGKILL to its whole process group. */
  stop(): Promise<void>;
}

export interface ServiceOptions extends ChildSurroundings {
  readonly name: string;
  readonly command: readonly string[];
  /** Each JSON line of its stdout. */
  readonly onEvent: (line: Readonly<Record<string, unknown>>) => void;
  /** It ended, though nobody asked it to. */
  readonly onDeath: (failure: DemoFailure) => void;
}

const STDERR_LIMIT = 16_384;
const DRAIN_LIMIT_MS = 6_000;
const COMMAND_LIMIT_MS = 30_000;

/** One of the CLI's own long-running commands, in a process (and a process group) of its own. */
export function startService(options: ServiceOptions): ServiceChild {
  const child = spawnCli(options.command, options);
  const exited = once(child, 'close').catch(() => undefined);
  let isWanted = true;
  let stderr = '';
  child.stderr?.setEncoding('utf8').on('data', (chunk: string) => {
    stderr = (stderr + chunk).slice(-STDERR_LIMIT);
  });
  if (child.stdout !== null) {
    createInterface({ input: child.stdout }).on('line', (line) => {
      const event = parseLine(line);
      if (event !== undefined) options.onEvent(event);
    });
  }
  child.once('error', (error) => {
    options.onDeath(new DemoFailure(`${options.name} could not be started: ${error.message}.`));
  });
  child.once('close', (code, signal) => {
    if (isWanted) {
      const how = signal === null ? `with exit code ${code}` : `by ${signal}`;
      options.onDeath(new DemoFailure(`${options.name} (pid ${child.pid}) ended ${how}.`, stderr));
    }
  });
  return {
    name: options.name,
    pid: child.pid ?? -1,
    async stop() {
      isWanted = false;
      await endGroup(child, exited, DRAIN_LIMIT_MS);
    },
  };
}

export interface CommandResult {
  readonly exitCode: number | null;
  readonly stdout: string;
  readonly stderr: string;
}

/** Runs one CLI command to its end. */
export async function runCommand(
  command: readonly string[],
  surroundings: ChildSurroundings,
  signal: AbortSignal,
): Promise<CommandResult> {
  // What it prints goes to a person, through us.
  const environment = { ...surroundings.environment, COLUMNS: '80' };
  const child = spawnCli(command, { ...surroundings, environment });
  const exited = once(child, 'close').catch(() => undefined);
  let [stdout, stderr] = ['', ''];
  child.stdout?.setEncoding('utf8').on('data', (chunk: string) => {
    stdout += chunk;
  });
  child.stderr?.setEncoding('utf8').on('data', (chunk: string) => {
    stderr += chunk;
  });
  const limit = AbortSignal.any([signal, AbortSignal.timeout(COMMAND_LIMIT_MS)]);
  const kill = () => killGroup(child, 'SIGKILL');
  limit.addEventListener('abort', kill, { once: true });
  await exited;
  limit.removeEventListener('abort', kill);
  signal.throwIfAborted();
  return { exitCode: child.exitCode, stdout, stderr };
}

function spawnCli(command: readonly string[], { directory, environment }: ChildSurroundings): ChildProcess {
  const leash = join(import.meta.dirname, `end-with-parent${extname(import.meta.filename)}`);
  return spawn(
    process.execPath,
    ['--import', pathToFileURL(leash).href, process.argv[1] as string, ...command],
    {
      cwd: directory,
      env: environment,
      // Of a group of its own: a Ctrl-C in the terminal is for the demo, which ends its children in order.
      detached: true,
      stdio: ['pipe', 'pipe', 'pipe'],
      windowsHide: true,
    },
  ).on('error', () => undefined);
}

async function endGroup(child: ChildProcess, exited: Promise<unknown>, limitMs: number): Promise<void> {
  if (!hasEnded(child)) killGroup(child, 'SIGTERM');
  const timer = setTimeout(() => killGroup(child, 'SIGKILL'), limitMs);
  await exited;
  clearTimeout(timer);
}

function hasEnded(child: ChildProcess): boolean {
  return child.exitCode !== null || child.signalCode !== null || child.pid === undefined;
}

function killGroup(child: ChildProcess, signal: NodeJS.Signals): void {
  if (hasEnded(child)) return;
  try {
    process.kill(-(child.pid as number), signal);
  } catch {
    // No groups on this system, or it has just ended.
    child.kill(signal);
  }
}

function parseLine(line: string): Readonly<Record<string, unknown>> | undefined {
  try {
    const value: unknown = JSON.parse(line);
    return typeof value === 'object' && value !== null ? (value as Record<string, unknown>) : undefined;
  } catch {
    return undefined;
  }
}
