import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { onTestFinished } from 'vitest';
import type { OnetakeConfig } from '../../src/runtime/define-config.ts';
import { type Child, startChild } from '../support/children.ts';

const PROGRAM = join(import.meta.dirname, '..', '..', 'src', 'cli', 'onetake.ts');

export interface CliResult {
  readonly code: number | null;
  readonly stdout: string;
  readonly stderr: string;
}

export interface Cli {
  readonly directory: string;
  /** Starts the command and leaves it to the test, which kills it at the latest. */
  start(args: readonly string[], env?: Env): Child;
  run(args: readonly string[], env?: Env): Promise<CliResult>;
  /** Runs with `--json` and parses; fails unless stdout is exactly one JSON value. */
  json<Value>(args: readonly string[], env?: Env): Promise<Value>;
  /** The `error` object that `--json` puts on stderr, and the exit code. */
  error(args: readonly string[], env?: Env): Promise<CliError>;
}

export interface CliError {
  readonly exitCode: number | null;
  readonly code: string;
  readonly message: string;
  readonly hint: string | null;
  readonly problems?: readonly unknown[];
}

export type Env = Readonly<Record<string, string | undefined>>;

/** The real command line in a directory of its own, with nothing of this machine's environment that it reads. */
export function createCli(options: { readonly config?: OnetakeConfig; readonly env?: Env } = {}): Cli {
  const directory = mkdtempSync(join(tmpdir(), 'onetake-cli-'));
  onTestFinished(() => rmSync(directory, { recursive: true, force: true }));
  if (options.config !== undefined) {
    writeFileSync(join(directory, 'onetake.config.json'), JSON.stringify(options.config));
  }
  const start = (args: readonly string[], env: Env = {}): Child => {
    const child = startChild({
      file: PROGRAM,
      args,
      cwd: directory,
      env: {
        DATABASE_URL: undefined,
        SONILO_API_KEY: undefined,
        ONETAKE_ACTOR: 'ada',
        FORCE_COLOR: undefined,
        NO_COLOR: undefined,
        COLUMNS: undefined,
        ...options.env,
        ...env,
      },
    });
    onTestFinished(() => child[Symbol.asyncDispose]());
    return child;
  };
  const run = async (args: readonly string[], env?: Env): Promise<CliResult> => {
    const child = start(args, env);
    child.process.stdin?.end();
    const { code } = await child.exited;
    return { code, stdout: child.stdout(), stderr: child.stderr() };
  };
  return {
    directory,
    start,
    run,
    async json<Value>(args: readonly string[], env?: Env) {
      const { stdout, stderr } = await run([...args, '--json'], env);
      try {
        return JSON.parse(stdout) as Value;
      } catch {
        throw new Error(`stdout is not one JSON value:\n${stdout}\nstderr:\n${stderr}`);
      }
    },
    async error(args, env) {
      const { code: exitCode, stdout, stderr } = await run([...args, '--json'], env);
      if (stdout !== '') throw new Error(`an error wrote to stdout: ${stdout}`);
      return { exitCode, ...(JSON.parse(stderr) as { error: Omit<CliError, 'exitCode'> }).error };
    },
  };
}

/** The widest line, in columns. */
export function widestLine(text: string): number {
  return Math.max(...text.split('\n').map((line) => Array.from(line).length));
}
