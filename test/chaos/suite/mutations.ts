import { type ChildProcess, spawn } from 'node:child_process';
import { cpSync, mkdtempSync, readFileSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { parseArgs } from 'node:util';
import { MUTATIONS, type Mutation } from './mutation-list.ts';

// Breaks a private copy of the product in one place at a time and lets the chaos suite, or named tests, find
// it. A mutation that nobody catches is a hole in the suite; one that does not apply has to be written anew.

const USAGE = `Usage: npm run chaos:mutations -- [NAME ...] [--minutes M] [--seed S] [--list] [--json]

Applies each mutation (or those named) to a copy of the tree and runs the chaos
suite, or the tests that are to catch it. Exit code: 0 all were caught, 1 one
was not, 2 wrong options or a mutation that does not apply.
`;
const ROOT = join(import.meta.dirname, '..', '..', '..');
const COPIED = [
  'src',
  'test',
  'migrations',
  'docs',
  'package.json',
  'tsconfig.json',
  'README.md',
  'drizzle.config.ts',
];
const LIMIT_MS = 600_000;

interface Caught {
  readonly name: string;
  readonly by: 'chaos suite' | 'tests' | 'nobody' | 'does not apply';
  /** Rules of the suite that were violated, or files that failed. */
  readonly what: string;
  /** From the start of the chaos, or of the tests. */
  readonly afterSeconds: number | null;
}

let running: ChildProcess | undefined;
const interrupted = new AbortController();
for (const signal of ['SIGINT', 'SIGTERM'] as const) {
  process.on(signal, () => {
    interrupted.abort();
    running?.kill(signal);
  });
}
process.exitCode = await main();

async function main(): Promise<number> {
  const parsed = parse();
  if (typeof parsed === 'number') return parsed;
  const { names, minutes, seed, json } = parsed;
  const chosen = names.length === 0 ? MUTATIONS : MUTATIONS.filter(({ name }) => names.includes(name));
  const results: Caught[] = [];
  for (const mutation of chosen) {
    if (interrupted.signal.aborted) return 130;
    const caught = await tryOne(mutation, minutes, seed);
    results.push(caught);
    process.stderr.write(`${line(caught)}\n`);
  }
  process.stdout.write(json ? `${JSON.stringify(results)}\n` : `\n${results.map(line).join('\n')}\n`);
  if (results.some(({ by }) => by === 'does not apply')) return 2;
  return results.every(({ by }) => by !== 'nobody') ? 0 : 1;
}

function parse() {
  const known = new Set(MUTATIONS.map(({ name }) => name));
  try {
    const { values, positionals } = parseArgs({
      allowPositionals: true,
      options: {
        minutes: { type: 'string', default: '3' },
        seed: { type: 'string', default: 'mutation' },
        list: { type: 'boolean' },
        json: { type: 'boolean', default: false },
        help: { type: 'boolean' },
      },
    });
    if (values.help === true) process.stdout.write(USAGE);
    if (values.list === true) {
      for (const { name, breaks } of MUTATIONS) process.stdout.write(`${name.padEnd(32)}${breaks}\n`);
    }
    if (values.help === true || values.list === true) return 0;
    const strange = positionals.find((name) => !known.has(name));
    if (strange !== undefined) throw new Error(`There is no mutation "${strange}"; --list names them.`);
    return { names: positionals, minutes: values.minutes, seed: values.seed, json: values.json };
  } catch (error) {
    process.stderr.write(`${(error as Error).message}\n${USAGE}`);
    return 2;
  }
}

async function tryOne(mutation: Mutation, minutes: string, seed: string): Promise<Caught> {
  const { name } = mutation;
  const directory = mkdtempSync(join(tmpdir(), 'onetake-mutation-'));
  try {
    for (const entry of COPIED) cpSync(join(ROOT, entry), join(directory, entry), { recursive: true });
    symlinkSync(join(ROOT, 'node_modules'), join(directory, 'node_modules'));
    const missing = mutation.edits.find((edit) => !applies(directory, edit));
    if (missing !== undefined) {
      return {
        name,
        by: 'does not apply',
        what: `${missing.file}: ${missing.find.slice(0, 50)}`,
        afterSeconds: null,
      };
    }
    if (mutation.testsOnly !== true) {
      const longest = Math.max(Number(minutes), mutation.minutes ?? 0);
      const caught = await byTheSuite(name, directory, String(longest), mutation.seed ?? seed);
      if (caught.by !== 'nobody' || mutation.tests === undefined) return caught;
    }
    return await byTests(name, directory, mutation.tests ?? []);
  } finally {
    rmSync(directory, { recursive: true, force: true });
  }
}

function applies(directory: string, { file, find, replace }: Mutation['edits'][number]): boolean {
  const path = join(directory, file);
  const text = readFileSync(path, 'utf8');
  if (!text.includes(find)) return false;
  writeFileSync(
    path,
    text.replace(find, () => replace),
  );
  return true;
}

async function byTheSuite(name: string, directory: string, minutes: string, seed: string): Promise<Caught> {
  const args = [
    'test/chaos/suite/run.ts',
    '--minutes',
    minutes,
    '--seed',
    seed,
    '--output',
    join(tmpdir(), 'onetake-mutations'),
    '--json',
  ];
  const { code, stdout, stderr } = await run(args, directory);
  // Node.js itself ends with 1 as well, when it can't even begin.
  if (code !== 1 || stdout === '') {
    return {
      name,
      by: 'nobody',
      what: code === 0 ? 'all was well' : `could not run: ${stderr.slice(-200)}`,
      afterSeconds: null,
    };
  }
  const { violations } = JSON.parse(stdout) as { violations: { rule: string; what: string; atMs: number }[] };
  const [first] = violations;
  const what = `${first?.rule} (${first?.what.slice(0, 140)})`;
  return { name, by: 'chaos suite', what, afterSeconds: (first?.atMs ?? 0) / 1_000 };
}

async function byTests(
  name: string,
  directory: string,
  tests: NonNullable<Mutation['tests']>,
): Promise<Caught> {
  const begun = performance.now();
  const failed: string[] = [];
  for (const { project, file } of tests) {
    const vitest = join(ROOT, 'node_modules/vitest/vitest.mjs');
    const args = [vitest, 'run', '--config', 'test/vitest.config.ts', '--project', project, file];
    const { code, stdout } = await run(args, directory);
    if (code !== 0 && /Tests .*failed/.test(stdout)) failed.push(file);
  }
  const afterSeconds = (performance.now() - begun) / 1_000;
  return { name, by: failed.length > 0 ? 'tests' : 'nobody', what: failed.join(', '), afterSeconds };
}

async function run(args: readonly string[], cwd: string) {
  const child = spawn(process.execPath, ['--', ...args], {
    cwd,
    env: { ...process.env, NO_COLOR: '1' },
    timeout: LIMIT_MS,
  });
  running = child;
  let [stdout, stderr] = ['', ''];
  child.stdout.setEncoding('utf8').on('data', (chunk: string) => {
    stdout += chunk;
  });
  child.stderr.setEncoding('utf8').on('data', (chunk: string) => {
    stderr = (stderr + chunk).slice(-20_000);
  });
  const code = await new Promise<number | null>((resolve) => child.once('close', resolve));
  running = undefined;
  return { code, stdout, stderr };
}

function line({ name, by, what, afterSeconds }: Caught): string {
  const when = afterSeconds === null ? '' : ` after ${afterSeconds.toFixed(0)} s`;
  return `${name.padEnd(32)}${by}${when}: ${what}`;
}
