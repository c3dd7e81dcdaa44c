import { type ChildProcess, spawn } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { waitFor } from './wait-for.ts';

const REPOSITORY = join(import.meta.dirname, '..', '..');

export type ChildOptions = (
  | { readonly file: string }
  /** Runs from the repository's root: it imports `./src/…`. */
  | { readonly module: string }
) & {
  readonly args?: readonly string[];
  /** Added to this process's own; undefined removes a name. */
  readonly env?: Readonly<Record<string, string | undefined>>;
  readonly cwd?: string;
  readonly execArgv?: readonly string[];
};

export interface ChildExit {
  readonly code: number | null;
  readonly signal: NodeJS.Signals | null;
}

export interface Child {
  readonly pid: number;
  readonly process: ChildProcess;
  /** The JSON lines of its stdout so far. */
  readonly messages: readonly unknown[];
  readonly exited: Promise<ChildExit>;
  stdout(): string;
  stderr(): string;
  /** Writes one JSON line to its stdin. */
  send(value: unknown): void;
  /** The first JSON line that fits, also one that came before. Fails when the child ends without it. */
  message<T>(fits: (message: T) => boolean, what: string, timeoutMs?: number): Promise<T>;
  kill(signal?: NodeJS.Signals): Promise<ChildExit>;
  [Symbol.asyncDispose](): Promise<void>;
}

/** An operating-system process of its own, killed at the end of the scope that holds it with `await using`. */
export function startChild(options: ChildOptions): Child {
  const program =
    'file' in options ? [options.file] : ['--input-type=module-typescript', '--eval', options.module];
  const child = spawn(process.execPath, [...(options.execArgv ?? []), ...program, ...(options.args ?? [])], {
    cwd: options.cwd ?? REPOSITORY,
    env: { ...process.env, ...options.env },
    stdio: ['pipe', 'pipe', 'pipe'],
  });
  let [stdout, stderr] = ['', ''];
  const messages: unknown[] = [];
  let exit: ChildExit | undefined;
  // `close`, not `exit`: only then has everything that it wrote been read.
  const exited = new Promise<ChildExit>((resolve, reject) => {
    child.once('error', reject);
    child.once('close', (code, signal) => {
      exit = { code, signal };
      resolve(exit);
    });
  });
  exited.catch(() => undefined);
  child.stdin.on('error', () => undefined);
  child.stderr.setEncoding('utf8').on('data', (chunk: string) => {
    stderr += chunk;
  });
  createInterface({ input: child.stdout }).on('line', (line) => {
    stdout += `${line}\n`;
    const message = parse(line);
    if (message !== undefined) messages.push(message);
  });

  const kill = (signal: NodeJS.Signals = 'SIGKILL'): Promise<ChildExit> => {
    child.kill(signal);
    return exited;
  };
  return {
    pid: child.pid as number,
    process: child,
    messages,
    exited,
    stdout: () => stdout,
    stderr: () => stderr,
    send: (value) => void child.stdin.write(`${JSON.stringify(value)}\n`),
    message: <T>(fits: (message: T) => boolean, what: string, timeoutMs?: number) =>
      waitFor(
        () => {
          const found = messages.find((message) => fits(message as T)) as T | undefined;
          if (found === undefined && exit !== undefined) {
            throw new Error(
              `the child ended (${exit.signal ?? exit.code}) before ${what}\n${stdout}${stderr}`,
            );
          }
          return found;
        },
        timeoutMs === undefined ? { what } : { what, timeoutMs },
      ),
    kill,
    [Symbol.asyncDispose]: async () => {
      if (exit === undefined) await kill();
    },
  };
}

/** False for a zombie, which signals still reach until its parent reaps it. */
export function processIsAlive(pid: number): boolean {
  try {
    process.kill(pid, 0);
  } catch {
    return false;
  }
  if (process.platform !== 'linux') return true;
  try {
    return !/^\d+ \(.*\) [ZX] /s.test(readFileSync(`/proc/${pid}/stat`, 'utf8'));
  } catch {
    return false;
  }
}

function parse(line: string): unknown {
  try {
    return JSON.parse(line);
  } catch {
    return undefined;
  }
}
