import { readFileSync } from 'node:fs';
import { Command, CommanderError } from 'commander';
import { suggestion } from '../core/errors.ts';
import { loadEnvFile, readEnvironment } from '../runtime/environment.ts';
import { addAccounts } from './accounts.ts';
import { addAmbiguous } from './ambiguous.ts';
import { refuseOptionsAsValues } from './arguments.ts';
import { addBreaker } from './breaker.ts';
import { type Context, createContext, type Runner } from './context.ts';
import { addDemo } from './demo.ts';
import { addDev } from './dev.ts';
import { addDoctor } from './doctor.ts';
import { addEnqueue } from './enqueue.ts';
import { CommandError, EXIT, reportOf, usageError } from './errors.ts';
import { addMigrate } from './migrate.ts';
import { createTerminal, type Terminal } from './output.ts';
import { addRecover } from './recover.ts';
import { addRequests } from './requests.ts';
import { addRun } from './run.ts';
import { listenForSignals } from './signals.ts';
import { addSimulate } from './simulate.ts';

const HELP = `
Begin with:
  $ onetake demo      the whole story in a minute, on this machine alone
  $ onetake dev       database, simulator and workers for your app

Run it:
  $ onetake migrate   once per release, before the workers
  $ onetake start     a worker and a poller in one process
  $ onetake enqueue text-to-music --field prompt='a slow waltz' --wait

In an incident:
  $ onetake breaker list
  $ onetake ambiguous list
  $ onetake recover

Exit codes: 0 done, 1 failed or refused, 2 usage or configuration,
130 interrupted.`;

/** Settled before parsing, since a mistake in the arguments is reported in the same form. */
function wantsJson(args: readonly string[]): boolean {
  const end = args.indexOf('--');
  return args.slice(0, end === -1 ? undefined : end).includes('--json');
}

function version(): string {
  const manifest: unknown = JSON.parse(readFileSync(new URL('../../package.json', import.meta.url), 'utf8'));
  return (manifest as { version: string }).version;
}

async function main(args: readonly string[]): Promise<number> {
  const environment = readEnvironment();
  const terminal = createTerminal(process, { json: wantsJson(args), environment });
  let context: Context | undefined;
  const fail = (error: unknown): number => {
    const report = reportOf(error, context?.database());
    terminal.error(report);
    return report.exitCode;
  };
  const signals = listenForSignals(() => {
    process.exit(fail(new CommandError('interrupted', 'Interrupted.', EXIT.interrupted)));
  });
  // What nobody awaited: the process is in a state that nobody knows, so it ends, in one line.
  process.on('uncaughtException', (error) => process.exit(fail(error)));

  const program = new Command('onetake');
  let exitCode: number = EXIT.done;
  const run: Runner =
    (work) =>
    async (...values) => {
      const { config: configPath, envFile } = program.opts<{ config?: string; envFile?: string }>();
      if (envFile !== undefined) loadEnvFile(envFile);
      context = createContext({
        terminal,
        environment,
        signals,
        cwd: process.cwd(),
        ...(configPath === undefined ? {} : { configPath }),
      });
      exitCode = (await work(context, ...values)) ?? EXIT.done;
    };

  program
    .description(
      'Submits paid generation jobs from a Postgres-backed queue, and never pays twice for one intent.',
    )
    .option('--config <file>', 'the configuration (default: onetake.config.{ts,mts,js,mjs,json} here)')
    .option('--env-file <file>', 'adds the variables of a .env file')
    .option('--json', 'exactly one JSON value on stdout; errors as JSON on stderr')
    .version(version(), '--version', 'prints the version')
    .helpOption('--help', 'prints help')
    .addHelpText('after', HELP);
  configure(program, terminal);
  for (const add of [
    addDemo,
    addDev,
    addMigrate,
    addRun,
    addEnqueue,
    addRequests,
    addAmbiguous,
    addBreaker,
    addAccounts,
    addRecover,
    addDoctor,
    addSimulate,
  ]) {
    add(program, run);
  }
  const common = ['--help', ...program.options.map(({ long }) => long ?? '')];
  refuseOptionsAsValues(program, common);
  for (const command of everyCommand(program)) {
    configure(command, terminal);
    refuseOptionsAsValues(command, common);
    if (command.commands.length > 0)
      command.on('command:*', ([name]: string[]) => unknownCommand(command, name));
  }

  try {
    await program.parseAsync([...args], { from: 'user' });
    return exitCode;
  } catch (error) {
    if (!(error instanceof CommanderError)) return fail(error);
    if (error.exitCode === 0) return EXIT.done;
    if (error.code !== 'commander.help') return fail(error);
    // Help for want of a command: a person has read it on stderr by now.
    return terminal.json ? fail(usageError('Which command?', 'See `onetake --help`.')) : EXIT.usage;
  }
}

/** `accounts show` is near to nothing that there is: then it helps to say what there is. */
function unknownCommand(group: Command, given = ''): never {
  const names = group.commands.map((command) => command.name());
  const shown = /^[A-Za-z0-9_.-]{1,40}$/.test(given) ? ` '${given}'` : '';
  throw usageError(
    `Unknown command${shown} of \`onetake ${group.name()}\`.${suggestion(given, names)}`,
    `Commands: ${names.map((name) => `onetake ${group.name()} ${name}`).join(', ')}.`,
  );
}

function configure(command: Command, terminal: Terminal): void {
  command
    .exitOverride()
    .configureHelp({ showGlobalOptions: true, helpWidth: Math.min(100, terminal.columns) })
    .configureOutput({
      writeOut: (text) => terminal.print(text.replace(/\n$/, '')),
      writeErr: (text) => {
        if (!terminal.json) terminal.note(text.replace(/\n$/, ''));
      },
      // Reported once, by `fail`, in the form that the caller asked for.
      outputError: () => {},
    });
}

function everyCommand(command: Command): Command[] {
  return command.commands.flatMap((child) => [child as Command, ...everyCommand(child as Command)]);
}

process.exitCode = await main(process.argv.slice(2));
