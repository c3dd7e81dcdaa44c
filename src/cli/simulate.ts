import { readFileSync } from 'node:fs';
import { resolve } from 'node:path';
import type { Command } from 'commander';
import { OnetakeError } from '../core/errors.ts';
import type { SimulatorEvent } from '../simulator/events.ts';
import type { ScriptRule } from '../simulator/script.ts';
import { wholeNumber } from './arguments.ts';
import type { Context, Runner } from './context.ts';
import { EXIT, usageError } from './errors.ts';
import { type EventLine, printLine } from './event-lines.ts';
import type { Terminal } from './output.ts';
import { aborted } from './signals.ts';
import { shortId } from './text.ts';

/** The same on every start, so that an app's configuration can name them. */
export const SIMULATOR_PORT = 4646;
export const SIMULATOR_FILES_PORT = 4647;

interface SimulateOptions {
  readonly port: number;
  readonly filesPort: number;
  readonly script?: string;
}

export function addSimulate(program: Command, run: Runner): void {
  program
    .command('simulate')
    .summary('the provider simulator alone, on loopback')
    .description(
      'Runs the provider simulator alone, on loopback. Nothing is charged. Any key that begins with sk_ does.',
    )
    .option('--port <n>', 'of the API; 0 takes a free one', wholeNumber('--port', 0, 65_535), SIMULATOR_PORT)
    .option(
      '--files-port <n>',
      'of the result files; 0 takes a free one',
      wholeNumber('--files-port', 0, 65_535),
      SIMULATOR_FILES_PORT,
    )
    .option('--script <file>', 'faults by rule, as a JSON list')
    .addHelpText(
      'after',
      `
Example:
  $ onetake simulate --port 8080 --script outage.json
  with [{ "posts": [3, 8], "respond": { "status": 502 } }] in outage.json`,
    )
    .action(run((context, options: SimulateOptions) => simulate(context, options)));
}

async function simulate({ terminal, signals, cwd }: Context, options: SimulateOptions): Promise<number> {
  const { port, filesPort, script } = options;
  const { createSimulator } = await import('../simulator/create-simulator.ts');
  const simulator = createSimulator({
    port,
    filesPort,
    ...(script === undefined ? {} : { script: readScriptFile(resolve(cwd, script)) }),
    onEvent: simulatorPrinter(terminal),
  });
  const stop = AbortSignal.any([signals.drain(), terminal.closed]);
  try {
    const { url, filesUrl } = await simulator.start().catch((error: unknown) => {
      throw withOption(error, options);
    });
    if (!terminal.isInteractive || terminal.json) {
      terminal.print(JSON.stringify({ event: 'simulator:ready', url, filesUrl }));
    } else {
      terminal.block([
        ['API', url],
        ['files', filesUrl],
        ['ledger', `${url}/__simulator/ledger`],
      ]);
      terminal.note('Ctrl-C stops it.');
    }
    await aborted(stop);
    return EXIT.done;
  } finally {
    await simulator.stop();
  }
}

function isTaken(cause: unknown): boolean {
  return cause instanceof Error && 'code' in cause && cause.code === 'EADDRINUSE';
}

/** Of two ports, which one is taken, in the words of the command line. */
function withOption(error: unknown, { filesPort }: SimulateOptions): unknown {
  if (!(error instanceof OnetakeError) || !isTaken(error.cause)) return error;
  const option = error.message.includes(`:${filesPort}: `) ? '--files-port' : '--port';
  return new OnetakeError(error.code, error.message, {
    hint: `Another program has that port. Give ${option} another one, or 0 for a free one.`,
    cause: error.cause,
  });
}

/** The rules are checked by the simulator; here only that there is JSON. */
function readScriptFile(path: string): readonly ScriptRule[] {
  let text: string;
  try {
    text = readFileSync(path, 'utf8');
  } catch {
    throw usageError("--script: there is no such file, or it can't be read.");
  }
  try {
    return JSON.parse(text.replace(/^\uFEFF/, '')) as readonly ScriptRule[];
  } catch (error) {
    const place = /\(line \d+ column \d+\)/.exec(String(error))?.[0];
    throw usageError(`--script: the file isn't valid JSON${place === undefined ? '' : ` ${place}`}.`);
  }
}

function simulatorPrinter(terminal: Terminal): (event: SimulatorEvent) => void {
  if (!terminal.isInteractive || terminal.json) {
    return ({ type, at, ...event }) =>
      terminal.print(
        JSON.stringify({ event: `simulator:${type}`, time: new Date(at).toISOString(), ...event }),
      );
  }
  return (event) => {
    const line = simulatorLine(event);
    if (line !== undefined) printLine(terminal, line);
  };
}

function simulatorLine(event: SimulatorEvent): EventLine | undefined {
  switch (event.type) {
    case 'answer': {
      const answer = [event.status, event.end]
        .filter((part) => part !== null && part !== undefined)
        .join(', ');
      const charge = event.charged
        ? `charged${event.taskId === undefined ? '' : `, task ${shortId(event.taskId)}`}`
        : 'nothing charged';
      return {
        text: `POST ${event.number} ${event.operation}: ${answer}; ${charge}`,
        ...(event.status === null || event.status >= 400 ? { format: 'yellow' as const } : {}),
      };
    }
    case 'download':
      return { text: `task ${shortId(event.taskId)}: file read, ${event.httpStatus}` };
    case 'control':
      return { text: `control: ${event.action}` };
    default:
      return undefined;
  }
}
