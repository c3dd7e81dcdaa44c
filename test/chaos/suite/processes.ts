import { type ChildProcess, spawn } from 'node:child_process';
import { readdirSync, readFileSync, readlinkSync } from 'node:fs';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { pathToFileURL } from 'node:url';
import { CANARY } from './settings.ts';
import type { TcpProxy } from './tcp-proxy.ts';

const REPOSITORY = join(import.meta.dirname, '..', '..', '..');
const LEASH = join(REPOSITORY, 'src/cli/demo/end-with-parent.ts');
const CLI = join(REPOSITORY, 'src/cli/onetake.ts');
const KEPT_LINES = 400;
const START_AGAIN_MS = 500;
/** No product of ours prints any of these. */
const CRASH_WORDS = /unhandled|uncaught|\(node:\d+\)|at .*\.[jt]s:\d+:\d+/i;

export interface ProcessOptions {
  readonly name: string;
  readonly role: 'worker' | 'poller';
  /** Holds `onetake.config.json`. */
  readonly directory: string;
  readonly environment: Readonly<Record<string, string>>;
  /** This process alone reaches the database through it. */
  readonly proxy: TcpProxy;
  readonly onEvent: (name: string) => void;
  /** What no process may do: end by itself, print a secret or a stack. */
  readonly onFault: (what: string) => void;
}

/** One onetake process as an operations team runs it: the command itself, signals, and what it prints. */
export class ManagedProcess {
  readonly name: string;
  readonly role: 'worker' | 'poller';
  readonly proxy: TcpProxy;
  /** Since when it is the same operating-system process. */
  startedAt = 0;
  isStopped = false;
  stoppedUntil = 0;
  readonly output: string[] = [];
  readonly #options: ProcessOptions;
  #child: ChildProcess | undefined;
  #exited: Promise<string> = Promise.resolve('never started');
  #isExpectedToEnd = false;
  #isKilled = false;
  #isUp = false;
  #again: NodeJS.Timeout | undefined;

  constructor(options: ProcessOptions) {
    this.#options = options;
    this.name = options.name;
    this.role = options.role;
    this.proxy = options.proxy;
  }

  /** It has said that it runs. */
  get isUp(): boolean {
    return this.#isUp;
  }

  /** The suite has killed it, and not started it again. */
  get isKilled(): boolean {
    return this.#isKilled;
  }

  get pid(): number | undefined {
    return this.#child?.pid;
  }

  start(): void {
    // Two incidents may have ended the same process, and each starts it again.
    if (this.#child !== undefined) return;
    const { directory, environment, role } = this.#options;
    const args = ['--import', pathToFileURL(LEASH).href, '--', CLI, role];
    const child = spawn(process.execPath, args, {
      cwd: directory,
      env: { PATH: process.env['PATH'] ?? '', ...environment },
      // A group of its own: Ctrl-C is for the suite, which ends its processes in order.
      detached: true,
      stdio: ['pipe', 'pipe', 'pipe'],
    });
    this.#child = child;
    this.#isExpectedToEnd = false;
    this.#isKilled = false;
    this.#isUp = false;
    this.startedAt = Date.now();
    child.stdin.on('error', () => undefined);
    createInterface({ input: child.stdout }).on('line', (line) => this.#read(line));
    createInterface({ input: child.stderr }).on('line', (line) => this.#readStderr(line));
    this.#exited = new Promise((resolve) => {
      child.once('error', (error) => resolve(`could not start: ${error.message}`));
      child.once('close', (code, signal) => resolve(signal ?? `exit code ${code}`));
    });
    void this.#exited.then((how) => {
      if (this.#child === child) this.#child = undefined;
      if (this.#isExpectedToEnd) return;
      // Without a database it can't begin, says so and ends with 1: whatever runs it tries again.
      if (!this.#isUp && how === 'exit code 1') this.#again = setTimeout(() => this.start(), START_AGAIN_MS);
      else this.#options.onFault(`${this.name} ended by itself: ${how}`);
    });
  }

  /** Resolves with how it ended. */
  async kill(): Promise<string> {
    this.#isExpectedToEnd = true;
    this.#isKilled = true;
    clearTimeout(this.#again);
    this.#signal('SIGKILL');
    this.isStopped = false;
    return this.#exited;
  }

  /** SIGTERM, so many times; resolves with how it ended, or undefined when it did not end in time or `kill` did. */
  async terminate(times: number, limitMs: number): Promise<string | undefined> {
    this.#isExpectedToEnd = true;
    clearTimeout(this.#again);
    for (let n = 0; n < times; n++) this.#signal('SIGTERM');
    let timer: NodeJS.Timeout | undefined;
    const late = new Promise<undefined>((resolve) => {
      timer = setTimeout(resolve, limitMs, undefined);
    });
    const how = await Promise.race([this.#exited, late]);
    clearTimeout(timer);
    return this.#isKilled ? undefined : how;
  }

  pause(): void {
    this.isStopped = true;
    this.#signal('SIGSTOP');
  }

  resume(): void {
    if (!this.isStopped) return;
    this.isStopped = false;
    this.stoppedUntil = Date.now();
    this.#signal('SIGCONT');
  }

  /** Resident memory in MB and open sockets; undefined where the system does not say. */
  usage(): { readonly rssMb: number; readonly sockets: number } | undefined {
    if (this.pid === undefined) return undefined;
    try {
      const pages = Number(readFileSync(`/proc/${this.pid}/statm`, 'utf8').split(' ')[1]);
      const fds = readdirSync(`/proc/${this.pid}/fd`);
      const sockets = fds.filter((fd) => linkOf(`/proc/${this.pid}/fd/${fd}`).startsWith('socket:')).length;
      return { rssMb: (pages * 4_096) / 1_048_576, sockets };
    } catch {
      return undefined;
    }
  }

  #signal(signal: NodeJS.Signals): void {
    const pid = this.#child?.pid;
    if (pid === undefined) return;
    try {
      process.kill(-pid, signal);
    } catch {
      // It has just ended.
    }
  }

  #read(line: string): void {
    this.#keep(line);
    try {
      const { event } = JSON.parse(line) as { event?: unknown };
      if (event === 'process:started') this.#isUp = true;
      if (typeof event === 'string') this.#options.onEvent(event);
    } catch {
      this.#options.onFault(`${this.name} printed a line that is no JSON`);
    }
  }

  #readStderr(line: string): void {
    this.#keep(`stderr: ${line}`);
    if (CRASH_WORDS.test(line)) this.#options.onFault(`${this.name} printed a stack or a warning`);
  }

  #keep(line: string): void {
    if (line.includes(CANARY)) this.#options.onFault(`${this.name} printed a secret or a prompt`);
    this.output.push(`${new Date().toISOString()} ${line}`);
    if (this.output.length > KEPT_LINES) this.output.shift();
  }
}

function linkOf(path: string): string {
  try {
    return readlinkSync(path);
  } catch {
    return '';
  }
}
