import type { Command } from 'commander';
import type { Observation, ObserveOptions } from '../runtime/observe.ts';
import type { ProcessOptions } from '../runtime/process-options.ts';
import { wholeNumber } from './arguments.ts';
import type { Context, Runner } from './context.ts';
import { EXIT } from './errors.ts';
import { eventPrinter } from './event-lines.ts';
import { aborted } from './signals.ts';

/** What runs until it is told to stop: a worker, a poller. */
export interface Service {
  start(): Promise<void>;
  /** Any number of times, also of one that never started. */
  stop(): Promise<void>;
}

export function addRun(program: Command, run: Runner): void {
  const add = (name: string, summary: string, roles: readonly Role[]) =>
    program
      .command(name)
      .description(
        `${summary} SIGTERM or Ctrl-C drains: a POST in flight ends first, and nothing is aborted.`,
      )
      .summary(summary.replace(/\.$/, '').replace(/^R/, 'r'))
      .option(
        '--http-port <n>',
        'serves /metrics, /healthz and /readyz there',
        wholeNumber('--http-port', 0, 65_535),
      )
      .option('--http-host <address>', 'for --http-port; 0.0.0.0 in a container', '127.0.0.1')
      .action(run((context, options: ServeOptions) => serveConfigured(context, roles, options)));
  add('worker', 'Runs a worker, which submits queued requests.', ['worker']);
  add('poller', 'Runs a poller, which follows accepted tasks and stores their files.', ['poller']);
  add('start', 'Runs a worker and a poller in one process.', ['worker', 'poller']);
}

/** After the last word of a service. */
const LINGER_MS = 2_000;

type Role = 'worker' | 'poller';

interface ServeOptions {
  readonly httpPort?: number;
  readonly httpHost: string;
}

async function serveConfigured(
  context: Context,
  roles: readonly Role[],
  { httpPort, httpHost }: ServeOptions,
): Promise<number> {
  // From the first moment: a signal while the configuration is read ends this run in order, too.
  const drain = context.signals.drain();
  const read = await Promise.race([context.config(), aborted(drain)]);
  if (read === undefined) return exitSoon(EXIT.done);
  const { config } = read;
  const print = eventPrinter(context.terminal);
  let isHeard = true;
  context.environment.requireAll(config, { connectionString: true, keys: true });
  const connectionString = context.environment.connectionString(config);
  const observation =
    httpPort === undefined
      ? undefined
      : await observed({
          host: httpHost,
          port: httpPort,
          connectionString,
          processes: roles.length,
          onEvent: print,
        });
  const options: ProcessOptions = {
    config,
    connectionString,
    onEvent: (name, event) => {
      observation?.onEvent(name, event);
      if (isHeard) print(name, event);
    },
  };
  try {
    const services = await Promise.all(roles.map((role) => createService(role, options)));
    await observation?.start();
    const exitCode = await serve(context, services, () => {
      isHeard = false;
    });
    return exitSoon(exitCode);
  } finally {
    await observation?.stop();
  }
}

async function observed(options: ObserveOptions): Promise<Observation> {
  const { observe } = await import('../runtime/observe.ts');
  return observe(options);
}

/** The timer fires only if something still keeps the process alive: all of ours has ended. */
function exitSoon(exitCode: number): number {
  setTimeout(() => process.exit(exitCode), LINGER_MS).unref();
  return exitCode;
}

/** Throws for whatever is wrong with the options, before anything runs. */
export async function createService(role: Role, options: ProcessOptions): Promise<Service> {
  if (role === 'worker') return (await import('../runtime/worker-process.ts')).createWorker(options);
  return (await import('../runtime/poller-process.ts')).createPoller(options);
}

/**
 * Runs services until a signal, or until nobody reads the output any more, and drains them. When one can't
 * start, none runs, and `onFailedStart` comes before the others are stopped.
 */
export async function serve(
  { terminal, signals }: Pick<Context, 'terminal' | 'signals'>,
  services: readonly Service[],
  onFailedStart: () => void = () => {},
): Promise<number> {
  const drain = AbortSignal.any([signals.drain(), terminal.closed]);
  const stop = () => Promise.all(services.map((service) => service.stop()));
  try {
    for (const service of services) {
      // A database that keeps silent must not keep a signal waiting.
      if (!drain.aborted) await Promise.race([service.start(), aborted(drain)]);
    }
  } catch (error) {
    onFailedStart();
    await stop();
    if (drain.aborted) return EXIT.done;
    throw error;
  }
  if (terminal.isInteractive && !drain.aborted) terminal.note('Ctrl-C stops, after what is in flight.');
  await aborted(drain);
  await stop();
  return EXIT.done;
}
