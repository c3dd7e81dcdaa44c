import { randomBytes } from 'node:crypto';
import { mkdirSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { parseArguments, USAGE } from './arguments.ts';
import { runChaos, TARGETS } from './chaos.ts';
import { reportText } from './report.ts';
import { describeDeed, planIncidents } from './schedule.ts';

const parsed = parseArguments(process.argv.slice(2), () => randomBytes(5).toString('hex'));
const code = await main();
// Everything has been stopped and closed by now; a socket that the system keeps to itself must not keep us.
process.stdout.write('', () => process.exit(code));

async function main(): Promise<number> {
  if (parsed.kind === 'help') {
    process.stdout.write(USAGE);
    return 0;
  }
  if (parsed.kind === 'wrong') {
    process.stderr.write(`${parsed.problems.join('\n')}\nSee: npm run chaos -- --help\n`);
    return 2;
  }
  const { options } = parsed;
  if (options.plan) {
    for (const { number, atMs, deed } of planIncidents(options.seed, options.minutes * 60_000, TARGETS)) {
      process.stdout.write(`${(atMs / 1_000).toFixed(1).padStart(7)} s  #${number} ${describeDeed(deed)}\n`);
    }
    return 0;
  }
  const directory = options.output ?? tmpdir();
  mkdirSync(directory, { recursive: true });
  const file = join(directory, `onetake-chaos-${options.seed}-${process.pid}.log`);
  const progress = (line: string) => void process.stderr.write(`${line}\n`);
  const interrupted = new AbortController();
  for (const signal of ['SIGINT', 'SIGTERM'] as const) process.on(signal, () => interrupted.abort());
  try {
    const report = await runChaos(options, { file, progress, signal: interrupted.signal });
    process.stdout.write(options.json ? `${JSON.stringify(report)}\n` : reportText(report));
    if (report.violations.length > 0) return 1;
    return interrupted.signal.aborted ? 130 : 0;
  } catch (error) {
    process.stderr.write(`The suite could not run: ${String((error as Error).stack ?? error)}\n`);
    return 2;
  }
}
